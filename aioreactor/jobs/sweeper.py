"""Finds what nobody carries on, and rings for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from aioreactor.jobs.ports import SweptStore
from aioreactor.jobs.queue import JobQueue
from aioreactor.store.answers import Repaired

LIMIT = 500
BATCHES = 10
_log = logging.getLogger("aioreactor.jobs")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        stalled: Runs that nobody carries on.
        rung: How many of them were rung for; the ring of the others was still outstanding.
        repaired: What was mended in the index.
    """

    stalled: int = 0
    rung: int = 0
    repaired: Repaired = field(default_factory=Repaired)


async def sweep(store: SweptStore, queue: JobQueue, limit: int = LIMIT) -> Swept:
    """Ring for up to ``limit`` runs that somebody has to carry on and nobody does, and mend a part of the index.

    A run is lost when it is to go on and its lease ended, or when nobody took it for long. It is rung once per loss:
    its version, which grows when somebody takes it, tells one loss from the next. It is rung for in the queue that it
    was started for, else in ``queue``.

    Raises:
        StoreError: The store or the queue is away.
        ValueError: ``limit`` is not positive.

    Cancellation: some may have been rung; those found but not rung are found again after half a minute.
    """
    rows = await store.stalled(limit)
    lost: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        lost.setdefault(row.queue or queue.queue_name, []).append((row.run_id, str(row.ver)))
    rung = 0
    for name, losses in lost.items():
        rung += await queue.named(name).ring_lost(losses)
    repaired = await store.repair(limit)
    return Swept(len(rows), rung, repaired)


async def sweep_up(store: SweptStore, queue: JobQueue, limit: int = LIMIT, batches: int = BATCHES) -> Swept:
    """`sweep` until a batch is not full, at most ``batches`` times; logs what it did.

    Raises:
        StoreError: As for `sweep`.
        ValueError: As for `sweep`.

    Cancellation: as for `sweep`.
    """
    stalled = rung = 0
    last = Swept()
    for _ in range(batches):
        last = await sweep(store, queue, limit)
        stalled, rung = stalled + last.stalled, rung + last.rung
        if last.stalled < limit:
            break
    if rung:
        _log.info("swept: %d runs that nobody carried on are rung for again", rung)
    return Swept(stalled, rung, last.repaired)
