"""Several primitives at once, as the engine takes them: order, giving back, parking, going on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from aioreactor import (
    LeaseLost,
    Lock,
    LockUnavailable,
    OrderedLock,
    OutOfTurn,
    Period,
    RateLimit,
    RateLimited,
    Semaphore,
    SemaphoreUnavailable,
    UnknownRateLimit,
)
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.desk import GRACE
from aioreactor.coordination.gates import Terms, Wanted
from aioreactor.coordination.holds import Holds
from aioreactor.coordination.orders import Position
from aioreactor.coordination.periods import PeriodClaimed
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Parking
from tests.integration.coordination.kit import LoseReply, Place, every_turn, turns

ALL = [Period("p"), Semaphore("s", 2), Lock("z"), RateLimit("r", 5, "year"), Lock("b"), RateLimit("q", 5, "year")]


def wanted(*primitives: Any, position: Position | None = None) -> list[Wanted]:
    return [Wanted(each, each.key, position if isinstance(each, OrderedLock) else None) for each in primitives]


def terms(name: str = "run-1", parent: Scope | None = None, **more: Any) -> Terms:
    return Terms(Scope(parent, name), label=name, **more)


async def used(place: Place, key: str = "r") -> int:
    return sum(each.used for each in (await place.coordinator.inspect(key)).counters)


async def everything(place: Place, name: str = "run-1", **more: Any) -> Holds:
    position = await place.coordinator.assign(OrderedLock("o"), "o", name, name)
    return await place.coordinator.acquire(wanted(*ALL, OrderedLock("o"), position=position), terms(name, **more))


# ---------------------------------------------------------------------- order


async def test_gates_are_passed_in_the_fixed_order(place: Place) -> None:
    hook = LoseReply("nothing")
    async with place.another(hook) as runtime:
        coordinator = runtime.coordinator()
        coordinator.observer = place.notices.append
        position = await coordinator.assign(OrderedLock("o"), "o", "run-1")
        del hook.seen[:]
        holds = await coordinator.acquire(wanted(*ALL, OrderedLock("o"), position=position), terms())
        assert hook.seen == [
            "order_turn", "period_check", "rate_fixed", "rate_fixed", "slot_take", "slot_take", "slot_take",
            "period_check",
        ]  # fmt: skip
        taken = [(notice.kind, notice.key) for notice in place.notices]
        assert taken == [
            ("ordered_lock", "o"), ("rate_limit", "q"), ("rate_limit", "r"), ("lock", "b"), ("lock", "z"),
            ("semaphore", "s"),
        ]  # fmt: skip
        await holds.check()
        del hook.seen[:]
        await holds.release("success")
        assert hook.seen == ["period_mark", "slot_release", "slot_release", "slot_release", "order_finish"]
        released = [(notice.kind, notice.key) for notice in place.notices if notice.fact == "released"]
        assert released == [("semaphore", "s"), ("lock", "z"), ("lock", "b"), ("ordered_lock", "o")]
        assert {notice.scope for notice in place.notices} == {"run-1"}


@pytest.mark.parametrize("ending", ["success", "halt", "failure", "paused"])
async def test_what_an_ending_leaves_behind(place: Place, ending: Any) -> None:
    holds = await everything(place)
    await holds.release(ending)
    assert await place.holders("z") == await place.holders("s", "semaphore") == []
    assert bool((await place.coordinator.inspect("p")).markers) == (ending == "success")
    assert await used(place) == 1
    line = await OrderedLock.peek("o")
    assert (line is not None) == (ending == "paused")
    await OrderedLock.reset("o")


async def test_a_failure_breaks_the_chain_and_a_halt_does_not(place: Place) -> None:
    await place.coordinator.assign(OrderedLock("o"), "o", "run-2", "run-2")
    await OrderedLock.reset("o")
    first = await place.coordinator.assign(OrderedLock("o"), "o", "run-3")
    second = await place.coordinator.assign(OrderedLock("o"), "o", "run-4")
    third = await place.coordinator.assign(OrderedLock("o"), "o", "run-5")
    holds = await place.coordinator.acquire(wanted(OrderedLock("o"), position=first), terms())
    await holds.release("halt")
    holds = await place.coordinator.acquire(wanted(OrderedLock("o"), position=second), terms())
    await holds.release("failure")
    with pytest.raises(OutOfTurn) as caught:
        await place.coordinator.acquire(wanted(OrderedLock("o"), position=third), terms())
    assert caught.value.reason == "ordered_chain_failed"
    await place.coordinator.finish(third, failed=False)


# ---------------------------------------------------------------------- refusals


async def _hold_lock(place: Place) -> Holds:
    return await (await place.elsewhere()).acquire(wanted(Lock("z")), terms("other"))


async def _hold_semaphore(place: Place) -> Holds:
    other = await place.elsewhere()
    first = await other.acquire(wanted(Semaphore("s", 2)), terms("other"))
    second = await other.acquire(wanted(Semaphore("s", 2)), terms("other"))
    first.entries += second.entries
    return first


async def _spend_rate(place: Place) -> Holds:
    return await place.coordinator.acquire(wanted(RateLimit("r", 5, "year", cost=5)), terms("other"))


async def _mark_period(place: Place) -> Holds:
    await (await place.coordinator.acquire(wanted(Period("p")), terms("other"))).release("success")
    return await place.coordinator.acquire([], terms("other"))


async def _be_first(place: Place) -> Holds:
    position = await place.coordinator.assign(OrderedLock("o"), "o", "other", "other")
    return await place.coordinator.acquire(wanted(OrderedLock("o"), position=position), terms("other"))


@pytest.mark.parametrize(
    ("obstacle", "error"),
    [
        (_hold_lock, LockUnavailable),
        (_hold_semaphore, SemaphoreUnavailable),
        (_spend_rate, RateLimited),
        (_mark_period, PeriodClaimed),
        (_be_first, OutOfTurn),
    ],
)
async def test_a_gate_that_refuses_gives_back_all_before_it(
    place: Place, obstacle: Callable[[Place], Awaitable[Holds]], error: type[Exception]
) -> None:
    in_the_way = await obstacle(place)
    before = await used(place)
    position = await place.coordinator.assign(OrderedLock("o"), "o", "run-1", "run-1")
    with pytest.raises(error):
        await place.coordinator.acquire(wanted(*ALL, OrderedLock("o"), position=position), terms())
    assert (await used(place), await used(place, "q")) == (before, 0)
    assert await place.holders("b") == []
    line = await OrderedLock.peek("o")
    assert [item.running for item in line.places if item.label == "run-1"] == [False]
    await in_the_way.release("halt")
    if obstacle is not _mark_period and obstacle is not _spend_rate:
        holds = await place.coordinator.acquire(wanted(*ALL, OrderedLock("o"), position=position), terms())
        await holds.release("success")
    else:
        await OrderedLock.reset("o")


async def test_a_period_is_looked_at_again_under_the_lock(place: Place) -> None:
    both = wanted(Period("p"), Lock("p", wait=30), RateLimit("r", 5, "year"))
    first = await place.coordinator.acquire(both, terms("first"))
    second = asyncio.create_task((await place.elsewhere()).acquire(both, terms("second")))
    await place.until_waiting("p", 1)
    await first.release("success")
    with pytest.raises(PeriodClaimed) as caught:
        await second
    assert caught.value.by == "first"
    assert await used(place) == 1


async def test_an_unknown_rate_limit_takes_nothing(place: Place) -> None:
    with pytest.raises(UnknownRateLimit):
        await place.coordinator.acquire(wanted(Lock("z"), RateLimit("nobody")), terms())
    assert place.notices == []


async def test_one_that_was_admitted_spends_nothing_again(place: Place) -> None:
    holds = await place.coordinator.acquire(wanted(*ALL), terms(admitted=True))
    assert (await used(place), len(holds.entries), holds.claims) == (0, 3, [])
    await holds.release("success")
    assert (await place.coordinator.inspect("p")).markers == ()


async def test_cut_off_at_any_moment_nothing_is_left(place: Place) -> None:
    position = await place.coordinator.assign(OrderedLock("o"), "o", "run-1", "run-1")
    everything_wanted = wanted(*ALL, OrderedLock("o"), position=position)
    for number in every_turn():
        task = asyncio.create_task(place.coordinator.acquire(everything_wanted, terms()))
        await turns(number)
        done = task.done()
        task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, Holds):
            await found.give_back()
        assert (await used(place), await used(place, "q")) == (0, 0)
        assert await place.holders("b") == await place.holders("z") == await place.holders("s", "semaphore") == []
        line = await OrderedLock.peek("o")
        assert [item.running for item in line.places] == [False]
        if done:
            break
    await OrderedLock.reset("o")


async def test_a_release_that_is_cut_off_is_done(place: Place) -> None:
    for number in every_turn():
        holds = (
            await everything(place, f"run-{number}")
            if number == 0
            else await place.coordinator.acquire(wanted(Lock("b"), Semaphore("s", 2)), terms())
        )
        task = asyncio.create_task(holds.release("success"))
        await turns(number + 1)
        done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await place.holders("b") == await place.holders("s", "semaphore") == []
        if done:
            break
    assert len((await place.coordinator.inspect("p")).markers) == 1


# ---------------------------------------------------------------------- scopes


async def test_a_step_enters_what_its_reactor_holds_and_siblings_take_turns(place: Place) -> None:
    reactor = Scope(None, "run")
    outer = await place.coordinator.acquire(wanted(Lock("z")), Terms(reactor))
    first = await place.coordinator.acquire(wanted(Lock("z")), Terms(Scope(reactor, "run/a")))
    nested = await place.coordinator.acquire(wanted(Lock("z")), Terms(Scope(first.scope, "run/a/1")))
    with pytest.raises(LockUnavailable):
        await place.coordinator.acquire(wanted(Lock("z")), Terms(Scope(reactor, "run/b")))
    waiting = asyncio.create_task(place.coordinator.acquire(wanted(Lock("z")), Terms(Scope(reactor, "run/c"), wait=30)))
    await turns(5)
    assert not waiting.done()
    await nested.release("success")
    await turns(5)
    assert not waiting.done()
    await first.release("success")
    second = await waiting
    with pytest.raises(LockUnavailable):
        await place.coordinator.acquire(wanted(Lock("z")), terms("another run"))
    await outer.release("success")
    assert len(await place.holders("z")) == 1  # a body is still inside
    await second.release("success")
    assert await place.holders("z") == []


async def test_everybody_inside_is_told_of_a_loss(place: Place) -> None:
    told: list[LeaseLost] = []
    reactor = Scope(None, "run")
    outer = await place.coordinator.acquire(wanted(Lock("z", ttl=1)), Terms(reactor, on_lost=told.append))
    inner = await place.coordinator.acquire(
        wanted(Lock("z", ttl=1)), Terms(Scope(reactor, "run/a"), on_lost=told.append)
    )
    await place.coordinator.force_release("z")

    async def both() -> bool:
        return len(told) == 2

    await place.until(both)
    assert told[0] is told[1]
    with pytest.raises(LeaseLost):
        await inner.check()
    await inner.release("failure")
    await outer.release("failure")
    assert len(told) == 2
    assert [notice.scope for notice in place.notices if notice.fact == "lost"] == ["run", "run/a"]


# ---------------------------------------------------------------------- parking


async def test_a_parked_run_keeps_what_it_holds(place: Place) -> None:
    position = await place.coordinator.assign(OrderedLock("o"), "o", "run-1", "run-1")
    declared = wanted(Lock("z", ttl=1), Period("p"), OrderedLock("o"), position=position)
    holds = await place.coordinator.acquire(declared, terms())
    fence = holds.leases[0].fence
    data = msgspec.json.decode(msgspec.json.encode(await holds.park(60)))
    assert len(place.coordinator.desk().renewer) == 0
    (holder,) = (await place.coordinator.inspect("z")).lock.holders  # type: ignore[union-attr]
    assert 50 < holder.time_left <= 60
    other = await place.elsewhere()
    with pytest.raises(LockUnavailable):
        await other.acquire(wanted(Lock("z")), terms("other"))
    again, lost = await other.adopt(data, terms())
    assert (lost, again.leases[0].fence, len(again.turns)) == ([], fence, 1)
    await again.check()
    await again.release("success")
    assert await place.holders("z") == []
    assert len((await place.coordinator.inspect("p")).markers) == 1
    assert await OrderedLock.peek("o") is None


async def test_what_was_lost_while_parked_is_said(place: Place) -> None:
    holds = await place.coordinator.acquire(wanted(Lock("a"), Lock("b"), Semaphore("s", 1)), terms())
    data = await holds.park(60)
    await place.coordinator.force_release("a")
    await place.coordinator.force_release("s", "semaphore")
    again, lost = await place.coordinator.adopt(data, terms())
    assert lost == ["lock:a", "semaphore:s"]
    assert [lease.slot.key for lease in again.leases] == ["b"]
    await again.release("failure")


async def _parked(coordinator: Coordinator, name: str, *primitives: Any) -> tuple[Parking, asyncio.Event]:
    woken = asyncio.Event()
    parking = Parking(woken.set)
    with pytest.raises((LockUnavailable, SemaphoreUnavailable)):
        await coordinator.acquire(wanted(*primitives), terms(name, parking=parking))
    assert list(parking.tickets) == ["lock:z"]
    return parking, woken


async def test_a_parked_run_is_called_and_served_in_order(place: Place) -> None:
    other = await place.elsewhere()
    async with asyncio.timeout(30):
        holder = await place.coordinator.acquire(wanted(Lock("z")), terms("holder"))
        parking, woken = await _parked(place.coordinator, "parked", Lock("b"), Lock("z"))
        assert await place.holders("b") == []
        live = asyncio.create_task(other.acquire(wanted(Lock("z")), terms("live", wait=30)))
        await place.until_waiting("z", 2)
        await holder.release("success")
        await woken.wait()
        assert not live.done()  # it came later
        (reserved,) = (await place.coordinator.inspect("z")).lock.holders  # type: ignore[union-attr]
        assert (reserved.label, reserved.time_left <= GRACE) == ("parked", True)
        data = msgspec.json.decode(msgspec.json.encode(parking.tickets))
        # It comes back in another process.
        back = await other.acquire(
            wanted(Lock("b"), Lock("z")), terms("parked", parking=Parking(lambda: None, tickets=data))
        )
        assert [lease.slot.key for lease in back.leases] == ["b", "z"]
        assert not live.done()
        await back.release("success")
        await (await live).release("success")


async def test_a_parked_run_that_never_comes_is_passed_by(place: Place) -> None:
    holder = await place.coordinator.acquire(wanted(Lock("z")), terms("holder"))
    _, woken = await _parked(place.coordinator, "parked", Lock("z"))
    await holder.release("success")
    async with asyncio.timeout(30):
        await woken.wait()
    await place.lapse("z")
    again = await place.coordinator.acquire(wanted(Lock("z")), terms("other"))
    await again.release("success")


async def test_a_place_in_line_can_be_given_up(place: Place) -> None:
    holder = await place.coordinator.acquire(wanted(Lock("z")), terms("holder"))
    parking, woken = await _parked(place.coordinator, "parked", Lock("z"))
    again = Parking(woken.set, tickets=dict(parking.tickets))
    with pytest.raises(LockUnavailable):
        await place.coordinator.acquire(wanted(Lock("z")), terms("parked", parking=again))
    assert again.tickets == parking.tickets  # it came too early, and keeps its place
    assert await place.waiting("z") == list(parking.tickets.values())
    await place.coordinator.withdraw(again.tickets)
    assert await place.waiting("z") == []
    await holder.release("success")
    assert not woken.is_set()


async def test_a_parked_turn_is_called(place: Place) -> None:
    first = await place.coordinator.assign(OrderedLock("o"), "o", "run-1")
    second = await place.coordinator.assign(OrderedLock("o"), "o", "run-2")
    holds = await place.coordinator.acquire(wanted(OrderedLock("o"), position=first), terms())
    woken = asyncio.Event()
    with pytest.raises(OutOfTurn):
        await place.coordinator.acquire(
            wanted(OrderedLock("o"), position=second), terms("run-2", parking=Parking(woken.set))
        )
    await holds.release("success")
    async with asyncio.timeout(30):
        await woken.wait()
    holds = await place.coordinator.acquire(wanted(OrderedLock("o"), position=second), terms("run-2"))
    await holds.release("success")
