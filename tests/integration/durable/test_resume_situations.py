"""An answer in each situation in which a run can be: what it does is what the table in the guide says."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from aioreactor import (
    AlreadyResumed,
    Default,
    Dispatched,
    Failure,
    Lock,
    NotResumable,
    Outcome,
    Paused,
    Reactor,
    Success,
    interrupt,
    runs,
)
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import place, working
from tests.integration.durable.test_coordination_workers import free

__all__ = ["place"]


def branches(name: str, resume: Any, **header: Any) -> Any:
    """Two interrupts, each with a branch of its own, and a branch that waits for nobody."""
    make: Any = type(Reactor)
    a = noted()
    one, two = interrupt(int, after=[a], resume=resume), interrupt(int, after=[a], resume=resume)
    left, right = noted([one]), noted([two])
    body = {"a": a, "one": one, "two": two, "left": left, "right": right, "aside": noted([a])}
    body |= {"last": noted([left, right])}
    known = {"__module__": __name__, "__qualname__": name}
    return make(name, (Reactor,), {**known, **body}, name=f"situation.{name}", **header)


MODES: dict[str, Any] = {
    "inline": branches("Inline", "inline"),
    "background": branches("Background", "background"),
}
LOCKED: dict[str, Any] = {
    "inline": branches("LockedInline", "inline", coordination=[Lock("lock")]),
    "background": branches("LockedBackground", "background", coordination=[Lock("lock")]),
}
ONCE = ["do:a", "do:aside", "do:last", "do:left", "do:right"]


class Limited(Reactor, name="situation.Limited"):
    a = noted()
    ok = interrupt(int, after=[a], timeout=0.15)


class Defaulted(Reactor, name="situation.Defaulted"):
    a = noted()
    ok = interrupt(int, after=[a], timeout=0.15, on_timeout=Default(7))
    b = noted([ok])


class Waiting(Reactor, name="situation.Waiting"):
    ok = interrupt(int, timeout=0.01, on_timeout="wait")


async def completed(place: Place, run_id: str) -> Outcome[Any]:
    await place.store.wait_done(run_id, 20)
    outcome = (await runs.find(run_id)).outcome
    assert isinstance(outcome, Success)
    return outcome


@pytest.mark.parametrize("mode", MODES)
async def test_two_interrupts_are_answered_at_the_same_instant(place: Place, mode: str) -> None:
    outcome = await MODES[mode].run()
    assert isinstance(outcome, Paused)
    async with working(place), place.another() as elsewhere:
        assert elsewhere.durable is not None
        found = await asyncio.gather(
            runs.resume(outcome.run_id, "one", 1), elsewhere.durable.resume(outcome.run_id, "two", 2, None)
        )
        ended = await completed(place, outcome.run_id)
    assert {type(each) for each in found} <= {Dispatched, Success, Paused}
    assert sorted(ledger) == ONCE
    assert sorted(str(each) for each in ended.trace.only("resume")) == ["resume:one", "resume:two"]
    assert (ended.results["one"], ended.results["two"]) == (1, 2)


@pytest.mark.parametrize("mode", MODES)
async def test_one_is_answered_while_the_run_goes_on_with_the_other(place: Place, mode: str) -> None:
    """Accepted, and applied by whoever executes the run; nothing of it runs twice."""
    outcome = await MODES[mode].run()
    behave["left"] = gate = Gate()
    async with working(place):
        first = asyncio.create_task(runs.resume(outcome.run_id, "one", 1))
        await gate.reached.wait()
        answer = await runs.resume(outcome.run_id, "two", 2)
        assert isinstance(answer, Dispatched)
        async with asyncio.timeout(20):
            while "do:right" not in ledger:  # by the process that is inside `left`
                await asyncio.sleep(0.002)
        with pytest.raises(AlreadyResumed):
            await runs.resume(outcome.run_id, "two", 3)
        gate.open.set()
        await first
        ended = await completed(place, outcome.run_id)
    assert sorted(ledger) == ONCE
    assert ended.results["two"] == 2


@pytest.mark.parametrize("mode", LOCKED)
async def test_while_the_lock_of_the_reactor_is_taken(place: Place, mode: str) -> None:
    """Accepted at once; the run goes on when the lock is free, whoever has brought the answer."""
    outcome = await LOCKED[mode].run()
    async with working(place, snooze_delay=0.2):
        async with Lock("lock"):
            answers = [
                await asyncio.wait_for(runs.resume(outcome.run_id, name, number), 20)
                for number, name in enumerate(("one", "two"))
            ]
            assert [type(each) for each in answers] == [Dispatched, Dispatched]
            assert sorted(ledger) == ["do:a", "do:aside"]
        await completed(place, outcome.run_id)
    assert sorted(ledger) == ONCE
    await free("lock")


async def test_while_a_worker_executes_another_branch(place: Place) -> None:
    behave["aside"] = gate = Gate()
    async with working(place):
        handle = await MODES["inline"].enqueue()
        await gate.reached.wait()
        async with asyncio.timeout(20):
            while len((await runs.find(handle.run_id)).interrupts) < 2:
                await asyncio.sleep(0.002)
        assert (await runs.find(handle.run_id)).status == "running"
        for name in ("one", "two"):
            assert isinstance(await runs.resume(handle.run_id, name, 1), Dispatched)
        async with asyncio.timeout(20):
            while "do:last" not in ledger:
                await asyncio.sleep(0.002)
        gate.open.set()
        assert isinstance(await handle.result(timeout=20), Success)
    assert sorted(ledger) == ONCE


@pytest.mark.parametrize("mode", ["stop", "rollback"])
async def test_after_a_cancel(place: Place, mode: Any) -> None:
    outcome = await MODES["inline"].run()
    await runs.cancel(outcome.run_id, mode=mode)
    ledger.clear()
    with pytest.raises(NotResumable, match="it has ended") as raised:
        await runs.resume(outcome.run_id, "one", 1)
    assert (raised.value.status, ledger) == ("cancelled", [])
    assert (await place.store.read(outcome.run_id)).requests[1:] == []  # type: ignore[union-attr]


async def test_at_the_same_instant_as_a_cancel(place: Place) -> None:
    """Either may be accepted first. The run ends cancelled, and what it did is undone."""
    for turns in range(0, 40, 2):
        ledger.clear()
        outcome = await MODES["inline"].run()

        async def answers(run_id: str, turns: int) -> Any:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await runs.resume(run_id, "one", 1)

        answer, ended = await asyncio.gather(
            answers(outcome.run_id, turns), runs.cancel(outcome.run_id), return_exceptions=True
        )
        assert isinstance(answer, (Dispatched, Failure, Paused, NotResumable)), answer
        assert getattr(ended, "status", ended) == "cancelled"
        done = Counter(line[3:] for line in ledger if line.startswith("do:"))
        undone = Counter(line[5:] for line in ledger if not line.startswith("do:"))
        assert done == undone, ledger


async def test_while_it_is_rolled_back(place: Place) -> None:
    outcome = await MODES["inline"].run()
    behave["undo:a"] = gate = Gate()
    going_back = asyncio.create_task(runs.cancel(outcome.run_id))
    await gate.reached.wait()
    with pytest.raises(NotResumable, match="rollback in progress"):
        await runs.resume(outcome.run_id, "one", 1)
    gate.open.set()
    assert (await going_back).status == "cancelled"


@pytest.mark.parametrize("reactor", [Limited, Defaulted])
async def test_after_the_deadline_that_a_worker_has_enforced(place: Place, reactor: Any) -> None:
    outcome = await reactor.run()
    async with working(place):
        await place.store.wait_done(outcome.run_id, 20)
    with pytest.raises(NotResumable, match="it has ended"):
        await runs.resume(outcome.run_id, "ok", 1)
    assert ledger == (["do:a", "undo:a"] if reactor is Limited else ["do:a", "do:b"])


async def test_after_the_deadline_that_nobody_has_enforced(place: Place) -> None:
    outcome = await Waiting.run()
    await asyncio.sleep(0.03)
    with pytest.raises(NotResumable, match="the time of the interrupt is over"):
        await runs.resume(outcome.run_id, "ok", 1)
    assert (await runs.find(outcome.run_id)).status == "paused"
    await runs.cancel(outcome.run_id)


async def test_two_hundred_answers_to_two_interrupts_in_both_modes(place: Place) -> None:
    """Of each one wins, whatever process brings it; and each branch runs once."""
    for mode in MODES.values():
        ledger.clear()
        outcome = await mode.run()
        async with working(place), place.another() as elsewhere:
            assert elsewhere.durable is not None
            found = await asyncio.gather(
                *(elsewhere.durable.resume(outcome.run_id, "one", number, None) for number in range(100)),
                *(runs.resume(outcome.run_id, "two", number) for number in range(100)),
                return_exceptions=True,
            )
            ended = await completed(place, outcome.run_id)
        won = [number for number, each in enumerate(found) if not isinstance(each, BaseException)]
        assert Counter(map(type, found))[AlreadyResumed] == 198
        assert [ended.results["one"], ended.results["two"] + 100] == won
        assert sorted(ledger) == ONCE


async def test_an_answer_to_a_run_that_failed_meanwhile_is_refused(place: Place) -> None:
    behave["left"] = raises(ValueError("no"))
    outcome = await MODES["inline"].run()
    failed = await runs.resume(outcome.run_id, "one", 1)
    assert failed.status == "failed"
    with pytest.raises(NotResumable) as raised:
        await runs.resume(outcome.run_id, "two", 1)
    assert raised.value.status == "failed"
    assert Counter(ledger) == Counter(["do:a", "do:aside", "do:left", "comp:left", "undo:aside", "undo:a"])
