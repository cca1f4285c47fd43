"""Maps whose elements are dealt to workers: how many a second, there and back, and what memory they take.

========  =============================================  =============================================  ============
row       ours                                           floor                                          bar
========  =============================================  =============================================  ============
fan-out   10,000 no-op elements, enqueued until their    as many jobs of plain arq with results, all    0.1x, a
          results were read in order, one worker         its defaults, one worker; measured with a      tenth
                                                         tenth of them
          the same, two workers                          the same, two workers
fan-back  the same with an undo each, enqueued until
          all are rolled back
fan-flat  a page source of 100,000 items (or as many as
          ``AIOREACTOR_BENCH_ITEMS`` says), window 200:
          the last tenth against the first one: rate,
          memory of the worker and of the server
========  =============================================  =============================================  ============

Workers are processes of their own. The floor of the second row of fan-out is the same arq without its polling: a delay
of 10 ms and 100 jobs at a time, and results looked for 20 times a second. Its jobs and ours are rates of one worker's whole life of a job: enqueued, executed,
its result read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

from arq.connections import ArqRedis, create_pool

from aioreactor import Reactor, RunHandle, Runtime
from aioreactor.jobs.settings import redis_settings
from benchmarks.background import worker
from benchmarks.fan_out_app import EAGER_QUEUE, QUEUE, WINDOW, Fan, Paged, Undone
from benchmarks.harness import Effort, Row, Rounds, Sample, interleaved, timed
from benchmarks.stored import a_runtime, client_of, store_of

APP = "benchmarks.fan_out_app"
OURS = ("aioreactor", "worker", APP)
LONGEST = 600.0
SAMPLE_EVERY = 0.25


async def fan_out(effort: Effort) -> list[Row]:
    """Elements per second, against jobs per second."""
    return [
        await _against(effort, 1, "WorkerSettings", QUEUE, "defaults", bar=0.1),
        await _against(effort, 1, "EagerSettings", EAGER_QUEUE, "10 ms, 100 at a time"),
        await _against(effort, 2, "WorkerSettings", QUEUE, "defaults", bar=0.1),
    ]


async def _against(effort: Effort, workers: int, settings: str, queue: str, what: str, bar: float | None = None) -> Row:
    elements, jobs = effort.of(10_000, 500), effort.of(1_000, 50)
    look_each = 0.5 if settings == "WorkerSettings" else 0.05
    async with _with_workers(workers, ("arq", f"{APP}.{settings}")) as runtime:
        pool = await create_pool(redis_settings(url_of(runtime)), default_queue_name=queue)
        rounds = await interleaved(_mapped(elements), _plain(pool, jobs, look_each), effort.of(5, 2))
        await pool.aclose(close_connection_pool=True)
    each = Rounds([taken / elements for taken in rounds.ours], [taken / jobs for taken in rounds.floor])
    name = f"fan-out of {elements:,} no-op elements, {workers} worker{'s' * (workers > 1)}"
    row = each.row(name, "µs/element", 1e6, judged="ratio" if bar else "", bar=bar)
    assert row.floor is not None
    return replace(row, note=f"{1e6 / row.ours:,.0f}/s; floor: arq, {what}, {1e6 / row.floor:,.0f} jobs/s")


@asynccontextmanager
async def _with_workers(number: int, *others: tuple[str, str]) -> AsyncIterator[Runtime]:
    """A runtime, and so many workers of each kind.

    Cancellation: all of it ends.
    """
    async with a_runtime() as runtime, AsyncExitStack() as started:
        for command in (OURS, *others):
            for _ in range(number):
                await started.enter_async_context(worker(runtime, *command))
        yield runtime


def _mapped(elements: int) -> Sample:
    async def sample() -> None:
        handle = await Fan.enqueue(numbers=list(range(elements)))
        outcome = await handle.result(LONGEST)
        assert outcome.unwrap() == elements

    return sample


def _plain(pool: ArqRedis, jobs: int, look_each: float) -> Sample:
    async def sample() -> None:
        enqueued = await asyncio.gather(*(pool.enqueue_job("noop", place) for place in range(jobs)))
        found = await asyncio.gather(
            *(job.result(LONGEST, poll_delay=look_each) for job in enqueued if job is not None)
        )
        assert found == list(range(jobs))

    return sample


async def fan_back(effort: Effort) -> list[Row]:
    """There and back."""
    elements = effort.of(10_000, 500)
    async with _with_workers(1):
        there, back = _mapped(elements), _undone(elements)
        await timed(back)
        rounds = await interleaved(back, there, effort.of(3, 1))
    each = Rounds([taken / elements for taken in rounds.ours], [taken / elements for taken in rounds.floor])
    row = each.row(f"{elements:,} elements, executed and rolled back", "µs/element", 1e6)
    return [replace(row, note=f"{1e6 / row.ours:,.0f}/s; floor: executed only, without undos")]


def _undone(elements: int) -> Sample:
    async def sample() -> None:
        handle = await Undone.enqueue(numbers=list(range(elements)))
        outcome = await handle.result(LONGEST)
        assert outcome.status == "failed"
        assert not outcome.rollback_failures

    return sample


# ---------------------------------------------------------------------- memory


@dataclass
class Seen:
    """What was there from time to time, while a map went on; memory in bytes."""

    at: list[float] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    worker: list[int] = field(default_factory=list)
    server: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)

    def tenth(self, which: list[int], number: int, items: int) -> float:
        """The median of what was seen while this tenth of the items was executed."""
        low, high = items * number // 10, items * (number + 1) // 10
        found = [seen for seen, done in zip(which, self.done, strict=True) if low <= done <= high]
        return median(found) if found else float("nan")

    def rate(self, number: int, items: int) -> float:
        """Items per second in this tenth."""
        low, high = items * number // 10, items * (number + 1) // 10
        inside = [(at, done) for at, done in zip(self.at, self.done, strict=True) if low <= done <= high]
        steps = [(later[0] - at, later[1] - done) for (at, done), later in pairwise(inside)]
        spent = sum(span for span, _ in steps)
        return sum(count for _, count in steps) / spent if spent else float("nan")


async def fan_flat(effort: Effort) -> list[Row]:
    """Whether a map of any length takes the same memory all along."""
    items = int(os.environ.get("AIOREACTOR_BENCH_ITEMS", effort.of(100_000, 2_000)))
    async with a_runtime() as runtime, worker(runtime, *OURS) as process:
        await _warm(Paged, total=5 * WINDOW)
        before = await _empty(runtime, process.pid)
        handle = await Paged.enqueue(total=items)
        seen = await _watched(runtime, handle, process.pid)
        outcome = await handle.result(LONGEST)
        assert outcome.unwrap() == items
        left = await _left_after_deletion(runtime, handle)
    return _flat_rows(seen, items, before, left)


async def _warm(reactor: type[Reactor[Any]], **inputs: Any) -> None:
    await (await reactor.enqueue(**inputs)).result(LONGEST)


async def _empty(runtime: Runtime, pid: int) -> tuple[int, int]:
    return _resident(pid), await _used(runtime)


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _used(runtime: Runtime) -> int:
    found = (await client_of(runtime).execute("INFO", "memory")).decode()
    return next(int(line.partition(":")[2]) for line in found.splitlines() if line.startswith("used_memory:"))


async def _watched(runtime: Runtime, handle: RunHandle[Any], pid: int) -> Seen:
    seen, client, fans = Seen(), client_of(runtime), store_of(runtime).fans
    while not (await handle.status()) in {"completed", "failed"}:
        row = await fans.look(handle.run_id, "each")
        if row is not None:
            seen.at.append(perf_counter())
            seen.done.append(row.number("settled"))
            seen.worker.append(_resident(pid))
            seen.server.append(await _used(runtime))
            seen.keys.append(await client.execute("DBSIZE"))
            seen.queued.append(await client.execute("ZCARD", "arq:queue"))
        await asyncio.sleep(SAMPLE_EVERY)
    return seen


async def _left_after_deletion(runtime: Runtime, handle: RunHandle[Any]) -> int:
    """How many keys of the run there are when it has been deleted."""
    await store_of(runtime).delete(handle.run_id)
    return len(await client_of(runtime).execute("KEYS", f"*{handle.run_id}*"))


def _flat_rows(seen: Seen, items: int, before: tuple[int, int], left: int) -> list[Row]:
    name, mib = f"page source of {items:,}, window {WINDOW}", 2**20
    first, last = seen.rate(0, items), seen.rate(9, items)
    rows = [Row(f"{name}: rate", "1/s", last, first, last / first, note="floor: in the first tenth")]
    for which, what, base in ((seen.worker, "worker", before[0]), (seen.server, "server", before[1])):
        begun, ended = seen.tenth(which, 0, items) / mib, seen.tenth(which, 9, items) / mib
        note = f"floor: in the first tenth; before: {base / mib:.1f}, at most: {max(which) / mib:.1f}"
        rows.append(Row(f"{name}: memory of the {what}", "MiB", ended, begun, ended / begun, note=note))
    note = f"most at any time; most jobs in the queue: {max(seen.queued)}; keys of the run when deleted: {left}"
    rows.append(Row(f"{name}: keys", "keys", max(seen.keys), note=note))
    return rows


def url_of(runtime: Runtime) -> str:
    """Where the server is."""
    assert runtime.settings.redis_url is not None
    return runtime.settings.redis_url
