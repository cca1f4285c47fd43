from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from aioreactor.embedded import EmbeddedServer
from tests.faults.kit import Field, Zygote


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def clinic() -> Iterator[list[Zygote]]:
    """Where those come from that go on with what victims left."""
    zygotes = [Zygote() for _ in range(2)]
    yield zygotes
    for zygote in zygotes:
        zygote.close()


@pytest.fixture
async def ward(server: EmbeddedServer, zygote: Zygote) -> AsyncIterator[Field]:
    """A key space whose runs are carried on by workers, soon after nobody has held them."""
    async with Field(server.url, zygote, idle_ms=500) as ward:
        yield ward


@pytest.fixture
async def field(server: EmbeddedServer, zygote: Zygote) -> AsyncIterator[Field]:
    async with Field(server.url, zygote) as field:
        yield field
