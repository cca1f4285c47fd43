"""What arq calls never raises; what is dropped is swept; deliveries and executions are apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from arq.connections import ArqRedis
from arq.worker import Worker as StockWorker
from arq.worker import func, get_kwargs

from aioreactor.jobs import beats, payload, service
from aioreactor.jobs.ports import Backing
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.service import WorkerService, cron_ticks, guarded
from aioreactor.jobs.settings import WorkerSettings, redis_settings, shown, worker_settings
from aioreactor.jobs.sweeper import sweep, sweep_up
from aioreactor.jobs.worker import Worker as OurWorker
from aioreactor.jobs.worker import create_worker
from aioreactor.queues import QueueReport
from aioreactor.store.client import StoreClient
from aioreactor.store.records import LIVE, NewRun
from aioreactor.store.store import RunStore
from tests.integration.jobs.stage import Stage
from tests.integration.jobs.test_host import Gates

CTX = {"job_id": "aioreactor.run:1"}


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def one(gates: Gates, queue: JobQueue) -> AsyncIterator[WorkerService]:
    """A service with room for one."""
    one = WorkerService(Backing(gates), queue, max_concurrency=1, shutdown_grace=0)
    yield one
    await one.shutdown({})


async def queued_runs(pool: ArqRedis) -> list[str]:
    return sorted(run_id for job in await pool.queued_jobs() for run_id in job.args[1])


async def test_the_rest_of_a_delivery_is_rung_for_others(one: WorkerService, gates: Gates, arq_pool: ArqRedis) -> None:
    await one.carry(CTX, 1, ["a", "b", "c"])
    await gates.called(1)
    assert gates.calls == ["a"]
    assert await queued_runs(arq_pool) == ["b", "c"]


async def test_a_full_one_gives_a_delivery_back_a_little_later(
    one: WorkerService, stage: Stage, arq_pool: ArqRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FULL", 0.01)
    await one.carry(CTX, 1, ["a"])
    seconds, micros = await stage.redis.time()
    await one.carry(CTX, 1, ["b"])
    [(_, score)] = await stage.redis.zrange(stage.queue_name, 0, -1, withscores=True)
    assert score >= seconds * 1000 + micros // 1000 + 250
    assert await queued_runs(arq_pool) == ["b"]


async def test_room_that_comes_in_time_is_used(one: WorkerService, gates: Gates, stage: Stage) -> None:
    gates.open("a")
    gates.open("b")
    await one.carry(CTX, 1, ["a", "b", "c"])
    await gates.called(3)
    assert await stage.queued() == 0


@pytest.mark.parametrize("args", [(), (2, ["a"]), (1, "a"), ("x",)])
async def test_what_cannot_be_read_is_dropped(
    one: WorkerService, gates: Gates, caplog: pytest.LogCaptureFixture, args: tuple[Any, ...]
) -> None:
    await one.carry(CTX, *args)
    assert gates.calls == []
    assert "was dropped" in caplog.text


async def garbled(stage: Stage, *job_ids: str) -> None:
    """The bodies of these jobs, and of all that are in the queue, are none that anybody can read."""
    for job_id in job_ids or [found.decode() for found in await stage.redis.zrange(stage.queue_name, 0, -1)]:
        assert await stage.redis.exists(payload.job_key(job_id))
        await stage.redis.set(payload.job_key(job_id), b"\xc1 no pickle", keepttl=True)


@pytest.mark.parametrize("kind", [StockWorker, OurWorker])
async def test_a_job_that_cannot_be_read_is_carried_by_its_id(
    stage: Stage, resting: RunStore, gates: Gates, queue: JobQueue, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A first ring is dropped, since only its body names its runs; the sweeper's names its run twice."""
    await lose(stage, resting, "a", "b:c")
    await queue.ring(["first"])
    await garbled(stage)
    assert (await sweep(resting, queue, 10)).rung == 2
    await garbled(stage)
    settings = worker_settings(carrier=gates, queue=stage.queue_name, queue_url=stage.url, shutdown_grace=0)
    options: dict[str, Any] = {"burst": True, "handle_signals": False, "poll_delay": 0, "cron_jobs": []}
    if kind is StockWorker:
        worker: StockWorker = StockWorker(**{**get_kwargs(dict(vars(settings))), **options})
        await worker.async_run()
    else:
        gates.open("a")
        gates.open("b:c")
        worker = create_worker(settings, **options)
        await worker.async_run()
    await gates.called(2)
    assert sorted(gates.calls) == ["a", "b:c"]
    assert caplog.text.count("its id names its run") == 2
    assert caplog.text.count("its runs are swept: it cannot be read: UnpicklingError") == 1
    assert await stage.queued() == 0
    assert (worker.jobs_complete, worker.jobs_failed) == (3, 0)
    with pytest.warns(DeprecationWarning) if kind is StockWorker else contextlib.nullcontext():
        await worker.close()


