"""Worker processes that stop beyond their leases, get jobs twice, lose replies, and live beside callers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aioreactor import Failure, RecoveriesExhausted, runs, sweep
from aioreactor.jobs.payload import is_ours
from tests.faults.kit import EACH, KILLED, RANDOM, SEED, Field, Worker, Zygote, check_run
from tests.faults.test_pauses import stopped

FORWARD = ["do:a", "do:b", "do:c"]
BACK = ["comp:c", "undo:b", "undo:a"]
FAILS = [*FORWARD, *BACK]

# What a process that holds a run is about to write when it stops: every kind of write, on every way.
WRITES = [
    ("Chain", "checkpoint 1 before"),
    ("Chain", "checkpoint 3 before"),
    ("Chain", "close 1 before"),
    ("ChainFails", "checkpoint 4 before"),
    ("ChainFails", "checkpoint 5 before"),
    ("ChainFails", "list 2 before"),
    ("ChainFails", "close 1 before"),
    ("HandedBack", "let go 1 before"),
    ("HandedBackInUndo", "let go 1 before"),
    # Its reply is read too late.
    ("Chain", "checkpoint 1 applied"),
    ("ChainFails", "checkpoint 4 applied"),
    ("Chain", "load 1 applied"),
]
ENDS = {"Chain": FORWARD, "HandedBack": FORWARD}


@pytest.mark.parametrize(("name", "point"), WRITES)
async def test_a_worker_that_slept_beyond_its_lease_writes_nothing(
    ward: Field, clinic: list[Zygote], tmp_path: Path, name: str, point: str
) -> None:
    """Another worker has finished its run: no key changes when it wakes up, no effect is added, it says so once."""
    log = tmp_path / "log"
    await ward.enqueue(name, "x", "-sleeper")
    leaving = name.startswith("HandedBack")
    sleeper = ward.worker(
        ward.zygote, queue=ward.queue("-sleeper"), sweep=None, point=point, act="stop", leaving=leaving, log=str(log)
    )
    async with sleeper:
        try:
            await stopped(sleeper.pid)
            async with ward.worker(clinic[0]):
                found = await ward.ended(["x"])
            before, lines = await ward.dump(), await ward.ledger.lines("x")
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        if not leaving:
            await said(log, "ownership_lost")
        await sleeper.end()
    assert await ward.dump() == before
    assert await ward.ledger.lines("x") == lines
    check_run(lines, found["x"], ENDS.get(name, FAILS))
    lines_told = [line for line in log.read_text().splitlines() if "run_id=x" in line]
    assert ["run_handed_back" in line if leaving else "ownership_lost" in line for line in lines_told] == [True], (
        lines_told
    )
    assert "Traceback" not in log.read_text()
    assert "carry_failed" not in log.read_text()


def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


async def said(log: Path, text: str) -> None:
    """Wait until a process has logged this: it writes to a file, which nobody can wait for but by looking."""
    async with asyncio.timeout(15):
        while not _says(log, text):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("role", ["worker", "caller"])
async def test_a_body_that_slept_beyond_its_lease_is_cut_off_before_it_does_more(
    ward: Field, clinic: list[Zygote], tmp_path: Path, role: str
) -> None:
    log = tmp_path / "log"
    order = {"stopping": True, "log": str(log), "reactor": "PausesThenActs"}
    if role == "worker":
        await ward.enqueue("PausesThenActs", "x", "-sleeper")
        order |= {"what": "work", "queue": ward.queue("-sleeper")}
    async with Worker(ward.zygote, {**ward.base, "run_id": "x", **order}) as sleeper:
        await stopped(sleeper.pid)
        async with ward.worker(clinic[0]):
            await ward.ended(["x"])
        before = await ward.dump()
        os.kill(sleeper.pid, signal.SIGCONT)
        await said(log, "ownership_lost")
        if role == "caller":
            assert await sleeper.waiting == 0
    assert await ward.dump() == before
    expected = ["do:a", "do:b", "stop:b", "do:b", "do:c", *BACK]
    assert await ward.ledger.lines("x") == [*expected, *(["end:OwnershipLost"] if role == "caller" else [])]
    assert log.read_text().count("ownership_lost") == 1


async def test_a_worker_that_rings_late_changes_nothing(ward: Field, clinic: list[Zygote], tmp_path: Path) -> None:
    """Its ring for a run that has ended since is delivered, and comes to nothing."""
    await ward.enqueue("HandedBack", "x", "-sleeper")
    sleeper = ward.worker(
        ward.zygote, queue=ward.queue("-sleeper"), sweep=None, point="ring 1 before", act="stop", leaving=True
    )
    async with sleeper:
        await stopped(sleeper.pid)
        async with ward.worker(clinic[0]):
            await ward.ended(["x"])
        before, lines = await ward.dump(), await ward.ledger.lines("x")
        os.kill(sleeper.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            assert await sleeper.waiting == 0
    assert await ward.do("ZCARD", ward.queue("-sleeper")) == 1
    assert await ward.victim("", what="work", queue=ward.queue("-sleeper"), burst=True) == 0
    assert await ward.do("ZCARD", ward.queue("-sleeper")) == 0
    assert await ward.dump() == before
    assert await ward.ledger.lines("x") == lines


async def test_a_thousand_runs_delivered_twice_late_and_in_disorder(
    ward: Field, clinic: list[Zygote], tmp_path: Path
) -> None:
    """By two workers; each effect is there once, and in order."""
    dice = random.Random(SEED)
    ids = [f"x{number}" for number in range(1000)]
    names = {run_id: dice.choice(["Chain", "ChainFails"]) for run_id in ids}
    ward.base["lease_ttl"] = 30
    logs = [tmp_path / f"log{number}" for number in range(2)]
    # What nobody has taken for half a second is swept: a third delivery.
    await asyncio.gather(*(ward.enqueue(names[run_id], run_id) for run_id in ids))
    shuffled = dice.sample(ids, len(ids))
    async with AsyncExitStack() as workers:
        for zygote, log in zip(clinic, logs, strict=True):
            await workers.enter_async_context(ward.worker(zygote, log=str(log)))
        for place in range(0, len(ids), 50):
            due_ms, chunk = dice.choice([None, 5, 100, 400]), dice.choice([1, 7])
            await ward.ring(shuffled[place : place + 50], due_ms=due_ms, chunk=chunk)
        found = await ward.ended(ids, 120)
        async with asyncio.timeout(60):
            # Beside the cron job of the next sweep.
            while any(is_ours(job_id) for job_id in await ward.do("ZRANGE", ward.queue(), 0, -1)):
                await asyncio.sleep(0.05)
    by_run: dict[str, list[str]] = {}
    for line in await ward.do("LRANGE", ward.ledger.key, 0, -1):
        run_id, _, effect = line.decode().partition(" ")
        by_run.setdefault(run_id, []).append(effect)
    expected = {"Chain": ("completed", FORWARD), "ChainFails": ("failed", FAILS)}
    wrong = {run_id: by_run.get(run_id) for run_id in ids if by_run.get(run_id) != expected[names[run_id]][1]}
    assert not wrong, (SEED, wrong)
    assert [found[run_id].status for run_id in ids] == [expected[names[run_id]][0] for run_id in ids]
    assert all("Traceback" not in log.read_text() and "run_left" not in log.read_text() for log in logs)


async def test_a_callers_run_is_its_own_while_it_lives_and_somebody_elses_soon_after(
    ward: Field, clinic: list[Zygote]
) -> None:
    """The shortest lease, a body of several leases, a worker and this process sweeping without a pause."""
    caller = Worker(ward.zygote, {**ward.base, "run_id": "x", "reactor": "Cancelled"})
    async with asyncio.timeout(60), caller, ward.worker(clinic[0]):
        while "do:c" not in await ward.ledger.lines("x"):
            await asyncio.sleep(0.005)
        loop = asyncio.get_running_loop()
        until, swept = loop.time() + 3.5, 0
        while loop.time() < until:
            await ward.make_due()
            assert await sweep(1000) == []
            await ward.ring(["x"])
            swept += 1
        assert swept > 20
        assert await ward.ledger.lines("x") == FORWARD
        assert (await runs.find("x")).status == "running"
        os.kill(caller.pid, signal.SIGKILL)
        assert await caller.waiting == KILLED
        async with asyncio.timeout(10):
            while await ward.ledger.lines("x") == FORWARD:
                await asyncio.sleep(0.01)
        assert await ward.ledger.lines("x") == [*FORWARD, "do:c"]


@pytest.mark.parametrize("name", ["Chain", "ChainFails", "MappedLoosely"])
async def test_a_reply_to_a_worker_is_lost(ward: Field, clinic: list[Zygote], name: str) -> None:
    """It was applied, so it is not applied again: no body runs twice."""
    expected: list[str] = []
    stride = min(EACH, 3)
    number = RANDOM.randrange(stride)
    ids: list[str] = []
    while not ids or number < await ward.commands(ids[-1]):
        ids.append(f"x{number}")
        await ward.enqueue(name, ids[-1])
        order = {"what": "work", "queue": ward.queue(), "burst": True, "lease_ttl": 30}
        assert await ward.victim(ids[-1], **order, lose=number) == 0
        lines = await ward.ledger.lines(ids[-1])
        expected = expected or lines
        assert lines == expected, (number, SEED)
        number += stride
    assert len(ids) > 3
    found = await ward.ended(ids)
    for run_id in ids:
        check_run(expected, found[run_id], expected, in_flight=0)
    await ward.delete(ids)
    await ward.assert_nothing_is_left()


async def test_a_run_that_kills_its_workers_fails_and_is_rolled_back(ward: Field, clinic: list[Zygote]) -> None:
    """After so many workers no other one is risked; its caller is told why."""
    ward.base["max_recoveries"] = 2
    handle = await ward.enqueue("Deadly", "x", "-victims")
    waiting = asyncio.create_task(handle.result(60))
    order = {"what": "work", "queue": ward.queue("-victims"), "sweep": None}
    for _ in range(3):
        await ward.ring(["x"], "-victims")
        assert await ward.victim("x", **order) == KILLED
        await ward.lapse(["x"])
    async with ward.worker(clinic[0]):
        outcome = await waiting
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, RecoveriesExhausted)
    assert (outcome.status, outcome.step, outcome.error.recoveries) == ("failed", "b", 3)
    assert await ward.ledger.lines("x") == ["do:a", "do:b", "do:b", "do:b", "comp:b", "undo:a"]
    await ward.delete(["x"])
    await ward.assert_nothing_is_left()
