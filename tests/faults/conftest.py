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


@pytest.fixture
async def field(server: EmbeddedServer, zygote: Zygote) -> AsyncIterator[Field]:
    async with Field(server.url, zygote) as field:
        yield field
