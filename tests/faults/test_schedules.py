"""Workers that die or sleep while they begin the run of a schedule's tick: it is begun all the same, and once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import datetime

import pytest

from aioreactor import runs
from aioreactor.embedded import EmbeddedServer
from aioreactor.jobs.book import ScheduleBook
from aioreactor.jobs.ticks import Ticks
from tests.faults.kit import KILLED, Field, Zygote, check_run
from tests.faults.test_pauses import stopped
from tests.faults.test_restarts import lasting
from tests.integration.store_client.servers import Server

__all__ = ["lasting"]

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


async def begun(number: int) -> list[str]:
    """Wait until so many runs of the schedule have been; gives the ids of all that are there."""
    async with asyncio.timeout(60):
        while len(found := await runs.list(tag="schedule:k", limit=1000)) < number:
            await asyncio.sleep(0.05)  # nobody tells when a run is created
    return [run.run_id for run in found]


async def test_a_server_that_restarts_takes_no_tick_away(
    server: EmbeddedServer, lasting: Server, zygote: Zygote, clinic: list[Zygote]
) -> None:
    """What it has acknowledged it knows again, and workers that could not reach it make up for the seconds."""
    order = {"schedules": [["Chain", "* * * * * *", "k"]]}
    field = Field(lasting.url, zygote, ledger_url=server.url, idle_ms=500, lease_ttl=10)
    async with field, field.worker(clinic[0], **order), field.worker(clinic[1], **order):
        for number in (2, 4, 6):
            await begun(number)
            await asyncio.to_thread(lasting.stop)
            await asyncio.to_thread(lasting.start)
        there = await begun(len(await begun(6)) + 2)
        ticks = sorted(datetime.fromisoformat(run_id.partition("@")[2]) for run_id in there)
        assert [(tick - ticks[0]).total_seconds() for tick in ticks] == list(range(len(ticks)))
        found = await field.ended(there)
        for run_id in there:
            check_run(await field.ledger.lines(run_id), found[run_id], FORWARD)
