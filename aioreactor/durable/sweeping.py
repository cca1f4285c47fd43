"""The store as a sweeper sees it: what belongs to runs and is not in their records is looked after on the way."""

from __future__ import annotations

from aioreactor.durable.correlating import mend
from aioreactor.durable.lines import LineWatch
from aioreactor.store.answers import Repaired
from aioreactor.store.correlations import CorrelationIndex
from aioreactor.store.records import RunRow
from aioreactor.store.store import RunStore


class SweptRuns:
    """See `jobs.ports.SweptStore`.

    Positions of runs that live get signs of life; correlation ids of interrupts that are open no more
    are let go of.

    Args:
        store: Has the runs.
        index: Has the correlation ids.
        keep_ms: How long these are known after their interrupts.
        lines: Gives signs of life; None if nothing is coordinated.
    """

    def __init__(self, store: RunStore, index: CorrelationIndex, keep_ms: int, lines: LineWatch | None) -> None:
        self._store = store
        self._index = index
        self._keep_ms = keep_ms
        self._lines = lines

    async def stalled(self, limit: int = 100, *, again_ms: int = 30_000) -> list[RunRow]:
        """See `jobs.ports.SweptStore`.

        Cancellation: some positions may have no sign of life.
        """
        if self._lines is not None:
            await self._lines.look(again_ms)
        return await self._store.stalled(limit, again_ms=again_ms)

    async def repair(self, limit: int = 100) -> Repaired:
        """See `jobs.ports.SweptStore`.

        Cancellation: as there.
        """
        repaired = await self._store.repair(limit)
        await mend(self._store, self._index, limit, self._keep_ms)
        return repaired
