"""A server, stages in key spaces of their own, and workers as processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from arq.connections import ArqRedis, create_pool

from aioreactor.embedded import EmbeddedServer
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.settings import redis_settings
from tests.integration.jobs.stage import Stage

ROOT = Path(__file__).parents[3]
APP = "tests.integration.jobs.app"
COMMANDS = {
    "arq": ["-m", "arq", f"{APP}.WorkerSettings"],
    "ours": ["-c", "from aioreactor.cli.worker import worker; worker()", APP],
}
_numbers = itertools.count()

Process: TypeAlias = asyncio.subprocess.Process
Ring: TypeAlias = Callable[..., Awaitable[None]]
StartWorker: TypeAlias = Callable[..., Awaitable[Process]]


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"j{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def stage(server: EmbeddedServer, prefix: str) -> AsyncIterator[Stage]:
    stage = Stage(server.url, prefix)
    yield stage
    await stage.aclose()


@pytest.fixture
def queue(stage: Stage) -> JobQueue:
    return JobQueue(stage.client, stage.queue_name)


@pytest.fixture
def ring(queue: JobQueue) -> Ring:
    """``await ring("r1", "r2")``."""

    async def ring(*run_ids: str, **more: Any) -> None:
        await queue.ring(run_ids, **more)

    return ring


@pytest.fixture
async def arq_pool(stage: Stage) -> AsyncIterator[ArqRedis]:
    """A user's own connection to the queue."""
    pool = await create_pool(redis_settings(stage.url), default_queue_name=stage.queue_name)
    yield pool
    await pool.aclose(close_connection_pool=True)


@pytest.fixture
async def start(stage: Stage) -> AsyncIterator[StartWorker]:
    """``await start("arq")`` or ``"ours"``: a worker as a process; ``T_…`` variables tell it more."""
    started: list[Process] = []

    async def start_worker(kind: str, *more: str, **environment: str) -> Process:
        given = {"PYTHONPATH": str(ROOT), "T_URL": stage.url, "T_PREFIX": stage.prefix}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *COMMANDS[kind],
            *more,
            cwd=ROOT,
            env={**os.environ, **given, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start_worker
    for process in started:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()


async def ended(process: Process) -> str:
    """Wait until it has ended; gives what it wrote."""
    async with asyncio.timeout(30):
        written, _ = await process.communicate()
    return written.decode()
