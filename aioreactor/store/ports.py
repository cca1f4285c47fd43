"""What the engine, the workers and the operators ask of a run store; `RunStore` and `VolatileStore` give it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aioreactor.store.answers import Accepted, Created, Exists, Held, Missing, Page, Query, Refused, Repaired
from aioreactor.store.claim import Claim
from aioreactor.store.records import LIVE, TERMINAL, Changes, NewRun, RunRecord, RunRow
from aioreactor.trace import Status

NO_CHANGES = Changes()
ANYTHING = Query()


class RingsBell(Protocol):
    """See `pushes.Bell`."""

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it rings; False if it did not within ``timeout`` seconds.

        Cancellation: a ring is kept for the next wait.
        """
        ...


class Store(Protocol):
    """Keeps runs. Only who holds a run's claim writes it.

    Every coroutine may raise `StoreError`: the store is away, or refused to serve. Every one with a claim may raise
    `OwnershipLost`: the run is not the claim's any more, and nothing was written.
    """

    async def create(
        self, run_id: str, new: NewRun, *, hold_ms: int | None = None, owner: str = "", replace: Collection[Status] = ()
    ) -> Created | Exists:
        """Create a run unless it exists; with ``hold_ms`` it is running and held, else pending.

        An existing run whose terminal status is in ``replace`` is deleted, in the same moment.

        Raises:
            ValueError: An id, name or number cannot be used; nothing was sent.

        Cancellation: it was created, or not; if it was, and nobody else takes it, the sweeper finds it.
        """
        ...

    async def create_many(
        self, runs: Sequence[tuple[str, NewRun]], *, replace: Collection[Status] = ()
    ) -> list[Created | Exists]:
        """Create runs that nobody holds, each as `create` does, in their order; a few round trips however many.

        Raises:
            ValueError: An id, name or number of any cannot be used; nothing was sent.

        Cancellation: some were created; the sweeper finds those that nobody takes.
        """
        ...

    async def take(
        self, run_id: str, allowed: Collection[Status], *, ttl_ms: int, owner: str = "", status: Status | None = None
    ) -> Claim | Held | Refused | Missing:
        """Hold a run that nobody holds, if its status is in ``allowed``; ``status`` is what it becomes.

        A run that had ended can be taken only with a new status; it then expires no more, and has no outcome.

        The claim tells how often in a row it was taken from somebody who had not let it go (a process that died or
        stood still), with no step written in between.

        Raises:
            ValueError: ``status`` is terminal, or missing where a terminal one is allowed.

        Cancellation: it was taken, or not; if it was, its lease runs out.
        """
        ...

    async def load(self, claim: Claim) -> RunRecord:
        """All of a run that we hold.

        Raises:
            OwnershipLost: It is not ours any more.

        Cancellation: nothing happens.
        """
        ...

    async def save(self, claim: Claim, changes: Changes) -> None:
        """A checkpoint; extends the lease.

        Raises:
            OwnershipLost: It is not ours any more; nothing was written.
            ReplyError: The store refused these very changes; they are dropped.
            StoreUnavailable: It was away for too long; the changes are kept and written before the next ones.
            ValueError: The status ends a run.

        Cancellation: as for `StoreUnavailable`.
        """
        ...

    async def release(self, claim: Claim, changes: Changes = NO_CHANGES, *, due_ms: int = 0) -> None:
        """A last checkpoint, and let the run go unfinished: paused, parked, or handed to somebody else.

        One that is parked for ``due_ms`` from now is not stalled before then; it may be taken earlier.

        Raises:
            OwnershipLost, ReplyError, StoreUnavailable, ValueError: As for `save`.

        Cancellation: as for `save`; call it again to have it done.
        """
        ...

    async def close(
        self,
        claim: Claim,
        status: Status,
        outcome: bytes,
        changes: Changes = NO_CHANGES,
        *,
        retention_ms: int | None = None,
    ) -> None:
        """A last checkpoint, the outcome and terminal status; who waits is told. Without ``retention_ms`` it stays.

        Raises:
            OwnershipLost, ReplyError, StoreUnavailable: As for `save`.
            ValueError: ``status`` is not terminal, or ``retention_ms`` not positive.

        Cancellation: as for `save`; call it again to have it done.
        """
        ...

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        """Extend the lease. Also tells, in ``claim.asked``, how many requests there are.

        Raises:
            OwnershipLost: It is not ours any more.

        Cancellation: it was extended, or not.
        """
        ...

    async def peek(self, run_id: str, *blobs: str) -> RunRow | None:
        """A run's scalars, and those blobs that are named (``inputs``, ``outcome``, ``failure``, ``state``).

        Cancellation: nothing happens.
        """
        ...

    async def read(self, run_id: str) -> RunRecord | None:
        """All of a run, whoever holds it.

        Cancellation: nothing happens.
        """
        ...

    async def page(self, query: Query = ANYTHING, *, limit: int = 50, cursor: str = "") -> Page:
        """Some runs, newest first, without blobs. A page may be short, even empty, before the last one.

        Raises:
            ValueError: Query, limit or cursor cannot be used.

        Cancellation: nothing happens.
        """
        ...

    async def delete(self, run_id: str, *, force: bool = False) -> bool | Held:
        """Remove all of a run at once, unless somebody holds it; ``force`` removes it all the same.

        False if there is none.

        Cancellation: it was removed, or not.
        """
        ...

    async def wait_done(
        self, run_id: str, timeout: float | None = None, *, until: Collection[Status] = TERMINAL
    ) -> RunRow:
        """A run's scalars and outcome once its status is in ``until``; pushed, not polled.

        A paused run that got a request is on its way to another status, and waited for.

        Raises:
            RunNotFound: There is none, or not any more.
            TimeoutError: It took longer than ``timeout`` seconds.

        Cancellation: only the wait ends.
        """
        ...

    async def wake(self, run_id: str) -> str | None:
        """Have a run that waits for a unit be due at once: one has ended. `close` does this for the run's parent.

        Gives the queue of the workers that are to be told (empty is any); None when nobody has to be.

        Cancellation: it is due, or not.
        """
        ...

    async def withdraw(self, run_id: str, outcome: bytes, *, retention_ms: int | None = None) -> Status | None:
        """End a run that nobody has taken yet as ``cancelled``; gives its status then, None when there is none.

        Raises:
            ValueError: ``retention_ms`` is not positive.

        Cancellation: it was ended, or not; call it again to know.
        """
        ...

    async def ask(
        self,
        run_id: str,
        body: bytes,
        *,
        request_id: str | None = None,
        allowed: Collection[Status] = LIVE,
        wakes: bool = True,
        until_ms: int = 0,
    ) -> Accepted | Refused | Missing:
        """Leave a request for whoever holds the run, now or next; only if its status is in ``allowed``.

        The first request of an id counts, for as long as the run is known. Terminal statuses are never allowed. One
        that ``wakes`` is a reason to take the run, even a paused one; one that does not is met by who takes it anyway.
        After ``until_ms`` (of the server's clock; 0 is never) it is refused as late.

        Cancellation: it was left, or not; asking again with the same id tells.
        """
        ...

    async def rouse(self, run_id: str) -> bool:
        """What a run waits for is there: it is due now. False if somebody holds it, or it is due anyway, or has ended.

        Cancellation: it is due, or not; doing it again does no harm.
        """
        ...

    def requests(self, run_id: str) -> AbstractAsyncContextManager[RingsBell]:
        """A bell that rings when a request is left. It may miss one: ``claim.asked`` tells with each write."""
        ...

    async def stalled(self, limit: int = 100, *, again_ms: int = 30_000) -> list[RunRow]:
        """Runs that somebody has to move on and nobody does; nobody else is told of them for ``again_ms``.

        Cancellation: some may be told to nobody until then.
        """
        ...

    async def repair(self, limit: int = 100) -> Repaired:
        """Mend a part of the index: entries of runs that are gone, and those that say something else than the run.

        Cancellation: a part of it was done.
        """
        ...

    async def aclose(self) -> None:
        """Let go of everything that the store opened itself.

        Cancellation: as far as it got; call it again.
        """
        ...
