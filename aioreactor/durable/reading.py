"""Looking at stored runs: snapshots, lists, outcomes as they come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aioreactor.durable.base import Base
from aioreactor.durable.fans import RunFans
from aioreactor.engine.fanning import load
from aioreactor.engine.progress import progress_of
from aioreactor.errors import NotResumable, RunNotFound, SerializationError, UnknownReactor
from aioreactor.plan.model import Plan
from aioreactor.progress import Progress
from aioreactor.registry import find_plan
from aioreactor.results import Outcome
from aioreactor.snapshots import RunSnapshot, StoredReader, bare_outcome, from_row
from aioreactor.store.answers import Held, Query
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import TERMINAL
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.trace import Status

AT_REST: frozenset[Status] = frozenset((*TERMINAL, "paused"))
"""What whoever waits for a run is told of."""


class Reading(Base):
    """The part of `DurableRuns` that changes nothing (or removes all)."""

    async def finished(self, run_id: str, timeout: float | None) -> Outcome[Any]:
        """The outcome of a run, once it has ended, or pauses; pushed, not polled.

        Raises:
            RunNotFound: there is no such run (any more).
            TimeoutError: it took longer than ``timeout`` seconds.

        Cancellation: only the wait ends.
        """
        await self.store.wait_done(run_id, timeout, until=AT_REST)
        return await self.outcome(run_id)

    async def outcome(self, run_id: str, plan: Plan | None = None) -> Outcome[Any]:
        """The outcome of a run that has ended, or is paused.

        Raises:
            RunNotFound: there is no such run (any more).
            NotResumable: it has not ended.
            UnknownReactor, SerializationError: it ended well, and its value cannot be read here.
        """
        record = await self._read(run_id)
        try:
            found = (await self._reader(record, plan)).outcome()
        except (UnknownReactor, SerializationError):
            found = bare_outcome(record.row)
            if found is None:
                raise
        if found is None:
            raise NotResumable(run_id, record.row.status, "it has no outcome yet")
        return found

    async def _reader(self, record: StoredRun, plan: Plan | None = None) -> StoredReader:
        chosen = plan if plan is not None else find_plan(record.row.reactor, record.row.version)
        codec, row = self._codec(), record.row
        reader = StoredReader(self.environment, chosen, codec, record)
        for results in reader.bind(self.fans_of(chosen, row.run_id, row.created_ms, row.queue, codec)):
            await load(results)
        return reader

    def fans_of(self, plan: Plan, run_id: str, created_ms: int, queue: str, codec: PlanCodec) -> RunFans | None:
        """Who deals the elements of a run's maps; None if none of them fans out."""
        return RunFans(self, run_id, plan.name, created_ms, queue, codec) if plan.has_fans else None  # type: ignore[arg-type]

    async def find(self, run_id: str, plan: Plan | None = None) -> RunSnapshot:
        """A snapshot of a run; without steps and results when they cannot be read here (the reactor is not imported).

        Raises:
            RunNotFound: there is no such run (any more).
        """
        record = await self._read(run_id)
        try:
            return (await self._reader(record, plan)).snapshot()
        except (UnknownReactor, SerializationError):
            return replace(from_row(record.row), outcome=bare_outcome(record.row))

    async def progress(self, run_id: str) -> Progress:
        """How far a run is.

        Raises:
            RunNotFound: there is no such run (any more).
            UnknownReactor, SerializationError: it cannot be read here.
        """
        record = await self._read(run_id)
        plan, row, codec = find_plan(record.row.reactor, record.row.version), record.row, self._codec()
        reader = StoredReader(self.environment, plan, codec, record)
        reader.state.reported.update(codec.progress_back(row.progress))
        fans = self.fans_of(plan, row.run_id, row.created_ms, row.queue, codec)
        begun = [run.path for run in reader.fan_runs()] if fans is not None and row.place is None else []
        found = {path: await fans.progress(path) for path in begun} if fans is not None else {}
        return progress_of(reader.state, row.status, {path: each for path, each in found.items() if each is not None})

    async def page(self, query: Query, limit: int, cursor: str) -> tuple[list[RunSnapshot], str]:
        """Some runs, newest first, and the cursor of the next page (empty after the last)."""
        page = await self.store.page(query, limit=limit, cursor=cursor)
        return [from_row(row) for row in page.rows], page.cursor

    async def reactor_of(self, run_id: str) -> str | None:
        """The name of a run's reactor; None when there is no such run."""
        row = await self.store.peek(run_id)
        return row.reactor if row is not None else None

    async def delete(self, run_id: str) -> None:
        """Remove all of a run at once.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: somebody executes it right now.
        """
        row = await self.store.peek(run_id)
        removed = await self.store.delete(run_id)
        if isinstance(removed, Held):
            raise NotResumable(run_id, "running", f"{removed.owner} executes it; cancel it first")
        if not removed:
            raise RunNotFound(run_id)
        if row is not None and not row.ended:
            await self.out_of_line(row)
        if row is not None and row.parent:
            queue = await self.store.wake(row.parent)  # who waits for its outcome is not to wait for long
            if queue is not None:
                await self.ring(row.parent, queue)
