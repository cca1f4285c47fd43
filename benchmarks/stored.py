"""What the rows with a store share: a server and a runtime of their own, and the bytes that a step really writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from redis.asyncio import Redis

from aioreactor import Runtime, Settings
from aioreactor.embedded import EmbeddedServer
from aioreactor.store.calls import Value
from aioreactor.store.client import StoreClient
from aioreactor.store.scripts import Reply, Script, script_from
from aioreactor.store.store import RunStore
from benchmarks.harness import Sample

Checkpoint: TypeAlias = tuple[list[str], list[Value]]

BARE_WRITE = script_from(
    "step_write",
    """--[[
keys: run, steps, trace, requests
args: token, ver, write, ttl_ms, status, n_scalars, n_steps, n_dropped, changes...
returns: OK ver
]]
local run, steps, trace, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ver, write, ttl_ms, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local n_scalars, n_steps, n_dropped = ARGV[6], ARGV[7], ARGV[8]
local past = 9 + 2 * n_steps
redis.call('HSET', steps, unpack(ARGV, 9, past - 1))
if past <= #ARGV then
  redis.call('RPUSH', trace, unpack(ARGV, past))
end
return { 'OK', 1 }
""",
)
"""The floor: takes exactly what ``run_save`` takes and writes the same, but asks nothing and keeps no lease."""


@asynccontextmanager
async def a_runtime(**settings: Any) -> AsyncIterator[Runtime]:
    """A current runtime on a server of its own.

    Cancellation: both end.
    """
    with EmbeddedServer.start() as server:
        async with Runtime(Settings(redis_url=server.url, **settings)) as runtime:
            yield runtime


def client_of(runtime: Runtime) -> StoreClient:
    """The runtime's connection."""
    assert runtime.durable is not None
    return runtime.durable.client


def store_of(runtime: Runtime) -> RunStore:
    """Where its runs are kept."""
    assert runtime.durable is not None
    return runtime.durable.store


async def redis_of(runtime: Runtime) -> Any:
    """A client of redis-py to the same server, which knows the script of the floor."""
    assert runtime.settings.redis_url is not None
    redis: Any = Redis.from_url(runtime.settings.redis_url)
    await redis.script_load(BARE_WRITE.source)
    return redis


async def checkpoints_of(runtime: Runtime, sample: Sample) -> list[Checkpoint]:
    """Keys and arguments of every checkpoint that a sample writes."""
    client, found = client_of(runtime), []
    run = client.run

    async def noting(script: Script, keys: Sequence[str], args: Sequence[Value] = (), **more: Any) -> Reply:
        if script.name == "run_save":
            found.append((list(keys), list(args)))
        return await run(script, keys, args, **more)

    client.run = noting  # type: ignore[method-assign, assignment]
    try:
        await sample()
    finally:
        del client.run
    return found
