"""``aioreactor worker``, several times: each second one of them begins a run, and one executes it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from redis.asyncio import Redis

from aioreactor import runs
from tests.integration.schedules.kit import Era

ROOT = Path(__file__).parents[3]
APP = "tests.integration.schedules.app"
BEGINS = "begins those of 1 schedules"

Process: TypeAlias = asyncio.subprocess.Process
Start: TypeAlias = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(era: Era) -> AsyncIterator[Start]:
    """``await start("--burst")``: a worker that has the schedule of `APP`."""
    started: list[Process] = []
    settings = era.runtime.settings
    given = {
        "PYTHONPATH": str(ROOT),
        "AIOREACTOR_REDIS_URL": settings.redis_url or "",
        "AIOREACTOR_KEY_PREFIX": settings.key_prefix,
        "AIOREACTOR_QUEUE": settings.queue or "",
    }

    async def start_worker(*more: str, command: tuple[str, ...] = ("aioreactor", "worker", APP)) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *command, *more),
            cwd=ROOT,
            env={**os.environ, **given},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start_worker
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Beats:
    """What the runs have done: the second, and the process that executed it."""

    def __init__(self, era: Era) -> None:
        self.redis: Any = Redis.from_url(era.runtime.settings.redis_url or "")
        self.key = f"{era.prefix}-beats"
        self.seen: list[tuple[int, int]] = []

    async def more(self, number: int) -> None:
        """Wait for so many."""
        for _ in range(number):
            beat = await self.redis.blpop(self.key, timeout=30)
            assert beat is not None, "nothing happened"
            self._add(beat[1])

    async def rest(self) -> None:
        """Those that have happened since."""
        while (beat := await self.redis.lpop(self.key)) is not None:
            self._add(beat)

    def _add(self, beat: bytes) -> None:
        second, _, pid = beat.decode().partition(" ")
        self.seen.append((int(second), int(pid)))

    @property
    def seconds(self) -> list[int]:
        return sorted(second for second, _ in self.seen)


@pytest.fixture
async def beats(era: Era) -> AsyncIterator[Beats]:
    beats = Beats(era)
    yield beats
    await beats.redis.aclose()


async def ended(process: Process, *, told: bool = True) -> str:
    """Have it end; gives what it has said."""
    if told:
        process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        written, _ = await process.communicate()
    assert process.returncode == 0, written.decode()
    assert "Traceback" not in written.decode()
    return written.decode()


async def test_one_run_per_second_in_all_and_more_of_them_after_one_was_killed(start: Start, beats: Beats) -> None:
    victim, *workers = [await start() for _ in range(3)]
    await beats.more(3)
    victim.kill()
    await victim.wait()
    await beats.more(3)
    logs = [await ended(worker) for worker in workers]
    await beats.rest()
    assert len(set(beats.seconds)) == len(beats.seconds) >= 6
    listed = await runs.list(tag="schedule:beats", limit=1000)
    ticks = [int(datetime.fromisoformat(run.run_id.partition("@")[2]).timestamp()) for run in listed]
    assert sorted(ticks) == list(range(min(ticks), max(ticks) + 1))
    # All that have ended have beaten once; what was cut off with its worker goes on after the next sweep.
    assert set(beats.seconds) >= {tick for tick, run in zip(ticks, listed, strict=True) if run.status == "completed"}
    assert set(beats.seconds) <= set(ticks)
    assert all(BEGINS in log for log in logs)
    assert sum(log.count("schedule_started") for log in logs) <= len(listed)


async def test_a_worker_may_be_told_to_begin_none(start: Start, beats: Beats) -> None:
    passive, beginning = await start("--no-schedules"), await start()
    await beats.more(2)
    assert {pid for _, pid in beats.seen} <= {passive.pid, beginning.pid}
    logs = [await ended(each) for each in (beginning, passive)]
    assert [(BEGINS in log, "schedule_started" in log) for log in logs] == [(True, True), (False, False)]


async def test_plain_arq_workers_begin_runs_too(start: Start, beats: Beats) -> None:
    workers = [await start(command=("arq", f"{APP}.WorkerSettings")) for _ in range(2)]
    await beats.more(3)
    for worker in workers:
        await ended(worker)
    await beats.rest()
    assert len(set(beats.seconds)) == len(beats.seconds) >= 3


async def test_with_burst_nothing_is_begun(start: Start) -> None:
    log = await ended(await start("--burst"), told=False)
    assert BEGINS not in log
    assert await runs.list(tag="schedule:beats") == ()
