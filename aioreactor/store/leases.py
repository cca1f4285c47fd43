"""Keeps the leases of an event loop's executions, and notices when the loop stood still.

Overview. One timer per loop beats a dozen times in the shortest lease. At a beat, each lease that was not extended
within a third of its time, by a checkpoint or by the keeper, is extended; all in one write, over a connection of their
own. A beat that comes late says that something blocked the loop; `watchdog` tells what, while it does. With a
`lease_thread.LeaseThread` leases are extended while the loop stands still, too, within a bound.

Failures. A lease that the store says is somebody else's is lost. One that the store could not be asked about is
distrusted when its time is over, counted from when it was asked for last; that is before anybody else can take it. The
owner is told once, by `on_lost`. A process that slept through all this finds its trust gone by its own clock: so an
execution calls `Hold.check` before it starts anything. Where even that comes too late, the store refuses the writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from aioreactor.errors import OwnershipLost
from aioreactor.store.blocked import BlockReports
from aioreactor.store.claim import Claim
from aioreactor.store.errors import StoreError
from aioreactor.store.lease_thread import LeaseThread
from aioreactor.store.watchdog import Pulse

EXTEND_EACH = 3
"""A lease is extended each so-many-th part of its time; a loop that stands still for as long is remarked upon."""

BEATS = 12
"""So many beats in the shortest lease."""

RESERVE = 2
"""Where a thread extends the leases, the keeper waits for this part of a lease's time before it does so as well."""


class ExtendsLeases(Protocol):
    """The part of a `Store` that a keeper needs."""

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        """See `Store.extend`.

        Cancellation: it was extended, or not.
        """
        ...


class Hold:
    """A claim whose lease is kept until `release`.

    Attributes:
        claim: Whose lease it is.
    """

    __slots__ = ("_keeper", "_on_asked", "_on_lost", "_seen", "claim", "extending")

    def __init__(
        self,
        keeper: LeaseKeeper,
        claim: Claim,
        on_lost: Callable[[OwnershipLost], None],
        on_asked: Callable[[], None] | None,
    ) -> None:
        self.claim = claim
        self.extending = False
        self._keeper = keeper
        self._on_lost = on_lost
        self._on_asked = on_asked
        self._seen = claim.asked

    @property
    def trusted_until(self) -> float:
        """`time.monotonic` until which nobody else can have taken the run."""
        return self.claim.trusted_until

    async def check(self) -> None:
        """Return if the run is surely still ours; asks the store only if its lease may be over by now.

        To be called before anything is started, since the loop may have stood still.

        Raises:
            OwnershipLost: It is not ours any more.
            StoreError: The store could not be asked.

        Cancellation: nothing happens.
        """
        if not self.claim.trusted:
            await self._keeper.store.extend(self.claim)

    def release(self) -> None:
        """Keep it no longer; to be called before the claim is released or closed. Calling it again does nothing."""
        self._keeper.drop(self)

    def lost(self, error: OwnershipLost) -> None:
        """Tell the owner, who is told nothing more."""
        self._keeper.drop(self)
        self._on_lost(error)

    def lost_elsewhere(self, why: str) -> None:
        """Another thread was told that the lease is somebody else's."""
        if self._keeper.keeps(self) and self.claim.open:
            self.lost(self.claim.lose(why))

    def extended_elsewhere(self, asked: int) -> None:
        """Another thread has extended the lease."""
        if self._keeper.keeps(self):
            self.claim.asked = max(self.claim.asked, asked)
            self.answered()

    def answered(self) -> None:
        """The store has extended the lease: tell the owner if it also knows of new requests."""
        if self.claim.asked > self._seen and self._on_asked is not None:
            self._on_asked()
        self._seen = self.claim.asked


