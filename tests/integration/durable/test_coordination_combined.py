"""Coordination together with what leaves runs, begins them anew, or dispatches parts of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import (
    Context,
    Lock,
    OrderedLock,
    Paused,
    Reactor,
    Success,
    async_reactor,
    async_step,
    compose,
    coordination,
    interrupt,
    runs,
    step,
)
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import parked, place, working
from tests.integration.durable.test_coordination_workers import free, held

__all__ = ["place"]

FAR = 600.0


class Approved(Reactor[str], name="both.Approved", coordination=[Lock("trip")]):
    book = noted()
    approve = interrupt(str, after=[book])
    pay = noted([approve])
    returns = pay


class Travel(Reactor[str], name="both.Travel", coordination=[Lock("travel")]):
    plan_it = noted()
    trip = compose(Approved, after=[plan_it])
    send = noted([trip])
    returns = send


class InLine(Reactor[str], name="both.InLine", coordination=[OrderedLock("queue", wait=30)]):
    a = noted()
    b = noted([a])
    returns = b


class Alone(Reactor[str], name="both.Alone", coordination=[Lock("alone")]):
    x = noted()
    returns = x


class Dispatching(Reactor[str], name="both.Dispatching"):
    alone = async_reactor(Alone)

    @async_step(coordination=[Lock("single")])
    async def single(self, ctx: Context) -> str:
        ledger.append("do:single")
        if "single" in behave:
            await behave["single"](ctx)
        return "single"

    @step
    async def both(self, alone: Any, single: Any) -> str:
        return f"{alone.value} {single}"

    returns = both


class Asked(Reactor[str], name="both.Asked", coordination=[Lock("asked")]):
    x = noted()
    ok = interrupt(str, after=[x])
    y = noted([ok])
    returns = y


class Asks(Reactor[str], name="both.Asks", coordination=[Lock("asks")]):
    asked = async_reactor(Asked)
    other = noted()

    @step(after=[other])
    async def read(self, asked: Any) -> str:
        return str(asked.value)

    returns = read


class Waits(Reactor[str], name="both.Waits"):
    a = noted()
    b = noted([a], coordination=[Lock("key")])


class WaitsInChild(Reactor[str], name="both.WaitsInChild"):
    inner = compose(Alone)


async def waiters(key: str) -> int:
    report = (await coordination.inspect(key)).lock
    return len(report.waiters) if report is not None else 0


async def positions(key: str) -> list[str]:
    order = (await coordination.inspect(key)).order
    return [place.label for place in order.places] if order is not None else []


async def left(place: Place, run_id: str, worker: Any) -> None:
    await parked(place, run_id)
    assert await worker.service.host.idle(30)


# ---------------------------------------------------------------------- interrupts


async def test_an_interrupt_in_a_child_releases_what_both_hold_and_takes_it_again(place: Place) -> None:
    """Of the run and of the composed child around the interrupt."""
    outcome = await Travel.run()
    assert isinstance(outcome, Paused)
    assert [each.name for each in outcome.interrupts] == ["trip.approve"]
    assert (await held("travel"), await held("trip")) == (0, 0)
    async with Lock("travel"), Lock("trip"):
        pass  # others have them meanwhile
    behave["trip.pay"] = paying = Gate()
    behave["send"] = sending = Gate()
    resuming = asyncio.create_task(runs.resume(outcome.run_id, "trip.approve", "yes"))
    await paying.reached.wait()
    assert (await held("travel"), await held("trip")) == (1, 1)
    paying.open.set()
    await sending.reached.wait()
    assert (await held("travel"), await held("trip")) == (1, 0)
    sending.open.set()
    assert await resuming == Success("send")
    assert ledger == ["do:plan_it", "do:trip.book", "do:trip.pay", "do:send"]
    assert (await held("travel"), await held("trip")) == (0, 0)


async def test_an_answer_waits_for_the_lock_of_the_child_that_it_goes_on_in(place: Place) -> None:
    """Somebody has taken it while the run was paused: the answer is accepted, and applied when it is free."""
    outcome = await Travel.run()
    async with working(place, snooze_delay=0.2):
        async with Lock("trip"):
            answering = asyncio.create_task(runs.resume(outcome.run_id, "trip.approve", "yes"))
            while not (await place.store.peek(outcome.run_id)).asked:  # type: ignore[union-attr]
                await asyncio.sleep(0.002)
            assert "do:trip.pay" not in ledger
        await answering
        assert await Travel.with_options(run_id=outcome.run_id).run() == Success("send")
    assert ledger == ["do:plan_it", "do:trip.book", "do:trip.pay", "do:send"]
    await free("trip")
    await free("travel")


# ---------------------------------------------------------------------- lines


async def test_a_retry_and_a_fork_stand_in_line_anew(place: Place) -> None:
    ended = await InLine.run()
    behave["b"] = raises(ValueError("no"))
    failed = await InLine.run()
    assert (ended.status, failed.status) == ("completed", "failed")
    del behave["b"]
    await OrderedLock.reset("queue")
    ledger.clear()
    behave["a"] = gate = Gate()
    first = await InLine.spawn()
    await gate.reached.wait()
    del behave["a"]
    again = await runs.retry(failed.run_id)
    forked = await runs.fork(ended.run_id, from_step="b")
    assert await positions("queue") == [first.run_id, again.run_id, forked.run_id]
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        await left(place, again.run_id, worker)
        await left(place, forked.run_id, worker)
        assert ledger == ["do:a"]
        gate.open.set()
        assert await first.result(timeout=20) == Success("b")
        assert await again.result(timeout=20) == Success("b")
        assert await forked.result(timeout=20) == Success("b")
    # The retry runs both again, for `a` was undone; the fork has the result of `a` already.
    assert ledger == ["do:a", "do:b", "do:a", "do:b", "do:b"]
    while await positions("queue"):
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(("reactor", "key"), [(Waits, "key"), (Alone, "alone"), (WaitsInChild, "alone")])
async def test_a_run_that_is_cancelled_while_it_waits_leaves_its_place_in_line(
    place: Place, reactor: Any, key: str
) -> None:
    """Else the key would be given to it, and be nobody's for a while."""
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        async with Lock(key):
            handle = await reactor.enqueue()
            await left(place, handle.run_id, worker)
            assert await waiters(key) == 1
            await runs.cancel(handle.run_id)
            assert await waiters(key) == 0
        async with asyncio.timeout(5), Lock(key, wait=5):
            pass


