"""Runs that a worker executes, enqueued one by one and by the thousand.

==========  ========================================  ============================================  =================
row         ours                                      floor                                         bar
==========  ========================================  ============================================  =================
enqueue     ``enqueue_many`` of 10,000                the same keys in one pipeline of redis-py     1.5x
background  no-op runs of one step, enqueued until    jobs of plain arq with results, all its       0.25x, a fourth
            all outcomes are here, one worker         defaults, one worker
latency     enqueue until the step begins, idle       publish until it is received                  5 ms
            worker
==========  ========================================  ============================================  =================

Workers are processes of their own, started once by the commands that users type; the machine's monotonic clock is
theirs, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import quantiles
from typing import Any

from arq.connections import ArqRedis, create_pool

from aioreactor import Runtime
from aioreactor.jobs.settings import redis_settings
from benchmarks.background_app import QUEUE, NoOp
from benchmarks.harness import Effort, Row, Rounds, Sample, interleaved
from benchmarks.stored import a_runtime, client_of, redis_of

APP = "benchmarks.background_app"
DAY_MS = 86_400_000


async def enqueue(effort: Effort) -> list[Row]:
    """Many runs at once."""
    number = effort.of(10_000, 500)
    async with a_runtime() as runtime:
        inputs = [{"number": place} for place in range(number)]

        async def ours() -> None:
            await NoOp.enqueue_many(inputs)

        async def clear() -> None:
            await client_of(runtime).execute("FLUSHDB")

        redis = await redis_of(runtime)
        await ours()
        rounds = await interleaved(ours, _piped(redis, await _everything(redis)), effort.rounds, clear)
        await redis.aclose()
    note = "floor: one pipeline"
    return [rounds.row(f"enqueue_many of {number:,}", "µs/run", 1e6 / number, judged="ratio", bar=1.5, note=note)]


async def _everything(redis: Any) -> list[tuple[str, bytes, Any]]:
    """Every key of the server: type, name, value."""
    found = []
    async for key in redis.scan_iter(count=1000):
        kind = (await redis.type(key)).decode()
        if kind == "hash":
            found.append((kind, key, await redis.hgetall(key)))
        elif kind == "zset":
            found.append((kind, key, dict(await redis.zrange(key, 0, -1, withscores=True))))
        elif kind == "list":
            found.append((kind, key, await redis.lrange(key, 0, -1)))
        else:
            found.append((kind, key, await redis.get(key)))
    return found


def _piped(redis: Any, everything: list[tuple[str, bytes, Any]]) -> Sample:
    async def sample() -> None:
        async with redis.pipeline(transaction=False) as pipe:
            for kind, key, value in everything:
                if kind == "hash":
                    pipe.hset(key, mapping=value)
                elif kind == "zset":
                    pipe.zadd(key, value)
                elif kind == "list":
                    pipe.rpush(key, *value)
                else:
                    pipe.psetex(key, DAY_MS, value)
            await pipe.execute()

    return sample


async def background(effort: Effort) -> list[Row]:
    """Runs per second, against jobs per second."""
    runs, jobs = effort.of(2_000, 200), effort.of(400, 50)
    async with a_runtime() as runtime, worker(runtime, *OURS), worker(runtime, *ARQ):
        pool = await create_pool(redis_settings(_url(runtime)), default_queue_name=QUEUE)

        async def ours() -> None:
            handles = await NoOp.enqueue_many({"number": place} for place in range(runs))
            await asyncio.gather(*(handle.result(60) for handle in handles))

        async def floor() -> None:
            enqueued = await asyncio.gather(*(pool.enqueue_job("noop", place) for place in range(jobs)))
            await asyncio.gather(*(job.result(60) for job in enqueued if job is not None))

        rounds = await interleaved(ours, floor, effort.of(7, 3))
        await _closed(pool)
    each = Rounds([taken / runs for taken in rounds.ours], [taken / jobs for taken in rounds.floor])
    row = each.row("background no-op runs", "µs/run", 1e6, judged="ratio", bar=0.25)
    return [_with_rates(row)]


def _with_rates(row: Row) -> Row:
    assert row.floor is not None
    return replace(row, note=f"{1e6 / row.ours:,.0f} runs/s; floor: arq with results, {1e6 / row.floor:,.0f} jobs/s")


async def latency(effort: Effort) -> list[Row]:
    """How long an idle worker takes to begin."""
    found = Rounds()
    async with a_runtime() as runtime, worker(runtime, *OURS):
        redis = await redis_of(runtime)
        async with redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe("bench")
            await channel.get_message(timeout=5)
            for number in range(effort.of(200, 20) + 5):
                found.ours.append(await _begins_after(number))
                found.floor.append(await _heard_after(redis, channel))
        await redis.aclose()
    found = Rounds(found.ours[5:], found.floor[5:])
    late = quantiles(found.ours, n=20)[-1] * 1e3
    note = f"p50; p95 is {late:.2f} ms; floor: publish until received"
    return [found.row("enqueue until the step begins", "ms", 1e3, judged="ours", bar=5.0, note=note)]


async def _begins_after(number: int) -> float:
    asked = time.monotonic()
    handle = await NoOp.enqueue(number=number)
    outcome = await handle.result(60)
    began: float = outcome.unwrap()
    return began - asked


async def _heard_after(redis: Any, channel: Any) -> float:
    asked = time.monotonic()
    await redis.publish("bench", "x")
    while await channel.get_message(timeout=5) is None:
        pass
    return time.monotonic() - asked


# ---------------------------------------------------------------------- workers

OURS = ("aioreactor", "worker", APP)
ARQ = ("arq", f"{APP}.WorkerSettings")


def _url(runtime: Runtime) -> str:
    assert runtime.settings.redis_url is not None
    return runtime.settings.redis_url


@asynccontextmanager
async def worker(runtime: Runtime, module: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker's process, until the block ends.

    Cancellation: it is killed.
    """
    environment = {**os.environ, "AIOREACTOR_REDIS_URL": _url(runtime)}
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *words, env=environment, stdout=quiet, stderr=quiet
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _closed(pool: ArqRedis) -> None:
    await pool.aclose(close_connection_pool=True)
