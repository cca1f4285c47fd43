from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from aioreactor.embedded import EmbeddedServer
from tests.integration.durable.kit import Place


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
async def place(server: EmbeddedServer) -> AsyncIterator[Place]:
    async with Place(server.url) as place:
        yield place
        await place.assert_clean()
