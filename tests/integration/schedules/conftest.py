from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from aioreactor.embedded import EmbeddedServer
from tests.integration.schedules.kit import Era


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
async def era(server: EmbeddedServer) -> AsyncIterator[Era]:
    async with Era(server.url) as era:
        yield era
        await era.assert_clean()
