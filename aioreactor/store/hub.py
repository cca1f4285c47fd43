"""All connections of one client in one event loop, and which of them a call takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioreactor.store.calls import Call, FaultHook
from aioreactor.store.endpoints import Address, Endpoint
from aioreactor.store.errors import ReplyError, StoreClosed
from aioreactor.store.link import Link
from aioreactor.store.replication import Replication
from aioreactor.store.replies import backoff
from aioreactor.store.wire import Wire

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

_CLOSING_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What every hub of a client shares.

    Attributes:
        endpoint: Where the server is.
        lanes: Names of the connections to each server.
        socket_timeout: Seconds without any reply after which a server counts as hung.
        hook: Sees every call, in tests.
        replication: What writes wait for that are to be replicated.
    """

    endpoint: Endpoint
    lanes: tuple[str, ...]
    socket_timeout: float | None
    hook: FaultHook | None
    replication: Replication | None = None


class Hub:
    """Connections to a single primary: one link per lane.

    Attributes:
        loop: The event loop it belongs to, and the only one that may touch it.
        follows_redirects: Whether `MOVED` and `ASK` are instructions, or errors for the caller.
    """

    follows_redirects = False

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.settings = settings
        self._links: dict[tuple[Address | None, str], Link] = {}
        self._primary = {lane: self.link(None, lane) for lane in settings.lanes}
        self._delayed: dict[Call, asyncio.TimerHandle] = {}
        self._guard: AsyncGenerator[None, None] | None = None
        self._closed = False

    def link(self, address: Address | None, lane: str) -> Link:
        """The link of `lane` to `address`, made if it is not there."""
        link = self._links.get((address, lane))
        if link is None:
            link = self._links[address, lane] = Link(self, address, lane)
        return link

    def submit(self, call: Call) -> None:
        """Send `call` on its way; its future gets the reply or an error.

        Raises:
            StoreClosed: The client was closed.
            ValueError: There is no such lane.
        """
        if self._closed:
            raise StoreClosed(f"{call.name}: the store client is closed")
        if call.lane not in self.settings.lanes:
            raise ValueError(f"no lane {call.lane!r}: {', '.join(self.settings.lanes)}")
        self.route(call).submit(call)

    def route(self, call: Call) -> Link:
        """Which link `call` takes."""
        return self._primary[call.lane]

    def reroute(self, calls: Iterable[Call]) -> None:
        """Send `calls` again, in order, each wherever it belongs now."""
        for call in calls:
            self.route(call).submit(call)

    def moved(self, link: Link, error: ReplyError) -> None:
        """`link` was told that a slot lives elsewhere; only a cluster says so."""

    def divert(self, link: Link, call: Call, error: ReplyError) -> None:
        """Only `call` is to be sent again, later or elsewhere; it no longer belongs to `link`."""
        self.delay(call, error)

    def delay(self, call: Call, error: ReplyError) -> None:
        """Send `call` again after its backoff, unless its time is over by then."""
        now = self.loop.time()
        at = now + backoff(call.failures + 1)
        if at > call.deadline:
            call.give_up(now, error)
            return
        self._delayed[call] = self.loop.call_at(at, self._resume, call)

    def _resume(self, call: Call) -> None:
        self._delayed.pop(call, None)
        if not call.future.done():
            self.route(call).submit(call)

    async def relocate(self, link: Link, *, again: bool) -> None:
        """Before `link` connects: find out where its calls belong; `again` if something failed before.

        Raises:
            RedisError, OSError: That could not be found out.
        """

    async def connect(self, link: Link) -> Wire:
        """Open a wire for `link`.

        Raises:
            RedisError, OSError: The server cannot be reached, is not ready, or refuses.

        Cancellation: leaves no open connection.
        """
        await self._watch_loop()
        connection = await self.open(link.address)
        return Wire.adopt(connection, link, self.settings.socket_timeout, self.settings.hook)

    async def open(self, address: Address | None) -> AbstractConnection:
        """A connection of redis-py after its handshake, bounded in time as a whole.

        Raises:
            RedisError, OSError: As for `connect`.

        Cancellation: leaves no open connection.
        """
        timeout = self.settings.socket_timeout
        async with asyncio.timeout(None if timeout is None else 2 * timeout):
            return await self.settings.endpoint.connect(address)

    async def _watch_loop(self) -> None:
        """Have the loop close the connections should it end without `aclose`."""
        if self._guard is None:
            self._guard = self._until_loop_ends()
            await anext(self._guard)

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        # Loops finish their asynchronous generators before they close (`shutdown_asyncgens`).
        try:
            yield
        finally:
            self._guard = None
            await _ended(self.abort())

    def calls(self) -> list[Call]:
        """Everything that waits for a reply."""
        return [*self._delayed, *(call for link in self._links.values() for call in link.calls())]

    async def aclose(self, drain: float) -> None:
        """Take no more calls, wait up to `drain` seconds for those under way, close everything.

        Cancellation: everything is closed all the same, at once.
        """
        self._closed = True
        try:
            waiting = [call.future for call in self.calls() if not call.future.done()]
            if waiting and drain > 0:
                await asyncio.wait(waiting, timeout=drain)
        finally:
            ending = self.abort()
        await _ended(ending)
        if self._guard is not None:
            await self._guard.aclose()

    def abort(self) -> list[asyncio.Future[None]]:
        """Close everything, whoever waits gets `StoreClosed`; the futures are done when it is closed."""
        self._end_delayed()
        return [ending for link in self._links.values() for ending in link.abort()]

    def shut(self) -> None:
        """Take no more calls and close at once; for a hub whose loop runs in another thread."""
        self._closed = True
        self.abort()

    def _end_delayed(self) -> None:
        for call, timer in self._delayed.items():
            timer.cancel()
            call.fail(StoreClosed(f"{call.name}: the store client was closed; it was not applied"))
        self._delayed.clear()


async def _ended(ending: list[asyncio.Future[None]]) -> None:
    if ending:
        await asyncio.wait(ending, timeout=_CLOSING_TIMEOUT)
