"""Keeps everything that an event loop holds: one timer, all that is due renewed in one write.

A hold is renewed at a third of its time. One that the server says is gone is lost; one that the server could not be
asked about is lost when its time is over, counted from when it was asked for last, which is before anybody else can
have it. A loop that stood still finds that out at the first beat after.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

from aioreactor.errors import LeaseLost
from aioreactor.store.errors import StoreError

DRIFT = 0.01
"""Part of a lease that its holder does not count on, because clocks do not run equally fast."""

_PART = 3
_BEATS = 12
_SLOWEST_BEAT = 2.5


class Kept(ABC):
    """Something with a lease.

    Attributes:
        ttl: Seconds that it lasts without being renewed.
        trusted_until: `time.monotonic` until which nobody else can have it.
        extends: It is renewed; else it is only looked whether it is there.
        renewing: Somebody is at it.
        error: Set when it was lost.
    """

    __slots__ = ("error", "extends", "renewing", "trusted_until", "ttl")

    def __init__(self, ttl: float, trusted_until: float, *, extends: bool = True) -> None:
        self.ttl = ttl
        self.trusted_until = trusted_until
        self.extends = extends
        self.renewing = False
        self.error: LeaseLost | None = None

    @abstractmethod
    async def renew(self, *, retry_for: float | None = None) -> str:
        """Ask the server for more time; why it is lost, or nothing.

        Cancellation: it was renewed, or not.
        """

    @abstractmethod
    def lose(self, why: str) -> None:
        """Note that it is lost, and tell the holder, once."""

    async def check(self) -> None:
        """Return if it is surely held now; asks the store.

        Raises:
            LeaseLost: It is not.
            StoreError: The store could not be asked.

        Cancellation: nothing happens.
        """
        if self.error is None:
            why = await self.renew()
            if why:
                self.lose(why)
        if self.error is not None:
            raise self.error


def trust(asked: float, ttl: float) -> float:
    """`time.monotonic` until which a lease that was asked for then surely lasts."""
    return asked + ttl * (1 - DRIFT)


class Renewer:
    """Keeps the leases of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._kept: set[Kept] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, kept: Kept) -> None:
        """Renew it from now on."""
        self._kept.add(kept)
        at = self._loop.time() + min(kept.ttl / _BEATS, _SLOWEST_BEAT)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._beat)

    def drop(self, kept: Kept) -> None:
        """Renew it no longer. The timer stays for the next one: an idle one ends by itself."""
        self._kept.discard(kept)

    async def aclose(self) -> None:
        """Keep nothing any more.

        Cancellation: the same.
        """
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _beat(self) -> None:
        self._timer = None
        if not self._kept:
            return
        now = time.monotonic()
        for kept in self._kept:
            due = kept.trusted_until - (kept.ttl * (1 - 1 / _PART) if kept.extends else 0)
            if now >= due and not kept.renewing:
                kept.renewing = True
                task = self._loop.create_task(self._renew(kept), name="aioreactor-hold")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        pause = min(min(kept.ttl for kept in self._kept) / _BEATS, _SLOWEST_BEAT)
        self._timer = self._loop.call_later(pause, self._beat)

    async def _renew(self, kept: Kept) -> None:
        # Without trust there is no hurry: whether it is still there decides; with it, the answer has to come in time.
        left = kept.trusted_until - time.monotonic()
        patience = min(left, kept.ttl / _PART) if left > 0 else kept.ttl / _PART
        why = ""
        try:
            async with asyncio.timeout(patience):
                why = await kept.renew(retry_for=patience)
        except (StoreError, TimeoutError) as error:
            if time.monotonic() >= kept.trusted_until:
                why = f"the store did not renew it in time ({error or 'no answer'})"
        finally:
            kept.renewing = False
        if why and kept in self._kept:
            self.drop(kept)
            kept.lose(why)
