"""What there is to see of a key, and freeing it by force."""

from __future__ import annotations

import asyncio

import pytest

import aioreactor
from aioreactor import LeaseLost, Lock, OrderedLock, Period, RateLimit, Runtime, Semaphore, Settings, StoreRequired
from aioreactor.coordination import slots
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Slot
from tests.integration.coordination.kit import Place
from tests.told import events_told


async def test_a_key_that_nobody_knows(place: Place) -> None:
    report = await aioreactor.coordination.inspect("k")
    assert (report.key, report.lock, report.semaphore, report.order) == ("k", None, None, None)
    assert (report.counters, report.markers) == ((), ())


async def test_everything_of_one_key(place: Place) -> None:
    waiting = None
    async with Lock("k", ttl=30), Semaphore("k", 2), RateLimit("k", limits={"year": 5, "month": 4}, cost=2):
        async with Period("k"):
            pass
        async with OrderedLock("k") as turn:
            other = await place.elsewhere()
            waiting = asyncio.create_task(
                slots.enter(other.desk(), Slot.of(Lock("k"), "k"), Scope(), wait=30, label="run-7 charge\nnext line")
            )
            await place.until_waiting("k", 1)
            report = await aioreactor.coordination.inspect("k")
            assert report.order is not None
            assert [(place_.number, place_.running) for place_ in report.order.places] == [(turn.position, True)]
            assert (report.order.first_failed, report.order.handed_out) == (None, 1)
    assert waiting is not None
    await (await waiting).leave()
    assert report.lock is not None
    assert report.semaphore is not None
    (holder,) = report.lock.holders
    assert holder.label == place.coordinator.label
    assert 0 <= holder.age < 20
    assert 10 < holder.time_left <= 30
    (waiter,) = report.lock.waiters
    assert (waiter.label, 0 < waiter.alive_for <= 15) == ("run-7 charge\nnext line", True)
    assert (report.lock.limit, report.semaphore.limit, len(report.semaphore.holders)) == (1, 2, 1)
    assert [(each.window, each.used, each.limit, each.algorithm) for each in report.counters] == [
        (30 * 86400.0, 2, 4, "fixed"),
        (365 * 86400.0, 2, 5, "fixed"),
    ]
    assert all(0 < each.rolls_in <= each.window for each in report.counters)
    (marker,) = report.markers
    assert (marker.bucket, marker.marked_by) == ("day:UTC", place.coordinator.label)
    assert marker.starts <= marker.marked_at


async def test_force_frees_tells_and_lets_the_next_one_in(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    other = await place.elsewhere()
    entry = None
    with pytest.raises(LeaseLost):
        async with Lock("k", ttl=1):
            waiting = asyncio.create_task(
                slots.enter(other.desk(), Slot.of(Lock("k"), "k"), Scope(), wait=30, label="next")
            )
            await place.until_waiting("k", 1)
            assert await aioreactor.coordination.force_release("k") == [place.coordinator.label]
            entry = await waiting
            await asyncio.sleep(60)
    assert entry is not None
    await entry.leave()
    assert await aioreactor.coordination.force_release("k") == []
    assert await aioreactor.coordination.force_release("k", "semaphore") == []
    assert events_told(caplog) == ["force_released", "hold_lost", "force_released", "force_released"]


async def test_without_a_store_there_is_nothing_to_see() -> None:
    async with Runtime(Settings(redis_url=None)):
        with pytest.raises(StoreRequired):
            await aioreactor.coordination.inspect("k")
        with pytest.raises(StoreRequired):
            await OrderedLock.peek("k")
