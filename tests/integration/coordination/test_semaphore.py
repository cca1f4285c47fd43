"""`Semaphore` alone: as `Lock`, with several slots. What both share is tested with locks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import Semaphore, SemaphoreUnavailable
from aioreactor.coordination import slots
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Entry, Slot
from tests.integration.coordination.kit import Inside, Place, turns


async def enter(coordinator: Coordinator, limit: int, **options: Any) -> Entry:
    wanted = Semaphore("s", limit, **options)
    return await slots.enter(coordinator.desk(), Slot.of(wanted, "s"), Scope(), wait=wanted.wait)


async def leave(*entries: Entry) -> None:
    for entry in entries:
        await entry.leave()


async def test_so_many_and_no_more(place: Place) -> None:
    other = await place.elsewhere()
    held = [await enter(place.coordinator if i % 2 else other, 3) for i in range(3)]
    assert len({entry.lease.token for entry in held}) == 3
    with pytest.raises(SemaphoreUnavailable, match="semaphore 's': all 3 slots are taken"):
        await enter(other, 3)
    await held.pop().leave()
    held.append(await enter(other, 3))
    await leave(*held)
    assert await place.holders("s", "semaphore") == []


async def test_a_hundred_tasks_three_at_a_time_in_order(place: Place) -> None:
    other, inside = await place.elsewhere(), Inside()

    async def one(name: int) -> None:
        entry = await enter(other if name % 2 else place.coordinator, 3, wait=60)
        await inside.visit(name)
        await entry.leave()

    # The connections are open, so that what is issued first comes first: each on its own connection, in its own order.
    await leave(await enter(other, 3), await enter(place.coordinator, 3))
    await asyncio.gather(*(one(name) for name in range(100)))
    assert inside.most == 3
    assert sorted(inside.order) == list(range(100))


async def test_a_changed_limit_works_at_once(place: Place) -> None:
    held = [await enter(place.coordinator, 2) for _ in range(2)]
    with pytest.raises(SemaphoreUnavailable):
        await enter(place.coordinator, 2)
    held += [await enter(place.coordinator, 4) for _ in range(2)]
    with pytest.raises(SemaphoreUnavailable):
        await enter(place.coordinator, 4)
    await leave(held.pop())
    with pytest.raises(SemaphoreUnavailable):
        await enter(place.coordinator, 1)
    waiting = asyncio.create_task(enter(place.coordinator, 1, wait=30))
    await place.until_waiting("s", 1, "semaphore")
    await leave(held.pop(), held.pop())
    await turns(50)
    assert not waiting.done()
    raised = await enter(place.coordinator, 3)  # its limit lets both in, the one in line first
    await leave(*held, await waiting, raised)


async def test_a_dead_holders_slot_comes_back(place: Place) -> None:
    held = [await enter(place.coordinator, 2) for _ in range(2)]
    dead, alive = held
    place.coordinator.desk().renewer.drop(dead.lease)
    await place.do("ZADD", place.keys.slots("semaphore", "s").holders, "XX", 1, dead.lease.token)
    again = await enter(place.coordinator, 2)
    assert sorted(await place.holders("s", "semaphore")) == sorted([alive.lease.token, again.lease.token])
    await leave(alive, again)


async def test_a_nested_hold_takes_no_second_slot(place: Place) -> None:
    semaphore = Semaphore("s", 2)
    async with semaphore as outer, semaphore as inner:
        assert inner.token == outer.token
        assert len(await place.holders("s", "semaphore")) == 1
        async with Semaphore("s", 2):
            assert len(await place.holders("s", "semaphore")) == 1
    assert place.facts() == ["acquired", "released"]


async def test_further_bodies_under_a_hold_take_slots_of_their_own(place: Place) -> None:
    slots_seen, inside, go = [], asyncio.Semaphore(0), asyncio.Event()

    async def child() -> None:
        async with Semaphore("s", 3) as held:
            slots_seen.append(held.token)
            inside.release()
            await go.wait()

    async with Semaphore("s", 3) as outer:
        tasks = [asyncio.create_task(child()) for _ in range(3)]
        for _ in tasks:
            await inside.acquire()
        assert len(await place.holders("s", "semaphore")) == 3
        assert outer.token in slots_seen
        with pytest.raises(SemaphoreUnavailable):
            await asyncio.create_task(child())
        go.set()
        await asyncio.gather(*tasks)
        assert len(await place.holders("s", "semaphore")) == 1


async def test_locks_and_semaphores_of_one_key_are_apart(place: Place) -> None:
    from aioreactor import Lock

    async with Lock("s"), Semaphore("s", 1):
        assert len(await place.holders("s")) == len(await place.holders("s", "semaphore")) == 1
