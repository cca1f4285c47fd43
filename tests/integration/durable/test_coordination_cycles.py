"""Runs that hold and await each other's keys: one of their steps fails without having started, the others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import (
    Context,
    Failure,
    Lock,
    LockUnavailable,
    Outcome,
    Reactor,
    Success,
    compose,
    from_input,
    map_each,
    step,
)
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted
from tests.integration.durable.test_background import parked, place, working
from tests.integration.durable.test_coordination_workers import free, in_line

__all__ = ["place"]


class Left(Reactor[str], name="cc.Left", coordination=[Lock("a")]):
    a = noted()
    b = noted([a], coordination=[Lock("b", wait=60)])
    returns = b


class Right(Reactor[str], name="cc.Right", coordination=[Lock("b")]):
    c = noted()
    d = noted([c], coordination=[Lock("a", wait=60)])
    returns = d


def meeting(number: int = 2) -> asyncio.Barrier:
    """Both hold theirs before one wants the other's."""
    barrier = asyncio.Barrier(number)

    async def meet(ctx: Context) -> None:
        await barrier.wait()

    behave.update(a=meet, c=meet)
    return barrier


def judged(outcomes: list[Outcome[Any]]) -> tuple[Failure, str]:
    """The failure, and the path of the step that did it; everybody else has succeeded."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert len(failures) == 1
    assert sum(isinstance(outcome, Success) for outcome in outcomes) == len(outcomes) - 1
    (failure,) = failures
    return failure, str(failure.step)


def assert_one_gave_way(outcomes: list[Outcome[Any]]) -> None:
    failure, path = judged(outcomes)
    assert failure.error_type == "aioreactor.errors.LockUnavailable"
    assert "waiting would never end" in failure.message
    assert (failure.status, list(failure.rollback_failures)) == ("failed", [])
    lost, won = ("abcd"[:2], "cd") if path == "b" else ("cd", "ab")
    assert sorted(ledger) == sorted([f"do:{lost[0]}", f"undo:{lost[0]}", f"do:{won[0]}", f"do:{won[1]}"])


@pytest.mark.parametrize("park_after", [0.05, 60])
async def test_two_runs_in_a_worker(place: Place, park_after: float) -> None:
    meeting()
    async with working(place, park_after=park_after, snooze_delay=600):
        handles = [await Left.enqueue(), await Right.enqueue()]
        outcomes = [await handle.result(timeout=30) for handle in handles]
    assert_one_gave_way(outcomes)
    await free("a")
    await free("b")


async def test_one_that_was_left_by_a_process_that_is_gone(place: Place) -> None:
    """It is inside of its hold still, and is found in line; afterwards it goes on elsewhere."""
    gate = Gate()
    behave["c"] = gate
    calling = asyncio.create_task(Right.run())
    await gate.reached.wait()
    handle = await Left.enqueue()
    async with working(place, park_after=0.05, snooze_delay=1.0) as worker:
        await parked(place, handle.run_id)
        assert await worker.service.host.idle(30)
    gate.open.set()
    failure = await calling
    assert isinstance(failure, Failure)
    assert failure.step == "d"
    assert [entry.path for entry in failure.trace.only("run")] == ["c"]
    async with working(place):
        assert_one_gave_way([failure, await handle.result(timeout=30)])
    await free("a")
    await free("b")


async def test_two_callers_that_wait(place: Place) -> None:
    meeting()
    async with asyncio.timeout(30):
        outcomes = list(await asyncio.gather(Left.run(), Right.run()))
    assert_one_gave_way(outcomes)
    failure, _ = judged(outcomes)
    assert isinstance(failure.error, LockUnavailable)
    assert len(failure.error.cycle) == 2
    await free("a")
    await free("b")


async def test_a_caller_and_a_worker(place: Place) -> None:
    meeting()
    async with working(place, park_after=60, snooze_delay=600), asyncio.timeout(30):
        handle = await Left.enqueue()
        outcomes = [await Right.run(), await handle.result(timeout=30)]
    assert_one_gave_way(outcomes)
    await free("a")
    await free("b")


async def test_composed_children_of_one_run_in_each_others_way(place: Place) -> None:
    class Both(Reactor, name="cc.Both", on_failure="settle"):
        left = compose(Left)
        right = compose(Right)

    barrier = asyncio.Barrier(2)

    async def meet(ctx: Context) -> None:
        await barrier.wait()

    behave.update({"left.a": meet, "right.c": meet})
    async with working(place, park_after=0.05, snooze_delay=600):
        outcome = await (await Both.enqueue()).result(timeout=30)
    assert isinstance(outcome, Failure)
    assert outcome.step in ("left.b", "right.d")
    assert "waiting would never end" in outcome.message
    assert sorted(ledger) == ["do:left.a", "do:right.c", "undo:left.a", "undo:right.c"]
    await free("a")
    await free("b")


async def test_three_runs_in_a_ring(place: Place) -> None:
    class Around(Reactor[str], name="cc.Around", coordination=[Lock(lambda i: i.mine)]):
        mine: str
        others: str
        a = noted()

        @step(after=[a], coordination=[Lock(lambda args: args.others)])
        async def b(self, others: str) -> str:
            ledger.append("do:b")
            return others

        returns = b

    meeting(3)
    async with working(place, park_after=0.05, snooze_delay=600):
        pairs = [("x", "y"), ("y", "z"), ("z", "x")]
        handles = [await Around.enqueue(mine=mine, others=others) for mine, others in pairs]
        outcomes = [await handle.result(timeout=30) for handle in handles]
    failure, path = judged(outcomes)
    assert (path, ledger.count("do:b"), ledger.count("undo:a"), ledger.count("undo:b")) == ("b", 2, 1, 0)
    assert failure.message.count(" waits for lock ") == 3
    for key in "xyz":
        await free(key)


class Element(Reactor[str], name="cc.Element", coordination=[Lock(lambda i: i.key)]):
    key: str
    e = noted()
    returns = e


class Mapped(Reactor, name="cc.Mapped", coordination=[Lock("a")]):
    keys: list[str]
    a = noted()
    each = map_each(Element, over=from_input("keys"), item="key", fan_out=True, after=[a])


class MappedSteps(Reactor, name="cc.MappedSteps", coordination=[Lock("a")]):
    keys: list[str]
    a = noted()

    @map_each(over=from_input("keys"), fan_out=True, after=[a], coordination=[Lock(lambda arguments: arguments.key)])
    async def each(self, key: str) -> str:
        ledger.append(f"do:{key}")
        return key


@pytest.mark.parametrize("mapped", [Mapped, MappedSteps])
@pytest.mark.parametrize("first", ["element", "other"])
@pytest.mark.parametrize("park_after", [0.05, 60])
async def test_an_element_waits_inside_of_what_its_map_is_in(
    place: Place, mapped: Any, first: str, park_after: float
) -> None:
    """The run of the map holds ``a`` until its elements have ended, and one of these waits for ``b``."""
    holds_a, holds_b = Gate(), Gate()
    behave.update(a=holds_a, c=holds_b)
    async with working(place, park_after=park_after, snooze_delay=600), asyncio.timeout(20):
        right, handle = await Right.enqueue(), await mapped.enqueue(keys=["b"])
        await holds_a.reached.wait()
        await holds_b.reached.wait()
        opened = (holds_a, holds_b) if first == "element" else (holds_b, holds_a)
        opened[0].open.set()
        await in_line("b" if first == "element" else "a")
        opened[1].open.set()
        outcomes = [await right.result(timeout=30), await handle.result(timeout=30)]
    failure, path = judged(outcomes)
    assert "waiting would never end" in failure.message
    assert (path == "d") is (first == "element")
    assert path.startswith(("d", "each"))
    assert failure.message.count(" waits for lock ") == 2
    await free("a")
    await free("b")
