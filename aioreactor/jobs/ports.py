"""What a worker needs of the rest of the library, and what it gives to it; the composition root joins both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from aioreactor.store.records import Repaired, RunRow


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


@dataclass(frozen=True, slots=True)
class Backing:
    """What stands behind a worker.

    Attributes:
        carrier: Executes runs.
        store: Is swept; None leaves that to others.
    """

    carrier: Carrier
    store: SweptStore | None = None


OpensBacking: TypeAlias = Callable[[dict[Any, Any]], AbstractAsyncContextManager[Backing]]
"""Opens a backing inside a worker's event loop. Gets arq's ``ctx`` after the user's start-up hook has filled it."""

Hook: TypeAlias = Callable[[dict[Any, Any]], Any]
"""A coroutine function that arq calls with its ``ctx``."""

Losses: TypeAlias = Sequence[tuple[str, str]]
"""Ids of runs, each with what tells this loss of it from others."""
