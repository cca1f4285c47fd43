"""Interrupts inside maps and children, beside failures, halts, deadlines and hand-offs, under every durability."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from aioreactor import (
    Default,
    Dispatched,
    Failure,
    Halt,
    NotResumable,
    Paused,
    Reactor,
    RunNotFound,
    Success,
    after,
    compose,
    halt,
    interrupt,
    map_each,
    result,
    runs,
    step,
)
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import place, working

__all__ = ["place"]


class One(Reactor[str], name="inside.One"):
    n: int
    a = noted()
    ok = interrupt(str, after=[a])
    b = noted([ok])
    returns = ok


class Many(Reactor, name="inside.Many"):
    @step
    async def numbers(self) -> list[int]:
        return [0, 1, 2, 3]

    each = map_each(One, over=result(numbers), item="n", concurrency=2)
    z = noted([each])


class Collecting(Many, name="inside.Collecting"):
    each = map_each(One, over=result(Many.numbers), item="n", atomic=False)


class Halting(Reactor, name="inside.Halting"):
    ok = interrupt(str)
    a = noted()

    @step(after=[a])
    async def stop(self) -> None:
        halt("enough")


class Inner(Reactor[str], name="inside.Inner", deadline=0.3):
    a = noted()
    ok = interrupt(str, after=[a])
    returns = ok


class Outer(Reactor, name="inside.Outer"):
    x = noted()
    inner = compose(Inner, after=[x])


class Handed(Reactor[str], name="inside.Handed"):
    a = noted()
    ok = interrupt(str, after=[a])
    b = noted([ok])
    c = noted([b])
    returns = ok
    background = after(b)


class Cancelling(Reactor, name="inside.Cancelling", on_failure="cancel"):
    a = noted()
    ok = interrupt(str, after=[a])
    slow = noted([a])
    bad = noted([a])


class Quick(Reactor[str], name="inside.Quick"):
    a = noted()
    ok = interrupt(str, after=[a], timeout=0.2, on_timeout=Default("nobody"))
    b = noted([ok])
    slow = noted([a])
    returns = ok


async def test_elements_pause_together_and_are_answered_one_by_one(place: Place) -> None:
    outcome = await Many.run()
    for expected in (["each[0].ok", "each[1].ok"], ["each[1].ok", "each[2].ok"], ["each[2].ok", "each[3].ok"]):
        assert isinstance(outcome, Paused)
        assert [each.name for each in outcome.interrupts] == expected
        outcome = await runs.resume(outcome.run_id, expected[0], "yes")
    outcome = await runs.resume(outcome.run_id, "each[3].ok", "yes")
    assert isinstance(outcome, Success)
    assert list(outcome.results["each"]) == ["yes"] * 4
    assert Counter(ledger) == {f"do:each[{n}].{name}": 1 for n in range(4) for name in "ab"} | {"do:z": 1}


async def test_an_element_that_fails_takes_the_others_along(place: Place) -> None:
    outcome = await Many.run()
    behave["each[0].b"] = raises(ValueError("no"))
    ended = await runs.resume(outcome.run_id, "each[0].ok", "yes")
    assert isinstance(ended, Failure)
    assert ended.step == "each[0].b"
    assert Counter(ledger) == {
        "do:each[0].a": 1,
        "do:each[1].a": 1,
        "do:each[0].b": 1,
        "comp:each[0].b": 1,
        "undo:each[0].a": 1,
        "undo:each[1].a": 1,
    }


async def test_where_elements_are_collected_the_others_wait_on(place: Place) -> None:
    outcome = await Collecting.run()
    assert isinstance(outcome, Paused)
    assert len(outcome.interrupts) == 4
    behave["each[1].b"] = raises(ValueError("no"))
    outcome = await runs.resume(outcome.run_id, "each[1].ok", "yes")
    assert isinstance(outcome, Paused)
    assert [each.name for each in outcome.interrupts] == ["each[0].ok", "each[2].ok", "each[3].ok"]
    assert ledger[-2:] == ["comp:each[1].b", "undo:each[1].a"]
    for number in (0, 2, 3):
        outcome = await runs.resume(outcome.run_id, f"each[{number}].ok", f"yes {number}")
    assert isinstance(outcome, Success)
    assert [type(each).__name__ for each in outcome.results["each"].outcomes()] == [
        "Success",
        "Failure",
        "Success",
        "Success",
    ]
    assert ledger[-1] == "do:z"


async def test_a_halt_closes_what_is_open(place: Place) -> None:
    outcome = await Halting.run()
    assert isinstance(outcome, Halt)
    assert ledger == ["do:a"]
    with pytest.raises(NotResumable, match="is halted"):
        await runs.resume(outcome.run_id, "ok", "x")


async def test_the_deadline_of_a_child_passes_while_the_run_is_paused(place: Place) -> None:
    async with working(place):
        outcome = await Outer.run()
        assert isinstance(outcome, Paused)
        assert (await place.store.wait_done(outcome.run_id, 20)).status == "failed"
    assert ledger == ["do:x", "do:inner.a", "undo:inner.a", "undo:x"]


async def test_an_answer_after_the_deadline_of_a_child_comes_too_late_for_it(place: Place) -> None:
    outcome = await Outer.run()
    await asyncio.sleep(0.4)
    ended = await runs.resume(outcome.run_id, "inner.ok", "x")
    assert ended.status in ("failed", "completed")  # whichever is noticed first; never both, never half
    undone = ["undo:inner.a", "undo:x"] if ended.status == "failed" else []
    assert ledger == ["do:x", "do:inner.a", *undone]


async def test_what_follows_a_trigger_is_a_workers_also_after_an_answer(place: Place) -> None:
    outcome = await Handed.run()
    assert isinstance(outcome, Paused)
    answered = await runs.resume(outcome.run_id, payload="x")
    assert isinstance(answered, Dispatched)
    assert ledger == ["do:a", "do:b"]
    async with working(place):
        assert (await place.store.wait_done(outcome.run_id, 20)).status == "completed"
    assert ledger == ["do:a", "do:b", "do:c"]


async def test_a_failure_that_cancels_closes_what_is_open(place: Place) -> None:
    behave["slow"] = gate = Gate()

    async def fails(ctx: Any) -> None:
        await gate.reached.wait()
        raise ValueError("no")

    behave["bad"] = fails
    outcome = await Cancelling.run()
    assert isinstance(outcome, Failure)
    assert sorted(ledger[:3]) == ["do:a", "do:bad", "do:slow"]
    assert sorted(ledger[3:5]) == ["comp:bad", "comp:slow"]
    assert ledger[5:] == ["undo:a"]


async def test_a_default_is_taken_while_other_branches_run(place: Place) -> None:
    behave["slow"] = gate = Gate()
    running = asyncio.create_task(Quick.run())
    await gate.reached.wait()
    while "do:b" not in ledger:
        await asyncio.sleep(0.01)
    gate.open.set()
    outcome = await running
    assert outcome == Success("nobody")
    assert [str(each) for each in outcome.trace.only("timeout", "interrupt")] == ["interrupt:ok", "timeout:ok"]
    assert ledger == ["do:a", "do:slow", "do:b"]


@pytest.mark.parametrize("durability", ["step", "batched", "exit"])
async def test_under_every_durability(place: Place, durability: Any) -> None:
    outcome = await One.with_options(durability=durability).run(n=1)
    assert isinstance(outcome, Paused)
    assert (await runs.find(outcome.run_id)).results == {"a": "a"}
    found = await asyncio.gather(
        *(runs.resume(outcome.run_id, "ok", f"{n}") for n in range(10)), return_exceptions=True
    )
    assert sum(isinstance(each, Success) for each in found) == 1
    assert ledger == ["do:a", "do:b"]
    assert (await runs.find(outcome.run_id)).status == "completed"


async def test_hundreds_of_paused_runs_are_left_and_found(place: Place) -> None:
    found = await asyncio.gather(*(One.with_options(tags=["many"]).run(n=n) for n in range(200)))
    assert Counter(map(type, found)) == {Paused: 200}
    assert len(await runs.list(status="paused", tag="many", limit=1000)) == 200
    await asyncio.gather(*(runs.resume(each.run_id, payload="x") for each in found))
    assert await runs.list(status="paused", tag="many") == ()
    assert Counter(ledger) == {"do:a": 200, "do:b": 200}


async def test_cancelled_in_the_caller_while_an_interrupt_is_open(place: Place) -> None:
    behave["slow"] = gate = Gate()
    running = asyncio.create_task(Quick.run())
    await gate.reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ledger == ["do:a", "do:slow", "comp:slow", "undo:a"]


class Background(One, name="inside.Background"):
    ok = interrupt(str, after=[One.a], resume="background")


@pytest.mark.parametrize("reactor", [One, Background])
async def test_answers_that_come_as_soon_as_they_may_are_never_left_lying(place: Place, reactor: Any) -> None:
    """No sweep helps: whoever lets a run go looks whether it was answered meanwhile."""

    async def answered(handle: Any) -> None:
        while True:
            try:
                await runs.resume(handle.run_id, "ok", "yes")
            except NotResumable:
                await asyncio.sleep(0)
            else:
                return

    async with working(place):
        handles = await reactor.enqueue_many({"n": n} for n in range(60))
        await asyncio.gather(*map(answered, handles))
        found = await asyncio.gather(*(place.store.wait_done(handle.run_id, 20) for handle in handles))
    assert Counter(row.status for row in found) == {"completed": 60}
    assert Counter(ledger) == {"do:a": 60, "do:b": 60}


async def test_answers_to_runs_of_callers_need_no_worker(place: Place) -> None:
    async def answered(run_id: str) -> None:
        while True:
            try:
                await runs.resume(run_id, "ok", "yes")
            except (NotResumable, RunNotFound):
                await asyncio.sleep(0)
            else:
                return

    ids = [f"{place.prefix}{n}" for n in range(60)]
    outcomes = asyncio.gather(*(One.with_options(run_id=run_id).run(n=1) for run_id in ids))
    await asyncio.gather(*map(answered, ids))
    await outcomes
    found = await asyncio.gather(*(place.store.wait_done(run_id, 20) for run_id in ids))
    assert Counter(row.status for row in found) == {"completed": 60}
    assert Counter(ledger) == {"do:a": 60, "do:b": 60}


async def test_cancels_at_any_moment_end_every_run_whole(place: Place) -> None:
    async def cancelled(handle: Any, number: int) -> None:
        await asyncio.sleep(number / 1000)
        with contextlib.suppress(NotResumable):
            await runs.cancel(handle.run_id, timeout=20)

    async with working(place):
        handles = await Many.enqueue_many({} for _ in range(60))
        await asyncio.gather(*(cancelled(handle, number) for number, handle in enumerate(handles)))
        found = await asyncio.gather(*(place.store.wait_done(handle.run_id, 20) for handle in handles))
    assert Counter(row.status for row in found) == {"cancelled": 60}
    done = Counter(line.partition(":")[2] for line in ledger if line.startswith("do:"))
    undone = Counter(line.partition(":")[2] for line in ledger if not line.startswith("do:"))
    assert done == undone
