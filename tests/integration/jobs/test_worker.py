"""Our worker in this process: woken at once, leaving to others what it has no room for, surviving its server."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest
from arq.connections import ArqRedis
from arq.jobs import Job
from redis.asyncio import Redis
from redis.exceptions import RedisError

from aioreactor.jobs import payload
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.settings import worker_settings
from aioreactor.jobs.wake import WakeListener
from aioreactor.jobs.worker import Worker, create_worker
from aioreactor.store.records import NewRun
from aioreactor.store.store import RunStore
from tests.integration.jobs.conftest import Ring
from tests.integration.jobs.stage import Stage, fake_backing
from tests.integration.jobs.test_host import Gates
from tests.integration.store_client.servers import Server

Work: TypeAlias = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def work(stage: Stage) -> AsyncIterator[Work]:
    """Starts workers in this process, which are told to end after the test."""
    tasks: list[asyncio.Task[None]] = []

    async def work(carrier: Any, url: str = stage.url, **options: Any) -> Worker:
        given = {"queue": stage.queue_name, "queue_url": url, "sweep_interval": None, "shutdown_grace": 0} | options
        worker = create_worker(worker_settings(carrier=carrier, **given), handle_signals=False)
        tasks.append(asyncio.create_task(worker.serve()))
        return worker

    yield work
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def napping(worker: Worker) -> None:
    """Wait until it sleeps."""
    async with asyncio.timeout(30):
        while not worker._listener._wanted.is_set():
            await asyncio.sleep(0)


async def test_a_ring_wakes_an_idle_worker(work: Work, ring: Ring, record_property: Any) -> None:
    """How fast is measured, and not judged: `benchmarks.jobs`."""
    gates = Gates()
    worker = await work(gates)
    taken = []
    for number in range(20):
        await napping(worker)
        gates.open(f"r{number}")
        begin = time.perf_counter()
        await ring(f"r{number}")
        async with asyncio.timeout(30):
            await gates.called(number + 1)
        taken.append(time.perf_counter() - begin)
    record_property("p50_ms", statistics.median(taken) * 1000)


async def test_a_worker_is_woken_not_polling(work: Work, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioreactor.jobs.worker.LONGEST_NAP", 3600)
    gates = Gates()
    worker = await work(gates)
    await napping(worker)
    async with asyncio.timeout(30):
        await ring("a")
        await gates.called(1)
        await ring("b", due_ms=300)
        await gates.called(2)


async def test_due_is_kept(work: Work, ring: Ring, stage: Stage) -> None:
    gates = Gates()
    await work(gates)
    seconds, micros = await stage.redis.time()
    await ring("late", due_ms=700)
    await ring("now")
    async with asyncio.timeout(30):
        await gates.called(2)
    later, micros_later = await stage.redis.time()
    assert gates.calls == ["now", "late"]
    assert (later - seconds) * 1000 + (micros_later - micros) / 1000 >= 700


async def test_a_freed_slot_is_a_reason_to_look(
    work: Work, ring: Ring, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioreactor.jobs.worker.LONGEST_NAP", 3600)
    gates = Gates()
    await work(gates, max_concurrency=1)
    await ring("a")
    async with asyncio.timeout(30):
        await gates.called(1)
        await ring("b")
        gates.open("a")
        await gates.called(2)
    assert gates.calls == ["a", "b"]


async def test_a_token_that_a_full_worker_put_back_makes_a_freed_slot_a_reason_to_look(
    work: Work, ring: Ring, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had room when it began to nap, and none when the token came."""
    monkeypatch.setattr("aioreactor.jobs.worker.LONGEST_NAP", 3600)
    gates = Gates()
    worker = await work(gates, max_concurrency=1)
    async with asyncio.timeout(30):
        while all(client["cmd"] != "blpop" for client in await stage.redis.client_list()):
            await asyncio.sleep(0)
        gates.open("first")
        await ring("first")
        await gates.called(1)
        await napping(worker)
        host = worker.service.host
        assert host is not None
        await host.idle()
        assert host.admit(["a"], "no job's") == []
        await ring("b")
        while worker._listener._wanted.is_set():
            await asyncio.sleep(0)
        gates.open("a")
        await gates.called(3)
    assert gates.calls == ["first", "a", "b"]


