"""Rings and deliveries against arq's own, interleaved; prints medians and ratios.

python -m benchmarks.jobs [rounds]
"""

from __future__ import annotations

import asyncio
import gc
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from arq.connections import ArqRedis, create_pool
from arq.worker import Worker as StockWorker
from arq.worker import func
from redis.asyncio import Redis

from aioreactor.embedded import EmbeddedServer
from aioreactor.jobs import payload
from aioreactor.jobs.queue import DAY_MS, JobQueue
from aioreactor.jobs.settings import redis_settings, worker_settings
from aioreactor.jobs.worker import Worker, create_worker
from aioreactor.store.client import StoreClient

RUNS = 10_000
RAW_JOBS = 500
LONE = 100


class NoOpCarrier:
    """Counts, and notes when each run was carried on."""

    def __init__(self) -> None:
        self.carried = 0
        self.wanted = 0
        self.reached = asyncio.Event()
        self.at = 0.0

    def expect(self, number: int) -> None:
        self.carried, self.wanted = 0, number
        self.reached.clear()

    async def carry_on(self, run_id: str, delivery: str) -> None:
        self.carried += 1
        self.at = time.perf_counter()
        if self.carried >= self.wanted:
            self.reached.set()


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.client = StoreClient(url)
        self.redis: Any = Redis.from_url(url)
        self.carrier = NoOpCarrier()
        self.runs = [f"run-{number:05}" for number in range(RUNS)]
        self.queue = JobQueue(self.client, "bench")
        self.raw_done = 0

    async def clear(self) -> None:
        await self.redis.flushdb()

    async def enqueue(self, chunk: int | None) -> float:
        await self.clear()
        begin = time.perf_counter()
        await self.queue.ring(self.runs, chunk=chunk)
        return time.perf_counter() - begin

    async def pipeline(self, chunk: int) -> float:
        """The same keys and values, in one pipeline of redis-py: the floor."""
        await self.clear()
        begin = time.perf_counter()
        now = int(time.time() * 1000)
        async with self.redis.pipeline(transaction=False) as pipe:
            scores = {}
            for first in range(0, RUNS, chunk):
                job_id = payload.new_job_id()
                pipe.psetex(f"arq:job:{job_id}", DAY_MS, payload.carry_body(self.runs[first : first + chunk]))
                scores[job_id] = now
            pipe.zadd("bench", scores)
            pipe.rpush("bench:wake", *["1"] * 16)
            await pipe.execute()
        return time.perf_counter() - begin

    async def one_by_one(self) -> float:
        """As arq enqueues: three round trips each; scaled to as many."""
        await self.clear()
        pool: ArqRedis = await create_pool(redis_settings(self.url), default_queue_name="bench")
        begin = time.perf_counter()
        for run_id in self.runs[:RAW_JOBS]:
            await pool.enqueue_job("noop", run_id)
        taken = time.perf_counter() - begin
        await pool.aclose(close_connection_pool=True)
        return taken * RUNS / RAW_JOBS

    async def worker(self) -> tuple[Worker, asyncio.Task[None]]:
        settings = worker_settings(
            carrier=self.carrier, queue="bench", queue_url=self.url, sweep_interval=None, max_concurrency=1000
        )
        worker = create_worker(settings, handle_signals=False)
        return worker, asyncio.create_task(worker.serve())

    async def delivered(self, chunk: int | None, number: int) -> float:
        """Seconds per run, rung before the worker looks."""
        await self.clear()
        await self.queue.ring(["warm"])
        self.carrier.expect(1)
        _, task = await self.worker()
        await self.carrier.reached.wait()
        self.carrier.expect(number)
        begin = time.perf_counter()
        await self.queue.ring(self.runs[:number], chunk=chunk)
        await self.carrier.reached.wait()
        taken = time.perf_counter() - begin
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return taken / number

    async def raw(self, **options: Any) -> float:
        """Seconds per job of arq's own worker, with jobs that do nothing."""
        await self.clear()
        pool: ArqRedis = await create_pool(redis_settings(self.url), default_queue_name="bench")
        done = asyncio.Event()
        count = 0

        async def noop(ctx: dict[Any, Any]) -> None:
            nonlocal count
            count += 1
            if count == RAW_JOBS:
                done.set()

        for _ in range(RAW_JOBS):
            await pool.enqueue_job("noop")
        worker = StockWorker(
            [func(noop, name="noop", keep_result=0)],
            redis_pool=pool,
            queue_name="bench",
            handle_signals=False,
            **options,
        )
        begin = time.perf_counter()
        task = asyncio.create_task(worker.async_run())
        await done.wait()
        taken = time.perf_counter() - begin
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*worker.tasks.values(), return_exceptions=True)
        await pool.aclose(close_connection_pool=True)
        return taken / RAW_JOBS

    async def latency(self) -> list[float]:
        """Seconds from before a ring until `carry_on` begins, on an idle worker."""
        await self.clear()
        worker, task = await self.worker()
        found: list[float] = []
        for number in range(LONE + 5):
            self.carrier.expect(1)
            begin = time.perf_counter()
            await self.queue.ring([f"lone-{number}"])
            await self.carrier.reached.wait()
            found.append(self.carrier.at - begin)
            while await self.redis.zcard("bench"):
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found[5:]


async def medians(measures: dict[str, Callable[[], Awaitable[float]]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds + 1):
        for name, measure in measures.items():
            gc.collect()
            seconds = await measure()
            if turn:
                taken[name].append(seconds)
    return taken


def ratio(taken: dict[str, list[float]], ours: str, floor: str) -> float:
    return statistics.median(a / b for a, b in zip(taken[ours], taken[floor], strict=True))


async def main(rounds: int) -> None:
    logging.getLogger("arq").setLevel(logging.ERROR)
    with EmbeddedServer.start() as server:
        bench = Bench(server.url)
        taken = await medians(
            {
                "ring 10,000, chunks of 64": lambda: bench.enqueue(None),
                "  the same keys, one pipeline": lambda: bench.pipeline(64),
                "ring 10,000, a job each": lambda: bench.enqueue(1),
                "  the same keys, one pipeline, a job each": lambda: bench.pipeline(1),
                "  enqueue_job, 10,000 (scaled)": bench.one_by_one,
            },
            rounds,
        )
        for name, values in taken.items():
            print(f"{name:46} {statistics.median(values) * 1e3:9.1f} ms")
        print(f"{'chunks / pipeline':46} {ratio(taken, *list(taken)[0:2]):9.2f}x (bar 1.5)")
        print(f"{'a job each / pipeline':46} {ratio(taken, *list(taken)[2:4]):9.2f}x (bar 1.5)")
        taken = await medians(
            {
                "deliver 10,000, chunks of 64": lambda: bench.delivered(None, RUNS),
                "deliver 1,000, a job each": lambda: bench.delivered(1, 1000),
                "raw arq, no-op jobs, max_jobs=100, poll 0": lambda: bench.raw(max_jobs=100, poll_delay=0),
                "raw arq, no-op jobs, defaults": bench.raw,
            },
            max(rounds // 3, 2),
        )
        for name, values in taken.items():
            print(f"{name:46} {1 / statistics.median(values):9.0f} /s")
        found = sorted(await bench.latency())
        p50, p95 = (found[int(len(found) * part)] * 1e3 for part in (0.5, 0.95))
        print(f"{'enqueue to carry_on, idle worker':46} {p50:9.2f} ms p50, {p95:.2f} ms p95 (bar 5 p50)")
        await bench.redis.aclose()
        await bench.client.aclose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
