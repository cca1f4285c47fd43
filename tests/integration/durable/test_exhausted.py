"""Runs that lose their process again and again: bounded while they come no further, unbounded while they do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aioreactor
from aioreactor import Failure, Reactor, RecoveriesExhausted, Settings, compose, map_each, value
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_recovery import Chain, begun, lost


class Wide(Reactor):
    a = noted()
    left = noted(after=[a])
    right = noted(after=[a])


class Inner(Reactor):
    t1 = noted()
    t2 = noted(after=[t1])


class Element(Reactor):
    n: int
    e1 = noted()


class Nested(Reactor):
    inner = compose(Inner)
    m = map_each(Element, over=value([0]), item="n", after=[inner])


async def dies_in(place: Place, path: str, run_id: str = "x", **options: Any) -> None:
    """Somebody takes the run up, and dies in this body, undo or compensate."""
    gate = Gate()
    behave[path] = gate
    async with asyncio.timeout(30), place.another(**options):
        sweeping = asyncio.create_task(aioreactor.sweep())
        reached = asyncio.create_task(gate.reached.wait())
        await asyncio.wait({sweeping, reached}, return_when=asyncio.FIRST_COMPLETED)
        assert gate.reached.is_set(), f"{path} was not entered: {ledger}"
        # Whoever wakes up is refused, as one is that another process has taken the run from.
        await place.do("HSET", place.store.space.run(run_id), "token", "dead")
        gate.open.set()
        assert await sweeping == []
    await place.lapse(run_id)
    behave.pop(path)


async def begins_and_dies(place: Place, reactor: Any, path: str) -> None:
    gate = Gate()
    behave[path] = gate
    task = await begun(place, reactor, gate)
    await place.do("HSET", place.store.space.run("x"), "token", "dead")
    await lost(task, gate)
    behave.clear()


async def test_a_run_that_comes_no_further_fails_and_is_rolled_back(place: Place) -> None:
    await begins_and_dies(place, Chain, "b")
    for _ in range(2):
        await dies_in(place, "b", max_recoveries=2)
    waiting = asyncio.create_task(Chain.with_options(run_id="x").run())
    assert await place.sweep_elsewhere(max_recoveries=2) == ["x"]
    # What may have been in flight is compensated, not entered again.
    assert ledger == ["do:a", "do:b", "do:b", "do:b", "comp:b", "undo:a"]
    outcome = await waiting
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, RecoveriesExhausted)
    assert (outcome.error.run_id, outcome.error.recoveries) == ("x", 3)
    assert (outcome.status, outcome.step) == ("failed", "b")


async def test_progress_begins_the_count_anew(place: Place) -> None:
    await begins_and_dies(place, Chain, "a")
    for path in ("a", "b", "b", "c", "c"):
        await dies_in(place, path, max_recoveries=2)
    assert await place.sweep_elsewhere(max_recoveries=2) == ["x"]
    assert ledger == ["do:a"] * 3 + ["do:b"] * 3 + ["do:c"] * 3
    assert (await aioreactor.runs.find("x")).status == "completed"


async def test_a_rollback_that_comes_no_further_ends_and_the_rest_stays_owed(place: Place) -> None:
    behave["c"] = raises(ValueError("no"))
    gate = Gate()
    behave["undo:a"] = gate
    task = asyncio.create_task(Chain.with_options(run_id="x").run())
    await gate.reached.wait()
    await place.do("HSET", place.store.space.run("x"), "token", "dead")
    await lost(task, gate)
    await place.lapse("x")
    behave.clear()
    for _ in range(2):
        await dies_in(place, "undo:a", max_recoveries=2)
    assert await place.sweep_elsewhere(max_recoveries=2) == ["x"]
    before = ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a", "undo:a", "undo:a"]
    assert ledger == before
    found = await aioreactor.runs.find("x")
    assert isinstance(found.outcome, Failure)
    assert (found.status, type(found.outcome.error)) == ("failed", RecoveriesExhausted)
    assert (await aioreactor.runs.undo("x")).status == "cancelled"
    assert ledger == [*before, "undo:a"]


async def test_a_forward_poison_leaves_its_rollback_the_whole_bound(place: Place) -> None:
    await begins_and_dies(place, Chain, "b")
    await dies_in(place, "b", max_recoveries=1)
    await dies_in(place, "undo:a", max_recoveries=1)
    assert await place.sweep_elsewhere(max_recoveries=1) == ["x"]
    assert ledger == ["do:a", "do:b", "do:b", "comp:b", "undo:a", "undo:a"]
    found = await aioreactor.runs.find("x")
    assert isinstance(found.outcome, Failure)
    assert isinstance(found.outcome.error, RecoveriesExhausted)
    assert found.outcome.rollback_failures == []


@pytest.mark.parametrize(
    ("reactor", "path", "expected"),
    [
        (Wide, "left", {"do:a", "do:left", "do:right", "undo:right", "comp:left", "undo:a"}),
        (Nested, "inner.t2", {"do:inner.t1", "do:inner.t2", "comp:inner.t2", "undo:inner.t1"}),
        (
            Nested,
            "m[0].e1",
            {"do:inner.t1", "do:inner.t2", "do:m[0].e1", "comp:m[0].e1", "undo:inner.t2", "undo:inner.t1"},
        ),
    ],
)
async def test_poison_at_any_depth(place: Place, reactor: Any, path: str, expected: set[str]) -> None:
    await begins_and_dies(place, reactor, path)
    await dies_in(place, path, max_recoveries=1)
    assert await place.sweep_elsewhere(max_recoveries=1) == ["x"]
    taken_back = [line for line in ledger if not line.startswith("do:")]
    assert len(taken_back) == len(set(taken_back))
    assert set(ledger) == expected
    assert (await aioreactor.runs.find("x")).status == "failed"


async def test_one_that_hands_its_run_back_does_not_count(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    task = await begun(place, Chain, gate)
    await place.do("HSET", place.store.space.run("x"), "token", "")
    await lost(task, gate)
    for _ in range(4):
        gate = Gate()
        behave["b"] = gate
        async with place.another(max_recoveries=1) as other:
            assert other.durable is not None
            carrying = asyncio.create_task(other.durable.carry_on("x", "job"))
            await gate.reached.wait()
            carrying.cancel()
            await carrying
    behave.clear()
    await place.lapse("x")
    assert await place.sweep_elsewhere(max_recoveries=1) == ["x"]
    assert (await aioreactor.runs.find("x")).status == "completed"


def test_the_bound_is_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="max_recoveries"):
        Settings(max_recoveries=0)
    monkeypatch.setenv("AIOREACTOR_MAX_RECOVERIES", "3")
    assert Settings.from_environment().max_recoveries == 3