async def test_a_delivery_that_has_ended_takes_no_room(work: Work, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """arq forgets a finished job at the end of its next look at the queue only."""
    monkeypatch.setattr("aioreactor.jobs.worker.LONGEST_NAP", 3600)
    gates = Gates()
    worker = await work(gates, max_concurrency=1)
    for number in range(1, 4):
        await napping(worker)
        gates.open(f"r{number}")
        await ring(f"r{number}")
        async with asyncio.timeout(30):
            await gates.called(number)
            while not all(task.done() for task in worker.tasks.values()):
                await asyncio.sleep(0)
    assert gates.calls == ["r1", "r2", "r3"]


async def test_a_full_worker_still_runs_users_jobs_and_leaves_ours(
    work: Work, ring: Ring, stage: Stage, arq_pool: ArqRedis
) -> None:
    gates, ran = Gates(), asyncio.Event()

    async def own(ctx: dict[Any, Any]) -> None:
        ran.set()

    own.__qualname__ = "own"
    await work(gates, max_concurrency=1, functions=[own])
    await ring("a")
    async with asyncio.timeout(30):
        await gates.called(1)
        await ring("b")
        await arq_pool.enqueue_job("own")
        await ran.wait()
    assert gates.calls == ["a"]
    [left] = [job_id for job_id in await stage.redis.zrange(stage.queue_name, 0, -1) if payload.is_ours(job_id)]
    job = await Job(left.decode(), arq_pool).info()
    assert job is not None
    assert job.args == (1, ["b"])
    assert not await stage.redis.exists(f"arq:in-progress:{left.decode()}")


async def test_a_stop_rings_again_what_was_handed_back(work: Work, ring: Ring, arq_pool: ArqRedis) -> None:
    gates = Gates()
    worker = await work(gates)
    await ring("a", "b")
    async with asyncio.timeout(30):
        await gates.called(2)
    await worker.close()
    assert sorted(gates.handed) == ["a", "b"]
    jobs = await arq_pool.queued_jobs()
    assert sorted(run_id for job in jobs for run_id in job.args[1]) == ["a", "b"]


async def test_the_queue_may_be_elsewhere_and_restart_without_data(stage: Stage, work: Work) -> None:
    """Rings that a restart lost are swept; what runs meanwhile is not disturbed."""
    elsewhere = Server()
    queue = JobQueue(elsewhere.url, stage.queue_name)
    try:
        await work(lambda ctx: fake_backing(stage.url, stage.prefix, idle_ms=1), elsewhere.url, sweep_interval=1)
        await stage.create("long", b"gate")
        await queue.ring(["long"])
        await stage.until("begun", "long")
        elsewhere.stop()
        await RunStore(stage.client, prefix=stage.prefix, idle_ms=1).create("lost", NewRun(reactor="fake"))
        elsewhere.start()
        await stage.until("done", "lost")
        await stage.create("new")
        await queue.ring(["new"])
        await stage.until("done", "new")
        await stage.open_gate("long")
        await stage.until("done", "long")
    finally:
        await queue.aclose()
        elsewhere.close()


async def test_what_comes_out_of_arq_is_survived(
    work: Work, ring: Ring, arq_pool: ArqRedis, caplog: pytest.LogCaptureFixture
) -> None:
    gates = Gates()
    worker = await work(gates)
    await napping(worker)

    async def breaks() -> None:
        raise RuntimeError("inside arq")

    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    for name, broken in (("a", breaks()), ("b", is_cancelled())):
        worker.tasks["x"] = asyncio.create_task(broken)
        await ring(name)
        async with asyncio.timeout(30):
            while "x" in worker.tasks:
                await asyncio.sleep(0.001)
    await ring("after")
    async with asyncio.timeout(30):
        await gates.called(3)
    assert "an error came out of arq" in caplog.text
    assert "a job was cancelled within arq" in caplog.text


async def test_a_server_that_is_away_at_the_start_is_an_error(gates_settings: Any) -> None:
    worker = create_worker(gates_settings, handle_signals=False)
    with pytest.raises(RedisError):
        await worker.serve()


@pytest.fixture
def gates_settings() -> Iterator[Any]:
    settings = worker_settings(carrier=Gates(), queue_url="unix:///nowhere/at/all", sweep_interval=None)
    settings.redis_settings.conn_retries = 0  # type: ignore[attr-defined]
    settings.redis_settings.retry = None  # type: ignore[attr-defined]
    settings.redis_settings.retry_on_error = None  # type: ignore[attr-defined]
    yield settings


async def test_a_token_that_cannot_be_used_is_put_back(stage: Stage, queue: JobQueue) -> None:
    full = asyncio.Event()

    def is_full() -> bool:
        full.set()
        return True

    listener = WakeListener(queue, on_wake=lambda: None, is_full=is_full)
    listener.want()
    await queue.ring(["a"])
    async with asyncio.timeout(30):
        await full.wait()
        while await stage.redis.llen(queue.wake_key) == 0:
            await asyncio.sleep(0)
    assert 0 < await stage.redis.pttl(queue.wake_key) <= 5000
    await listener.aclose()
    await listener.aclose()


async def test_one_wish_takes_one_token(stage: Stage, queue: JobQueue) -> None:
    woken = asyncio.Event()
    listener = WakeListener(queue, on_wake=woken.set, is_full=lambda: False)
    listener.want()
    async with asyncio.timeout(30):
        await woken.wait()
        woken.clear()
        await queue.ring(["a", "b", "c"])
        await woken.wait()
    assert await stage.redis.llen(queue.wake_key) == 2
    listener.decline()
    await listener.aclose()


async def test_a_listener_connects_again(queue: JobQueue, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    woken = asyncio.Event()
    queue = JobQueue(server.url, stage.queue_name)
    listener = WakeListener(queue, on_wake=woken.set, is_full=lambda: False)
    listener.want()
    try:
        async with asyncio.timeout(60):
            await woken.wait()
            server.stop()
            woken.clear()
            server.start()
            await woken.wait()
        assert "not woken, only polled" in caplog.text
    finally:
        await listener.aclose()
        await queue.aclose()
        server.close()


async def test_idle_workers_ask_little(work: Work, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at all between naps; each look is two commands."""
    monkeypatch.setattr("aioreactor.jobs.worker.LONGEST_NAP", 3600)
    worker = await work(Gates())
    await napping(worker)
    async with contextlib.AsyncExitStack() as stack:
        redis: Any = await stack.enter_async_context(Redis.from_url(stage.url))
        looks = []
        original = worker.pool.zrangebyscore

        async def counted(*args: Any, **kwargs: Any) -> Any:
            looks.append(args)
            return await original(*args, **kwargs)

        monkeypatch.setattr(worker.pool, "zrangebyscore", counted)
        for _ in range(50):
            await redis.ping()
        assert len(looks) <= 2
