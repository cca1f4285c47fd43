"""Starting by key, spawning, cancelling, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

import aioreactor
from aioreactor import (
    Context,
    Failure,
    IdempotencyConflict,
    NotResumable,
    Reactor,
    Success,
    compose,
    map_each,
    step,
    value,
)
from aioreactor.store.calls import Call
from tests.integration.durable.kit import Gate, Place, behave, every_turn, ledger, noted, raises


class Order(Reactor):
    n: int = 0
    a = noted()
    b = noted(after=[a])


class Chain(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b])


class Leg(Reactor):
    k: int
    t1 = noted()
    t2 = noted(after=[t1])


class Trip(Reactor):
    t1 = noted()
    t2 = noted(after=[t1])


class Wide(Reactor):
    a = noted()
    trip = compose(Trip, after=[a])
    legs = map_each(Leg, over=value([1, 2]), item="k", after=[a])
    z = noted(after=[trip, legs])


class Abortive(Reactor, on_cancel="abort"):
    a = noted()
    b = noted(after=[a])


async def test_two_hundred_starts_with_one_key_are_one_run(place: Place) -> None:
    start = Order.with_options(idempotency_key="k").run
    outcomes = await asyncio.gather(*(start(n=1) for _ in range(200)))
    assert ledger == ["do:a", "do:b"]
    assert {outcome.run_id for outcome in outcomes} == {outcomes[0].run_id}
    assert all(outcome.unwrap() == {"a": "a", "b": "b"} for outcome in outcomes)
    assert (await start(n=1)).run_id == outcomes[0].run_id
    with pytest.raises(IdempotencyConflict):
        await start(n=2)
    assert ledger == ["do:a", "do:b"]


async def test_a_key_replays_failures_unless_told_to_replace(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    first = await Order.with_options(idempotency_key="k").run()
    again = await Order.with_options(idempotency_key="k").run()
    assert isinstance(first, Failure)
    assert isinstance(again, Failure)
    assert isinstance(again.error, ValueError)
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]
    with pytest.raises(IdempotencyConflict):
        await Order.with_options(idempotency_key="k", on_conflict="reject").run()
    behave.clear()
    anew = await Order.with_options(idempotency_key="k", on_conflict="replace").run(n=5)
    assert isinstance(anew, Success)
    assert anew.run_id == first.run_id
    found = await Order.runs.find(anew.run_id)
    assert found.inputs == {"n": 5}
    assert str(found.trace.only("run")) == "run:a run:b"


async def test_an_attacher_that_is_cancelled_leaves_the_run_alone(place: Place) -> None:
    gate = Gate()
    behave["a"] = gate
    mine = asyncio.create_task(Order.with_options(run_id="x").run())
    await gate.reached.wait()
    other = asyncio.create_task(Order.with_options(run_id="x").run())
    for _ in range(20):
        await asyncio.sleep(0.001)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    third = asyncio.create_task(Order.with_options(run_id="x").run())
    await asyncio.sleep(0.01)
    gate.open.set()
    assert (await mine).ok
    assert (await third).unwrap() == {"a": "a", "b": "b"}
    assert ledger == ["do:a", "do:b"]


async def test_a_spawned_run_knows_its_id_and_status_at_once(place: Place) -> None:
    gate = Gate()
    behave["a"] = gate
    for start in (Order.with_options(), Order.with_options(run_id="x"), Order.with_options(idempotency_key="k")):
        gate.reached.clear()
        gate.open.clear()
        handle = await start.spawn()
        assert await handle.status() in {"pending", "running"}
        await gate.reached.wait()
        assert await handle.status() == "running"
        assert (await aioreactor.runs.find(handle.run_id)).status == "running"
        gate.open.set()
        outcome = await handle.result()
        assert outcome.run_id == handle.run_id
        assert await handle.status() == "completed"


async def test_a_handle_cancels(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    handle = await Order.with_options(run_id="x").spawn()
    await gate.reached.wait()
    await handle.cancel()
    assert await handle.status() == "cancelled"
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]
    assert (await aioreactor.runs.find("x")).status == "cancelled"
    assert not (await handle.result()).ok


async def test_a_handle_cancelled_before_its_run_began(place: Place) -> None:
    handle = await Order.with_options(run_id="x").spawn()
    await handle.cancel()
    assert await handle.status() == "cancelled"
    assert not (await handle.result()).ok
    assert ledger == []


CANCELLABLE = {"Chain": Chain, "Wide": Wide}


@pytest.mark.parametrize("name", CANCELLABLE)
async def test_cancelled_at_every_turn_of_the_loop(place: Place, name: str) -> None:
    """Whatever was done is undone, or the record says that it stands; the cancel reaches its caller."""

    async def slowly(ctx: Context) -> None:
        await asyncio.sleep(0)

    reactor = CANCELLABLE[name]
    paths = ["a", "b", "c", "z", "trip.t1", "trip.t2", *(f"legs[{n}].t{m}" for n in (0, 1) for m in (1, 2))]
    behave.update(dict.fromkeys(paths, slowly))
    turns = 0
    for turns in every_turn():
        ledger.clear()
        run_id = f"x{turns}"
        task = asyncio.create_task(reactor.with_options(run_id=run_id).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            break
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        row = await place.store.peek(run_id)
        if row is None:
            assert ledger == [], turns
            continue
        assert (row.status, row.lease_left_ms) in {("cancelled", 0), ("completed", 0)}, (turns, row.status)
        done = {line[3:] for line in ledger if line.startswith("do:")}
        back = [line.partition(":")[2] for line in ledger if not line.startswith("do:")]
        if row.status == "cancelled":
            assert sorted(back) == sorted(done), (turns, ledger)
        else:
            assert back == [], (turns, ledger)
    assert turns > 10


async def test_cancelled_when_the_store_is_away(place: Place) -> None:
    """The caller gets its cancellation, not the store's error."""

    class Away:
        def before_send(self, call: Call) -> None:
            raise ConnectionRefusedError("away")

        def after_reply(self, call: Call, reply: Any) -> None:
            pass

    async with place.another(Away()) as runtime:
        assert runtime.durable is not None
        runtime.durable.client._retry_for = 0.2
        task = asyncio.create_task(Order.with_options(run_id="x").run())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ledger == []


