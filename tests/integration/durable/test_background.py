"""Runs that change into the background: handed to a worker on the way, from the start, when cancelled, or parked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioreactor import (
    Dispatched,
    Failure,
    Reactor,
    Retry,
    Runtime,
    Success,
    after,
    before,
    runs,
    worker_settings,
)
from aioreactor.jobs import payload
from aioreactor.jobs.worker import create_worker
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises


class Order(Reactor[str], name="bg.Order"):
    n: int = 0
    reserve = noted()
    charge = noted([reserve])
    ship = noted([charge])
    returns = ship
    background = after(reserve)


class Early(Order, name="bg.Early"):
    background = before(Order.charge)


class Whole(Reactor[str], name="bg.Whole"):
    n: int = 0
    reserve = noted()
    charge = noted([reserve])
    ship = noted([charge])
    returns = ship
    background = "all"


class Detaching(Reactor[str], name="bg.Detaching", on_cancel="detach"):
    reserve = noted()
    charge = noted([reserve])
    ship = noted([charge])
    returns = ship


class Patient(Reactor[str], name="bg.Patient", retries=Retry(max_attempts=2, base_delay=3600)):
    reserve = noted()
    charge = noted([reserve])
    returns = charge


class Impatient(Reactor[str], name="bg.Impatient", retries=Retry(max_attempts=2, base_delay=0.4)):
    reserve = noted()
    charge = noted([reserve])
    returns = charge


@contextlib.asynccontextmanager
async def working(place: Place, *, max_concurrency: int = 100, **settings: Any) -> AsyncIterator[Any]:
    """A worker of this key space, in this process, with a runtime of its own."""
    async with place.another(queue=f"{place.prefix}-queue", **settings):
        made = worker_settings(sweep_interval=None, shutdown_grace=0, max_concurrency=max_concurrency)
        worker = create_worker(made, handle_signals=False)
        serving = asyncio.create_task(worker.serve())
        try:
            yield worker
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@pytest.fixture
async def place(place: Place) -> AsyncIterator[Place]:
    """The caller's runtime rings in a queue of the place's own."""
    async with place.another(queue=f"{place.prefix}-queue"):
        yield place
    for key in await place.do("KEYS", f"{place.prefix}-queue*"):
        await place.do("DEL", key)
    for key in await place.do("KEYS", "arq:job:aioreactor*"):
        await place.do("PEXPIRE", key, 1000)


async def rung(place: Place, queue: str = "queue") -> list[list[str]]:
    """The runs of each job that waits in the queue."""
    found = []
    for job_id in await place.do("ZRANGE", f"{place.prefix}-{queue}", 0, -1):
        body = payload.loads_plain(await place.do("GET", b"arq:job:" + job_id))
        found.append(body["a"][1])
    return found


async def test_the_caller_gets_what_there_is_and_a_worker_does_the_rest(place: Place) -> None:
    outcome = await Order.with_options(run_id=f"{place.prefix}o1").run()
    assert isinstance(outcome, Dispatched)
    assert ledger == ["do:reserve"]
    assert (outcome.results, outcome.status, outcome.run_id) == ({"reserve": "reserve"}, "running", f"{place.prefix}o1")
    assert outcome.job_id
    assert await rung(place) == [[outcome.run_id]]
    snapshot = await runs.find(outcome.run_id)
    assert (snapshot.status, snapshot.waits_for, snapshot.outcome) == ("running", "a worker", None)
    async with working(place):
        attached = await Order.with_options(run_id=outcome.run_id).run()
    assert attached == Success("ship")
    assert ledger == ["do:reserve", "do:charge", "do:ship"]
    kinds = [str(entry) for entry in attached.trace.only("run", "hand_off")]
    assert kinds == ["run:reserve", "hand_off:reserve", "run:charge", "run:ship"]
    assert (await runs.find(outcome.run_id)).waits_for == ""


async def test_before_is_the_first_step_there(place: Place) -> None:
    outcome = await Early.run()
    assert isinstance(outcome, Dispatched)
    assert ledger == ["do:reserve"]
    async with working(place):
        assert await Early.with_options(run_id=outcome.run_id).run() == Success("ship")
    assert ledger == ["do:reserve", "do:charge", "do:ship"]


async def test_all_of_it_is_a_workers(place: Place) -> None:
    outcome = await Whole.with_options(idempotency_key="k").run(n=1)
    assert isinstance(outcome, Dispatched)
    assert (outcome.status, dict(outcome.results), ledger) == ("pending", {}, [])
    assert await rung(place) == [[outcome.run_id]]
    async with working(place):
        assert await Whole.with_options(idempotency_key="k").run(n=1) == Success("ship")
    assert ledger == ["do:reserve", "do:charge", "do:ship"]
    invalid = await Whole.run(n="many")
    assert isinstance(invalid, Failure)
    assert list(invalid.field_errors) == ["n"]


async def test_a_rollback_in_a_worker_includes_what_the_caller_did(place: Place) -> None:
    behave["ship"] = raises(ValueError("no ship"))
    outcome = await Order.run()
    async with working(place):
        ended = await Order.with_options(run_id=outcome.run_id).run()
    assert isinstance(ended, Failure)
    assert (ended.step, ended.status) == ("ship", "failed")
    assert ledger == ["do:reserve", "do:charge", "do:ship", "comp:ship", "undo:charge", "undo:reserve"]


async def test_a_failure_before_the_trigger_stays_here(place: Place) -> None:
    behave["reserve"] = raises(ValueError("none left"))
    outcome = await Order.run()
    assert isinstance(outcome, Failure)
    assert await rung(place) == []


async def test_its_own_queue_gets_it_and_so_does_the_sweep(place: Place) -> None:
    outcome = await Order.with_options(queue=f"{place.prefix}-slow").run()
    assert await rung(place, "slow") == [[outcome.run_id]]
    assert await rung(place) == []
    assert (await place.store.peek(outcome.run_id)).queue == f"{place.prefix}-slow"  # type: ignore[union-attr]
    await runs.delete(outcome.run_id)
    for key in await place.do("KEYS", f"{place.prefix}-slow*"):
        await place.do("DEL", key)


async def test_a_handle_waits_for_the_end_wherever_it_is(place: Place) -> None:
    spawned, whole = await Order.spawn(), await Whole.spawn()
    async with working(place):
        assert await spawned.result(timeout=30) == Success("ship")
        assert await whole.result(timeout=30) == Success("ship")
    assert (await spawned.status(), await whole.status()) == ("completed", "completed")


async def test_a_handle_of_an_attached_start_that_is_cancelled_still_gets_the_outcome(place: Place) -> None:
    gate = Gate()
    behave["charge"] = gate
    first = await Detaching.with_options(idempotency_key="a").spawn()
    await gate.reached.wait()
    second = await Detaching.with_options(idempotency_key="a").spawn()
    await second.cancel()
    with pytest.raises(TimeoutError):
        await second.result(timeout=0.01)
    gate.open.set()
    assert await second.result(timeout=30) == await first.result(timeout=30) == Success("ship")


async def test_what_cannot_be_stored_is_refused_by_every_start(place: Place) -> None:
    class Odd(Reactor, name="bg.Odd"):
        thing: Any
        a = noted()

    class OddWhole(Odd, name="bg.OddWhole"):
        background = "all"

    handle = await Odd.enqueue(thing=object())
    for outcome in (await Odd.run(thing=object()), await handle.result(), await OddWhole.run(thing=object())):
        assert isinstance(outcome, Failure)
        assert outcome.error_type == "aioreactor.errors.SerializationError"
    assert await rung(place) == []
    assert await runs.list() == ()


# ---------------------------------------------------------------------- detach


@pytest.mark.parametrize("moment", ["reserve", "charge"])
async def test_a_cancelled_caller_leaves_the_rest_to_a_worker(place: Place, moment: str) -> None:
    gate = Gate()
    behave[moment] = gate
    run_id = f"{place.prefix}d-{moment}"
    running = asyncio.create_task(Detaching.with_options(run_id=run_id).run())
    await gate.reached.wait()
    running.cancel("the client went away")
    with pytest.raises(asyncio.CancelledError, match="the client went away"):
        await running
    row = await place.store.peek(run_id)
    assert row is not None
    assert (row.status, row.lease_ms) == ("running", 0)
    assert await rung(place) == [[run_id]]
    del behave[moment]
    async with working(place):
        assert await Detaching.with_options(run_id=run_id).run() == Success("ship")
    again = [f"do:{moment}"]
    before_it = ["do:reserve"] if moment == "charge" else []
    assert ledger == [*before_it, *again, *again, *(["do:charge"] if moment == "reserve" else []), "do:ship"]


async def test_a_timeout_around_it_detaches_too(place: Place) -> None:
    gate = Gate()
    behave["charge"] = gate
    run_id = f"{place.prefix}t"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await Detaching.with_options(run_id=run_id).run()
    assert await rung(place) == [[run_id]]
    assert "undo:reserve" not in ledger
    await runs.delete(run_id)


# ---------------------------------------------------------------------- parking


def once(error: BaseException) -> Callable[[Any], Any]:
    def act(ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise error

    return act


async def parked(place: Place, run_id: str) -> None:
    """Wait until nobody executes it."""
    async with asyncio.timeout(30):
        while not (row := await place.store.peek(run_id)) or row.lease_ms or not row.rest:
            await asyncio.sleep(0.005)


async def test_what_waits_long_costs_no_slot_and_comes_back_when_due(place: Place) -> None:
    behave["charge"] = once(ValueError("busy"))
    async with working(place, park_after=0.2) as worker:
        handle = await Impatient.enqueue()
        await parked(place, handle.run_id)
        assert await worker.service.host.idle(30)
        snapshot = await runs.find(handle.run_id)
        assert snapshot.status == "running"
        assert snapshot.waits_for.startswith("the next attempt of step 'charge', due ")
        assert await handle.result(timeout=30) == Success("charge")
    assert ledger == ["do:reserve", "do:charge", "do:charge"]
    entries = (await runs.find(handle.run_id)).trace
    assert [str(entry) for entry in entries.only("run", "park")] == [
        "run:reserve",
        "run:charge",
        "park:charge",
        "run:charge",
    ]
    [first, second] = [entry.at for entry in entries.only("run") if entry.path == "charge"]
    assert second - first >= 0.4


async def test_short_waits_stay_and_a_caller_never_parks(place: Place) -> None:
    behave["charge"] = once(ValueError("busy"))
    async with working(place, park_after=10):
        handle = await Impatient.enqueue()
        assert await handle.result(timeout=30) == Success("charge")
    assert (await runs.find(handle.run_id)).trace.only("park") == ()
    async with place.another(park_after=0, queue=f"{place.prefix}-queue"):
        assert await Impatient.run() == Success("charge")


async def test_a_job_that_comes_long_before_a_parked_run_is_due_changes_nothing(place: Place) -> None:
    behave["charge"] = once(ValueError("busy"))
    async with working(place):
        handle = await Patient.enqueue()
        await parked(place, handle.run_id)
        before_it = await place.store.peek(handle.run_id)
        assert before_it is not None
        assert before_it.due_ms - before_it.now_ms > 3_500_000
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(handle.run_id, "a duplicate")
        assert await other.durable.stalled(10) == []
    after_it = await place.store.peek(handle.run_id)
    assert after_it is not None
    assert after_it.ver == before_it.ver
    await runs.delete(handle.run_id)


async def test_a_parked_run_may_be_deleted_and_its_job_finds_nothing(place: Place) -> None:
    behave["charge"] = once(ValueError("busy"))
    async with working(place, park_after=0.1) as worker:
        handle = await Impatient.enqueue()
        await parked(place, handle.run_id)
        await runs.delete(handle.run_id)
        async with asyncio.timeout(30):
            while await place.do("ZCARD", f"{place.prefix}-queue"):
                await asyncio.sleep(0.01)
        assert await worker.service.host.idle(30)
    assert ledger == ["do:reserve", "do:charge"]


async def test_a_worker_that_dies_meanwhile_leaves_the_due_time(place: Place) -> None:
    """Its ring is lost with the queue; the sweeper finds the run when it is due, and not before."""
    behave["charge"] = once(ValueError("busy"))
    async with working(place):
        handle = await Patient.enqueue()
        await parked(place, handle.run_id)
    await place.do("DEL", f"{place.prefix}-queue")
    run = place.store.space.run(handle.run_id)
    await place.do("HSET", run, "due_ms", 1, "updated_ms", 1)
    await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, handle.run_id)
    async with place.another(queue=f"{place.prefix}-queue") as other:
        assert isinstance(other, Runtime)
        assert other.durable is not None
        assert await other.durable.stalled(10) == [handle.run_id]
    await runs.delete(handle.run_id)


# ---------------------------------------------------------------------- what cannot be gone on with


async def test_who_waits_for_a_run_whose_record_is_damaged_is_told(place: Place) -> None:
    outcome = await Order.run()
    await place.do("HSET", place.store.space.of_run(outcome.run_id)[1], "reserve", b"\xc1\x01\xff\xff")
    waiting = asyncio.create_task(Order.with_options(run_id=outcome.run_id).run())
    async with working(place):
        ended = await waiting
    assert isinstance(ended, Failure)
    assert ended.error_type == "aioreactor.errors.SerializationError"
    found = await runs.find(outcome.run_id)
    assert found.status == "failed"
    assert isinstance(found.outcome, Failure)
    assert "the record of 'reserve'" in found.outcome.message
