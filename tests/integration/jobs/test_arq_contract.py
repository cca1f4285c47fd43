"""What of arq, beyond its documented surface, our worker rests on. One that fails says what to look at in a new arq."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import AsyncIterator
from typing import Any

import arq
import pytest
from arq import constants
from arq.connections import ArqRedis, create_pool
from arq.cron import cron
from arq.worker import Function, Worker, func, get_kwargs

from aioreactor.jobs.settings import redis_settings
from tests.integration.jobs.stage import Stage


async def noop(ctx: dict[Any, Any]) -> None:
    """Nothing."""


class Watched(Worker):
    """Writes down what arq calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Any] = []
        self.looked = asyncio.Event()

    async def _poll_iteration(self) -> None:
        self.seen.append("look")
        await super()._poll_iteration()
        self.looked.set()

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        self.seen.append(("start", list(job_ids)))
        await super().start_jobs(job_ids)

    def _release_sem_dec_counter_on_complete(self) -> None:
        super()._release_sem_dec_counter_on_complete()
        self.seen.append(("ended", self.job_counter))


@pytest.fixture
async def pool(stage: Stage) -> AsyncIterator[ArqRedis]:
    pool = await create_pool(redis_settings(stage.url), default_queue_name=stage.queue_name)
    yield pool
    await pool.aclose(close_connection_pool=True)


def watched(pool: ArqRedis, stage: Stage, **options: Any) -> Watched:
    options = {"poll_delay": 0, "handle_signals": False, "keep_result": 0} | options
    return Watched([func(noop, name="noop")], redis_pool=pool, queue_name=stage.queue_name, **options)


def test_the_version_is_the_one_that_was_read() -> None:
    assert arq.VERSION.startswith("0.28")


def test_names_of_keys() -> None:
    assert (constants.job_key_prefix, constants.in_progress_key_prefix) == ("arq:job:", "arq:in-progress:")
    assert constants.default_queue_name == "arq:queue"


async def test_a_look_starts_jobs_and_their_end_frees_the_slot(pool: ArqRedis, stage: Stage) -> None:
    job = await pool.enqueue_job("noop")
    assert job is not None
    worker = watched(pool, stage, burst=True)
    await worker.async_run()
    assert worker.seen[:2] == ["look", ("start", [job.job_id.encode()])]
    assert ("ended", 0) in worker.seen
    assert worker.max_jobs == 10
    assert worker.queue_read_limit == 100


async def test_ids_left_out_of_start_jobs_stay_for_others(pool: ArqRedis, stage: Stage) -> None:
    class Leaves(Watched):
        async def start_jobs(self, job_ids: list[bytes]) -> None:
            await super().start_jobs([])

    job = await pool.enqueue_job("noop")
    assert job is not None
    worker = Leaves([func(noop, name="noop")], redis_pool=pool, queue_name=stage.queue_name, handle_signals=False)
    worker.main_task = asyncio.create_task(worker.main())
    async with asyncio.timeout(30):
        await worker.looked.wait()
    worker.main_task.cancel()
    await asyncio.gather(worker.main_task, return_exceptions=True)
    assert await stage.queued() == 1
    assert not await pool.exists(f"arq:in-progress:{job.job_id}")


async def test_tasks_are_those_under_way_and_errors_come_out_of_a_look(pool: ArqRedis, stage: Stage) -> None:
    async def breaks(ctx: dict[Any, Any]) -> None:
        raise RuntimeError("a hook")

    await pool.enqueue_job("noop", _job_id="one")
    worker = watched(pool, stage, on_job_start=breaks, burst=True)
    with pytest.raises(RuntimeError, match="a hook"):
        await worker.async_run()
    assert "one" not in worker.tasks


async def test_a_signal_cancels_tasks_and_main(pool: ArqRedis, stage: Stage) -> None:
    worker = watched(pool, stage)
    running = asyncio.create_task(worker.async_run())
    async with asyncio.timeout(30):
        await worker.looked.wait()
    task = worker.tasks["held"] = asyncio.create_task(asyncio.Event().wait())
    worker.handle_sig(signal.SIGTERM)
    await asyncio.gather(running, task, return_exceptions=True)
    assert worker.main_task is not None
    assert worker.main_task.cancelled()
    assert task.cancelled()


async def test_a_patient_signal_waits_for_tasks_while_looks_go_on(pool: ArqRedis, stage: Stage) -> None:
    worker = watched(pool, stage, job_completion_wait=30)
    running = asyncio.create_task(worker.async_run())
    async with asyncio.timeout(30):
        await worker.looked.wait()
    release = asyncio.Event()
    worker.tasks["held"] = asyncio.create_task(release.wait())
    worker.handle_sig_wait_for_completion(signal.SIGTERM)
    assert not worker.allow_pick_jobs
    worker.looked.clear()
    async with asyncio.timeout(30):
        await worker.looked.wait()
    assert not running.done()
    release.set()
    await asyncio.gather(running, return_exceptions=True)
    assert worker.tasks == {}


async def test_close_runs_the_hook_and_no_pool_is_no_work(pool: ArqRedis, stage: Stage) -> None:
    called: list[Any] = []

    async def hook(ctx: dict[Any, Any]) -> None:
        called.append(ctx)

    worker = watched(pool, stage, on_shutdown=hook, burst=True)
    await worker.async_run()
    with pytest.warns(DeprecationWarning):
        await worker.close()
    assert called == [worker.ctx]
    assert worker._pool is None
    await worker.close()
    assert len(called) == 1


def test_the_loop_is_a_look_then_a_pause() -> None:
    source = inspect.getsource(Worker.main)
    assert "async for _ in poll(self.poll_delay_s):" in source
    assert "await self._poll_iteration()" in source
    assert "await self.heart_beat()" in inspect.getsource(Worker._poll_iteration)
    # Cron jobs are enqueued a second before their time, and we look at least once a second.
    assert "max(self.poll_delay_s, 0.5)" in inspect.getsource(Worker.heart_beat)
    assert inspect.signature(Worker.run_cron).parameters["num_windows"].default == 2


def test_settings_are_read_from_the_class_itself() -> None:
    class Settings:
        functions = [noop]
        max_jobs = 3
        something_else = 1

    assert get_kwargs(dict(vars(Settings))) == {"functions": [noop], "max_jobs": 3}


def test_functions_and_cron_jobs_carry_what_we_set() -> None:
    made = func(noop, name="n", timeout=3, keep_result=0, max_tries=9)
    assert made == Function("n", noop, 3, 0, None, 9)
    tick = cron(noop, name="t", second={1}, timeout=3, keep_result=0, max_tries=1)
    assert (tick.name, tick.unique, tick.timeout_s, tick.keep_result_s) == ("t", True, 3, 0)


async def test_one_winner_per_tick(pool: ArqRedis, stage: Stage) -> None:
    """Two workers that enqueue a tick enqueue the same job."""
    import datetime

    workers = [
        Watched(
            [], cron_jobs=[cron(noop, name="tick", second=set(range(60)))],
            redis_pool=pool, queue_name=stage.queue_name, handle_signals=False,
        )
        for _ in range(2)
    ]  # fmt: skip
    now = datetime.datetime.now(tz=workers[0].timezone)
    for worker in workers:
        await worker.run_cron(now, 0.5)
        await worker.run_cron(now + datetime.timedelta(seconds=0.5), 0.5)
    assert await stage.queued() == len({job.job_id for job in await pool.queued_jobs()}) == 1
