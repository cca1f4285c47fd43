"""A process whose tasks go in and out of what a lock protects; a program for `test_processes`.

Each body writes to a register several times, with its fencing token. The register refuses a token that is older than
the last. A body that is refused although it had just made sure of its lock is a violation, and written down.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any, Literal

from aioreactor import (
    ContentionError,
    LeaseLost,
    Lock,
    OrderedLock,
    Period,
    RateLimit,
    Runtime,
    Semaphore,
    Settings,
)
from aioreactor.definition.primitives import Primitive
from aioreactor.store.client import StoreClient
from aioreactor.store.errors import StoreError
from aioreactor.store.scripts import script_from

SURE = 0.5
"""Seconds after it was made sure of, for which a lease of a second cannot have been lost without a fault."""

ALGORITHMS: list[Literal["fixed", "sliding", "gcra"]] = ["fixed", "sliding", "gcra"]
WINDOWS: dict[Any, int] = {0.5: 20, "minute": 100_000}
TOUCH = script_from(
    "register_touch",
    """--[[
Write to the register with a fencing token; the first time, also to the log.

keys: register, log
args: token, first
returns: OK | REFUSED last
]]
local register, log = KEYS[1], KEYS[2]
local token, first = ARGV[1], ARGV[2]
local last = tonumber(redis.call('GET', register) or 0)
if last > tonumber(token) or (first == '1' and last == tonumber(token)) then
  return { 'REFUSED', last }
end
redis.call('SET', register, token)
if first == '1' then
  redis.call('RPUSH', log, token)
end
return { 'OK' }
""",
)


class Visitor:
    def __init__(self, order: dict[str, str], runtime: Runtime) -> None:
        assert runtime.durable is not None
        self.prefix = order["prefix"]
        self.client: StoreClient = runtime.durable.client
        self.dice = random.Random(order["seed"])
        self.stop = asyncio.Event()

    async def touch(self, token: int, sure: float, *, first: bool, register: str = "") -> None:
        keys = [f"{self.prefix}:register:{{v}}{register}", f"{self.prefix}:register:{{v}}{register}:log"]
        reply = await self.client.run(TOUCH, keys, [token, int(first)])
        late = time.monotonic() - sure
        if reply.word == "REFUSED" and late < SURE:
            text = f"{token} was refused for {reply.values[0]} {late:.3f} s after it was sure, first={first}"
            await self.client.execute("RPUSH", f"{self.prefix}:violations", text)

    async def visit(self, primitive: Primitive) -> None:
        async with primitive as held:
            if isinstance(primitive, RateLimit | Period):
                await asyncio.sleep(self.dice.random() * 0.01)
                return
            await held.check()
            if isinstance(primitive, OrderedLock):
                await self.take_turn(held)
                return
            if isinstance(primitive, Semaphore):
                await asyncio.sleep(self.dice.random() * 0.01)
                return
            for number in range(self.dice.randint(1, 4)):
                if number:
                    await held.check()
                sure = time.monotonic()
                await self.touch(held.token, sure, first=number == 0)
                await asyncio.sleep(self.dice.random() * 0.005)

    async def take_turn(self, held: Any) -> None:
        """In each line (one that is drained is followed by another) positions only grow."""
        place = held.turn.position
        sure = time.monotonic()
        await self.touch(place.number, sure, first=True, register=f":{place.epoch}")
        await asyncio.sleep(self.dice.random() * 0.005)
        await held.check()
        await self.touch(place.number, time.monotonic(), first=False, register=f":{place.epoch}")

    async def task(self) -> None:
        while not self.stop.is_set():
            primitive = self.dice.choice([
                Lock("v", ttl=1, wait=20), Lock("v", ttl=1, wait=20), Lock("v", ttl=1, wait=self.dice.random() * 0.05),
                Lock("v", ttl=1), Semaphore("v", 3, ttl=1, wait=20),
                OrderedLock("v", poison_after=1, strict=False, wait=20), OrderedLock("v", poison_after=1, strict=False),
                RateLimit("v", limits=WINDOWS, algorithm=self.dice.choice(ALGORITHMS), wait=0.3),
                Period("v", every=0.2),
            ])  # fmt: skip
            one = asyncio.create_task(self.visit(primitive))
            if self.dice.random() < 0.3:
                asyncio.get_running_loop().call_later(self.dice.random() * 0.05, one.cancel)
            (found,) = await asyncio.gather(one, return_exceptions=True)
            if found is not None and not isinstance(
                found, asyncio.CancelledError | ContentionError | LeaseLost | StoreError
            ):
                await self.client.execute("RPUSH", f"{self.prefix}:violations", repr(found))
            await asyncio.sleep(self.dice.random() * 0.005)


async def main() -> None:
    order = json.loads(sys.argv[1])
    settings = Settings(redis_url=order["url"], key_prefix=order["prefix"])
    async with Runtime(settings) as runtime:
        visitor = Visitor(order, runtime)
        tasks = [asyncio.create_task(visitor.task()) for _ in range(order["tasks"])]
        print("in", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        visitor.stop.set()
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())
