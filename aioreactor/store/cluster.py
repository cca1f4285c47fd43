"""A hub for Redis Cluster: calls find their node by the slot of their first key.

Every script touches one slot, so a call belongs to one node. The slot map is read when the first call
comes and again whenever a node fails or a slot turns out to live elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.utils import str_if_bytes

from aioreactor.store.calls import Call
from aioreactor.store.endpoints import TROUBLE, Address
from aioreactor.store.errors import ReplyError
from aioreactor.store.hub import Hub, Settings
from aioreactor.store.link import Link
from aioreactor.store.replies import Verdict, redirect_of, verdict_on

PROBE_TIMEOUT = 2.0
"""Seconds that one node may take to tell the slot map before another one is asked."""

_REDIRECTS_AT_ONCE = 3


class ClusterHub(Hub):
    """Connections to the primaries of a cluster: one link per lane and node, made when needed.

    Calls whose node is not known wait in the link without an address, whose recovery reads the map.
    """

    follows_redirects = True

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(settings, loop)
        self._slots: dict[int, Address] = {}
        self._nodes: list[Address] = []
        self._refresh: asyncio.Task[None] | None = None
        self._stale = True

    def route(self, call: Call) -> Link:
        """The link to the node that holds the slot of the call's first key; any node without a key."""
        if call.key is not None:
            key = call.key.encode() if isinstance(call.key, str) else call.key
            address = self._slots.get(key_slot(key))
        else:
            address = random.choice(self._nodes) if self._nodes else None
        return self.link(address, call.lane)

    def moved(self, link: Link, error: ReplyError) -> None:
        """Note the slot's new node, and that the map is to be read again."""
        slot, host, port = redirect_of(error)
        address = (host or _host_of(link), port)
        self._slots[slot] = address
        if address not in self._nodes:
            self._nodes.append(address)
        self._stale = True

    def reroute(self, calls: Any) -> None:
        """As for one server; a call that is sent in circles is slowed down."""
        for call in calls:
            if call.failures > _REDIRECTS_AT_ONCE:
                self.delay(call, ReplyError("MOVED again and again"))
            else:
                self.route(call).submit(call)

    def divert(self, link: Link, call: Call, error: ReplyError) -> None:
        """Follow `ASK` once; let the others wait and read the map meanwhile."""
        if verdict_on(error) is not Verdict.ASK or call.failures > _REDIRECTS_AT_ONCE:
            self._stale = True
            self.delay(call, error)
            return
        _, host, port = redirect_of(error)
        call.asking = True
        self.link((host or _host_of(link), port), call.lane).submit(call)

    def delay(self, call: Call, error: ReplyError) -> None:
        """As for one server, and read the map meanwhile."""
        if self._stale and self._refresh is None:
            self._start_refresh()
        super().delay(call, error)

    async def relocate(self, link: Link, *, again: bool) -> None:
        """Read the slot map if the link has no node or its node failed, and send its calls anew.

        Raises:
            RedisError, OSError: No node tells the map.

        Cancellation: reading the map goes on for the other links.
        """
        if link.address is not None and not again:
            return
        await asyncio.shield(self._refresh or self._start_refresh())
        self.reroute(link.take_queue())
        if link.address is None and not link.idle:
            raise RedisError("the slot is not served by any node")

    def _start_refresh(self) -> asyncio.Task[None]:
        self._refresh = self.loop.create_task(self._read_map(), name="aioreactor-store-slots")
        self._refresh.add_done_callback(self._refreshed)
        return self._refresh

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refresh = None
        if not task.cancelled():
            task.exception()

    async def _read_map(self) -> None:
        candidates = [*random.sample(self._nodes, len(self._nodes)), *self.settings.endpoint.seeds]
        last: Exception = RedisError("no node to ask")
        for address in dict.fromkeys(candidates):
            try:
                async with asyncio.timeout(PROBE_TIMEOUT):
                    self._learn(address, await self._ask_slots(address))
            except TROUBLE as error:
                last = error
            else:
                self._close_gone()
                return
        raise last

    async def _ask_slots(self, address: Address) -> Any:
        connection = await self.settings.endpoint.connect(address)
        try:
            await connection.send_command("CLUSTER", "SLOTS")
            return await connection.read_response(disable_decoding=True)
        finally:
            await connection.disconnect(nowait=True)

    def _learn(self, asked: Address, ranges: Any) -> None:
        slots: dict[int, Address] = {}
        for first, last, primary, *_ in ranges:
            host = str_if_bytes(primary[0]) if primary[0] else ""
            address = (host if host not in {"", "?"} else asked[0], int(primary[1]))
            slots.update(dict.fromkeys(range(int(first), int(last) + 1), address))
        if not slots:
            raise RedisError("the node knows of no slots")
        self._slots = slots
        self._nodes = list(dict.fromkeys(slots.values()))
        self._stale = False

    def _close_gone(self) -> None:
        known = {*self._nodes, None}
        for key, link in list(self._links.items()):
            if key[0] not in known and link.idle:
                del self._links[key]
                link.abort()

    def abort(self) -> list[asyncio.Future[None]]:
        """As for one server, and stop reading the map."""
        ending = super().abort()
        if self._refresh is not None:
            self._refresh.cancel()
            ending.append(self._refresh)
        return ending


def _host_of(link: Link) -> str:
    return link.address[0] if link.address else ""
