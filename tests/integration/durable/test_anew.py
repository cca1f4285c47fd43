"""Runs decided about, tried again, forked; and what is said of one that does not move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import (
    AlreadyResumed,
    Failure,
    InputValidationError,
    NotResumable,
    Paused,
    Reactor,
    Retry,
    RunNotFound,
    SerializationError,
    Success,
    Value,
    compose,
    interrupt,
    result,
    runs,
    step,
    timer,
)
from aioreactor.durable.control import ASKABLE
from aioreactor.durable.requests import Body, pack
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import place, working
from tests.integration.durable.test_cancelling_runs import Handed

__all__ = ["place"]

PAUSING = Retry(max_attempts=2, on_exhausted="pause")


class Job(Reactor[str], name="anew.Job"):
    a = noted()
    b = noted([a], retries=PAUSING)

    @step
    async def c(self, given: Any = result(b)) -> str:
        ledger.append(f"c:{given}")
        return f"c of {given}"

    returns = c


class Typed(Reactor[int], name="anew.Typed"):
    @step(retries=PAUSING)
    async def count(self) -> int:
        ledger.append("count")
        raise ValueError("never")

    returns = count


class Line(Reactor[str], name="anew.Line"):
    n: int = 1
    a = noted()
    b = noted([a])
    c = noted([b])
    side = noted([a])
    returns = c


class Plain(Reactor[str], name="anew.Plain"):
    """Its first step has nothing to undo."""

    @step
    async def look(self) -> str:
        ledger.append("look")
        return "seen"

    b = noted([look])
    c = noted([b])
    returns = c


class Inner(Reactor[str], name="anew.Inner"):
    x = noted()
    y = noted([x])
    returns = y


class Outer(Reactor[str], name="anew.Outer"):
    inner = compose(Inner)
    b = noted([inner])
    c = noted([b])
    returns = c


class Waiting(Reactor, name="anew.Waiting"):
    a = noted()
    approve = interrupt(str, after=[a], correlation_id=lambda ctx: "req-1", timeout=3600, max_attempts=3)
    b = noted([a], retries=PAUSING)


class Timed(Reactor, name="anew.Timed"):
    a = noted()
    rest = timer(hours=1, after=[a])


async def ended(place: Place, run_id: str) -> Any:
    await place.store.wait_done(run_id, 20)
    return (await runs.find(run_id)).outcome


async def exhausted(reactor: type[Reactor[Any]], name: str = "b") -> str:
    behave[name] = raises(ValueError("no"))
    outcome = await reactor.run()
    assert isinstance(outcome, Paused)
    assert [each.name for each in outcome.interrupts] == [name]
    return outcome.run_id


async def test_exhausted_attempts_pause_the_run_and_one_more_is_allowed(place: Place) -> None:
    run_id = await exhausted(Job)
    assert ledger == ["do:a", "do:b", "do:b"]
    async with working(place):
        handle = await runs.decide(run_id, "b", "retry")
        assert isinstance(await handle.result(timeout=20), Paused)
        assert ledger == ["do:a", "do:b", "do:b", "do:b"]
        del behave["b"]
        handle = await Job.runs.decide(run_id, Job.b, "retry")
        assert await handle.result(timeout=20) == Success("c of b")
    assert ledger == ["do:a", "do:b", "do:b", "do:b", "do:b", "c:b"]
    found = (await runs.find(run_id)).trace.only("interrupt", "resume")
    assert [f"{each} {each.attempt}" for each in found] == [
        "interrupt:b 2",
        "resume:b 2",
        "interrupt:b 3",
        "resume:b 3",
    ]


@pytest.mark.parametrize(
    ("decision", "value", "done"),
    [("skip", "c of None", ["c:None"]), (Value("mine"), "c of mine", ["c:mine"])],
)
async def test_skipped_or_with_a_value(place: Place, decision: Any, value: str, done: list[str]) -> None:
    run_id = await exhausted(Job)
    async with working(place):
        assert await (await runs.decide(run_id, "b", decision)).result(timeout=20) == Success(value)
    assert ledger == ["do:a", "do:b", "do:b", *done]


async def test_failed_by_decision_it_rolls_back(place: Place) -> None:
    run_id = await exhausted(Job)
    async with working(place):
        outcome = await (await runs.decide(run_id, "b", "fail")).result(timeout=20)
    assert isinstance(outcome, Failure)
    assert (str(outcome.error), outcome.step, outcome.attempts) == ("no", "b", 2)
    assert ledger == ["do:a", "do:b", "do:b", "comp:b", "undo:a"]


async def test_cancelled_while_it_waits_for_a_decision_the_step_is_compensated(place: Place) -> None:
    run_id = await exhausted(Job)
    await runs.cancel(run_id)
    assert ledger == ["do:a", "do:b", "do:b", "comp:b", "undo:a"]


async def test_of_two_decisions_the_first_counts(place: Place) -> None:
    run_id = await exhausted(Job)
    found = await asyncio.gather(*(runs.decide(run_id, "b", Value(n)) for n in range(20)), return_exceptions=True)
    assert sum(isinstance(each, AlreadyResumed) for each in found) == 19
    async with working(place):
        assert isinstance(await ended(place, run_id), Success)
    assert len([each for each in ledger if each.startswith("c:")]) == 1
    with pytest.raises(NotResumable, match="is completed"):
        await runs.decide(run_id, "b", "retry")


async def test_a_decision_has_to_fit(place: Place) -> None:
    outcome = await Typed.run()
    assert isinstance(outcome, Paused)
    with pytest.raises(InputValidationError):
        await runs.decide(outcome.run_id, "count", Value("many"))
    with pytest.raises(SerializationError):
        await runs.decide(outcome.run_id, "count", "skip")
    with pytest.raises(NotResumable, match="does not wait for a decision"):
        await runs.decide(outcome.run_id, "other", "skip")
    with pytest.raises(NotResumable, match="it has no interrupt 'count'"):
        await runs.resume(outcome.run_id, "count", 1)
    with pytest.raises(ValueError, match="decide"):
        await runs.decide(outcome.run_id, "count", "perhaps")  # type: ignore[arg-type]
    async with working(place):
        assert await (await runs.decide(outcome.run_id, "count", Value(3))).result(timeout=20) == Success(3)


# ---------------------------------------------------------------------- retry


async def test_a_failed_run_is_tried_again_as_a_new_one(place: Place) -> None:
    behave["c"] = raises(ValueError("no"))
    failed = await Line.run(n=7)
    assert failed.status == "failed"
    del behave["c"]
    ledger.clear()
    async with working(place):
        handle = await runs.retry(failed.run_id)
        assert await handle.result(timeout=20) == Success("c")
    assert sorted(ledger) == ["do:a", "do:b", "do:c", "do:side"]
    snapshot = await runs.find(handle.run_id)
    assert (snapshot.parent, dict(snapshot.inputs)) == (failed.run_id, {"n": 7})
    assert (await runs.find(failed.run_id)).status == "failed"
    assert [each.run_id for each in await runs.list(parent=failed.run_id)] == [handle.run_id]


async def test_what_stands_is_kept_and_undone_by_the_new_run(place: Place) -> None:
    behave["c"], behave["undo:b"] = raises(ValueError("no")), raises(ValueError("cannot be undone"))
    failed = await Line.run()
    assert len(failed.rollback_failures) == 1  # type: ignore[union-attr]
    behave.pop("undo:b")
    ledger.clear()
    async with working(place):
        again = await (await runs.retry(failed.run_id)).result(timeout=20)
    assert again.status == "failed"
    assert "do:b" not in ledger
    assert ledger.count("do:c") == 1
    assert ledger.count("undo:b") == 1
    assert ledger.count("undo:a") == 1


async def test_what_has_nothing_to_undo_is_kept(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    failed = await Plain.run()
    behave.clear()
    ledger.clear()
    async with working(place):
        assert await (await runs.retry(failed.run_id)).result(timeout=20) == Success("c")
    assert ledger == ["do:b", "do:c"]


async def test_a_child_that_was_undone_runs_again(place: Place) -> None:
    behave["c"] = raises(ValueError("no"))
    failed = await Outer.run()
    behave.clear()
    ledger.clear()
    async with working(place):
        assert await (await runs.retry(failed.run_id)).result(timeout=20) == Success("c")
    assert ledger == ["do:inner.x", "do:inner.y", "do:b", "do:c"]


async def test_what_cannot_be_tried_again(place: Place) -> None:
    done = await Line.run()
    with pytest.raises(NotResumable, match="is completed: only what failed"):
        await runs.retry(done.run_id)
    with pytest.raises(RunNotFound):
        await runs.retry("nobody")
    handed = await Handed.run()
    with pytest.raises(NotResumable, match="is running"):
        await runs.retry(handed.run_id)
    with pytest.raises(NotResumable, match="only a run that has ended can be forked"):
        await runs.fork(handed.run_id, from_step="b")
    await runs.cancel(handed.run_id)
    assert await runs.list(parent=done.run_id) == ()


# ---------------------------------------------------------------------- fork


async def test_a_fork_takes_over_what_comes_before(place: Place) -> None:
    first = await Line.run()
    ledger.clear()
    async with working(place):
        handle = await runs.fork(first.run_id, from_step=Line.b)
        assert await handle.result(timeout=20) == Success("c")
    assert ledger == ["do:b", "do:c"]
    assert (await runs.find(handle.run_id)).results == {"a": "a", "b": "b", "c": "c", "side": "side"}


async def test_a_fork_that_fails_leaves_the_old_run_as_it_is(place: Place) -> None:
    first = await Outer.run()
    ledger.clear()
    behave["c"] = raises(ValueError("no"))
    async with working(place):
        outcome = await (await runs.fork(first.run_id, from_step="b")).result(timeout=20)
    assert outcome.status == "failed"
    assert ledger == ["do:b", "do:c", "comp:c", "undo:b"]  # not what is inside the child
    ledger.clear()
    await runs.undo(first.run_id)
    assert ledger == ["undo:c", "undo:b", "undo:inner.y", "undo:inner.x"]


async def test_a_fork_needs_a_step_that_there_is(place: Place) -> None:
    first = await Line.run()
    with pytest.raises(ValueError, match="has no step 'sid'.*side"):
        await runs.fork(first.run_id, from_step="sid")


# ---------------------------------------------------------------------- explain


def said(explanation: Any) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in explanation.reasons]


async def test_why_it_does_not_move(place: Place) -> None:
    with pytest.raises(RunNotFound):
        await runs.explain("nobody")
    done = await Line.run()
    found = await runs.explain(done.run_id)
    assert said(found) == [("ended", "")]
    assert "is completed" in str(found)

    queued = await Line.enqueue()
    assert said(await runs.explain(queued.run_id)) == [("no_worker", "")]
    await queued.cancel()
    later = await Line.with_options(delay=3600).enqueue()
    explained = await runs.explain(later.run_id)
    assert said(explained) == [("start", ""), ("no_worker", "")]
    assert explained.reasons[0].until is not None
    await later.cancel()

    parked = await Timed.run()
    explained = await runs.explain(parked.run_id)
    assert said(explained) == [("timer", "rest"), ("parked", ""), ("no_worker", "")]
    await runs.cancel(parked.run_id)


async def test_it_names_interrupts_decisions_and_requests(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    outcome = await Waiting.run()
    with pytest.raises(InputValidationError):
        await runs.resume(outcome.run_id, "approve", 1)
    explained = await runs.explain(outcome.run_id)
    assert sorted(said(explained)) == [("decision", "b"), ("interrupt", "approve")]
    text = str(explained)
    assert "waits for an answer with the correlation id 'req-1' (runs.resume)" in text
    assert "b: waits for a decision after 2 attempts (runs.decide), since 20" in text
    await place.store.ask(outcome.run_id, pack(Body("cancel", text="r", mode="rollback")), allowed=ASKABLE)
    assert "a cancel was accepted and is not carried out yet" in str(await runs.explain(outcome.run_id))
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(outcome.run_id, "job")
    assert (await runs.find(outcome.run_id)).status == "cancelled"


async def test_it_names_who_has_it_or_had_it(place: Place) -> None:
    behave["b"] = gate = Gate()
    running = asyncio.create_task(Line.with_options(run_id=f"{place.prefix}e").run())
    await gate.reached.wait()
    [reason] = (await runs.explain(f"{place.prefix}e")).reasons
    assert (reason.kind, ":" in reason.holder, reason.until is not None) == ("executed", True, True)
    await place.lapse(f"{place.prefix}e")
    assert said(await runs.explain(f"{place.prefix}e")) == [("lost", ""), ("no_worker", "")]
    gate.open.set()
    await running
