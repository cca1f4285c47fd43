"""On a real cluster: every primitive, whatever slots its keys are in, and hand-overs across nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aioreactor import Lock, OrderedLock, Period, RateLimit, RateLimited, Runtime, Semaphore, Settings
from aioreactor.coordination import slots
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Slot
from tests.integration.coordination.kit import Inside
from tests.integration.store_client.test_cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


async def test_every_primitive_on_every_node(cluster: Cluster) -> None:
    async with Runtime(Settings(redis_url=cluster.url)) as runtime:
        for key in [f"k{number}" for number in range(12)]:
            async with Lock(key), Semaphore(key, 2), OrderedLock(key), Period(key) as claim:
                assert claim.first
            for algorithm in ("fixed", "sliding", "gcra"):
                limit = RateLimit(f"{key}{algorithm}", limits={"year": 1, "month": 1}, algorithm=algorithm)
                async with limit:
                    pass
                with pytest.raises(RateLimited):
                    async with limit:
                        raise AssertionError
            report = await runtime.coordinator().inspect(key)
            assert (report.lock, report.semaphore, report.order, len(report.markers)) == (None, None, None, 1)


async def test_hand_overs_between_processes_on_every_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "RECHECK", 1000.0)
    settings = Settings(redis_url=cluster.url, key_prefix="hand")
    async with Runtime(settings) as one, Runtime(settings) as other, asyncio.timeout(60):

        async def visit(runtime: Runtime, key: str, name: int, inside: Inside) -> None:
            lock = Lock(key, ttl=600, wait=60)
            entry = await slots.enter(runtime.coordinator().desk(), Slot.of(lock, key), Scope(), wait=60)
            await inside.visit(name)
            await entry.leave()

        for key in [f"k{number}" for number in range(6)]:
            inside = Inside()
            runtimes = [one, other] * 5
            await asyncio.gather(*(visit(each, key, name, inside) for name, each in enumerate(runtimes)))
            assert (inside.most, len(inside.order)) == (1, 10)
