"""Correlation ids of one run: claimed when an interrupt opens, unless another run's open interrupt has them."""

from __future__ import annotations

import logging

from aioreactor.engine.scope import NodeStatus
from aioreactor.errors import SerializationError
from aioreactor.logs import note
from aioreactor.store.correlations import CorrelationIndex, parted
from aioreactor.store.errors import StoreError
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.store import RunStore

logger = logging.getLogger("aioreactor.runs")
ROUNDS = 5


class RunCorrelations:
    """See `pausing.Correlations`."""

    def __init__(self, store: RunStore, index: CorrelationIndex, run_id: str, keep_ms: int) -> None:
        self._store = store
        self._index = index
        self._run_id = run_id
        self._keep_ms = keep_ms
        self._answered: list[tuple[str, str, str]] = []

    async def claim(self, reactor: str, correlation_id: str, path: str) -> str | None:
        """See `pausing.Correlations.claim`. When the store is away the id is not kept apart, and the log says so.

        Cancellation: it was noted, or not.
        """
        stale = run_id = ""
        try:
            for _ in range(ROUNDS):
                found = await self._index.claim(reactor, correlation_id, self._run_id, path, stale)
                if not found:
                    return None
                run_id, there = parted(found)
                if await _is_open(self._store, run_id, there):
                    return run_id
                stale = found
        except StoreError as error:
            text = f"{correlation_id!r} may not be found by resume: {error}"
            note(logger, logging.WARNING, "correlation_not_kept", text, run_id=self._run_id, path=path)
            return None
        return run_id  # it changed hands all the time, and is another's

    def answered(self, reactor: str, correlation_id: str, path: str) -> None:
        """An interrupt is open no more."""
        self._answered.append((reactor, correlation_id, path))

    @property
    def has_answered(self) -> bool:
        """Whether there is something to let go of."""
        return bool(self._answered)

    async def settle(self) -> None:
        """Let go of what was answered. A failure is only logged: the next who wants the id finds it stale.

        Cancellation: some were let go of.
        """
        found, self._answered = self._answered, []
        try:
            for reactor, correlation_id, path in found:
                await self._index.expire(reactor, correlation_id, self._run_id, path, self._keep_ms)
        except StoreError as error:
            note(logger, logging.WARNING, "correlation_stays", str(error), run_id=self._run_id)


async def mend(store: RunStore, index: CorrelationIndex, limit: int, keep_ms: int) -> int:
    """Let go of ids whose interrupts are open no more, where nobody came to it; how many.

    Raises:
        StoreError: the store is away.

    Cancellation: the rest is looked at an hour later.
    """
    found = 0
    for entry in await index.due(limit):
        holder = await entry.holder()
        if holder is not None and not await _is_open(store, *holder):
            await entry.expire(keep_ms)
            found += 1
    return found


async def _is_open(store: RunStore, run_id: str, path: str) -> bool:
    record = await store.read(run_id)
    if record is None or record.row.ended:
        return False
    if path not in record.steps:
        return True  # it is about to open there
    try:
        image = PlanCodec().image_back(path, record.steps[path])
    except SerializationError:
        return True  # whoever can read it knows better
    return image.status == NodeStatus.READY and image.opened > 0