async def test_a_run_that_is_cancelled_while_it_waits_for_its_turn_lets_the_line_go_on(place: Place) -> None:
    behave["a"] = gate = Gate()
    first = await InLine.spawn()
    await gate.reached.wait()
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        second, third = await InLine.enqueue(), await InLine.enqueue()
        await left(place, second.run_id, worker)
        await left(place, third.run_id, worker)
        await runs.cancel(second.run_id)
        assert await positions("queue") == [first.run_id, third.run_id]
        gate.open.set()
        assert await third.result(timeout=20) == Success("b")
    assert await first.result(timeout=20) == Success("b")


# ---------------------------------------------------------------------- units


async def test_units_take_their_locks_as_runs_of_their_own(place: Place) -> None:
    """They wait for them, parked, while the parent waits for them, parked."""
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        async with Lock("alone"), Lock("single"):
            handle = await Dispatching.enqueue()
            await left(place, handle.run_id, worker)
            alone, single = (await runs.find(handle.run_id)).children
            await left(place, alone, worker)
            await left(place, single, worker)
            assert (await waiters("alone"), await waiters("single"), ledger) == (1, 1, [])
            found = [(await runs.explain(run_id)).reasons[0].kind for run_id in (handle.run_id, alone, single)]
            assert found == ["unit", "lock", "lock"]
        assert await handle.result(timeout=20) == Success("x single")
    assert sorted(ledger) == ["do:single", "do:x"]
    await free("alone")
    await free("single")


async def test_a_unit_that_is_paused_holds_nothing_and_its_parent_goes_on_with_the_answer(place: Place) -> None:
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        handle = await Asks.enqueue()
        await left(place, handle.run_id, worker)
        [unit] = (await runs.find(handle.run_id)).children
        async with asyncio.timeout(20):
            while (await runs.find(unit)).status != "paused":
                await asyncio.sleep(0.005)
        assert (await held("asked"), await held("asks")) == (0, 1)  # a parked run keeps what it holds
        reason = (await runs.explain(handle.run_id)).reasons[0]
        assert (reason.kind, reason.holder) == ("unit", unit)
        assert reason.text.endswith("which is paused and waits for an answer to 'ok'")
        assert await runs.resume(unit, payload="yes") == Success("y")
        assert await handle.result(timeout=20) == Success("y")
    assert sorted(ledger) == ["do:other", "do:x", "do:y"]
    await free("asked")
    await free("asks")


async def test_a_parent_that_is_cancelled_ends_whole_while_its_unit_is_paused(place: Place) -> None:
    """The unit has started, so it is left to itself; its answer is still taken."""
    async with working(place, park_after=0.05) as worker:
        handle = await Asks.enqueue()
        await left(place, handle.run_id, worker)
        [unit] = (await runs.find(handle.run_id)).children
        async with asyncio.timeout(20):
            while (await runs.find(unit)).status != "paused":
                await asyncio.sleep(0.005)
        ended = await runs.cancel(handle.run_id)
        assert (ended.status, sorted(ledger)) == ("cancelled", ["do:other", "do:x", "undo:other"])
        assert (await held("asks"), (await runs.find(unit)).status) == (0, "paused")
        assert await runs.resume(unit, payload="yes") == Success("y")