async def test_a_users_own_job_that_cannot_be_read_fails_as_with_arq(
    stage: Stage, gates: Gates, arq_pool: ArqRedis
) -> None:
    job = await arq_pool.enqueue_job("own", 1)
    assert job is not None
    await garbled(stage, job.job_id)
    settings = worker_settings(carrier=gates, queue=stage.queue_name, queue_url=stage.url, functions=[own])
    worker = create_worker(settings, burst=True, handle_signals=False, cron_jobs=[])
    await worker.async_run()
    assert worker.jobs_failed == 1
    with pytest.raises(payload.Unreadable, match="UnpicklingError"):
        await job.result(timeout=5)
    await worker.close()


@pytest.mark.parametrize("job", [5, {}, {"f": "own", "a": ()}])
def test_what_is_no_job_is_told_apart(job: Any) -> None:
    loads = payload.never_failing(payload.loads_plain)
    assert loads(payload.dumps_plain(job))["f"] == payload.UNREADABLE
    assert loads(payload.carry_body(["r"]))["f"] == payload.CARRY


def test_a_deserializer_of_the_users_is_used_and_guarded(gates: Gates) -> None:
    def loads(data: bytes) -> dict[str, Any]:
        raise OSError("no key")

    made = worker_settings(carrier=gates, job_deserializer=loads, job_serializer=payload.dumps_plain)
    assert vars(made)["job_deserializer"](b"")["a"] == ("OSError: no key",)
    read = vars(worker_settings(carrier=gates, job_serializer=payload.dumps_plain))["job_deserializer"]
    assert read(payload.carry_body(["r"]))["a"] == (payload.FORM, ["r"])


@pytest.mark.parametrize(
    ("job_id", "run_id"),
    [
        (payload.swept_job_id("a:b", "7"), "a:b"),
        ("aioreactor.run:8f-0", None),
        ("aioreactor.swept:x", None),
        ("other:a:1", None),
    ],
)
def test_the_id_of_a_sweepers_job_names_its_run(job_id: str, run_id: str | None) -> None:
    assert payload.swept_run_id(job_id) == run_id


