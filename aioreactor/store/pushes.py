"""Bells that other processes ring: one connection per event loop, subscribed to what anybody listens to.

A message may be lost (a connection broke, a server failed over), so a bell only says *look*: whoever listens looks
first when the bell is there, again at each ring, and now and then without one. Every bell rings when the connection
is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from redis.asyncio.connection import AbstractConnection

from aioreactor.store.endpoints import TROUBLE, Endpoint
from aioreactor.store.errors import StoreClosed
from aioreactor.store.replies import backoff

IDLE = 10.0
"""Seconds without a word from the server after which it is pinged, and after twice as many given up."""

LINGER = 10.0
"""Seconds for which the connection stays when nobody listens."""

PATIENCE = 1.0
"""Seconds for which a listener waits for its subscription; then it looks without."""


class Bell:
    """Wakes one listener."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the listener, now or when it waits next."""
        self._rung.set()

    def hear(self, message: bytes) -> None:
        """A message came on its channel; what it says makes no difference here."""
        self.ring()

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it has rung since the last time; False if it did not within ``timeout`` seconds.

        Cancellation: a ring is kept for the next wait.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True


class Pushes:
    """The subscriptions of one event loop.

    Args:
        endpoint: Where the server is; of a cluster, any node will do.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        options = {**endpoint.options, "protocol": 2, "socket_timeout": None}
        self._endpoint = replace(endpoint, options=options)
        self._bells: dict[str, set[Bell]] = {}
        self._ready: dict[str, asyncio.Event] = {}
        self._subscribed: set[str] = set()
        self._unconfirmed: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._heard = 0.0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def listen(self, channel: str) -> AsyncIterator[Bell]:
        """A bell that each message on ``channel`` rings; subscribed, unless the server is away.

        Raises:
            StoreClosed: The store was closed.

        Cancellation: the bell is gone.
        """
        bell = Bell()
        ready = self.attach(channel, bell)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await ready.wait()
            yield bell
        finally:
            self.detach(channel, bell)

    def attach(self, channel: str, bell: Bell) -> asyncio.Event:
        """Have ``bell`` hear what comes on ``channel`` until `detach`; the event is set while it is subscribed.

        Raises:
            StoreClosed: The store was closed.
        """
        if self._closed:
            raise StoreClosed("the run store is closed")
        self._bells.setdefault(channel, set()).add(bell)
        ready = self._ready.get(channel)
        if ready is None:
            ready = self._ready[channel] = asyncio.Event()
            if channel in self._subscribed and not self._unconfirmed[channel]:
                ready.set()  # who listened last has just gone, and it was not unsubscribed yet
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="aioreactor-store-pushes")
        return ready

    def detach(self, channel: str, bell: Bell) -> None:
        """Have ``bell`` hear nothing more."""
        bells = self._bells[channel]
        bells.discard(bell)
        if not bells:
            del self._bells[channel], self._ready[channel]
            self._changed.set()

    async def aclose(self) -> None:
        """Close the connection; whoever still listens hears nothing more.

        Cancellation: it is closed all the same.
        """
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._bells:
                try:
                    await self._connected()
                except* TROUBLE:
                    self._failures += 1
                    await asyncio.sleep(backoff(self._failures))
        finally:
            self._task = None

    async def _connected(self) -> None:
        """Listen over one connection, until it breaks or nobody has listened for a while."""
        connection = await self._connect()
        try:
            self._subscribed, self._unconfirmed = set(), Counter()
            self._changed.set()
            self._heard = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(connection))
                await self._subscribe(connection)
                reading.cancel()
        finally:
            self._subscribed = set()
            for ready in self._ready.values():
                ready.clear()
            await connection.disconnect(nowait=True)

    async def _connect(self) -> AbstractConnection:
        seeds = self._endpoint.seeds if self._endpoint.kind == "cluster" else (None,)
        last: BaseException | None = None
        for address in seeds:
            try:
                async with asyncio.timeout(IDLE):
                    return await self._endpoint.connect(address)
            except TROUBLE as error:
                last = error
        assert last is not None
        raise last

    async def _subscribe(self, connection: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            wanted = set(self._bells)
            await self._send(connection, "SUBSCRIBE", wanted - self._subscribed)
            await self._send(connection, "UNSUBSCRIBE", self._subscribed - wanted)
            try:
                async with asyncio.timeout(IDLE if wanted else LINGER):
                    await self._changed.wait()
            except TimeoutError:
                if not self._bells:
                    return
                if loop.time() - self._heard > 2 * IDLE:
                    raise
                await connection.send_command("PING")

    async def _send(self, connection: AbstractConnection, command: str, channels: set[str]) -> None:
        if not channels:
            return
        if command == "SUBSCRIBE":
            self._subscribed |= channels
            self._unconfirmed.update(channels)
        else:
            self._subscribed -= channels
        await connection.send_command(command, *channels)

    async def _read(self, connection: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            reply: Any = await connection.read_response(disable_decoding=True)
            self._heard = loop.time()
            word, channel = reply[0], reply[1].decode()
            if word == b"message":
                for bell in tuple(self._bells.get(channel, ())):
                    bell.hear(reply[2])
            elif word == b"subscribe":
                self._confirm(channel)

    def _confirm(self, channel: str) -> None:
        self._failures = 0
        self._unconfirmed[channel] -= 1
        if self._unconfirmed[channel] <= 0 and channel in self._subscribed:
            del self._unconfirmed[channel]
            if channel in self._ready:
                self._ready[channel].set()
            # What happened before the subscription, or between two connections, was not heard.
            self._ring(channel)

    def _ring(self, channel: str) -> None:
        for bell in self._bells.get(channel, ()):
            bell.ring()
