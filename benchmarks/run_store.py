"""A checkpoint of the run store against a bare EVALSHA of the same bytes, early and late in a run.

Interleaved rounds; prints medians in µs and ratios. ``python benchmarks/run_store.py [rounds]``
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from aioreactor.embedded import EmbeddedServer
from aioreactor.store.claim import Claim
from aioreactor.store.client import StoreClient
from aioreactor.store.records import Changes, NewRun
from aioreactor.store.scripts import script_from
from aioreactor.store.store import RunStore

BARE = script_from(
    "step_write",
    """--[[
keys: run, steps
args: path, value
returns: OK ver
]]
local run, steps = KEYS[1], KEYS[2]
local path, value = ARGV[1], ARGV[2]
redis.call('HSET', steps, path, value)
return {'OK', redis.call('HINCRBY', run, 'ver', 1)}
""",
)
HSET = script_from(
    "step_set",
    """--[[
keys: steps
args: path, value
returns: OK
]]
local steps = KEYS[1]
local path, value = ARGV[1], ARGV[2]
redis.call('HSET', steps, path, value)
return {'OK'}
""",
)
VALUE = b"x" * 200
LONE = 300
PARALLEL = 500
HOUR = 3_600_000
_names = itertools.count()


async def lone(one: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    for _ in range(LONE):
        await one()
    return (time.perf_counter() - begin) / LONE * 1e6


async def together(one: Callable[[int], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(PARALLEL)))
    return (time.perf_counter() - begin) / PARALLEL * 1e6


async def main(rounds: int) -> None:
    with EmbeddedServer.start() as server:
        client = StoreClient(server.url)
        store = RunStore(client)
        new = NewRun(reactor="bench")

        async def claim() -> Claim:
            created = await store.create(f"r{next(_names)}", new, hold_ms=HOUR)
            return created.claim  # type: ignore[union-attr, return-value]

        async def grown(steps: int) -> Claim:
            made = await claim()
            for first in range(0, steps, 1000):
                some = range(first, min(first + 1000, steps))
                await store.save(made, Changes(steps={f"s{i}": VALUE for i in some}, trace=[b"t" * 40 for _ in some]))
            return made

        many = [await claim() for _ in range(PARALLEL)]

        def save(made: Claim, trace: list[bytes]) -> Awaitable[None]:
            return store.save(made, Changes(steps={f"n{next(_names)}": VALUE}, trace=trace))

        async def at(steps: int, trace: list[bytes]) -> float:
            made = await grown(steps)
            return await lone(lambda: save(made, trace))

        measures: dict[str, Callable[[], Awaitable[float]]] = {
            "bare HSET": lambda: lone(lambda: client.run(HSET, ["{b}:s"], [f"n{next(_names)}", VALUE])),
            "bare HSET + version": lambda: lone(
                lambda: client.run(BARE, ["{b}:r", "{b}:s"], [f"n{next(_names)}", VALUE])
            ),
            "save at step 10": lambda: at(10, []),
            "save at step 10,000": lambda: at(10_000, []),
            "save + trace at step 10": lambda: at(10, [b"t" * 40]),
            "save + trace at step 10,000": lambda: at(10_000, [b"t" * 40]),
            "500 bare HSET": lambda: together(lambda i: client.run(HSET, [f"{{b{i}}}:s"], ["n", VALUE])),
            "500 bare HSET + version": lambda: together(
                lambda i: client.run(BARE, [f"{{b{i}}}:r", f"{{b{i}}}:s"], ["n", VALUE])
            ),
            "500 saves": lambda: together(lambda i: save(many[i], [])),
            "500 creates": lambda: together(lambda i: store.create(f"c{next(_names)}", new)),
        }
        times: dict[str, list[float]] = {name: [] for name in measures}
        for number in range(rounds + 1):
            for name, measure in measures.items():
                gc.collect()
                taken = await measure()
                if number:
                    times[name].append(taken)
        for name, values in times.items():
            floor = times["500 bare HSET" if name.startswith("500") else "bare HSET"]
            ratio = statistics.median(a / b for a, b in zip(values, floor, strict=True))
            print(f"{name:30} {statistics.median(values):8.1f} µs {ratio:6.2f}x")
        await store.aclose()
        await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
