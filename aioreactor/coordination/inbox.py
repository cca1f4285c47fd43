"""What one event loop was given while it waited: one channel for all its waiters.

A message may be lost (a connection broke), so whoever waits also asks now and then, and at once when the connection is
made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from aioreactor.store.pushes import LINGER, PATIENCE, Bell, Pushes


class Summons:
    """Wakes one waiter: it was given what it waits for, or has to ask.

    Attributes:
        fence: What came with a slot; None while none was given.
    """

    __slots__ = ("_future", "_rung", "fence")

    def __init__(self) -> None:
        self.fence: int | None = None
        self._rung = False
        self._future: asyncio.Future[None] | None = None

    def give(self, fence: int) -> None:
        """It was given a slot, or its turn."""
        self.fence = fence
        self.ring()

    def ring(self) -> None:
        """It has to ask."""
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float) -> int | None:
        """Wait for a ring, up to ``timeout`` seconds; what was given, if anything, which is given once.

        Cancellation: a ring is kept for the next wait.
        """
        if not self._rung and timeout > 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout, self._pass)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        self._rung = False
        fence, self.fence = self.fence, None
        return fence

    def _pass(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Inbox(Bell):
    """Hands each message to the waiter that it is for. Subscribed while anybody waits, and for a while after.

    Args:
        channel: A name that nobody else has.
        pushes: The subscriptions of the event loop.
    """

    __slots__ = ("_callbacks", "_leaving", "_pushes", "_ready", "_waiters", "channel")

    def __init__(self, channel: str, pushes: Pushes) -> None:
        super().__init__()
        self.channel = channel
        self._pushes = pushes
        self._ready: asyncio.Event | None = None
        self._waiters: dict[str, Summons] = {}
        self._callbacks: dict[str, Callable[[], None]] = {}
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether a message sent now would be heard."""
        return self._ready is not None and self._ready.is_set()

    async def open(self) -> None:
        """Subscribe; gives up waiting for that after a while, since whoever waits also asks.

        Raises:
            StoreClosed: The store was closed.

        Cancellation: it may be subscribed or not.
        """
        self._attach()
        assert self._ready is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._ready.wait()

    @contextmanager
    def expect(self, token: str) -> Iterator[Summons]:
        """A summons for what is given to ``token``."""
        self._attach()
        summons = self._waiters[token] = Summons()
        try:
            yield summons
        finally:
            del self._waiters[token]
            self._linger()

    def call_back(self, token: str, callback: Callable[[], None]) -> None:
        """Call once, in the loop, when something is given to ``token``, for which nobody waits."""
        self._attach()
        self._callbacks[token] = callback

    def forget(self, token: str) -> None:
        """Call nobody back."""
        if self._callbacks.pop(token, None) is not None:
            self._linger()

    def ring(self) -> None:
        """The connection is new: everybody has to ask."""
        for summons in self._waiters.values():
            summons.ring()

    def hear(self, message: bytes) -> None:
        """Something was given to one of them."""
        token, _, fence = message.decode().partition(" ")
        if token in self._waiters:
            self._waiters[token].give(int(fence))
        elif token in self._callbacks:
            callback = self._callbacks.pop(token)
            self._linger()
            callback()

    def close(self) -> None:
        """Hear nothing more."""
        self._callbacks.clear()
        if self._leaving is not None:
            self._leaving.cancel()
        self._detach()

    def _attach(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._ready is None:
            self._ready = self._pushes.attach(self.channel, self)

    def _linger(self) -> None:
        if not self._waiters and not self._callbacks and self._ready is not None and self._leaving is None:
            self._leaving = asyncio.get_running_loop().call_later(LINGER, self._detach)

    def _detach(self) -> None:
        self._leaving = None
        if self._ready is not None and not self._waiters and not self._callbacks:
            self._ready = None
            self._pushes.detach(self.channel, self)
