"""Everything at once, from a seed: flushes, kills, cuts, pauses, lost replies, demotions, cancellations.

`CHAOS_SECONDS` and `CHAOS_SEED` repeat or prolong a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from aioreactor.store.client import StoreClient
from aioreactor.store.scripts import script_from
from tests.integration.store_client.fakes import Proxy, proxied
from tests.integration.store_client.samples import ONCE, Connect
from tests.integration.store_client.servers import Server

SECONDS = float(os.environ.get("CHAOS_SECONDS", "2"))
SEEDS = [int(os.environ["CHAOS_SEED"])] if "CHAOS_SEED" in os.environ else [1, 2, 3]

COUNT = script_from(
    "counter_raise",
    """--[[
Raise a counter to `wanted`; says whether that is one more than it was.

keys: counter
args: wanted
returns: OK value | SAME value | GAP value
]]
local counter = KEYS[1]
local wanted = tonumber(ARGV[1])
local value = tonumber(redis.call('GET', counter) or '0')
if value == wanted then return {'SAME', value} end
if value ~= wanted - 1 then return {'GAP', value} end
redis.call('SET', counter, wanted)
return {'OK', wanted}
""",
)


async def vandalise(dice: random.Random, server: Server, proxy: Proxy, until: float, done: list[str]) -> None:
    def flush() -> None:
        server.command("SCRIPT", "FLUSH", "SYNC")

    def kill() -> None:
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def pause() -> None:
        server.pause()
        await asyncio.sleep(dice.choice([0.05, 0.5]))
        server.resume()

    async def swallow() -> None:
        proxy.swallow = True
        await asyncio.sleep(0.05)
        proxy.swallow = False
        proxy.cut()

    async def replica() -> None:
        server.command("REPLICAOF", "127.0.0.1", "1")
        await asyncio.sleep(0.1)
        server.command("REPLICAOF", "NO", "ONE")

    while time.monotonic() < until:
        act = dice.choice([flush, flush, kill, kill, proxy.cut, proxy.cut, pause, swallow, replica])
        done.append(act.__name__)
        result = act()
        if result is not None:
            await result
        await asyncio.sleep(dice.random() * 0.1)


@pytest.mark.parametrize("seed", SEEDS)
async def test_chaos(connect: Connect, server: Server, key: str, seed: int) -> None:
    dice = random.Random(seed)
    done: list[str] = []
    async with proxied(server.path) as proxy:
        client: StoreClient = connect(proxy.url, socket_timeout=0.3, retry_for=30)
        end = time.monotonic() + SECONDS

        async def count(number: int) -> int:
            """One after another: every step is applied exactly once, and in order."""
            value = 0
            while time.monotonic() < end:
                value += 1
                reply = await client.run(COUNT, [f"{key}c{number}"], [value], lane=dice.choice(["default", "lease"]))
                assert reply.word in {"OK", "SAME"}, (reply, value)
            return value

        async def echo(number: int) -> None:
            turn = 0
            while time.monotonic() < end:
                turn += 1
                mark = f"{number}-{turn}".encode() * dice.choice([1, 1, 1, 20_000])
                assert await client.execute("ECHO", mark, repeatable=True) == mark

        async def leave(number: int) -> None:
            """Starts things and walks away."""
            while time.monotonic() < end:
                task = asyncio.create_task(client.run(ONCE, [f"{key}l"], [number]))
                await asyncio.sleep(dice.random() * 0.003)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        vandal = asyncio.create_task(vandalise(dice, server, proxy, end, done))
        counted = [asyncio.create_task(count(i)) for i in range(20)]
        others = [asyncio.create_task(w(i)) for i in range(20) for w in (echo, leave)]
        async with asyncio.timeout(SECONDS + 40):
            await asyncio.gather(vandal, *counted, *others)
        for number, task in enumerate(counted):
            stored = await client.execute("GET", f"{key}c{number}", repeatable=True)
            assert int(stored) == task.result(), f"seed {seed}: {done}"
