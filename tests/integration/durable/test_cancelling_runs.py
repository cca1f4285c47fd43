"""Runs cancelled from outside: live ones at each of several moments, idle ones, and across crashes on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import (
    Failure,
    NotResumable,
    Reactor,
    Retry,
    RunNotFound,
    Success,
    after,
    runs,
)
from aioreactor.durable.requests import Body, pack
from aioreactor.store.answers import Accepted
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import place, working

__all__ = ["place"]


class Trip(Reactor[str], name="cancel.Trip"):
    a = noted()
    b = noted([a])
    c = noted([b])
    returns = c


class Wide(Reactor, name="cancel.Wide"):
    a = noted()
    b = noted([a])
    c = noted([a])
    d = noted([b, c])


class Handed(Trip, name="cancel.Handed"):
    background = after(Trip.a)


class Patient(Reactor[str], name="cancel.Patient", retries=Retry(max_attempts=2, base_delay=3600)):
    a = noted()
    b = noted([a])
    returns = b


UNDONE = {
    "a": ["do:a", "comp:a"],
    "b": ["do:a", "do:b", "comp:b", "undo:a"],
    "c": ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a"],
}


@pytest.mark.parametrize("at", ["a", "b", "c"])
@pytest.mark.parametrize("mode", ["stop", "rollback"])
async def test_a_live_run_is_cancelled_at_once_from_another_process(place: Place, at: str, mode: Any) -> None:
    behave[at] = gate = Gate()
    running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}r").run())
    await gate.reached.wait()
    async with place.another():
        outcome = await runs.cancel(f"{place.prefix}r", "the customer left", mode, timeout=20)
    assert isinstance(outcome, Failure)
    assert (outcome.status, str(outcome.error)) == ("cancelled", f"step {at!r} was cancelled: the customer left")
    mine = await running  # nothing is raised here: it was not this task that was cancelled
    assert (mine.status, str(mine.error)) == (outcome.status, str(outcome.error))  # type: ignore[union-attr]
    expected = UNDONE[at]
    if mode == "stop":
        expected = [each for each in expected if each.startswith("do:")]
    assert ledger == expected
    assert not gate.open.is_set()


async def test_what_was_stopped_stays_owed(place: Place) -> None:
    behave["b"] = gate = Gate()
    running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}s").run())
    await gate.reached.wait()
    await runs.cancel(f"{place.prefix}s", mode="stop", timeout=20)
    await running
    assert ledger == ["do:a", "do:b"]
    outcome = await runs.undo(f"{place.prefix}s")
    assert outcome.status == "cancelled"
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_all_bodies_in_flight_are_compensated(place: Place) -> None:
    behave["b"], behave["c"] = gates = Gate(), Gate()
    running = asyncio.create_task(Wide.with_options(run_id=f"{place.prefix}w").run())
    await asyncio.gather(*(gate.reached.wait() for gate in gates))
    await runs.cancel(f"{place.prefix}w", timeout=20)
    await running
    assert ledger[:3] == ["do:a", "do:b", "do:c"]
    assert sorted(ledger[3:5]) == ["comp:b", "comp:c"]
    assert ledger[5:] == ["undo:a"]


async def test_a_run_in_a_worker_is_cancelled_through_its_handle(place: Place) -> None:
    behave["b"] = gate = Gate()
    async with working(place):
        handle = await Trip.enqueue()
        await gate.reached.wait()
        await handle.cancel("too slow")
        outcome = await handle.result(timeout=20)
        assert await handle.status() == "cancelled"
        await handle.cancel()  # harmless
    assert isinstance(outcome, Failure)
    assert str(outcome.error) == "step 'b' was cancelled: too slow"
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_one_that_nobody_has_taken_is_cancelled_here(place: Place) -> None:
    handle = await Trip.enqueue()
    outcome = await Trip.runs.cancel(handle.run_id)
    assert (outcome.status, ledger) == ("cancelled", [])
    async with working(place):  # its job comes to nothing
        other = await Trip.enqueue()
        assert await other.result(timeout=20) == Success("c")
    assert ledger == ["do:a", "do:b", "do:c"]


async def test_one_that_was_handed_off_and_not_taken_is_rolled_back_here(place: Place) -> None:
    outcome = await Handed.run()
    ended = await runs.cancel(outcome.run_id, "changed my mind")
    assert (ended.status, ledger) == ("cancelled", ["do:a", "undo:a"])
    assert (await runs.find(outcome.run_id)).status == "cancelled"


async def test_one_that_is_parked_is_rolled_back_here_with_the_step_that_waited(place: Place) -> None:
    behave["b"] = raises(ValueError("not yet"))
    async with working(place, park_after=0.5):
        handle = await Patient.enqueue()
        while (await runs.find(handle.run_id)).waits_for == "":
            await asyncio.sleep(0.02)
    ended = await runs.cancel(handle.run_id)
    assert (ended.status, ledger) == ("cancelled", ["do:a", "do:b", "comp:b", "undo:a"])


async def test_it_is_refused_when_it_comes_too_late(place: Place) -> None:
    with pytest.raises(RunNotFound):
        await runs.cancel("nobody")
    outcome = await Trip.run()
    with pytest.raises(NotResumable, match="is completed: it has ended"):
        await runs.cancel(outcome.run_id)
    behave["c"], behave["undo:b"] = raises(ValueError("no")), (gate := Gate())
    failing = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}b").run())
    await gate.reached.wait()
    with pytest.raises(NotResumable, match="is rolling_back: rollback in progress"):
        await runs.cancel(f"{place.prefix}b")
    gate.open.set()
    assert (await failing).status == "failed"
    with pytest.raises(RunNotFound):
        await Wide.runs.cancel(outcome.run_id)
    with pytest.raises(ValueError, match="mode="):
        await runs.cancel(outcome.run_id, mode="kill")  # type: ignore[arg-type]


async def test_many_cancel_and_it_is_rolled_back_once(place: Place) -> None:
    behave["b"] = gate = Gate()
    running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}m").run())
    await gate.reached.wait()
    found = await asyncio.gather(
        *(runs.cancel(f"{place.prefix}m", f"reason {n}", timeout=20) for n in range(50)), return_exceptions=True
    )
    await running
    for each in found:
        assert isinstance(each, NotResumable) or each.status == "cancelled", each  # type: ignore[union-attr]
    assert sum(isinstance(each, Failure) for each in found) >= 1
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_what_was_accepted_is_met_by_whoever_takes_the_run(place: Place) -> None:
    """Whoever asked died before it could act, and so did the owner."""
    behave["b"] = gate = Gate()
    async with place.another() as first:
        running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}x").run())
        await gate.reached.wait()
        assert first.durable is not None
        for ears in first.durable._ears.values():
            ears.close()  # it hears nothing
            ears._executions.clear()
        body = pack(Body("cancel", text="asked before", mode="rollback"))
        assert isinstance(await place.store.ask(f"{place.prefix}x", body), Accepted)
        await place.lapse(f"{place.prefix}x")
        assert await place.sweep_elsewhere() == [f"{place.prefix}x"]
        snapshot = await runs.find(f"{place.prefix}x")
        assert (snapshot.status, snapshot.outcome.error.reason) == ("cancelled", "asked before")  # type: ignore[union-attr]
        assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]
        gate.open.set()
        assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], BaseException)
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_an_owner_that_hears_nothing_learns_of_it_with_its_next_checkpoint(place: Place) -> None:
    behave["b"] = gate = Gate()
    async with place.another() as first:
        running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}y").run())
        await gate.reached.wait()
        assert first.durable is not None
        for ears in first.durable._ears.values():
            ears.close()
            ears._executions.clear()
        behave["c"] = last = Gate()
        body = pack(Body("cancel", text="asked before", mode="rollback"))
        await place.store.ask(f"{place.prefix}y", body)
        gate.open.set()
        outcome = await running
    assert outcome.status == "cancelled"
    assert ledger[:2] == ["do:a", "do:b"]
    assert ledger[-2:] == ["undo:b", "undo:a"]
    assert not last.open.is_set()


async def test_a_rollback_that_a_cancel_began_goes_on_after_a_crash(place: Place) -> None:
    behave["c"], behave["undo:b"] = gate, undoing = Gate(), Gate()
    running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}z").run())
    await gate.reached.wait()
    async with place.another() as other:
        cancelling = asyncio.create_task(runs.cancel(f"{place.prefix}z", "the first reason", timeout=30))
        await undoing.reached.wait()
        await place.lapse(f"{place.prefix}z")
        behave.clear()
        assert await place.sweep_elsewhere() == [f"{place.prefix}z"]
        outcome = await cancelling
        assert other.durable is not None
    assert outcome.error.reason == "the first reason"  # type: ignore[union-attr]
    assert ledger.count("undo:a") == 1
    assert ledger.count("undo:b") == 2  # the one in flight is called again
    undoing.open.set()
    await asyncio.gather(running, return_exceptions=True)
    assert ledger.count("undo:a") == 1


async def test_one_whose_reactor_is_not_known_here_is_left_to_a_worker(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = await Handed.run()
    assert place.runtime.durable is not None
    async with place.another(queue=f"{place.prefix}-queue") as stranger:
        assert stranger.durable is not None
        monkeypatch.setattr(stranger.durable, "_knows", lambda reactor: False)
        cancelling = asyncio.create_task(runs.cancel(outcome.run_id, timeout=20))
        async with working(place):
            assert (await cancelling).status == "cancelled"
    assert ledger == ["do:a", "undo:a"]


async def test_the_time_for_it_may_be_bounded(place: Place) -> None:
    behave["b"], behave["undo:a"] = gate, undoing = Gate(), Gate()
    running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}t").run())
    await gate.reached.wait()
    with pytest.raises(TimeoutError):
        await runs.cancel(f"{place.prefix}t", timeout=0.3)
    undoing.open.set()
    assert (await running).status == "cancelled"
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_an_undo_waits_for_a_run_that_is_about_to_end(place: Place) -> None:
    behave["c"] = gate = Gate()
    running = asyncio.create_task(Trip.with_options(run_id=f"{place.prefix}u").run())
    await gate.reached.wait()
    undoing = asyncio.create_task(runs.undo(f"{place.prefix}u"))
    await asyncio.sleep(0.1)
    assert not undoing.done()
    gate.open.set()
    assert await running == Success("c")
    assert (await undoing).status == "cancelled"
    assert ledger == ["do:a", "do:b", "do:c", "undo:c", "undo:b", "undo:a"]