class CancelsItself(Reactor):
    a = noted()

    @step(after=[a])
    async def b(self) -> str:
        ledger.append("do:b")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "b"

    c = noted(after=[b])


async def test_a_body_that_cancels_its_own_task_breaks_nothing(place: Place) -> None:
    """It is nobody's cancellation of the run; whatever comes of it, the record and the outcome agree."""
    async with asyncio.timeout(10):
        outcome = await CancelsItself.with_options(run_id="x").run()
    found = await aioreactor.runs.find("x")
    assert found.status == outcome.status
    if outcome.ok:
        assert ledger == ["do:a", "do:b", "do:c"]
    else:
        assert ledger[-1] == "undo:a"


async def test_a_runtime_that_was_closed_can_be_entered_again(place: Place) -> None:
    runtime = place.another()
    for _ in range(2):
        async with runtime:
            assert (await Order.run()).ok


async def test_a_runtime_leaves_no_task_and_no_descriptor(place: Place) -> None:
    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    await place.do("PING")
    before, tasks = opened(), asyncio.all_tasks()
    for _ in range(3):
        async with place.another():
            gate = Gate()
            behave["b"] = gate
            handle = await Order.spawn()
            await gate.reached.wait()
            attached = asyncio.create_task(Order.with_options(run_id=handle.run_id).run())
            await asyncio.sleep(0.01)
        assert not (await handle.result()).ok if handle._outcome else True
        attached.cancel()
        await asyncio.wait({attached})
    async with asyncio.timeout(5):
        while opened() > before or asyncio.all_tasks() - tasks:
            await asyncio.sleep(0.01)


async def test_one_runtime_in_several_event_loops(place: Place) -> None:
    runtime = place.another()
    outcomes: list[Any] = []

    def elsewhere() -> None:
        async def play() -> None:
            token = aioreactor.runtime._current.set(runtime)
            try:
                outcomes.extend(await asyncio.gather(*(Order.run(n=n) for n in range(5))))
            finally:
                aioreactor.runtime._current.reset(token)

        asyncio.run(play())

    threads = [threading.Thread(target=elsewhere) for _ in range(3)]
    for thread in threads:
        thread.start()
    async with runtime:
        outcomes += await asyncio.gather(*(Order.run(n=n) for n in range(5)))
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert len(outcomes) == 20
    assert all(outcome.ok for outcome in outcomes)


