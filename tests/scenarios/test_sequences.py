"""The rollback rule, shape by shape: what runs, in which order."""

from __future__ import annotations

from aioreactor import Failure, Reactor, compose, map_each, value
from tests.scenarios.kit import raises, script, scripted, sequence


class Chain(Reactor):
    a = scripted()
    b = scripted(after=[a])
    c = scripted(after=[b])


class Trip(Reactor):
    t1 = scripted()
    t2 = scripted(after=[t1])


class WithTrip(Reactor):
    a = scripted()
    trip = compose(Trip, after=[a])
    b = scripted(after=[trip])


class Element(Reactor):
    n: int
    e1 = scripted()
    e2 = scripted(after=[e1])


class WithMap(Reactor):
    a = scripted()
    m = map_each(Element, over=value([0, 1, 2]), item="n", concurrency=1, after=[a])
    z = scripted(after=[m])


async def test_a_failing_step_is_compensated_then_what_completed_is_undone() -> None:
    script.body["b"] = raises(ValueError("no"))
    outcome = await Chain.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "b"
    assert sequence(outcome) == "run:a run:b compensate:b undo:a"
    assert outcome.rollback_failures == []


async def test_an_undo_that_raises_is_reported_and_the_rest_goes_on() -> None:
    script.body["c"] = raises(ValueError("no"))
    script.undo["b"] = raises(RuntimeError("stuck"))
    outcome = await Chain.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "c"
    assert sequence(outcome) == "run:a run:b run:c compensate:c undo:b undo:a"
    assert [(e.step, e.kind, e.reason, e.message) for e in outcome.rollback_failures] == [
        ("b", "undo", "raised", "RuntimeError: stuck")
    ]


async def test_a_completed_child_is_undone_at_its_place() -> None:
    script.body["b"] = raises(ValueError("no"))
    outcome = await WithTrip.run()
    assert sequence(outcome) == ("run:a run:trip.t1 run:trip.t2 run:b compensate:b undo:trip.t2 undo:trip.t1 undo:a")


async def test_a_failing_child_rolls_itself_back_first() -> None:
    script.body["trip.t2"] = raises(ValueError("no"))
    outcome = await WithTrip.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "trip.t2"
    assert sequence(outcome) == "run:a run:trip.t1 run:trip.t2 compensate:trip.t2 undo:trip.t1 undo:a"


async def test_the_elements_of_a_map_roll_back_highest_index_first() -> None:
    script.body["m[2].e2"] = raises(ValueError("no"))
    outcome = await WithMap.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "m[2].e2"
    assert sequence(outcome) == (
        "run:a run:m[0].e1 run:m[0].e2 run:m[1].e1 run:m[1].e2 run:m[2].e1 run:m[2].e2 "
        "compensate:m[2].e2 undo:m[2].e1 undo:m[1].e2 undo:m[1].e1 undo:m[0].e2 undo:m[0].e1 undo:a"
    )
