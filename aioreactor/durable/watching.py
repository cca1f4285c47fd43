"""Following a stored run, entry by entry, from any process."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from aioreactor.durable.base import Base
from aioreactor.errors import RunNotFound
from aioreactor.store.following import following
from aioreactor.trace import TraceEntry


class Watching(Base):
    """The part of `DurableRuns` that follows runs."""

    async def events(self, run_id: str, after: int) -> AsyncGenerator[TraceEntry, None]:
        """The trace of a run from after that ``seq`` on, as it is stored, until the run has ended; pushed, not polled.

        Raises:
            RunNotFound: there is no such run (any more).
            SerializationError: an entry cannot be read.
            StoreError: the store is away.

        Cancellation: only the following ends.
        """
        codec, seq = self._codec(), max(after + 1, 0)
        async with following(self.client, self.store.pushes(), self.store.space, run_id, seq) as follower:
            while True:
                piece = await follower.look()
                if piece is None:
                    raise RunNotFound(run_id)
                for data in piece.entries:
                    yield TraceEntry(seq, *codec.entry_back(data))
                    seq += 1
                if piece.is_last:
                    return
                if not piece.is_full:
                    await follower.wait()