async def test_what_cannot_be_rung_is_logged(gates: Gates, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    client = StoreClient(stage.url)
    one = WorkerService(Backing(gates), JobQueue(client, stage.queue_name), max_concurrency=1, shutdown_grace=0)
    await client.aclose()
    await one.carry(CTX, 1, ["a", "b"])
    assert "job aioreactor.run:1 was dropped" in caplog.text
    await one.shutdown({})
    assert "could not be rung again" in caplog.text


async def test_a_backing_that_does_not_open_is_tried_again(
    gates: Gates, queue: JobQueue, arq_pool: ArqRedis, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[dict[Any, Any]] = []
    closed: list[bool] = []

    @asynccontextmanager
    async def opens(ctx: dict[Any, Any]) -> AsyncIterator[Backing]:
        tries.append(ctx)
        if len(tries) == 1:
            raise OSError("no database")
        yield Backing(gates)
        closed.append(True)
        raise OSError("it does not close")

    lazy = WorkerService(opens, queue, shutdown_grace=0)
    ctx = {"mine": 1}
    await lazy.startup(ctx)
    assert "cannot carry runs on yet" in caplog.text
    await lazy.carry({**ctx, **CTX}, 1, ["a"])
    await gates.called(1)
    assert tries[0] is ctx
    await lazy.shutdown(ctx)
    assert closed == [True]
    assert "did not close well" in caplog.text
    assert await queued_runs(arq_pool) == ["a"]
    # What comes after that is for others.
    await lazy.carry(CTX, 1, ["b"])
    assert await queued_runs(arq_pool) == ["a", "b"]


async def test_job_timeouts_never_touch_what_runs(gates: Gates, stage: Stage, queue: JobQueue) -> None:
    """A delivery that takes too long is cut off by arq; what it started lives on."""
    one = WorkerService(Backing(gates), queue, max_concurrency=1, shutdown_grace=0)
    await queue.ring(["a", "b"], chunk=2)
    host = await one._start({})
    assert host is not None
    blocked = asyncio.Event()

    async def room(timeout: float) -> bool:
        blocked.set()
        await asyncio.Event().wait()
        return True

    host.room = room  # type: ignore[method-assign]
    worker = StockWorker(
        [func(one.carry, name=payload.CARRY, timeout=0.05, keep_result=0)],
        redis_settings=redis_settings(stage.url),
        queue_name=stage.queue_name,
        burst=True,
        poll_delay=0,
        handle_signals=False,
    )
    await worker.async_run()
    assert blocked.is_set()
    assert worker.jobs_failed == 1
    assert (gates.calls, gates.handed, host.running) == (["a"], [], 1)
    with pytest.warns(DeprecationWarning):
        await worker.close()
    await one.shutdown({})
    assert gates.handed == ["a"]


# ---------------------------------------------------------------------- sweeping


@pytest.fixture
async def resting(stage: Stage) -> RunStore:
    """A store in which a run rests for a millisecond only."""
    return RunStore(stage.client, prefix=stage.prefix, idle_ms=1)


async def lose(stage: Stage, store: RunStore, *run_ids: str) -> None:
    """These have been held by nobody for long."""
    for run_id in run_ids:
        await store.create(run_id, NewRun(reactor="fake"))
        await stage.redis.hset(store.space.run(run_id), "updated_ms", 1)
        await stage.redis.zadd(store.space.live(), {run_id: 1})


async def again(stage: Stage, store: RunStore, *run_ids: str) -> None:
    for run_id in run_ids:
        await stage.redis.zadd(store.space.live(), {run_id: 1})


async def test_each_loss_is_rung_for_once(stage: Stage, resting: RunStore, queue: JobQueue, arq_pool: ArqRedis) -> None:
    await lose(stage, resting, "a", "b")
    swept = await sweep(resting, queue, 10)
    assert (swept.stalled, swept.rung) == (2, 2)
    await again(stage, resting, "a", "b")
    swept = await sweep(resting, queue, 10)
    assert (swept.stalled, swept.rung) == (2, 0)
    assert await queued_runs(arq_pool) == ["a", "b"]
    # Somebody takes one and dies: that is another loss.
    await resting.take("a", LIVE, ttl_ms=1000, status="running")
    await stage.redis.hset(resting.space.run("a"), "lease_ms", 1)
    await again(stage, resting, "a", "b")
    swept = await sweep(resting, queue, 10)
    assert (swept.stalled, swept.rung) == (2, 1)


async def test_a_living_run_is_left_alone(stage: Stage, resting: RunStore, queue: JobQueue) -> None:
    await resting.create("a", NewRun(reactor="fake"), hold_ms=60_000)
    await again(stage, resting, "a")
    assert (await sweep(resting, queue, 10)).stalled == 0


async def test_batches_are_bounded(stage: Stage, resting: RunStore, queue: JobQueue) -> None:
    await lose(stage, resting, *map(str, range(10)))
    assert (await sweep(resting, queue, 4)).rung == 4
    assert (await sweep_up(resting, queue, 2, batches=2)).rung == 4
    assert (await sweep_up(resting, queue, 2, batches=9)).rung == 2


async def test_the_cron_job_sweeps_and_never_raises(
    stage: Stage, resting: RunStore, gates: Gates, queue: JobQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await lose(stage, resting, "a")
    ours = WorkerService(Backing(gates, resting), queue)
    await ours.sweep({})
    assert await stage.queued() == 1
    client = StoreClient(stage.url)
    broken = WorkerService(Backing(gates, RunStore(client, prefix=stage.prefix)), queue)
    await client.aclose()
    await broken.sweep({})
    assert "a sweep failed" in caplog.text
    idle = WorkerService(Backing(gates), queue)
    await idle.sweep({})
    for each in (ours, broken, idle):
        await each.shutdown({})


# ---------------------------------------------------------------------- signs of life


async def loads(queue: JobQueue) -> list[tuple[int, int]]:
    return sorted((worker.running, worker.places) for worker in (await queue.look()).alive)


async def test_a_worker_says_that_it_is_there_and_that_it_has_left(
    one: WorkerService, gates: Gates, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beats, "EVERY", 0.01)
    other = WorkerService(Backing(gates), queue, max_concurrency=7, shutdown_grace=0)
    assert await queue.look() == QueueReport(queue.queue_name, 0, 0, ())
    await other.startup({})
    await one.carry(CTX, 1, ["a"])
    async with asyncio.timeout(20):
        while await loads(queue) != [(0, 7), (1, 1)]:
            await asyncio.sleep(0.005)
    await queue.ring(["x"])
    await queue.ring(["y"], due_ms=60_000)
    found = await queue.look()
    assert (found.due, found.later) == (1, 1)
    await other.shutdown({})
    assert await loads(queue) == [(1, 1)]


async def test_one_that_is_killed_counts_as_gone_after_a_while_and_is_remembered(stage: Stage, queue: JobQueue) -> None:
    await queue.beat("h:1:a", 3, 4, alive=-1)
    await queue.beat("h:2:b", 0, 4, alive=60)
    found = await queue.look()
    assert [(worker.name, worker.alive, worker.running) for worker in found.workers] == [
        ("h:1:a", False, 3),
        ("h:2:b", True, 0),
    ]
    assert found.last_seen == found.alive[0].seen_at
    assert 0 < await stage.redis.pttl(queue.workers_key) <= 3_600_000


async def test_a_process_that_has_a_service_for_its_cron_jobs_only_is_one_worker(queue: JobQueue) -> None:
    await queue.beat("h:1:sweeps", 0, 0, alive=60)
    assert [(worker.name, worker.places) for worker in (await queue.look()).workers] == [("h:1:sweeps", 0)]
    await queue.beat("h:1:carries", 2, 9, alive=60)
    await queue.beat("h:2:sweeps", 0, 0, alive=60)
    assert [worker.name for worker in (await queue.look()).workers] == ["h:1:carries", "h:2:sweeps"]


# ---------------------------------------------------------------------- settings


def test_ticks_of_cron() -> None:
    assert cron_ticks(10) == {"second": {0, 10, 20, 30, 40, 50}}
    assert cron_ticks(0.1) == {"second": set(range(60))}
    assert cron_ticks(7) == {"second": set(range(0, 60, 6))}
    assert cron_ticks(59) == {"second": {0, 30}}
    assert cron_ticks(60) == {"minute": set(range(60)), "second": 0}
    assert cron_ticks(7200) == {"minute": {0}, "second": 0}
    with pytest.raises(ValueError, match="positive"):
        cron_ticks(0)


async def own(ctx: dict[Any, Any]) -> None:
    """A user's own."""


@pytest.fixture
def made(gates: Gates) -> Iterator[type[WorkerSettings]]:
    yield worker_settings(
        ["json"], carrier=gates, functions=[own], queue="q", queue_url="redis://u:p@h:1/2", health_check_interval=5
    )


def test_a_settings_class_has_both_parts(made: type[WorkerSettings]) -> None:
    given = vars(made)
    assert [getattr(f, "name", None) or f.__name__ for f in given["functions"]] == [
        "own",
        payload.CARRY,
        payload.UNREADABLE,
    ]
    assert [job.name for job in given["cron_jobs"]] == [payload.SWEEP]
    assert (given["queue_name"], given["health_check_interval"]) == ("q", 5)
    assert shown(made.url) == "redis://h:1/2"
    carry, unreadable = made.service.functions()
    assert (carry.timeout_s, carry.keep_result_s, carry.max_tries) == (30, 0, 1_000_000)
    assert (unreadable.timeout_s, unreadable.keep_result_s, unreadable.max_tries) == (30, None, 1_000_000)
    [tick] = made.service.cron_jobs()
    assert (tick.unique, tick.keep_result_s, tick.max_tries) == (True, 0, 1)


def test_a_subclass_may_say_more(made: type[WorkerSettings]) -> None:
    class Mine(made):  # type: ignore[valid-type,misc]
        max_jobs = 5

    assert vars(Mine)["max_jobs"] == 5
    assert vars(Mine)["functions"] is vars(made)["functions"]
    assert Mine.service is made.service


def test_mistakes_are_told_at_once(gates: Gates) -> None:
    with pytest.raises(TypeError, match="max_job"):
        worker_settings(carrier=gates, max_job=1)
    with pytest.raises(ImportError):
        worker_settings(["no_such_module"], carrier=gates)
    with pytest.raises(ValueError, match="max_concurrency"):
        worker_settings(carrier=gates, max_concurrency=0)
    with pytest.raises(ValueError, match="Cluster"):
        worker_settings(carrier=gates, queue_url="redis+cluster://h:1")


async def test_guarded_hooks_keep_their_names_and_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(ctx: dict[Any, Any]) -> None:
        raise RuntimeError("no")

    hook = guarded(broken, "on_startup")
    assert hook is not None
    await hook({})
    assert "on_startup hook raised" in caplog.text
    assert guarded(None, "on_startup") is None
