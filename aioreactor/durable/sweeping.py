"""The store as a sweeper sees it: what belongs to runs and is not in their records is looked after on the way."""

from __future__ import annotations

import logging

from aioreactor.durable.correlating import mend
from aioreactor.durable.lines import Beats
from aioreactor.logs import note
from aioreactor.store.correlations import CorrelationIndex
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import Repaired, RunRow
from aioreactor.store.store import RunStore

logger = logging.getLogger("aioreactor.runs")


class SweptRuns:
    """See `jobs.ports.SweptStore`.

    Positions of runs which nobody takes for long get signs of life; correlation ids of interrupts that are open no more
    are let go of.

    Args:
        store: Has the runs.
        index: Has the correlation ids.
        keep_ms: How long these are known after their interrupts.
        beats: Gives signs of life; None if nothing is coordinated.
    """

    def __init__(self, store: RunStore, index: CorrelationIndex, keep_ms: int, beats: Beats | None) -> None:
        self._store = store
        self._index = index
        self._keep_ms = keep_ms
        self._beats = beats
        self._codec = PlanCodec()

    async def stalled(self, limit: int = 100, *, again_ms: int = 30_000) -> list[RunRow]:
        """See `jobs.ports.SweptStore`.

        Cancellation: some positions may have no sign of life.
        """
        rows = await self._store.stalled(limit, again_ms=again_ms)
        for row in rows:
            await self._beat(row)
        return rows

    async def _beat(self, row: RunRow) -> None:
        if not row.gates or self._beats is None:
            return
        try:
            gates = self._codec.gates_back(row.gates) or {}
            await self._beats.beat(gates.get("positions", {}))
        except Exception as error:
            note(logger, logging.WARNING, "position_not_beaten", str(error), run_id=row.run_id)

    async def repair(self, limit: int = 100) -> Repaired:
        """See `jobs.ports.SweptStore`.

        Cancellation: as there.
        """
        repaired = await self._store.repair(limit)
        await mend(self._store, self._index, limit, self._keep_ms)
        return repaired
