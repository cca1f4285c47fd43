"""A key space on a real server, its runtimes, a ledger of what bodies did, and looks behind the scenes."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

from aioreactor import Context, Runtime, Settings, step, sweep
from aioreactor.store.calls import FaultHook
from aioreactor.store.client import StoreClient
from aioreactor.store.fans import FAN_KEYS
from aioreactor.store.records import TERMINAL
from aioreactor.store.store import RunStore

_numbers = itertools.count()
ledger: list[str] = []
behave: dict[str, Callable[[Context], Any]] = {}
"""What bodies (by path) and rollback actions (``undo:path``, ``comp:path``) do besides being noted."""


async def _do(line: str, key: str, ctx: Context) -> Any:
    ledger.append(line)
    action = behave.get(key)
    found = action(ctx) if action is not None else None
    return await found if isinstance(found, Awaitable) else found


def noted(after: Any = (), **options: Any) -> Any:
    """A step with all three functions."""

    async def body(self: Any, ctx: Context) -> Any:
        found = await _do(f"do:{ctx.path}", ctx.path, ctx)
        return ctx.path if found is None else found

    async def undo(self: Any, ctx: Context, result: Any) -> None:
        await _do(f"undo:{ctx.path}", f"undo:{ctx.path}", ctx)

    async def compensate(self: Any, ctx: Context, error: BaseException) -> None:
        await _do(f"comp:{ctx.path}", f"comp:{ctx.path}", ctx)

    node = step(after=after, **options)(body)
    node.undo(undo)
    node.compensate(compensate)
    return node


def raises(error: BaseException) -> Callable[[Context], Any]:
    def act(ctx: Context) -> Any:
        raise error

    return act


class Gate:
    """Bodies that come here wait."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, ctx: Context) -> None:
        self.reached.set()
        await self.open.wait()


class Place:
    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"d{os.getpid()}-{next(_numbers)}"
        self.client = StoreClient(url)
        self.store = RunStore(self.client, prefix=self.prefix, others=FAN_KEYS)
        self._stack = AsyncExitStack()
        self.runtime: Runtime

    def settings(self, **options: Any) -> Settings:
        return Settings(**{"redis_url": self.url, "key_prefix": self.prefix, "lease_ttl": 30.0, **options})

    def another(self, hook: FaultHook | None = None, **options: Any) -> Runtime:
        """A runtime of this key space, as another process has it."""
        runtime = Runtime(self.settings(**options))
        if hook is not None:
            assert runtime.durable is not None
            runtime.durable.client = StoreClient(self.url, hook=hook)
            runtime.durable.store = RunStore(runtime.durable.client, prefix=self.prefix, others=FAN_KEYS)
        return runtime

    async def __aenter__(self) -> Place:
        ledger.clear()
        behave.clear()
        self.runtime = await self._stack.enter_async_context(self.another())
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()
        await self.store.aclose()
        await self.client.aclose(drain=0)

    async def do(self, *args: Any) -> Any:
        return await self.client.execute(*args, repeatable=True)

    async def lapse(self, run_id: str) -> None:
        """The lease of a run is past, and it is the sweeper's turn."""
        await self.do("HSET", self.store.space.run(run_id), "lease_ms", 1, "updated_ms", 1)
        await self.do("ZADD", f"{self.prefix}:{{:index}}:live", 1, run_id)

    async def sweep_elsewhere(self, **options: Any) -> list[str]:
        """Sweep as another process."""
        async with self.another(**options):
            return await sweep(1000)

    async def assert_clean(self) -> None:
        """No lease, no living run, no key without owner or expiry."""
        for key in [key.decode() for key in await self.do("KEYS", f"{self.prefix}:*")]:
            if "{:index}:correlation:" in key:
                watched = await self.do("ZSCORE", self.store.space.correlations(), key)
                assert watched or await self.do("PTTL", key) > 0, key
            if "{:index}" in key:
                continue
            assert await self.do("PTTL", key) > 0, key
            if key.endswith(":run"):
                token, status = await self.do("HMGET", key, "token", "status")
                assert (token, status.decode() in TERMINAL) == (b"", True), (key, token, status)
        for run_id in await self.do("ZRANGE", f"{self.prefix}:{{:index}}:live", 0, -1):
            row = await self.store.peek(run_id.decode())
            assert row is None or row.status in TERMINAL  # its entry goes when the sweeper comes by


def every_turn(seconds: float = 120) -> Iterator[int]:
    """0, 1, 2, … turns of the loop, for tests that cut something off after each; fails when it never ends.

    Bounded by time: how many turns an answer takes depends on the server's speed.
    """
    until = time.monotonic() + seconds
    for turns in itertools.count():
        assert time.monotonic() < until, f"it has not ended after {turns} turns"
        yield turns
