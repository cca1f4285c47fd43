"""Fixtures, and what has to hold around every test."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from aioreactor.store.client import StoreClient
from tests.integration.store_client.samples import Connect
from tests.integration.store_client.servers import Server
from tests.told import broken_callbacks

settings.register_profile(
    "suite", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("suite")

_numbers = itertools.count()


def opened_since(before: set[str]) -> set[str]:
    """The descriptors that were not open then; without that of the listing itself."""
    return {fd for fd in set(os.listdir("/proc/self/fd")) - before if os.path.exists(f"/proc/self/fd/{fd}")}


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task and no file descriptor outlives a test, and no callback failed in it."""
    before = set(os.listdir("/proc/self/fd"))
    broken = broken_callbacks()
    yield
    assert not broken
    tasks: list[asyncio.Task[Any]] = []
    open_now: set[str] = set()
    for _ in range(100):
        gc.collect(0)
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        open_now = opened_since(before)
        if not tasks and not open_now:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"left over: {tasks}, {[os.readlink(f'/proc/self/fd/{fd}') for fd in open_now]}")


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, for tests which hurt it."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def key() -> str:
    return f"{{k{os.getpid()}-{next(_numbers)}}}"


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients that are closed after the test."""
    clients: list[StoreClient] = []

    def make(url: str, **options: object) -> StoreClient:
        clients.append(StoreClient(url, **options))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose(drain=0)


@pytest.fixture
def client(connect: Connect, shared_server: Server) -> StoreClient:
    return connect(shared_server.url)
