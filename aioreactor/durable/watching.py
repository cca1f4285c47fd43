"""Following a stored run, entry by entry, from any process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aioreactor.durable.base import Base
from aioreactor.errors import RunNotFound
from aioreactor.trace import TraceEntry

EVERY = 0.25
"""Seconds between two looks at a run that goes on; its end is pushed."""


class Watching(Base):
    """The part of `DurableRuns` that follows runs."""

    async def events(self, run_id: str, after: int) -> AsyncIterator[TraceEntry]:
        """The trace of a run from after that ``seq`` on, as it is stored, until the run has ended.

        Raises:
            RunNotFound: there is no such run (any more).
            SerializationError: an entry cannot be read.

        Cancellation: only the following ends.
        """
        codec, following = self._codec(), after + 1
        trace = self.store.space.of_run(run_id)[2]
        async with self.store.pushes().listen(self.store.space.done_channel(run_id)) as bell:
            while True:
                row = await self.store.peek(run_id)  # before its entries, so that those of its end are among them
                if row is None:
                    raise RunNotFound(run_id)
                for data in await self.client.execute("LRANGE", trace, following, -1, repeatable=True):
                    yield TraceEntry(following, *codec.entry_back(data))
                    following += 1
                if row.ended:
                    return
                await bell.wait(EVERY)
