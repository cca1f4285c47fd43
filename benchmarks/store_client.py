"""The store client against redis-py, in interleaved rounds; prints medians and ratios.

python -m benchmarks.store_client [rounds]
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from aioreactor.embedded import EmbeddedServer
from aioreactor.store.client import StoreClient
from aioreactor.store.scripts import Script, script_from

SCRIPT = script_from(
    "field_write",
    """--[[
    keys: run
    args: field, value
    returns: OK version
    ]]
    local run = KEYS[1]
    local field, value = ARGV[1], ARGV[2]
    redis.call('HSET', run, field, value)
    return {'OK', 1}
    """.replace("\n    ", "\n"),
)
VALUE = b"x" * 200
PARALLEL = 500
LONE = 300

Measure = Callable[[], Awaitable[float]]


async def each(times: int, one: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        await one()
    return (time.perf_counter() - begin) / times * 1e6


async def together(one: Callable[[int], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(PARALLEL)))
    return (time.perf_counter() - begin) / PARALLEL * 1e6


def measures(client: StoreClient, redis: Any, script: Script) -> dict[str, Measure]:
    sha = script.sha

    async def pipeline() -> float:
        begin = time.perf_counter()
        async with redis.pipeline(transaction=False) as pipe:
            for i in range(PARALLEL):
                pipe.evalsha(sha, 1, "{r}:run", f"f{i}", VALUE)
            await pipe.execute()
        return (time.perf_counter() - begin) / PARALLEL * 1e6

    return {
        "lone, redis-py": lambda: each(LONE, lambda: redis.evalsha(sha, 1, "{r}:run", "f", VALUE)),
        "lone, this": lambda: each(LONE, lambda: client.run(script, ["{r}:run"], ["f", VALUE])),
        "500, one pipeline of redis-py": pipeline,
        "500, redis-py pool": lambda: together(lambda i: redis.evalsha(sha, 1, "{r}:run", f"f{i}", VALUE)),
        "500, this": lambda: together(lambda i: client.run(script, ["{r}:run"], [f"f{i}", VALUE])),
    }


async def main(rounds: int) -> None:
    server = EmbeddedServer.start()
    redis: Any = Redis(unix_socket_path=str(server.socket_path), max_connections=PARALLEL + 10)
    try:
        async with StoreClient(server.url) as client:
            await client.run(SCRIPT, ["{r}:run"], ["f", VALUE])
            todo = measures(client, redis, SCRIPT)
            taken: dict[str, list[float]] = {name: [] for name in todo}
            for turn in range(rounds + 2):
                for name, measure in todo.items():
                    gc.collect()
                    micros = await measure()
                    if turn >= 2:
                        taken[name].append(micros)
    finally:
        await redis.aclose()
        server.stop()
    report({name: statistics.median(values) for name, values in taken.items()})


def report(medians: dict[str, float]) -> None:
    for name, micros in medians.items():
        print(f"{name:32} {micros:8.1f} us each")
    mine = medians["500, this"]
    lone = medians["lone, this"] / medians["lone, redis-py"]
    print(f"lone / redis-py                  {lone:8.2f}  (bar 1.1)")
    floor = medians["500, one pipeline of redis-py"]
    print(f"500 / one pipeline               {mine / floor:8.2f}  (bar 2)")
    print(f"500 / redis-py pool              {mine / medians['500, redis-py pool']:8.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
