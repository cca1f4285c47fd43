"""What a worker needs of the rest of the library, and what it gives to it; the composition root joins both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from aioreactor.clock import SYSTEM_CLOCK, Clock
from aioreactor.definition.reactor import Reactor
from aioreactor.jobs.book import ScheduleBook
from aioreactor.store.answers import Repaired
from aioreactor.store.records import RunRow


class Carrier(Protocol):
    """Goes on with runs in this process."""

    async def carry_on(self, run_id: str, delivery: str) -> None:
        """Take the run and execute it here until it has ended, parked, was handed off or lost its lease.

        Returns at once when somebody else lives there or it is over. Never raises.

        Args:
            run_id: Which.
            delivery: The job that brought it, for logs.

        Cancellation: it is saved and let go, then this returns; whoever cancelled rings it again.
        """
        ...


class Doorbell(Protocol):
    """Tells workers that runs want to be carried on; `JobQueue` is one."""

    async def ring(self, run_ids: Iterable[str], *, due_ms: int | None = None) -> list[str]:
        """See `JobQueue.ring`.

        Raises:
            StoreError: See there.

        Cancellation: see there.
        """
        ...


class SweptStore(Protocol):
    """The part of a `Store` that a sweeper needs."""

    async def stalled(self, limit: int = 100, *, again_ms: int = 30_000) -> list[RunRow]:
        """See `Store.stalled`.

        Raises:
            StoreError: The store is away.

        Cancellation: see there.
        """
        ...

    async def repair(self, limit: int = 100) -> Repaired:
        """See `Store.repair`.

        Raises:
            StoreError: The store is away.

        Cancellation: see there.
        """
        ...


class Starts(Protocol):
    """Begins the runs of schedules."""

    async def start(self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Have a worker execute a new run; False if there is one of this id already.

        Raises:
            AioreactorError: It cannot be begun.
            StoreError: The store is away; it may have been begun.

        Cancellation: it was begun, or not.
        """
        ...

    async def is_over(self, run_id: str) -> bool:
        """Whether a run has ended, or there is no such run any more.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What schedules need.

    Attributes:
        starts: Begins their runs.
        book: Knows which ticks were dealt with, and what time it is.
        clock: Measures how long to sleep.
    """

    starts: Starts
    book: ScheduleBook
    clock: Clock = SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class Backing:
    """What stands behind a worker.

    Attributes:
        carrier: Executes runs.
        store: Is swept; None leaves that to others.
        scheduling: Serves schedules; None has none.
    """

    carrier: Carrier
    store: SweptStore | None = None
    scheduling: Scheduling | None = None


OpensBacking: TypeAlias = Callable[[dict[Any, Any]], AbstractAsyncContextManager[Backing]]
"""Opens a backing inside a worker's event loop. Gets arq's ``ctx`` after the user's start-up hook has filled it."""

Hook: TypeAlias = Callable[[dict[Any, Any]], Any]
"""A coroutine function that arq calls with its ``ctx``."""

Losses: TypeAlias = Sequence[tuple[str, str]]
"""Ids of runs, each with what tells this loss of it from others."""
