"""Coordination in workers: what is refused is left and comes back; what is held stays held from process to process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioreactor import (
    Context,
    Dispatched,
    Failure,
    Halt,
    Lock,
    LockUnavailable,
    OrderedLock,
    Period,
    RateLimit,
    Reactor,
    Retry,
    Success,
    UnknownRateLimit,
    after,
    compose,
    runs,
)
from aioreactor.coordination import inspect
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import parked, place, working

__all__ = ["place"]


class Second(Reactor[str], name="cw.Second"):
    a = noted()
    b = noted([a], coordination=[Lock("k")])
    returns = b


class Whole(Reactor[str], name="cw.Whole", coordination=[Lock("k")]):
    a = noted()
    b = noted([a])
    returns = b


class Leaves(Reactor[str], name="cw.Leaves", coordination=[Lock("k", ttl=30), RateLimit("starts", 1, 1000)]):
    a = noted()
    b = noted([a])
    returns = b
    background = after(a)


async def held(key: str) -> int:
    report = (await inspect(key)).lock
    return len(report.holders) if report is not None else 0


async def free(key: str) -> None:
    """A hold is given back when the outcome is stored, so a little after others can see that."""
    async with asyncio.timeout(20):
        while await held(key):
            await asyncio.sleep(0.002)


async def in_line(key: str, number: int = 1) -> None:
    async with asyncio.timeout(20):
        while (report := (await inspect(key)).lock) is None or len(report.waiters) < number:
            await asyncio.sleep(0.002)


async def test_a_refused_step_is_left_and_called_back_when_the_lock_is_free(place: Place) -> None:
    async with working(place, park_after=0.1, snooze_delay=600) as worker:
        async with Lock("k"):
            handle = await Second.enqueue()
            await parked(place, handle.run_id)
            assert await worker.service.host.idle(30)
            snapshot = await runs.find(handle.run_id)
            assert (snapshot.status, snapshot.waits_for, ledger) == ("running", "lock k", ["do:a"])
        assert await handle.result(timeout=20) == Success("b")
    assert ledger == ["do:a", "do:b"]
    trace = (await runs.find(handle.run_id)).trace
    assert [str(entry) for entry in trace.only("run", "park")] == ["run:a", "park:b", "park:b", "run:b"]
    assert [entry.attempt for entry in trace.only("run")] == [1, 1]
    await free("k")


async def test_a_refused_step_waits_in_place_when_it_is_not_for_long(place: Place) -> None:
    async with working(place, park_after=60, snooze_delay=30):
        async with Lock("k"):
            handle = await Second.enqueue()
            await in_line("k")
        assert await handle.result(timeout=20) == Success("b")
    assert [str(entry) for entry in (await runs.find(handle.run_id)).trace.only("park")] == ["park:b"]


async def test_a_refused_run_is_left_before_anything_and_called_back(place: Place) -> None:
    async with working(place, snooze_delay=600) as worker:
        async with Lock("k"):
            handle = await Whole.enqueue()
            await parked(place, handle.run_id)
            assert await worker.service.host.idle(30)
            assert ((await runs.find(handle.run_id)).waits_for, ledger) == ("lock k", [])
        assert await handle.result(timeout=20) == Success("b")
    assert ledger == ["do:a", "do:b"]
    await free("k")


async def test_who_was_left_first_is_called_first(place: Place) -> None:
    order: list[str] = []

    async def note_it(ctx: Context) -> None:
        order.append(ctx.run_id)

    behave["a"] = note_it
    handles = []
    async with working(place, snooze_delay=600):
        async with Lock("k"):
            for number in range(5):
                handles.append(await Whole.enqueue())
                await in_line("k", number + 1)
        for handle in handles:
            assert isinstance(await handle.result(timeout=30), Success)
    assert order == [handle.run_id for handle in handles]


async def test_it_comes_back_after_a_while_although_nobody_calls(place: Place) -> None:
    """The process that was to be called has gone."""
    async with Lock("k"):
        handle = await Whole.enqueue()
        async with working(place, snooze_delay=0.5):
            await parked(place, handle.run_id)
    async with working(place, snooze_delay=0.5):
        assert await handle.result(timeout=30) == Success("b")
    assert ledger == ["do:a", "do:b"]


async def test_a_run_that_has_done_nothing_fails_after_so_many_times(place: Place) -> None:
    async with Lock("k"), working(place, snooze_delay=0.02, snooze_max=3):
        handle = await Whole.enqueue()
        outcome = await handle.result(timeout=30)
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, LockUnavailable)
        assert (outcome.status, ledger) == ("failed", [])
        report = (await inspect("k")).lock
        assert report is not None
        assert (len(report.holders), len(report.waiters)) == (1, 0)


async def test_a_run_that_has_done_something_goes_on_waiting(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with working(place, snooze_delay=0.02, snooze_max=2, park_after=60):
        async with Lock("k"):
            handle = await Second.enqueue()
            async with asyncio.timeout(20):
                while not [record for record in caplog.records if getattr(record, "event", "") == "still_waiting"]:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
        assert await handle.result(timeout=20) == Success("b")
    assert len([record for record in caplog.records if getattr(record, "event", "") == "still_waiting"]) == 1


async def test_a_rate_limited_run_comes_back_when_it_may(place: Place) -> None:
    class Limited(Reactor, name="cw.Limited", coordination=[RateLimit("per half second", 1, 0.5)]):
        a = noted()

    async with working(place, snooze_delay=600):
        handles = [await Limited.enqueue() for _ in range(3)]
        for handle in handles:
            assert isinstance(await handle.result(timeout=30), Success)
    assert ledger == ["do:a"] * 3


async def test_the_caller_leaves_to_a_worker_what_it_cannot_have(place: Place) -> None:
    class Enqueued(Whole, name="cw.Enqueued", on_contention="enqueue"):
        pass

    async with working(place, snooze_delay=600):
        async with Lock("k"):
            outcome = await Enqueued.run()
            assert isinstance(outcome, Dispatched)
            assert (outcome.status, ledger) == ("pending", [])
        assert await Enqueued.with_options(run_id=outcome.run_id).run() == Success("b")


async def test_a_hand_off_keeps_the_lock_and_passes_no_gate_again(place: Place) -> None:
    seen: list[int] = []

    async def look(ctx: Context) -> None:
        seen.append(await held("k"))

    behave.update(a=look, b=look)
    outcome = await Leaves.run()
    assert isinstance(outcome, Dispatched)
    assert await held("k") == 1
    with pytest.raises(LockUnavailable):
        async with Lock("k"):
            pass
    async with working(place):
        assert await Leaves.with_options(run_id=outcome.run_id).run() == Success("b")
    assert (ledger, seen) == (["do:a", "do:b"], [1, 1])
    await free("k")


async def test_a_lock_that_was_lost_on_the_way_is_competed_for_anew(place: Place) -> None:
    from aioreactor.coordination import force_release

    outcome = await Leaves.run()
    assert len(await force_release("k")) == 1
    async with working(place, snooze_delay=600):
        seen: list[int] = []

        async def look(ctx: Context) -> None:
            seen.append(await held("k"))

        behave["b"] = look
        async with Lock("k"):
            await parked_anew(place, outcome.run_id)
            assert ledger == ["do:a"]
        assert await Leaves.with_options(run_id=outcome.run_id).run() == Success("b")
    assert (ledger, seen) == (["do:a", "do:b"], [1])
    async with asyncio.timeout(5):  # well within the grace of a place in line
        await free("k")


async def parked_anew(place: Place, run_id: str) -> None:
    async with asyncio.timeout(30):
        while not (row := await place.store.peek(run_id)) or row.lease_ms or row.waits_for != "lock k":
            await asyncio.sleep(0.005)


async def test_a_crash_of_the_holder_leaves_the_lock_to_who_recovers_the_run(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    dying = place.another()
    async with dying:
        running = asyncio.create_task(Whole.with_options(run_id=f"{place.prefix}c").run())
        await gate.reached.wait()
        await place.lapse(f"{place.prefix}c")
        del behave["b"]
        seen: list[int] = []

        async def look(ctx: Context) -> None:
            seen.append(await held("k"))

        behave["b"] = look
        assert await place.sweep_elsewhere() == [f"{place.prefix}c"]
        gate.open.set()
        await asyncio.gather(running, return_exceptions=True)
    assert seen == [1]
    assert ledger == ["do:a", "do:b", "do:b"]
    await free("k")


async def test_a_parked_run_keeps_what_it_holds(place: Place) -> None:
    class Retries(Reactor[str], name="cw.Retries", coordination=[Lock("k", ttl=1)]):
        a = noted(retries=Retry(max_attempts=2, base_delay=1.5))
        returns = a

    def once(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("busy")

    behave["a"] = once
    async with working(place, park_after=0.1) as worker:
        handle = await Retries.enqueue()
        await parked(place, handle.run_id)
        assert await worker.service.host.idle(30)
        assert await held("k") == 1
        assert await handle.result(timeout=30) == Success("a")
    await free("k")


async def test_a_child_that_is_refused_is_left_too(place: Place) -> None:
    class Leg(Reactor[str], name="cw.Leg", coordination=[Lock("k")]):
        l1 = noted()
        returns = l1

    class Trip(Reactor[str], name="cw.Trip"):
        a = noted()
        leg = compose(Leg, after=[a])
        returns = leg

    async with working(place, park_after=0.1, snooze_delay=600):
        async with Lock("k"):
            handle = await Trip.enqueue()
            await parked(place, handle.run_id)
            assert (await runs.find(handle.run_id)).waits_for == "lock k"
        assert await handle.result(timeout=20) == Success("leg.l1")
    assert ledger == ["do:a", "do:leg.l1"]


async def test_a_child_keeps_its_lock_over_a_park(place: Place) -> None:
    class Leg(Reactor[str], name="cw.KeepingLeg", coordination=[Lock("k", ttl=1)]):
        l1 = noted(retries=Retry(max_attempts=2, base_delay=1.5))
        l2 = noted([l1])
        returns = l2

    class Trip(Reactor[str], name="cw.KeepingTrip"):
        leg = compose(Leg)
        returns = leg

    seen: list[int] = []

    async def look(ctx: Context) -> None:
        seen.append(await held("k"))

    async def once(ctx: Context) -> None:
        await look(ctx)
        if ctx.attempt == 1:
            raise ValueError("busy")

    behave.update({"leg.l1": once, "leg.l2": look})
    async with working(place, park_after=0.1):
        handle = await Trip.enqueue()
        await parked(place, handle.run_id)
        assert await held("k") == 1
        assert await handle.result(timeout=30) == Success("leg.l2")
    assert seen == [1, 1, 1]
    await free("k")


async def test_a_period_halts_the_second_run_in_a_worker_too(place: Place) -> None:
    class Nightly(Reactor, name="cw.Nightly", coordination=[Period("n", every="year"), Lock("n")]):
        a = noted()

    async with working(place, snooze_delay=600):
        handles = [await Nightly.enqueue() for _ in range(10)]
        outcomes = [await handle.result(timeout=30) for handle in handles]
    assert sorted(type(each).__name__ for each in outcomes) == ["Halt"] * 9 + ["Success"]
    assert ledger == ["do:a"]


# ---------------------------------------------------------------------- lines


class Line(Reactor[int], name="cw.Line", coordination=[OrderedLock(lambda i: f"line:{i.key}", strict=False)]):
    key: str
    n: int
    a = noted()
    b = noted([a])


class Strict(Line, name="cw.Strict", coordination=[OrderedLock(lambda i: f"line:{i.key}")]):
    pass


@asynccontextmanager
async def two_working(place: Place, **settings: Any) -> AsyncIterator[None]:
    async with working(place, **settings), working(place, **settings):
        yield


async def test_two_hundred_positions_are_executed_in_order_whatever_fails(place: Place) -> None:
    chance = random.Random(7)
    entered: list[int] = []
    now = most = 0

    async def body(ctx: Context) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        entered.append(ctx.inputs["n"])
        await asyncio.sleep(0)
        if chance.random() < 0.3:
            now -= 1
            raise ValueError("by chance")

    async def last(ctx: Context) -> None:
        nonlocal now
        now -= 1

    behave.update(a=body, b=last)
    async with two_working(place, snooze_delay=30):
        handles = await Line.enqueue_many([{"key": "x", "n": number} for number in range(200)])
        later = [await Line.enqueue(key="x", n=number) for number in range(200, 210)]
        outcomes = [await handle.result(timeout=120) for handle in [*handles, *later]]
    assert entered == list(range(210))
    assert most == 1
    assert {type(each) for each in outcomes} == {Failure, Success}
    assert await OrderedLock.peek("line:x") is None


async def test_after_a_failure_a_strict_line_is_halted(place: Place) -> None:
    entered: list[int] = []

    async def body(ctx: Context) -> None:
        entered.append(ctx.inputs["n"])
        if ctx.inputs["n"] == 3:
            raise ValueError("no")

    behave["a"] = body
    handles = await Strict.enqueue_many([{"key": "y", "n": number} for number in range(8)])
    async with two_working(place, snooze_delay=30):
        outcomes = [await handle.result(timeout=60) for handle in handles]
        assert entered == [0, 1, 2, 3]
        assert [type(each).__name__ for each in outcomes] == ["Success"] * 3 + ["Failure"] + ["Halt"] * 4
        assert {each.reason for each in outcomes if isinstance(each, Halt)} == {"ordered_chain_failed"}
        assert await OrderedLock.peek("line:y") is None
        again = await Strict.enqueue(key="y", n=9)  # the batch is over, and a new one begins
        assert isinstance(await again.result(timeout=60), Success)


async def test_the_callers_order_is_kept_between_callers_and_workers(place: Place) -> None:
    entered: list[int] = []

    async def body(ctx: Context) -> None:
        entered.append(ctx.inputs["n"])

    behave["a"] = body

    class Waits(Line, name="cw.Waits", coordination=[OrderedLock(lambda i: f"line:{i.key}", wait=30)]):
        pass

    first = await Waits.enqueue(key="z", n=1)
    running = asyncio.create_task(Waits.run(key="z", n=2))
    async with asyncio.timeout(20):
        while (report := await OrderedLock.peek("line:z")) is None or len(report.places) < 2:
            await asyncio.sleep(0.002)
    third = await Waits.enqueue(key="z", n=3)
    assert entered == []
    async with working(place, snooze_delay=30):
        for outcome in (await first.result(timeout=30), await running, await third.result(timeout=30)):
            assert isinstance(outcome, Success), outcome
    assert entered == [1, 2, 3]
    assert await OrderedLock.peek("line:z") is None


async def test_an_attached_start_takes_no_position(place: Place) -> None:
    for _ in range(3):
        assert isinstance(await Line.with_options(idempotency_key="k").run(key="w", n=1), Success)
    assert ledger == ["do:a", "do:b"]
    assert await OrderedLock.peek("line:w") is None


async def test_a_run_that_is_not_let_in_leaves_the_line(place: Place) -> None:
    class Both(Line, name="cw.BothGates", coordination=[OrderedLock(lambda i: f"line:{i.key}"), Lock("both")]):
        pass

    async with Lock("both"):
        with pytest.raises(LockUnavailable):
            await Both.run(key="v", n=1)
    assert await OrderedLock.peek("line:v") is None
    assert isinstance(await Both.run(key="v", n=2), Success)


async def test_a_name_without_limits_fails_the_run_in_a_worker_without_a_park(place: Place) -> None:
    class Named(Reactor, name="cw.Named"):
        a = noted()
        b = noted([a], coordination=[RateLimit("stripe")])

    class NamedWhole(Reactor, name="cw.NamedWhole", coordination=[RateLimit("stripe")]):
        c = noted()

    async with working(place, snooze_delay=600):
        for handle in (await Named.enqueue(), await NamedWhole.enqueue()):
            outcome = await handle.result(timeout=30)
            assert isinstance(outcome, Failure)
            assert isinstance(outcome.error, UnknownRateLimit)
            assert outcome.trace.only("park") == ()
    assert ledger == ["do:a", "undo:a"]


async def test_a_worker_that_is_told_to_end_hands_the_lock_on(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    async with working(place):
        handle = await Whole.enqueue()
        run_id = handle.run_id
        await gate.reached.wait()
    assert await held("k") == 1
    del behave["b"]
    async with working(place):
        assert await Whole.with_options(run_id=run_id).run() == Success("b")
    assert ledger == ["do:a", "do:b", "do:b"]
    await free("k")


async def test_a_rollback_in_a_worker_is_under_the_locks(place: Place) -> None:
    seen: list[tuple[str, int]] = []

    async def look(ctx: Context) -> None:
        seen.append((ctx.path, await held("k")))

    behave.update({"b": raises(ValueError("no")), "comp:b": look, "undo:a": look})
    outcome = await Leaves.run()
    assert isinstance(outcome, Dispatched)
    async with working(place):
        ended = await Leaves.with_options(run_id=outcome.run_id).run()
    assert isinstance(ended, Failure)
    assert (seen, ended.rollback_failures) == ([("b", 1), ("a", 1)], [])
    await free("k")


async def test_bodies_are_exclusive_over_two_workers(place: Place) -> None:
    """Runs that hold a lock as a whole, and runs that hold it in one step, all at once."""
    now = most = entered = 0

    async def enter(ctx: Context) -> None:
        nonlocal now, most, entered
        now, entered = now + 1, entered + 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        if ctx.reactor == "cw.Second":
            now -= 1

    async def leave(ctx: Context) -> None:
        nonlocal now
        if ctx.reactor == "cw.Whole":
            now -= 1
        else:
            await enter(ctx)

    async def first(ctx: Context) -> None:
        if ctx.reactor == "cw.Whole":
            await enter(ctx)

    behave.update(a=first, b=leave)
    async with two_working(place, snooze_delay=30, park_after=0.05):
        handles = [await kind.enqueue() for _ in range(20) for kind in (Whole, Second)]
        for handle in handles:
            assert isinstance(await handle.result(timeout=60), Success)
    assert (most, entered) == (1, 40)
    await free("k")
