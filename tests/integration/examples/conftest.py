from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aioreactor.embedded import EmbeddedServer
from tests.integration.examples.kit import Shop


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
async def shop(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Shop]:
    """The web application and a worker, as processes."""
    async with Shop(server.url, tmp_path) as shop:
        yield shop
