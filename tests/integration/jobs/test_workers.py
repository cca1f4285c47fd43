"""Workers as processes: arq's own and ours, beside each other, told to end, killed."""

from __future__ import annotations

import signal

import pytest
from arq.connections import ArqRedis

from tests.integration.jobs.conftest import Ring, StartWorker, ended
from tests.integration.jobs.stage import Stage

KINDS = ["arq", "ours"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_carries_on_what_is_rung_for(stage: Stage, start: StartWorker, ring: Ring, kind: str) -> None:
    process = await start(kind)
    await stage.create("r1")
    await ring("r1")
    assert await stage.until("done", "r1") == str(process.pid)
    process.send_signal(signal.SIGTERM)
    log = await ended(process)
    assert process.returncode == 0, log
    assert "Traceback" not in log


@pytest.mark.parametrize("kind", KINDS)
async def test_users_own_jobs_run_beside(
    stage: Stage, start: StartWorker, ring: Ring, arq_pool: ArqRedis, kind: str
) -> None:
    await start(kind)
    await stage.create("r1")
    await ring("r1")
    await arq_pool.enqueue_job("own_job", "hello")
    events = await stage.counted("own", 1)
    if not any(event[:2] == ["done", "r1"] for event in events):
        await stage.until("done", "r1")
    assert any(event[:2] == ["own", "hello"] for event in events)


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_is_told_to_end_hands_back_and_another_goes_on_at_once(
    stage: Stage, start: StartWorker, ring: Ring, kind: str
) -> None:
    first = await start(kind)
    await stage.create("r1", b"hold")
    await ring("r1")
    assert await stage.until("begun", "r1") == str(first.pid)
    second = await start(kind)
    await stage.create("other")
    await ring("other")
    await stage.until("done", "other")
    first.send_signal(signal.SIGTERM)
    await stage.until("handed", "r1")
    assert await stage.until("begun", "r1") == str(second.pid)
    log = await ended(first)
    assert first.returncode == 0, log
    # arq's command configures its own loggers only.
    assert kind == "arq" or "handed back: 1 runs" in log
    row = await stage.store.peek("r1")
    assert row is not None
    assert row.lease_left_ms > 0


async def test_the_grace_lets_what_runs_end(stage: Stage, start: StartWorker, ring: Ring) -> None:
    process = await start("ours", T_GRACE="60")
    await stage.create("r1", b"gate")
    await ring("r1")
    await stage.until("begun", "r1")
    process.send_signal(signal.SIGTERM)
    await stage.open_gate("r1")
    await stage.until("done", "r1")
    log = await ended(process)
    assert process.returncode == 0, log
    assert "handed back" not in log


async def test_a_second_signal_ends_the_grace(stage: Stage, start: StartWorker, ring: Ring) -> None:
    process = await start("ours", T_GRACE="600")
    await stage.create("r1", b"hold")
    await ring("r1")
    await stage.until("begun", "r1")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    await stage.until("handed", "r1")
    assert "handed back: 1 runs" in await ended(process)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_killed_worker_ran_is_swept_by_another(
    stage: Stage, start: StartWorker, ring: Ring, kind: str
) -> None:
    first = await start(kind, T_TTL_MS="1500")
    await stage.create("r1", b"hold")
    await ring("r1")
    assert await stage.until("begun", "r1") == str(first.pid)
    first.kill()
    await first.wait()
    second = await start(kind, T_TTL_MS="1500", T_SWEEP="1")
    assert await stage.until("begun", "r1") == str(second.pid)


@pytest.mark.parametrize("kind", KINDS)
async def test_hooks_that_raise_do_not_end_the_worker(stage: Stage, start: StartWorker, ring: Ring, kind: str) -> None:
    process = await start(kind, T_FAULTY="on_startup on_shutdown on_job_start on_job_end after_job_end")
    await stage.create("r1")
    await ring("r1")
    await stage.until("done", "r1")
    process.send_signal(signal.SIGTERM)
    log = await ended(process)
    assert process.returncode == 0, log
    for name in ("on_startup", "on_shutdown", "on_job_start"):
        assert f"{name} hook raised" in log


@pytest.mark.parametrize("kind", KINDS)
async def test_a_full_worker_leaves_deliveries_to_others(
    stage: Stage, start: StartWorker, ring: Ring, kind: str
) -> None:
    first = await start(kind, T_CONCURRENCY="2")
    for run_id in ("a", "b", "c", "d"):
        await stage.create(run_id, b"hold")
    await ring("a", "b")
    events = await stage.counted("begun", 2)
    assert {event[2] for event in events} == {str(first.pid)}
    await ring("c", "d", chunk=2)
    second = await start(kind, T_CONCURRENCY="2")
    events = await stage.counted("begun", 2)
    assert {(event[1], event[2]) for event in events if event[0] == "begun"} == {
        ("c", str(second.pid)),
        ("d", str(second.pid)),
    }


async def test_what_does_not_fit_of_one_delivery_goes_to_others(stage: Stage, start: StartWorker, ring: Ring) -> None:
    processes = [await start("ours", T_CONCURRENCY="2") for _ in range(2)]
    names = ["a", "b", "c", "d"]
    for run_id in names:
        await stage.create(run_id, b"hold")
    await ring(*names, chunk=4)
    events = [event for event in await stage.counted("begun", 4) if event[0] == "begun"]
    assert sorted(event[1] for event in events) == names
    assert {event[2] for event in events} == {str(process.pid) for process in processes}


async def test_a_thousand_runs_rung_twice_are_carried_once(stage: Stage, start: StartWorker, ring: Ring) -> None:
    names = [f"r{number}" for number in range(1000)]
    for run_id in names:
        await stage.create(run_id)
    await ring(*names)
    await ring(*names, chunk=7)
    for kind in ("arq", "ours", "ours"):
        await start(kind, T_CONCURRENCY="40")
    events = await stage.counted("done", 1000)
    assert sorted(event[1] for event in events if event[0] == "done") == sorted(names)
    assert len({event[1] for event in events if event[0] == "begun"}) == 1000
    assert sum(event[0] == "begun" for event in events) == 1000


@pytest.mark.parametrize("kind", KINDS)
async def test_burst_ends_when_nothing_is_left(stage: Stage, start: StartWorker, ring: Ring, kind: str) -> None:
    await stage.create("r1")
    await ring("r1")
    process = await start(kind, "--burst", T_GRACE="60")
    log = await ended(process)
    assert process.returncode == 0, log
    await stage.until("done", "r1")
    assert await stage.queued() == 0
