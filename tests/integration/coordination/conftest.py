from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from aioreactor.embedded import EmbeddedServer
from tests.integration.coordination.kit import Place


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
async def place(server: EmbeddedServer) -> AsyncIterator[Place]:
    """Whatever a test does, in the end nobody holds or waits, and no key stays for ever."""
    async with Place(server.url) as place:
        yield place
        assert await place.leftovers() == []
