"""Fan-outs whose workers are killed, whose rings come twice, whose server forgets its scripts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aioreactor import runs
from tests.faults.fanned import ALL, COUNT
from tests.faults.kit import DEEP, RANDOM, SEED, Field, Zygote
from tests.faults.test_pauses import stopped
from tests.faults.test_workers import said

LEGS = [f"/m[{i}] {step}" for i in range(COUNT) for step in ("e1", "e2")]


async def effects(ward: Field, run_id: str) -> tuple[set[str], Counter[str]]:
    """What stands of a run and its elements, and how often what was done."""
    stands: set[str] = set()
    times: Counter[str] = Counter()
    for line in await ward.do("LRANGE", ward.ledger.key, 0, -1):
        where, _, what = line.decode().partition(" ")
        if where == run_id or where.startswith(f"{run_id}/"):
            kind, _, path = what.partition(":")
            place = f"{where[len(run_id) :]} {path}"
            times[f"{kind} {place}"] += 1
            (stands.add if kind == "do" else stands.discard)(place)
    return stands, times


async def killed_at_random(ward: Field, clinic: list[Zygote], run_id: str, kills: int) -> None:
    """Two workers, one of which is killed again and again, until the run has ended."""
    dice = RANDOM
    workers = [ward.worker(zygote) for zygote in clinic]
    ended = asyncio.ensure_future(ward.ended([run_id], 90))
    try:
        for _ in range(kills):
            await asyncio.wait([ended], timeout=dice.uniform(0.1, 0.8))
            if ended.done():
                break
            at = dice.randrange(2)
            os.kill(workers[at].pid, signal.SIGKILL)
            await workers[at].waiting
            workers[at] = ward.worker(clinic[at])
        await ended
    finally:
        ended.cancel()
        for worker in workers:
            if not worker.waiting.done():
                os.kill(worker.pid, signal.SIGKILL)
            await worker.waiting


@pytest.mark.parametrize("name", ["Fanned", "FannedFails", "Single"])
async def test_workers_are_killed_at_random(ward: Field, clinic: list[Zygote], name: str) -> None:
    """Nothing changes but the time; bodies in flight are done once more."""
    kills = 12 if DEEP else 3
    await ALL[name].with_options(run_id="x", queue=ward.queue()).enqueue()
    await killed_at_random(ward, clinic, "x", kills)
    snapshot = await runs.find("x")
    stands, times = await effects(ward, "x")
    fails = name != "Fanned"
    assert snapshot.status == ("failed" if fails else "completed"), SEED
    assert stands == (set() if fails else {" a", " z", *LEGS}), (SEED, sorted(stands)[:10])
    outcome: Any = snapshot.outcome
    if fails:
        assert (outcome.step, outcome.message, outcome.rollback_failures) == ("z", "no z", []), SEED
    assert max(times.values()) <= 1 + kills, (SEED, times.most_common(5))
    again = sum(times.values()) - len(times)
    assert again <= kills * 80, (SEED, again)
    await runs.delete("x")
    left = [key for key in await ward.do("KEYS", f"{ward.prefix}:*") if b":index" not in key]
    assert all([await ward.do("PTTL", key) > 0 for key in left]), (SEED, left)


async def test_rings_that_come_again_and_scripts_that_are_forgotten(ward: Field, clinic: list[Zygote]) -> None:
    await ALL["FannedFails"].with_options(run_id="x", queue=ward.queue()).enqueue()
    async with ward.worker(clinic[0]), ward.worker(clinic[1]):
        ended = asyncio.ensure_future(ward.ended(["x"], 60))
        while not ended.done():
            await ward.ring([f"fan\nagain-{RANDOM.randrange(1 << 40)}\nm\nx", "x"])
            await ward.do("SCRIPT", "FLUSH")
            await asyncio.wait([ended], timeout=0.05)
        await ended
    stands, times = await effects(ward, "x")
    assert stands == set()
    assert set(times.values()) == {1}, times.most_common(5)
    assert (await runs.find("x")).status == "failed"
    await runs.delete("x")


@pytest.mark.parametrize("name", ["Early", "Late"])
async def test_a_worker_sleeps_beyond_its_lease_while_others_go_on(
    ward: Field, clinic: list[Zygote], tmp_path: Path, name: str
) -> None:
    """What it says of its elements later is refused, and changes nothing."""
    log = tmp_path / "log"
    await ALL[name].with_options(run_id="x", queue=ward.queue()).enqueue()
    sleeper = ward.worker(ward.zygote, sweep=None, stopping=True, log=str(log))
    try:
        await stopped(sleeper.pid)
        async with ward.worker(clinic[0]):
            found = await ward.ended(["x"])
            assert found["x"].status == "completed"
        before = await ward.dump()  # the index is written after the end of the run
        lines = await ward.do("LRANGE", ward.ledger.key, 0, -1)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    await said(log, "ownership_lost")
    await sleeper.end()
    assert await ward.dump() == before
    later = (await ward.do("LRANGE", ward.ledger.key, 0, -1))[len(lines) :]
    assert later == []
    stands, times = await effects(ward, "x")
    steps = ("e1", "e2") if name == "Early" else ("e1", "e2", "e3")
    assert stands == {f"/m[{i}] {each}" for i in range(4) for each in steps}
    assert max(times.values()) <= 2
    assert "Traceback" not in log.read_text()
    await runs.delete("x")
