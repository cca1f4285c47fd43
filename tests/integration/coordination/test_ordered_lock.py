"""`OrderedLock`: alone, and its positions as the engine uses them."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioreactor import LeaseLost, OrderedLock, OutOfTurn
from aioreactor.coordination import orders
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.desk import RECHECK
from aioreactor.coordination.orders import Position, Turn
from aioreactor.coordination.scopes import Scope
from tests.integration.coordination.kit import Inside, LoseReply, Place, every_turn, turns
from tests.told import events_told

LINE = OrderedLock("o")


async def assign(coordinator: Coordinator, token: str, *, poison_after: float = 600) -> Position:
    return await coordinator.assign(OrderedLock("o", poison_after=poison_after), "o", token, token)


async def turn(coordinator: Coordinator, position: Position, *, wait: float = 0, strict: bool = True) -> Turn:
    return await orders.take_turn(coordinator.desk(), position, Scope(), strict=strict, wait=wait)


async def refused(coordinator: Coordinator, position: Position, *, strict: bool = True) -> str:
    with pytest.raises(OutOfTurn) as caught:
        await turn(coordinator, position, strict=strict)
    return caught.value.reason


# ---------------------------------------------------------------------- alone


async def test_one_after_another_in_the_order_of_arrival(place: Place) -> None:
    inside = Inside()

    async def one(name: int) -> None:
        async with OrderedLock("o", wait=30) as mine:
            assert mine.position == name + 1
            await inside.visit(name)

    await asyncio.gather(*(one(name) for name in range(30)))
    assert (inside.most, inside.order) == (1, list(range(30)))
    assert await OrderedLock.peek("o") is None


async def test_who_does_not_get_its_turn_leaves_the_line(place: Place) -> None:
    first = await assign(place.coordinator, "run-1")
    with pytest.raises(OutOfTurn, match="ordered lock 'o', position 2: 1 before it did not finish yet") as caught:
        async with OrderedLock("o"):
            raise AssertionError
    assert (caught.value.key, caught.value.reason) == ("o", "waiting")
    with pytest.raises(OutOfTurn):
        async with OrderedLock("o", wait=0.05):
            raise AssertionError
    report = await OrderedLock.peek("o")
    assert ([place.number for place in report.places], report.handed_out) == ([1], 3)
    await place.coordinator.finish(first, failed=False)


async def test_it_is_not_entered_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with LINE as outer, LINE as inner:
        assert (outer.position, inner.position) == (1, 0)
        await inner.check()
        assert len((await OrderedLock.peek("o")).places) == 1
    assert events_told(caplog) == ["turn_not_nested"]


async def test_after_a_failure_a_strict_chain_refuses_the_rest(place: Place) -> None:
    ran = []

    async def one(name: int) -> None:
        async with OrderedLock("o", wait=30):
            ran.append(name)
            await place.until(lambda: _in_line(place, 4 - name))
            if name == 1:
                raise ZeroDivisionError

    found = await asyncio.gather(*(one(name) for name in range(4)), return_exceptions=True)
    assert ran == [0, 1]
    assert [type(each) for each in found] == [type(None), ZeroDivisionError, OutOfTurn, OutOfTurn]
    assert [each.reason for each in found if isinstance(each, OutOfTurn)] == ["ordered_chain_failed"] * 2
    async with LINE as fresh:
        assert fresh.position == 1  # all is drained: a new chain


async def test_one_that_is_not_strict_goes_on(place: Place) -> None:
    ran = []

    async def one(name: int) -> None:
        async with OrderedLock("o", wait=30, strict=False):
            ran.append(name)
            await place.until(lambda: _in_line(place, 3 - name))
            raise ZeroDivisionError

    await asyncio.gather(*(one(name) for name in range(3)), return_exceptions=True)
    assert ran == [0, 1, 2]


async def _in_line(place: Place, number: int) -> bool:
    report = await OrderedLock.peek("o")
    return report is not None and len(report.places) == number


async def test_cut_off_at_any_moment_it_leaves_no_position(place: Place) -> None:
    async def one() -> None:
        async with OrderedLock("o", wait=30):
            pass

    for number in every_turn():
        task = asyncio.create_task(one())
        await turns(number)
        done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await OrderedLock.peek("o") is None
        if done:
            break


async def test_a_lost_turn_cancels_the_body(place: Place) -> None:
    with pytest.raises(LeaseLost, match="passed over"):
        async with OrderedLock("o", poison_after=1):
            await assign(place.coordinator, "next")
            assert await OrderedLock.skip("o") == 1
            await asyncio.sleep(60)
    assert await OrderedLock.reset("o") == 1


# ---------------------------------------------------------------------- positions


async def test_positions_are_handed_out_once_per_token(place: Place) -> None:
    other = await place.elsewhere()
    found = [await assign(place.coordinator if i % 2 else other, f"run-{i}") for i in range(5)]
    assert [each.number for each in found] == [1, 2, 3, 4, 5]
    assert len({each.epoch for each in found}) == 1
    assert await assign(other, "run-3") == found[3]
    for each in found:
        await place.coordinator.finish(each, failed=False)


async def test_turns_are_strict_even_if_taken_in_another_order(place: Place) -> None:
    other = await place.elsewhere()
    found = [await assign(place.coordinator, f"run-{i}") for i in range(4)]
    order = []

    async def run(coordinator: Coordinator, position: Position) -> None:
        mine = await turn(coordinator, position, wait=30)
        order.append(position.number)
        await mine.end(failed=False)

    await asyncio.gather(*(run(other if each.number % 2 else place.coordinator, each) for each in reversed(found)))
    assert order == [1, 2, 3, 4]
    assert await OrderedLock.peek("o") is None


async def test_a_paused_turn_keeps_its_place(place: Place) -> None:
    first, second = [await assign(place.coordinator, name) for name in ("a", "b")]
    mine = await turn(place.coordinator, first)
    report = await OrderedLock.peek("o")
    assert (report.in_flight.number, report.in_flight.label) == (1, "a")
    await mine.yield_back()
    assert (await OrderedLock.peek("o")).in_flight is None
    assert await refused(place.coordinator, second) == "waiting"
    mine = await turn(place.coordinator, first)
    await mine.end(failed=False)
    await (await turn(place.coordinator, second)).end(failed=False)


async def test_a_late_delivery_does_nothing(place: Place) -> None:
    old = await assign(place.coordinator, "a")
    mine = await turn(place.coordinator, old)
    second = await assign(place.coordinator, "b")
    await mine.end(failed=False)
    assert await refused(place.coordinator, old) == "passed_over"  # delivered again in the same epoch
    await place.coordinator.finish(second, failed=False)
    assert await refused(place.coordinator, old) == "stale_epoch"  # nothing is left of it
    new = await assign(place.coordinator, "c")
    assert new.epoch != old.epoch
    assert await refused(place.coordinator, old) == "stale_epoch"
    assert not await place.coordinator.finish(old, failed=True)
    assert not await place.coordinator.beat(old)
    mine = await turn(place.coordinator, new)
    await mine.end(failed=False)


async def test_one_without_a_sign_of_life_is_passed_over(place: Place) -> None:
    dead = await assign(place.coordinator, "dead", poison_after=1)
    beating = await assign(place.coordinator, "beating", poison_after=600)
    last = await assign(place.coordinator, "last")
    began = time.monotonic()
    mine = await turn(await place.elsewhere(), beating, wait=30)
    assert time.monotonic() - began < RECHECK
    assert await refused(place.coordinator, last) == "waiting"
    assert await refused(place.coordinator, dead) == "passed_over"
    await mine.end(failed=False)
    await place.coordinator.finish(last, failed=False)


async def test_signs_of_life_keep_a_position(place: Place) -> None:
    queued = await assign(place.coordinator, "queued", poison_after=1)
    second = await assign(place.coordinator, "second", poison_after=1)
    running = None
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        assert await place.coordinator.beat(second)
        if time.monotonic() - began > 0.5 and running is None:
            running = await turn(place.coordinator, queued)  # from now on it beats by itself
        elif running is None:
            assert await place.coordinator.beat(queued)
        await asyncio.sleep(0.05)
    assert running is not None
    await running.check()
    await running.end(failed=False)
    await place.coordinator.finish(second, failed=False)


async def test_a_failed_chain_is_known_to_all_processes(place: Place) -> None:
    found = [await assign(place.coordinator, f"run-{i}") for i in range(3)]
    await (await turn(place.coordinator, found[0])).end(failed=True)
    report = await OrderedLock.peek("o")
    assert (report.first_failed, report.handed_out) == (1, 3)
    other = await place.elsewhere()
    assert await refused(other, found[2]) == "ordered_chain_failed"
    mine = await turn(other, found[1], strict=False)
    await mine.end(failed=True)
    assert (await OrderedLock.peek("o")).first_failed == 1
    await other.finish(found[2], failed=False)


async def test_operators_can_forget_a_line(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    assert await OrderedLock.skip("o") is None
    found = [await assign(place.coordinator, f"run-{i}") for i in range(3)]
    waiting = asyncio.create_task(turn(place.coordinator, found[2], wait=30))
    await turns(50)
    assert await OrderedLock.skip("o") == 1
    assert await OrderedLock.reset("o") == 2
    with pytest.raises(OutOfTurn) as caught:
        await waiting
    assert caught.value.reason == "stale_epoch"
    assert events_told(caplog) == ["position_skipped", "line_reset"]


@pytest.mark.parametrize("script", ["order_assign", "order_turn", "order_finish"])
@pytest.mark.parametrize("before", [False, True])
async def test_a_lost_reply_changes_nothing(place: Place, script: str, before: bool) -> None:
    async with place.another(LoseReply(script, before=before)):
        async with LINE as mine:
            assert mine.position == 1
            assert len((await OrderedLock.peek("o")).places) == 1
        assert await OrderedLock.peek("o") is None
