"""The levels of durability through the public API: when what is written, who chooses, and what stops a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aioreactor
from aioreactor import Context, Failure, OwnershipLost, Reactor, Retry, SerializationError, Success
from aioreactor.definition.policies import Durability
from aioreactor.engine.ports import JournalFailed
from aioreactor.store.calls import Call
from tests.integration.durable import test_starting
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises

LEVELS: tuple[Durability, ...] = ("step", "batched", "exit")
BEHIND: tuple[Durability, ...] = ("batched", "exit")
WRITES = frozenset({"run_create", "run_save", "run_close", "run_release"})


class Chain(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b])


class AtExit(Reactor, durability="exit"):
    a = noted()
    b = noted(after=[a])


class Tries(Reactor):
    a = noted(retries=Retry(3, backoff="fixed", base_delay=0.0))
    b = noted(after=[a])


class Watch:
    """Puts what is written between the lines of the ledger; fails or holds back what it is told to."""

    def __init__(self, *fails: str) -> None:
        self.fails = frozenset(fails)

    def before_send(self, call: Call) -> None:
        if call.name in self.fails:
            raise ConnectionRefusedError("away")

    def after_reply(self, call: Call, reply: Any) -> None:
        if call.name in WRITES:
            ledger.append(call.name)


@pytest.mark.parametrize("level", BEHIND)
async def test_a_chain_that_never_waits_is_written_when_it_is_through(place: Place, level: Durability) -> None:
    async with place.another(Watch(), durability=level):
        assert (await Chain.with_options(run_id="x").run()).ok
    if level == "batched" and "run_save" in ledger:
        ledger.remove("run_save")  # it begins in time, or its end takes it along
    assert ledger == ["run_create", "do:a", "do:b", "do:c", "run_close"]
    found = await Chain.runs.find("x")
    assert str(found.trace) == "run:a success:a run:b success:b run:c success:c"
    assert dict(found.results) == {"a": "a", "b": "b", "c": "c"}


async def test_batched_is_written_while_bodies_wait_and_exit_is_not(place: Place) -> None:
    for level in BEHIND:
        ledger.clear()
        gate = Gate()
        behave["c"] = gate
        async with place.another(Watch(), durability=level):
            task = asyncio.create_task(Chain.with_options(run_id=level).run())
            await gate.reached.wait()
            if level == "batched":
                async with asyncio.timeout(10):
                    while "run_save" not in ledger:
                        await asyncio.sleep(0)
            else:
                for _ in range(200):
                    await asyncio.sleep(0)
            steps = [each.path for each in (await aioreactor.runs.find(level)).steps]
            saves = ["run_save"] if level == "batched" else []
            assert ledger == ["run_create", "do:a", "do:b", "do:c", *saves]
            gate.open.set()
            assert (await task).ok
        assert steps == (["a", "b"] if level == "batched" else [])


@pytest.mark.parametrize("level", BEHIND)
async def test_a_rollback_is_written_step_by_step_after_all_that_led_to_it(place: Place, level: Durability) -> None:
    behave["c"] = raises(ValueError("no"))
    async with place.another(Watch(), durability=level):
        assert isinstance(await Chain.with_options(run_id="x").run(), Failure)
    assert ledger == [
        *("run_create", "do:a", "do:b", "do:c", "run_save"),
        *("comp:c", "run_save", "undo:b", "run_save", "undo:a", "run_save"),
        "run_close",
    ]


async def test_the_start_the_class_and_the_settings_choose_in_this_order(place: Place) -> None:
    async with place.another(Watch(), durability="batched"):
        await AtExit.run()
        await AtExit.with_options(durability="step").run()
        await Chain.with_options(durability="none").run()
    async with place.another(Watch()):
        await AtExit.run()
        await Chain.run()
    lazy = ["run_create", "do:a", "do:b", "run_close"]
    assert ledger == [
        *lazy,
        *("run_create", "do:a", "run_save", "do:b", "run_save", "run_close"),
        *("do:a", "do:b", "do:c"),
        *lazy,
        *("run_create", "do:a", "run_save", "do:b", "run_save", "do:c", "run_save", "run_close"),
    ]


async def test_who_goes_on_keeps_to_the_level_that_the_start_asked_for(place: Place) -> None:
    gate = Gate()
    behave["a"] = gate
    task = asyncio.create_task(Chain.with_options(run_id="x", durability="exit").run())
    await gate.reached.wait()
    await place.lapse("x")
    behave.clear()
    ledger.clear()
    async with place.another(Watch()):
        assert await aioreactor.sweep() == ["x"]
    assert ledger == ["do:a", "do:b", "do:c", "run_close"]
    gate.open.set()
    with pytest.raises(OwnershipLost):
        await task


@pytest.mark.parametrize("level", BEHIND)
async def test_what_was_not_written_is_repeated_with_the_same_key(place: Place, level: Durability) -> None:
    seen: list[tuple[str, str, int]] = []
    gate = Gate()

    def keep(ctx: Context) -> None:
        seen.append((ctx.path, ctx.idempotency_key, ctx.attempt))

    async def last(ctx: Context) -> None:
        keep(ctx)
        await gate(ctx)

    behave.update({"a": keep, "b": keep, "c": last})
    watch = Watch("run_save")
    async with place.another(watch, durability=level):
        task = asyncio.create_task(Chain.with_options(run_id="x").run())
        await gate.reached.wait()
        await place.lapse("x")
        behave["c"] = keep
        assert await place.sweep_elsewhere() == ["x"]
        watch.fails = frozenset()
        gate.open.set()
        with pytest.raises(OwnershipLost):
            await task
    assert seen == [(path, f"x:{path}", 1) for path in "abc"] * 2
    assert ledger.count("undo:a") == 0
    assert (await Chain.runs.find("x")).status == "completed"


async def test_a_write_behind_that_fails_stops_the_run_where_it_is(place: Place) -> None:
    gate = Gate()
    behave["c"] = gate
    async with place.another(Watch("run_save"), durability="batched") as runtime:
        assert runtime.durable is not None
        runtime.durable.client._retry_for = 0.2
        with pytest.raises(JournalFailed):
            await Chain.with_options(run_id="x").run()
    assert ledger == ["run_create", "do:a", "do:b", "do:c"]
    assert (await Chain.runs.find("x")).status == "running"
    behave.clear()
    await place.lapse("x")
    assert await place.sweep_elsewhere() == ["x"]
    assert ledger[4:] == ["do:a", "do:b", "do:c"]


async def test_a_run_that_was_taken_over_is_stopped_by_its_next_write_behind(place: Place) -> None:
    gate, stuck = Gate(), Gate()
    behave["a"], behave["b"] = gate, stuck
    async with place.another(durability="batched"):
        task = asyncio.create_task(Chain.with_options(run_id="x").run())
        await gate.reached.wait()
        await place.do("HSET", place.store.space.run("x"), "token", "taken")
        gate.open.set()
        with pytest.raises(OwnershipLost):
            await task
    assert ledger == ["do:a", "do:b"]
    behave.clear()
    await place.lapse("x")
    assert await place.sweep_elsewhere() == ["x"]


@pytest.mark.parametrize("level", BEHIND)
async def test_an_end_that_was_not_stored_is_told_to_nobody(place: Place, level: Durability) -> None:
    told: list[str] = []

    class Ends(aioreactor.Middleware):
        async def on_run_finish(self, event: Any) -> None:
            told.append(event.status)

    async with place.another(Watch("run_close", "run_save"), durability=level, middlewares=[Ends()]) as runtime:
        assert runtime.durable is not None
        runtime.durable.client._retry_for = 0.2
        with pytest.raises(JournalFailed):
            await Chain.with_options(run_id="x").run()
    assert told == []
    await place.lapse("x")
    assert await place.sweep_elsewhere() == ["x"]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_rollback_that_cannot_be_written_ends_as_nothing(place: Place, level: Durability) -> None:
    """The store comes back in time for the outcome, which would hide what is still to be undone."""
    watch = Watch()

    def away(ctx: Context) -> None:
        watch.fails = frozenset({"run_save"})

    behave.update({"c": raises(ValueError("no")), "comp:c": away})
    async with place.another(watch, durability=level) as runtime:
        assert runtime.durable is not None
        runtime.durable.client._retry_for = 0.2
        with pytest.raises(JournalFailed):
            await Chain.with_options(run_id="x").run()
    assert (await Chain.runs.find("x")).status == "rolling_back"
    behave.clear()
    await place.lapse("x")
    assert await place.sweep_elsewhere() == ["x"]
    lines = [line for line in ledger if ":" in line]
    assert lines == ["do:a", "do:b", "do:c", "comp:c", "comp:c", "undo:b", "undo:a"]


@pytest.mark.parametrize("level", BEHIND)
async def test_what_cannot_be_stored_fails_its_step_before_anything_depends_on_it(
    place: Place, level: Durability
) -> None:
    behave["b"] = lambda ctx: object()
    async with place.another(durability=level):
        outcome = await Chain.with_options(run_id="x").run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, SerializationError)
    assert (outcome.step, ledger) == ("b", ["do:a", "do:b", "comp:b", "undo:a"])


@pytest.mark.parametrize("level", BEHIND)
async def test_another_attempt_does_not_wait_either(place: Place, level: Durability) -> None:
    def act(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("no")

    behave["a"] = act
    async with place.another(durability=level):
        outcome = await Tries.with_options(run_id="x").run()
    assert isinstance(outcome, Success)
    assert ledger == ["do:a", "do:a", "do:a", "do:b"]
    assert [each.failed_attempts for each in (await Tries.runs.find("x")).steps] == [2, 0]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_run_that_is_handed_back_has_all_that_was_done(place: Place, level: Durability) -> None:
    gate = Gate()
    behave["c"] = gate
    async with place.another(Watch()) as runtime:
        durable = runtime.durable
        assert durable is not None
        plan = Chain.plan
        assert await durable.create(plan, "x", {}, {"durability": level})
        carrying = asyncio.create_task(durable.carry_on("x", "first"))
        await gate.reached.wait()
        carrying.cancel()
        await carrying
        row = await place.store.peek("x")
        assert row is not None
        assert (row.status, row.lease_left_ms, row.durability) == ("running", 0, level)
        assert [each.path for each in (await Chain.runs.find("x")).steps][:2] == ["a", "b"]
        assert ledger[-1] == "run_release"
        assert ledger.count("run_release") == 1
        behave.clear()
        await durable.carry_on("x", "second")
    assert [line for line in ledger if ":" in line] == ["do:a", "do:b", "do:c", "do:c"]


@pytest.mark.parametrize("level", BEHIND)
@pytest.mark.parametrize("name", test_starting.CANCELLABLE)
async def test_cancelled_at_every_turn_of_the_loop(place: Place, name: str, level: Durability) -> None:
    async with place.another(durability=level):
        await test_starting.test_cancelled_at_every_turn_of_the_loop(place, name)


@pytest.mark.parametrize("level", BEHIND)
async def test_a_body_that_cancels_its_own_task_breaks_nothing(place: Place, level: Durability) -> None:
    async with place.another(durability=level):
        await test_starting.test_a_body_that_cancels_its_own_task_breaks_nothing(place)
