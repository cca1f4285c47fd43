"""The coordination primitives against bare EVALSHAs, and locks against those of other libraries.

Interleaved rounds; prints medians in µs and ratios. ``python -m benchmarks.coordination [rounds]``

The floor is one script, or two one after another, that do one write each, over the same connection: what any lock that
takes and gives back over the network has to pay. A hand-over is the time from the release being called in one task to
the next waiter being inside. Other libraries are measured if they are installed: coredis, pottery.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from aioreactor import Lock, RateLimit, Runtime, Semaphore, Settings
from aioreactor.definition.primitives import Primitive
from aioreactor.embedded import EmbeddedServer
from aioreactor.store.client import StoreClient
from aioreactor.store.scripts import script_from

BARE = script_from(
    "key_set",
    """--[[
keys: key
args: token, ttl_ms
returns: OK
]]
local key = KEYS[1]
local token, ttl_ms = ARGV[1], ARGV[2]
redis.call('SET', key, token, 'PX', ttl_ms)
return {'OK'}
""",
)
LONE = 200
LIMITS = {"second": 1_000_000, "minute": 10_000_000, "day": 100_000_000}

Measure = Callable[[], Awaitable[float]]


async def each(one: Callable[[], Awaitable[object]], times: int = LONE) -> float:
    """Microseconds of each of many, one after another."""
    begin = time.perf_counter()
    for _ in range(times):
        await one()
    return (time.perf_counter() - begin) / times * 1e6


async def visit(made: Any) -> None:
    async with made:
        pass


async def paced(one: Callable[[], Awaitable[object]]) -> float:
    """The median of some, each after a pause as in a hand-over: nothing is warm."""
    micros = []
    for _ in range(30):
        await asyncio.sleep(0.0005)
        begin = time.perf_counter()
        await one()
        micros.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(micros)


class Line:
    """Waiters that go in one after another; how long each hand-over took, and whether they came in order."""

    def __init__(self, make: Callable[[], Any], waiters: int) -> None:
        self._make = make
        self._waiters = waiters
        self._released = 0.0
        self._micros: list[float] = []
        self._order: list[int] = []

    async def measure(self) -> float:
        """The median hand-over."""
        self._micros, self._order = [], []
        async with self._make():
            # Tasks inherit the scope of a body, and would take turns under its hold.
            with outside():
                tasks = [asyncio.create_task(self._wait(number)) for number in range(self._waiters)]
            await asyncio.sleep(0.05 + self._waiters * 0.001)
            self._released = time.perf_counter()
        await asyncio.gather(*tasks)
        return statistics.median(self._micros)

    @property
    def in_order(self) -> bool:
        """Whether those of the last measurement came in the order in which they began to wait."""
        return self._order == sorted(self._order)

    async def _wait(self, number: int) -> None:
        async with self._make():
            self._micros.append((time.perf_counter() - self._released) * 1e6)
            self._order.append(number)
            # What is left to do for the one before, its reply for one thing, is not of this hand-over.
            await asyncio.sleep(0.0005)
            self._released = time.perf_counter()


def ours(client: StoreClient, redis: Any) -> tuple[dict[str, Measure], list[Line]]:
    async def bare() -> None:
        await client.run(BARE, ["{b}:lock"], ["token", 60_000])

    async def twice() -> None:
        await bare()
        await bare()

    async def redis_once() -> None:
        await redis.evalsha(BARE.sha, 1, "{b}:lock", "token", 60_000)

    async def redis_twice() -> None:
        await redis_once()
        await redis_once()

    one, three = RateLimit("one", 1_000_000, "second"), RateLimit("three", limits=LIMITS)
    gcra = RateLimit("gcra", limits=LIMITS, algorithm="gcra")

    def lock() -> Primitive:
        return Lock("bench", wait=60)

    def semaphore() -> Primitive:
        return Semaphore("bench", 3, wait=60)

    async def full() -> float:
        # Two of the three slots stay taken: the third is handed over.
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                with outside():
                    await stack.enter_async_context(semaphore())
            with outside():
                return await lines[2].measure()

    lines = [Line(lock, 8), Line(lock, 100), Line(semaphore, 8)]
    measures: dict[str, Measure] = {
        "one EVALSHA": lambda: each(bare),
        "two EVALSHA": lambda: each(twice),
        "two EVALSHA, paced": lambda: paced(twice),
        "two EVALSHA, paced, redis-py": lambda: paced(redis_twice),
        "one EVALSHA, redis-py": lambda: each(redis_once),
        "two EVALSHA, redis-py": lambda: each(redis_twice),
        "lock, free": lambda: each(lambda: visit(Lock("bench"))),
        "semaphore, free": lambda: each(lambda: visit(Semaphore("bench", 3))),
        "rate limit, one window": lambda: each(lambda: visit(one)),
        "rate limit, three windows": lambda: each(lambda: visit(three)),
        "rate limit, three windows, gcra": lambda: each(lambda: visit(gcra)),
        "hand-over, lock, 8 wait": lines[0].measure,
        "hand-over, lock, 100 wait": lines[1].measure,
        "hand-over, semaphore, 8 wait": full,
    }
    return measures | {f"{name}, {BESIDE}": measures[name] for name in COMPARED}, lines


def outside() -> Any:
    """Not within what this task holds already."""
    from aioreactor.coordination.scopes import within

    return within(None)


BESIDE = "beside redis-py"
COMPARED = (
    "lock, free",
    "semaphore, free",
    "rate limit, one window",
    "rate limit, three windows",
    "hand-over, lock, 8 wait",
    "hand-over, lock, 100 wait",
    "hand-over, semaphore, 8 wait",
)
"""What is measured a second time, beside the scripts as somebody without this library would call them."""

FLOORS = {
    "lock, free": ("two EVALSHA", 1.3),
    "semaphore, free": ("two EVALSHA", None),
    "rate limit, one window": ("one EVALSHA", 1.2),
    "rate limit, three windows": ("one EVALSHA", 1.2),
    "rate limit, three windows, gcra": ("one EVALSHA", 1.2),
    "hand-over, lock, 8 wait": ("two EVALSHA, paced", 1.5),
    "hand-over, lock, 100 wait": ("two EVALSHA, paced", 1.5),
    "hand-over, semaphore, 8 wait": ("two EVALSHA, paced", 1.5),
}
FLOORS |= {f"{name}, {BESIDE}": (f"{FLOORS[name][0]}, redis-py", FLOORS[name][1]) for name in COMPARED}


async def peers(path: str, redis: Any, stack: contextlib.AsyncExitStack) -> dict[str, Callable[[], Any]]:
    """Makers of other locks, by name."""
    found: dict[str, Callable[[], Any]] = {"redis-py": lambda: redis.lock("redis-py", timeout=60, blocking_timeout=60)}
    with contextlib.suppress(ImportError):
        coredis: Any = importlib.import_module("coredis")
        lock_class: Any = importlib.import_module("coredis.patterns.lock").Lock
        client = await stack.enter_async_context(coredis.Redis(unix_socket_path=path))
        found["coredis"] = lambda: lock_class(client, "coredis", timeout=60, blocking_timeout=60)
    with contextlib.suppress(ImportError):
        pottery: Any = importlib.import_module("pottery")
        found["pottery"] = lambda: pottery.AIORedlock(key="pottery", masters={redis}, auto_release_time=60)
    return found


async def main(rounds: int) -> None:
    with EmbeddedServer.start() as server:
        async with contextlib.AsyncExitStack() as stack:
            runtime = await stack.enter_async_context(Runtime(Settings(redis_url=server.url)))
            assert runtime.durable is not None
            redis: Any = Redis(unix_socket_path=str(server.socket_path))
            stack.push_async_callback(redis.aclose)
            await runtime.durable.client.run(BARE, ["{b}:lock"], ["token", 1])  # loads it
            measures, lines = ours(runtime.durable.client, redis)
            for name, make in (await peers(str(server.socket_path), redis, stack)).items():
                measures[f"{name}: lock, free"] = lambda make=make: each(lambda: visit(make()), 50)  # type: ignore[misc]
                measures[f"{name}: hand-over, 8 wait"] = Line(make, 8).measure
            report(await measured(measures, rounds), lines)


async def measured(measures: dict[str, Measure], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Pairs of a measurement and of its floor, one right after the other, in alternating order."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, measure in list(measures.items()):
            if ":" in name and number > 3:
                continue  # others are slow, and not what is measured here
            floor = measures[FLOORS.get(name, ("two EVALSHA", None))[0]]
            pair = [measure, floor] if number % 2 else [floor, measure]
            micros = []
            for one in pair:
                gc.collect()
                micros.append(await one())
            if number:
                found[name].append((micros[0], micros[1]) if number % 2 else (micros[1], micros[0]))
    return found


def report(found: dict[str, list[tuple[float, float]]], lines: list[Line]) -> None:
    for name, pairs in found.items():
        floor, bar = FLOORS.get(name, ("two EVALSHA", None))
        micros, floors = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(mine / bare for mine, bare in pairs)
        says = f"  (bar {bar})" if bar else ""
        print(f"{name:44} {micros:10.1f} us   {ratio:7.2f} x {floor} ({floors:.0f} us){says}")
    print("first come, first served:", [line.in_order for line in lines])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 11))