async def test_undo_and_delete_of_another_reactors_run_find_nothing(place: Place) -> None:
    await Order.with_options(run_id="x").run()
    with pytest.raises(aioreactor.RunNotFound):
        await Chain.runs.undo("x")
    with pytest.raises(aioreactor.RunNotFound):
        await Chain.runs.delete("x")


class Watch:
    """Notes commands between the lines of the ledger."""

    def before_send(self, call: Call) -> None:
        if call.name == "run_save":
            ledger.append("save")

    def after_reply(self, call: Call, reply: Any) -> None:
        if call.name in {"run_create", "run_save", "run_close"}:
            ledger.append(call.name)


async def test_a_dependant_starts_after_the_checkpoint_was_acknowledged(place: Place) -> None:
    async with place.another(Watch()):
        await Chain.run()
    assert ledger == [
        "run_create",
        *("do:a", "save", "run_save"),
        *("do:b", "save", "run_save"),
        *("do:c", "save", "run_save"),
        "run_close",
    ]


async def test_an_abort_leaves_everything_and_undo_finishes_it(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    task = asyncio.create_task(Abortive.with_options(run_id="x").run())
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger == ["do:a", "do:b"]
    assert (await aioreactor.runs.find("x")).status == "aborted"
    assert await place.sweep_elsewhere() == []
    behave.clear()
    outcome = await aioreactor.runs.undo("x")
    assert outcome.status == "cancelled"
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]
    await aioreactor.runs.undo("x")
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_undo_of_a_completed_run_and_of_what_was_left(place: Place) -> None:
    await Wide.with_options(run_id="x").run()
    done = list(ledger)
    behave["undo:trip.t1"] = raises(RuntimeError("stuck"))
    outcome = await aioreactor.runs.undo("x")
    assert isinstance(outcome, Failure)
    assert [failure.step for failure in outcome.rollback_failures] == ["trip.t1"]
    assert len(ledger) == 2 * len(done)
    assert sorted(line[5:] for line in ledger[len(done) :]) == sorted(line[3:] for line in done)
    behave.clear()
    ledger.clear()
    outcome = await aioreactor.runs.undo("x")
    assert ledger == ["undo:trip.t1"]
    assert isinstance(outcome, Failure)
    assert outcome.rollback_failures == []
    ledger.clear()
    await aioreactor.runs.undo("x")
    assert ledger == []


async def test_undo_is_refused_while_it_runs(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    handle = await Order.with_options(run_id="x").spawn()
    await gate.reached.wait()
    with pytest.raises(NotResumable):
        await aioreactor.runs.undo("x")
    await place.lapse("x")
    with pytest.raises(NotResumable):  # it has not ended
        await aioreactor.runs.undo("x")
    gate.open.set()
    await handle.result()
    gate = Gate()
    behave["undo:b"] = gate
    undoing = asyncio.create_task(aioreactor.runs.undo("x"))
    await gate.reached.wait()
    with pytest.raises(NotResumable):
        await aioreactor.runs.undo("x")
    await place.do("HSET", place.store.space.run("x"), "lease_ms", 1)
    with pytest.raises(NotResumable, match="rollback in progress"):
        await aioreactor.runs.undo("x")
    gate.open.set()
    assert (await undoing).status == "cancelled"
    assert ledger == ["do:a", "do:b", "undo:b", "undo:a"]


async def test_undo_that_is_cancelled_at_every_turn_leaves_no_lease(place: Place) -> None:
    for turns in every_turn():
        run_id = f"x{turns}"
        await Order.with_options(run_id=run_id).run()
        ledger.clear()
        task = asyncio.create_task(aioreactor.runs.undo(run_id))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        row = await place.store.peek(run_id)
        assert row is not None
        assert (row.status, ledger) in [("completed", []), ("cancelled", ["undo:b", "undo:a"])], turns
        assert row.lease_left_ms == 0


@pytest.mark.parametrize("where", ["b", "undo:a", "comp:b"])
async def test_status_while_it_goes_back(place: Place, where: str) -> None:
    gate = Gate()

    async def act(ctx: Context) -> None:
        await gate(ctx)
        if where == "b":
            raise ValueError("no")

    behave["b"] = raises(ValueError("no"))
    behave[where] = act
    handle = await Order.with_options(run_id="x").spawn()
    await gate.reached.wait()
    assert await handle.status() == ("running" if where == "b" else "rolling_back")
    gate.open.set()
    assert not (await handle.result()).ok
