"""Workers that die or sleep while they begin the run of a schedule's tick: it is begun all the same, and once."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from aioreactor import runs
from aioreactor.jobs.book import ScheduleBook
from aioreactor.jobs.ticks import Ticks
from tests.faults.kit import KILLED, Field, Zygote, check_run
from tests.faults.test_pauses import stopped

YEARLY = "0 0 1 1 *"
FORWARD = ["do:a", "do:b", "do:c"]
# The first look at the schedule, then the one that takes the tick; what creates the run; what notes it.
KILLS = [
    "tick 1 applied",
    "tick 2 before",
    "tick 2 applied",
    "announce 1 before",
    "announce 1 applied",
    "create 1 before",
    "create 1 applied",
    "create 1 known",
    "list 1 before",
    "ring 1 before",
    "ring 1 applied",
    "settle 1 before",
    "settle 1 applied",
]
SLEEPS = ["tick 2 applied", "create 1 before", "create 1 applied", "ring 1 before", "settle 1 before"]


async def missed(ward: Field, key: str) -> str:
    """Have a schedule that ticked last before New Year, since when nobody was there; gives the run that it owes."""
    assert ward.runtime.durable is not None
    durable, ticks, now_ms = ward.runtime.durable, Ticks(YEARLY), int(time.time() * 1000)
    await ScheduleBook(durable.client, durable.store.space).claim(key, str(ticks), "nobody", 0)
    [tick] = ticks.newest(0, now_ms, 1)
    await ward.do("HSET", durable.store.space.schedule(key), "last_ms", tick - 1)
    return f"schedule:{key}@{ticks.local(tick):%Y}-01-01T00:00:00Z"


async def lapse(ward: Field, key: str) -> None:
    """The claim of whoever has the schedule's ticks is past."""
    assert ward.runtime.durable is not None
    name = ward.runtime.durable.store.space.schedule(key)
    if await ward.do("HEXISTS", name, "token"):
        await ward.do("HSET", name, "until_ms", 1)


async def assert_begun_once(ward: Field, run_id: str, key: str) -> None:
    async with asyncio.timeout(30):
        while not (found := await ward.ended([run_id])):
            await asyncio.sleep(0.02)  # nobody tells when a run is created
    check_run(await ward.ledger.lines(run_id), found[run_id], FORWARD, in_flight=0)
    assert [run.run_id for run in await runs.list(tag=f"schedule:{key}")] == [run_id]


@pytest.mark.parametrize("point", KILLS)
async def test_one_that_is_killed_while_it_begins_a_run(ward: Field, clinic: list[Zygote], point: str) -> None:
    run_id = await missed(ward, "k")
    order = {"schedules": [["Chain", YEARLY, "k"]]}
    victim = ward.worker(ward.zygote, sweep=None, point=point, **order)
    assert await victim.waiting == KILLED
    await lapse(ward, "k")
    async with ward.worker(clinic[0], **order), ward.worker(clinic[1], **order):
        await assert_begun_once(ward, run_id, "k")


@pytest.mark.parametrize("point", SLEEPS)
async def test_one_that_sleeps_while_others_begin_the_run(ward: Field, clinic: list[Zygote], point: str) -> None:
    run_id = await missed(ward, "k")
    order = {"schedules": [["Chain", YEARLY, "k"]]}
    sleeper = ward.worker(ward.zygote, sweep=None, point=point, act="stop", **order)
    async with sleeper:
        try:
            await stopped(sleeper.pid)
            await lapse(ward, "k")
            async with ward.worker(clinic[0], **order):
                await assert_begun_once(ward, run_id, "k")
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        await sleeper.end()
    await assert_begun_once(ward, run_id, "k")