class LeaseKeeper:
    """Keeps the leases of one event loop.

    Args:
        store: Extends them.
        reports: Told when the loop stands still for more than a third of the shortest lease, and when it goes on.
        thread_limit: Extend them from a thread, too, while the loop stands still for up to so many seconds.
    """

    def __init__(
        self, store: ExtendsLeases, *, reports: BlockReports | None = None, thread_limit: float | None = None
    ) -> None:
        self.store = store
        self._reports = reports or BlockReports()
        self._thread_limit = thread_limit
        self._thread: LeaseThread | None = None
        self._pulse: Pulse | None = None
        self._holds: set[Hold] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._round: set[asyncio.Task[None]] = set()

    def watch(
        self, claim: Claim, on_lost: Callable[[OwnershipLost], None], on_asked: Callable[[], None] | None = None
    ) -> Hold:
        """Keep the lease of ``claim``.

        Args:
            claim: What was created or taken.
            on_lost: Called once, in the loop, when the run is not ours any more, or may not be. Not after `release`.
            on_asked: Called when an extension tells of requests which the last answer did not tell of.

        Raises:
            RuntimeError: The keeper belongs to another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._holds:
                raise RuntimeError("a lease keeper belongs to one event loop")
            self._loop, self._timer = loop, None
            self._pulse, self._thread = Pulse(self._reports), self._new_thread(loop)
        hold = Hold(self, claim, on_lost, on_asked)
        self._holds.add(hold)
        armed = self._timer
        self._arm(claim.ttl_ms / 1000)
        if self._thread is not None and self._timer is not armed:
            self._thread.wake()
        return hold

    def _new_thread(self, loop: asyncio.AbstractEventLoop) -> LeaseThread | None:
        if self._thread_limit is None:
            return None
        return LeaseThread(
            self.store,
            loop,
            lambda: tuple(self._holds),
            self._late,
            limit=self._thread_limit,
            on_limit=self._reports.thread_stopped,
        )

    def _late(self) -> float:
        assert self._pulse is not None
        return self._pulse.late_by(time.monotonic())

    def keeps(self, hold: Hold) -> bool:
        """Whether it is kept, still."""
        return hold in self._holds

    def drop(self, hold: Hold) -> None:
        """Keep this one no longer."""
        self._holds.discard(hold)
        if not self._holds:
            self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pulse is not None:
            self._pulse.forget()

    async def aclose(self) -> None:
        """Keep nothing any more.

        Cancellation: the same.
        """
        self._holds.clear()
        self._disarm()
        for task in self._round:
            task.cancel()
        thread, self._thread, self._loop = self._thread, None, None
        await asyncio.gather(*self._round, return_exceptions=True)
        if thread is not None:
            await thread.aclose()

    def _arm(self, shortest: float) -> None:
        """Have the next beat in time for the shortest lease; a beat that is armed already may come too late.

        A new lease need not be compared with all others: if it is not the shortest, the beat that is armed comes first.
        """
        assert self._loop is not None
        assert self._pulse is not None
        at = self._loop.time() + shortest / BEATS
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._beat, at)
        self._pulse.expect(shortest / BEATS, shortest / EXTEND_EACH)

    def _shortest(self) -> float:
        return min(hold.claim.ttl_ms for hold in self._holds) / 1000

    def _beat(self, expected: float) -> None:
        assert self._loop is not None
        self._timer = None
        lag, shortest = self._loop.time() - expected, self._shortest()
        self._extend_due(time.monotonic())
        self._arm(shortest)
        if lag > shortest / EXTEND_EACH:
            self._reports.resumed(lag)

    def _extend_due(self, now: float) -> None:
        assert self._loop is not None
        part = 1 - 1 / (EXTEND_EACH if self._thread is None else RESERVE)
        for hold in self._holds:
            ttl = hold.claim.ttl_ms / 1000
            if not hold.extending and now >= hold.trusted_until - ttl * part:
                hold.extending = True
                task = self._loop.create_task(self._extend(hold, ttl), name="aioreactor-lease")
                self._round.add(task)
                task.add_done_callback(self._round.discard)

    async def _extend(self, hold: Hold, ttl: float) -> None:
        claim = hold.claim
        # It has to be known in time that the lease cannot be trusted; once it cannot, there is no hurry.
        left = claim.trusted_until - time.monotonic()
        patience = min(left, ttl / EXTEND_EACH) if left > 0 else ttl / EXTEND_EACH
        try:
            async with asyncio.timeout(patience):
                await self.store.extend(claim, retry_for=patience)
        except OwnershipLost as error:
            if hold in self._holds:
                hold.lost(error)
        except (StoreError, TimeoutError) as error:
            if hold in self._holds and not claim.trusted:
                hold.lost(claim.lose(f"the store did not extend its lease in time ({error or 'no answer'})"))
        else:
            if hold in self._holds:
                hold.answered()
        finally:
            hold.extending = False
