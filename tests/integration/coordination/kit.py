"""A key space on a real server, runtimes and coordinators in it, faults, and looks behind the scenes."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

from aioreactor import Runtime, Settings
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.desk import Notice
from aioreactor.coordination.keys import CoordinationKeys, SlotKind
from aioreactor.store.calls import Call, FaultHook
from aioreactor.store.client import StoreClient
from aioreactor.store.store import RunStore

_numbers = itertools.count()


class LoseReply:
    """Drops the connection after the server answered the n-th call of a script, once."""

    def __init__(self, script: str, number: int = 0, *, before: bool = False) -> None:
        self.script, self.number, self.before = script, number, before
        self.seen: list[str] = []

    def before_send(self, call: Call) -> None:
        self.seen.append(call.name)
        if self.before:
            self._strike(call)

    def after_reply(self, call: Call, reply: Any) -> None:
        if not self.before:
            self._strike(call)

    def _strike(self, call: Call) -> None:
        if call.name == self.script:
            self.number -= 1
            if self.number == -1:
                raise ConnectionResetError("lost on purpose")


class Place:
    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"c{os.getpid()}-{next(_numbers)}"
        self.keys = CoordinationKeys(self.prefix)
        self.client = StoreClient(url)
        self.stack = AsyncExitStack()
        self.notices: list[Notice] = []
        self.runtime: Runtime

    def another(self, hook: FaultHook | None = None, **options: Any) -> Runtime:
        """A runtime of this key space, as another process has it."""
        runtime = Runtime(Settings(**{"redis_url": self.url, "key_prefix": self.prefix, **options}))
        if hook is not None:
            assert runtime.durable is not None
            runtime.durable.client = StoreClient(self.url, hook=hook, retry_for=5.0)
            runtime.durable.store = RunStore(runtime.durable.client, prefix=self.prefix)
        return runtime

    async def elsewhere(self) -> Coordinator:
        """The coordinator of another process; closed with the place."""
        runtime = self.another()
        self.stack.push_async_callback(runtime.aclose)
        return runtime.coordinator()

    async def __aenter__(self) -> Place:
        self.runtime = await self.stack.enter_async_context(self.another())
        self.coordinator = self.runtime.coordinator()
        self.coordinator.observer = self.notices.append
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.stack.aclose()
        await self.client.aclose(drain=0)

    def facts(self, *kinds: str) -> list[str]:
        """What the observer was told."""
        return [notice.fact for notice in self.notices if not kinds or notice.kind in kinds]

    async def do(self, *args: Any) -> Any:
        return await self.client.execute(*args, repeatable=True)

    async def holders(self, key: str, kind: SlotKind = "lock") -> list[str]:
        return [token.decode() for token in await self.do("ZRANGE", self.keys.slots(kind, key).holders, 0, -1)]

    async def waiting(self, key: str, kind: SlotKind = "lock") -> list[str]:
        return [token.decode() for token in await self.do("ZRANGE", self.keys.slots(kind, key).queue, 0, -1)]

    async def lapse(self, key: str, kind: SlotKind = "lock") -> None:
        """The leases of a key are past."""
        for token in await self.holders(key, kind):
            await self.do("ZADD", self.keys.slots(kind, key).holders, "XX", 1, token)

    async def deaden(self, key: str, kind: SlotKind = "lock") -> None:
        """Those in line have not asked for long."""
        names = self.keys.slots(kind, key)
        for token, row in _pairs(await self.do("HGETALL", names.waiters)):
            await self.do("HSET", names.waiters, token, b"1 " + row.split(b" ", 1)[1])

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
        """Wait until the server shows it."""
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.002)

    async def until_waiting(self, key: str, number: int, kind: SlotKind = "lock") -> None:
        async def so_many() -> bool:
            return len(await self.waiting(key, kind)) == number

        await self.until(so_many)

    async def leftovers(self) -> list[str]:
        """Keys that say that somebody holds or waits, or that would never go."""
        return await leftovers(self.do, self.prefix)


async def leftovers(do: Callable[..., Awaitable[Any]], prefix: str) -> list[str]:
    """Keys of coordination under a prefix that say that somebody holds or waits, or that would never go."""
    left = []
    for key in [key.decode() for key in await do("KEYS", f"{prefix}:c:*")]:
        remembered = key.endswith((":facts", ":rate", ":spent", ":period", ":waits")) or ":rate:log:" in key
        ttl = await do("PTTL", key)
        if ttl == -1 or (ttl != -2 and not remembered):
            left.append(key)
        elif key.endswith(":facts"):
            left += [f"{key} {field.decode()}" for field in await do("HKEYS", key) if field.startswith(b"t:")]
    return left


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return iter(zip(flat[::2], flat[1::2], strict=True))


async def turns(number: int) -> None:
    """So many turns of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)


def every_turn(seconds: float = 120) -> Iterator[int]:
    """0, 1, 2, … turns of the loop, for tests that cut something off after each; fails when it never ends."""
    until = time.monotonic() + seconds
    for number in itertools.count():
        assert time.monotonic() < until, f"it has not ended after {number} turns"
        yield number


class Inside:
    """Counts who is inside at a time, and notes who came in in which order."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[Any] = []

    async def visit(self, who: Any, turns_inside: int = 3) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(who)
        try:
            await turns(turns_inside)
        finally:
            self.now -= 1
