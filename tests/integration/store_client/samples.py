"""Scripts and helpers that several tests use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aioreactor.store.client import StoreClient
from aioreactor.store.scripts import Script, script_from

Connect = Callable[..., StoreClient]

HEADER = "--[[\nkeys: log\nargs: entry\nreturns: OK length\n]]\nlocal log = KEYS[1]\nlocal entry = ARGV[1]\n"


def push_script(variant: str = "a") -> Script:
    """Appends to a list; variants have different hashes."""
    return script_from(
        f"log_push_{variant}", HEADER + f"-- {variant}\nreturn {{'OK', redis.call('RPUSH', log, entry)}}\n"
    )


PUSH = push_script()

ONCE = script_from(
    "log_once",
    """--[[
Append an entry unless it is the last one already: repeatable after a lost reply.

keys: log
args: entry
returns: OK length | SAME length
]]
local log = KEYS[1]
local entry = ARGV[1]
local seen = redis.call('LPOS', log, entry)
if seen then return {'SAME', seen + 1} end
return {'OK', redis.call('RPUSH', log, entry)}
""",
)


async def gather(*work: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*work, return_exceptions=True))


async def until(true: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            now = true()
            if isinstance(now, Awaitable):
                now = await now
            if now:
                return
            await asyncio.sleep(0.002)


async def entries(client: Any, key: str) -> list[int]:
    return [int(e) for e in await client.execute("LRANGE", key, 0, -1, repeatable=True)]
