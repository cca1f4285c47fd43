"""Servers, stores, and what holds around every test of them."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from aioreactor.embedded import EmbeddedServer
from tests.told import broken_callbacks

from .kit import Kit, RedisKit, VolatileKit


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task outlives a test, and no callback failed in it."""
    broken = broken_callbacks()
    yield
    gc.collect(0)
    async with asyncio.timeout(5):
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left)
    assert not broken


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    """A cluster of one node, which refuses scripts whose keys are not of one slot."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bus = probe.getsockname()[1]
    extra = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
    with EmbeddedServer.start(tcp=True, extra_args=extra) as server:
        assert server.port is not None
        with redis.Redis(port=server.port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until = time.monotonic() + 10
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True):
                assert time.monotonic() < until
        yield f"redis+cluster://127.0.0.1:{server.port}"


@pytest.fixture
async def redis_kit(server: EmbeddedServer) -> AsyncIterator[RedisKit]:
    kit = RedisKit(server.url)
    yield kit
    assert await kit.unowned() == []
    await kit.aclose()


@pytest.fixture(params=["volatile", "redis", "cluster"])
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    """Each store in turn."""
    if request.param == "volatile":
        volatile = VolatileKit()
        yield volatile
        await volatile.aclose()
        return
    url = request.getfixturevalue("server").url if request.param == "redis" else request.getfixturevalue("cluster_url")
    kit = RedisKit(url)
    yield kit
    assert await kit.unowned() == []
    await kit.aclose()
