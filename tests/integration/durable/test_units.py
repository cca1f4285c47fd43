"""Units: parts of a run that are dispatched as runs of their own, and who reads them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from aioreactor import (
    Context,
    Dispatched,
    Failure,
    Halt,
    Outcome,
    Reactor,
    Success,
    async_reactor,
    compose,
    from_input,
    map_each,
    result,
    runs,
    step,
)
from aioreactor.store.keys import run_id_for_unit
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import parked, place, rung, working

__all__ = ["place"]


class Receipt(Struct):
    number: int
    total: int


class Provision(Reactor[Receipt], name="un.Provision"):
    number: Annotated[int, Meta(ge=1)]

    @step
    async def receipt(self, number: int, ctx: Context) -> Receipt:
        ledger.append(f"do:{ctx.path}")
        if "receipt" in behave:
            found = behave["receipt"](ctx)
            if asyncio.iscoroutine(found):
                await found
        return Receipt(number, 10 * number)

    returns = receipt


got: list[Any] = []
"""What readers were given."""


class Order(Reactor[int], name="un.Order"):
    number: int = 1
    first = noted()
    provision = async_reactor(Provision, number=from_input("number"), after=[first])
    second = noted([first])

    @step(after=[second])
    async def read(self, provision: Outcome[Receipt] = result(provision)) -> int:
        ledger.append("do:read")
        got.append(provision)
        return provision.value.total if isinstance(provision, Success) else -1

    returns = read


@pytest.fixture(autouse=True)
def nothing_was_read() -> None:
    got.clear()


async def kinds(run_id: str, *wanted: str) -> list[str]:
    return [str(entry) for entry in (await runs.find(run_id)).trace.only(*wanted)]


def unit_of(run_id: str, created_at: float, path: str, *, independent: bool = False) -> str:
    return run_id_for_unit(run_id, round(created_at * 1000), path, independent=independent)


async def settled_everywhere(place: Place) -> None:
    """Wait until every run has ended."""
    async with asyncio.timeout(30):
        while any(row.status in ("pending", "running", "rolling_back") for row in await runs.list(elements=True)):
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------------- an async_reactor, read in the caller


class Listener:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_unit_dispatched(self, event: Any) -> None:
        self.seen.append(f"dispatched {event.path} {event.unit_id} {bool(event.job_id)}")

    def on_unit_finish(self, event: Any) -> None:
        self.seen.append(f"finished {event.path} {event.unit_id} {event.outcome.status}")


async def test_only_who_reads_it_waits_and_gets_the_outcome(place: Place) -> None:
    gate, listener = Gate(), Listener()
    behave["receipt"] = gate
    async with working(place), place.another(queue=f"{place.prefix}-queue", middlewares=[listener]):
        running = asyncio.create_task(Order.run(number=3))
        await gate.reached.wait()
        async with asyncio.timeout(30):
            while "do:second" not in ledger:
                await asyncio.sleep(0)
        assert "do:read" not in ledger
        gate.open.set()
        outcome = await running
    assert isinstance(outcome, Success)
    assert outcome.value == 30
    [read] = got
    assert (read, read.reactor, outcome.results["provision"]) == (Success(Receipt(3, 30)), "un.Provision", read)
    found = [str(entry) for entry in outcome.trace.only("run", "dispatch", "settle")]
    assert sorted(found[:3]) == ["dispatch:provision", "run:first", "run:second"]
    assert found[3:] == ["settle:provision", "run:read"]
    unit = read.run_id
    assert listener.seen == [f"dispatched provision {unit} True", f"finished provision {unit} completed"]
    stored = await runs.find(outcome.run_id)
    assert stored.outcome == outcome
    assert stored.results["provision"] == Success(Receipt(3, 30))
    assert [str(entry) for entry in stored.trace] == [str(entry) for entry in outcome.trace]


async def test_it_is_an_ordinary_run_with_a_parent(place: Place) -> None:
    async with working(place):
        outcome = await Order.run()
    [child] = await runs.list(parent=outcome.run_id)
    assert (child.reactor, child.parent, child.status) == ("un.Provision", outcome.run_id, "completed")
    parent = await runs.find(outcome.run_id)
    assert parent.children == (child.run_id,)
    assert child.run_id == unit_of(parent.run_id, parent.created_at, "provision")
    assert [str(entry) for entry in (await runs.find(child.run_id)).trace] == ["run:receipt", "success:receipt"]
    assert {run.run_id for run in await runs.list()} == {parent.run_id, child.run_id}


class Announce(Reactor[str], name="un.Announce"):
    number: int = 1
    first = noted()
    provision = async_reactor(Provision, number=from_input("number"), after=[first])
    last = noted([first])
    returns = last


@pytest.mark.parametrize("fails", [False, True])
async def test_what_nobody_reads_is_not_waited_for_and_changes_nothing(place: Place, fails: bool) -> None:
    if fails:
        behave["receipt"] = raises(ValueError("no"))
    outcome = await Announce.run()
    assert outcome == Success("last")
    standing = outcome.results["provision"]
    assert isinstance(standing, Dispatched)
    [unit] = await runs.list(parent=outcome.run_id)
    assert (standing.run_id, standing.reactor, unit.status) == (unit.run_id, "un.Provision", "pending")
    assert standing.job_id
    assert await rung(place) == [[unit.run_id]]
    async with working(place):
        await settled_everywhere(place)
    assert ledger == ["do:first", "do:last", "do:receipt"]
    assert (await runs.find(unit.run_id)).status == ("failed" if fails else "completed")
    parent = await runs.find(outcome.run_id)
    assert (parent.status, parent.results["provision"]) == ("completed", standing)


async def test_a_reader_gets_the_failure_of_the_child(place: Place) -> None:
    behave["receipt"] = raises(ValueError("no paper"))
    async with working(place):
        outcome = await Order.run()
    assert outcome == Success(-1)
    [failed] = got
    assert isinstance(failed, Failure)
    assert (failed.step, failed.error_type, failed.message) == ("receipt", "ValueError", "no paper")
    assert (failed.reactor, failed.status) == ("un.Provision", "failed")
    assert ledger.count("do:read") == 1


async def test_inputs_that_are_refused_fail_the_dispatching_step_and_nothing_is_created(place: Place) -> None:
    outcome = await Order.run(number=0)
    assert isinstance(outcome, Failure)
    assert (outcome.step, list(outcome.field_errors)) == ("provision", ["number"])
    assert "undo:first" in ledger
    assert "do:read" not in ledger
    assert await rung(place) == []
    assert await runs.list(parent=outcome.run_id) == ()
    assert outcome.trace.only("dispatch", "cancel") == ()


class Unstorable(Reactor, name="un.Unstorable"):
    thing: Any


class Odd(Reactor, name="un.Odd"):
    first = noted()
    unit = async_reactor(Unstorable, thing=result(first, transform=lambda _: object()))


async def test_inputs_that_cannot_be_stored_fail_the_dispatching_step(place: Place) -> None:
    outcome = await Odd.run()
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.error_type) == ("unit", "aioreactor.errors.SerializationError")
    assert ledger == ["do:first", "undo:first"]


async def test_who_waits_too_long_in_the_caller_never_started(place: Place) -> None:
    async with place.another(queue=f"{place.prefix}-queue", unit_wait=0.05):
        outcome = await Order.run()
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.error_type) == ("read", "aioreactor.errors.UnitTimeout")
    assert (outcome.error.unit, outcome.attempts) == ("provision", 0)  # type: ignore[attr-defined]
    assert outcome.error.waited >= 0.05  # type: ignore[attr-defined]
    assert "do:read" not in ledger
    assert ledger[-2:] == ["undo:second", "undo:first"]
    assert [str(entry) for entry in outcome.trace.only("cancel")] == ["cancel:provision"]
    assert [unit.status for unit in await runs.list(parent=outcome.run_id)] == ["cancelled"]
    async with working(place) as worker:  # the job that was rung for it finds nothing to do
        async with asyncio.timeout(30):
            while await place.do("ZCARD", f"{place.prefix}-queue"):
                await asyncio.sleep(0.005)
        assert await worker.service.host.idle(30)
    assert "do:receipt" not in ledger


# ---------------------------------------------------------------------- read in a worker


async def test_a_reader_in_a_worker_parks_and_is_resumed_once(place: Place) -> None:
    """With room for one run only: the parent has to give its slot to the unit."""
    async with working(place) as worker:
        async with asyncio.timeout(30):
            while worker.service.host is None:
                await asyncio.sleep(0.005)
        worker.service.host.max_concurrency = 1
        handle = await Order.enqueue(number=2)
        outcome = await handle.result(timeout=30)
    assert outcome == Success(20)
    assert [line for line in ledger if line != "do:second"] == ["do:first", "do:receipt", "do:read"]
    found = await kinds(handle.run_id, "run", "dispatch", "park", "settle")
    assert found[-3:] == ["park:read", "settle:provision", "run:read"]
    assert found.count("park:read") == 1
    row = await place.store.peek(handle.run_id)
    assert row is not None
    assert row.fence == 2  # taken twice: from the start, and when the unit had ended


async def test_while_it_is_parked_it_says_so_and_costs_no_slot(place: Place) -> None:
    gate = Gate()
    behave["receipt"] = gate
    async with working(place) as worker:
        handle = await Order.enqueue()
        await parked(place, handle.run_id)
        await gate.reached.wait()
        snapshot = await runs.find(handle.run_id)
        assert snapshot.status == "running"
        assert snapshot.waits_for.startswith("unit 'provision', until 20")
        row = await place.store.peek(handle.run_id)
        assert row is not None
        assert 3_500_000 < row.due_ms - row.now_ms <= 3_600_000
        assert worker.service.host.running == 1
        gate.open.set()
        assert await handle.result(timeout=30) == Success(10)


async def test_who_is_parked_too_long_fails_and_a_running_unit_runs_to_its_end(place: Place) -> None:
    gate = Gate()
    behave["receipt"] = gate
    async with working(place, park_after=0.05, unit_park=0.5):
        handle = await Order.enqueue()
        outcome = await handle.result(timeout=30)
        assert isinstance(outcome, Failure)
        assert (outcome.step, outcome.error_type) == ("read", "aioreactor.errors.UnitTimeout")
        assert outcome.error.waited >= 0.5  # type: ignore[attr-defined]
        [left] = outcome.trace.only("settle")
        assert (left.path, left.detail) == ("provision", "the unit is running, and is left to itself")
        gate.open.set()
        await settled_everywhere(place)
    assert [unit.status for unit in await runs.list(parent=handle.run_id)] == ["completed"]
    assert "do:read" not in ledger


async def end_unit_elsewhere(place: Place, run_id: str, **options: Any) -> str:
    """Execute the one unit of a run, as a worker whose rings are lost."""
    [unit] = await runs.list(parent=run_id)
    async with place.another(queue=f"{place.prefix}-lost", **options) as other:
        assert other.durable is not None
        other.durable.ring = _lost  # type: ignore[method-assign]
        await other.durable.carry_on(unit.run_id, "by hand")
    return unit.run_id


async def _lost(run_id: str, queue: str, delay_ms: int = 0) -> str:
    return ""


async def parked_alone(place: Place) -> str:
    """An order that is parked, while nobody works."""
    run_id = f"{place.prefix}p"
    async with place.another(queue=f"{place.prefix}-queue") as other:
        assert other.durable is not None
        await Order.with_options(run_id=run_id).enqueue()
        await other.durable.carry_on(run_id, "by hand")
    await parked(place, run_id)
    return run_id


async def test_a_lost_ring_is_made_good_by_the_sweeper(place: Place) -> None:
    run_id = await parked_alone(place)
    await end_unit_elsewhere(place, run_id)
    row = await place.store.peek(run_id)
    assert row is not None
    assert (row.due_ms, row.status, row.owner) == (0, "running", "")
    score = await place.do("ZSCORE", f"{place.prefix}:{{:index}}:live", run_id)
    assert float(score) - row.now_ms <= 10_000
    await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, run_id)
    await place.do("HSET", place.store.space.run(run_id), "updated_ms", 1)
    assert await place.sweep_elsewhere() == [run_id]
    assert (await runs.find(run_id)).outcome == Success(10)


class Dies:
    """The process ends just before it sends one script."""

    def __init__(self, script: str) -> None:
        self.script = script

    def before_send(self, call: Any) -> None:
        if call.name == self.script:
            raise SystemError("killed")

    def after_reply(self, call: Any, reply: Any) -> None:
        pass


async def test_a_unit_that_ended_but_could_not_tell_is_told_of_by_the_sweeper(place: Place) -> None:
    run_id = await parked_alone(place)
    [unit] = await runs.list(parent=run_id)
    async with place.another(Dies("run_wake")) as other:
        assert other.durable is not None
        await other.durable.carry_on(unit.run_id, "by hand")
    assert (await runs.find(unit.run_id)).status == "completed"
    row = await place.store.peek(run_id)
    assert row is not None
    assert row.due_ms > row.now_ms
    await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, unit.run_id)
    assert await place.store.stalled(10) == []
    row = await place.store.peek(run_id)
    assert row is not None
    assert row.due_ms == 0
    async with working(place) as worker, place.another(queue=f"{place.prefix}-queue") as other:
        assert other.durable is not None
        await other.durable.ring(run_id, "")
        await other.durable.finished(run_id, 30)
        assert await worker.service.host.idle(30)


async def test_a_unit_that_ends_while_its_reader_is_being_parked_is_not_missed(place: Place) -> None:
    """Its process has looked at the parent, which was still held; so parking it makes it due, and it is rung."""
    handle = await Order.enqueue()
    async with place.another(queue=f"{place.prefix}-queue") as other:
        durable = other.durable
        assert durable is not None
        release = durable.store.release

        async def slow(*args: Any, **options: Any) -> None:
            await end_unit_elsewhere(place, handle.run_id)
            await release(*args, **options)

        durable.store.release = slow  # type: ignore[method-assign]
        await durable.carry_on(handle.run_id, "by hand")
    row = await place.store.peek(handle.run_id)
    assert row is not None
    assert (row.status, row.owner, row.due_ms) == ("running", "", 0)
    assert [handle.run_id] in await rung(place)
    async with working(place):
        assert await handle.result(timeout=30) == Success(10)
    assert ledger.count("do:receipt") == 1


# ---------------------------------------------------------------------- crashes and duplicates


async def test_a_crash_between_the_record_and_the_ring_attaches_again(place: Place) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    run_id = f"{place.prefix}c"
    async with place.another(queue=f"{place.prefix}-queue") as dying:
        assert dying.durable is not None

        async def stuck(run_id: str, queue: str, delay_ms: int = 0) -> str:
            reached.set()
            await go_on.wait()
            return ""

        dying.durable.ring = stuck  # type: ignore[method-assign]
        running = asyncio.create_task(Order.with_options(run_id=run_id).run())
        await reached.wait()
        [unit] = await runs.list(parent=run_id)
        assert await rung(place) == []
        await place.lapse(run_id)
        async with working(place):
            assert await place.sweep_elsewhere(queue=f"{place.prefix}-queue") == [run_id]
        go_on.set()
        with pytest.raises(Exception, match="taken over"):
            await running
    assert [each.run_id for each in await runs.list(parent=run_id)] == [unit.run_id]
    assert (ledger.count("do:receipt"), ledger.count("do:read")) == (1, 1)
    assert (await runs.find(run_id)).outcome == Success(10)


async def test_a_parent_that_is_recovered_while_it_waits_attaches_again(place: Place) -> None:
    gate = Gate()
    behave["receipt"] = gate
    run_id = f"{place.prefix}w"
    async with working(place):
        running = asyncio.create_task(Order.with_options(run_id=run_id).run())
        await gate.reached.wait()
        await place.lapse(run_id)
        sweeping = asyncio.create_task(place.sweep_elsewhere(queue=f"{place.prefix}-queue"))
        async with asyncio.timeout(30):
            while (row := await place.store.peek(run_id)) is None or row.fence != 2:
                await asyncio.sleep(0.005)
        gate.open.set()
        assert await sweeping == [run_id]
        with pytest.raises(Exception, match="taken over"):
            await running
    assert (ledger.count("do:receipt"), ledger.count("do:read")) == (1, 1)
    assert await kinds(run_id, "dispatch", "settle") == ["dispatch:provision", "settle:provision"]


async def test_a_unit_that_nobody_was_told_of_is_found_by_the_sweeper(place: Place) -> None:
    async with place.another(queue=f"{place.prefix}-queue") as other:
        assert other.durable is not None
        other.durable.ring = _lost  # type: ignore[method-assign]
        outcome = await Announce.run()
    standing = outcome.results["provision"]
    assert (standing.job_id, await rung(place)) == ("", [])
    await place.do("HSET", place.store.space.run(standing.run_id), "updated_ms", 1)
    await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, standing.run_id)
    assert await place.sweep_elsewhere() == [standing.run_id]
    assert ledger.count("do:receipt") == 1


@pytest.mark.parametrize("level", ["batched", "exit"])
async def test_what_a_unit_builds_on_is_kept_before_it_is_dispatched(place: Place, level: Any) -> None:
    """However far behind the journal writes: a unit must not have begun when nothing is known of what led to it."""
    gate = Gate()
    behave["receipt"] = gate
    run_id = f"{place.prefix}{level}"
    async with working(place):
        running = asyncio.create_task(Order.with_options(run_id=run_id, durability=level).run())
        await gate.reached.wait()
        record = await place.store.read(run_id)
        assert record is not None
        assert "first" in record.steps
        gate.open.set()
        assert await running == Success(10)
    assert await kinds(run_id, "dispatch", "settle") == ["dispatch:provision", "settle:provision"]


async def test_a_duplicate_delivery_of_a_unit_changes_nothing(place: Place) -> None:
    gate = Gate()
    behave["receipt"] = gate
    outcome = await Announce.run()
    [unit] = await runs.list(parent=outcome.run_id)
    async with place.another() as one, place.another() as other:
        assert one.durable is not None
        assert other.durable is not None
        first = asyncio.create_task(one.durable.carry_on(unit.run_id, "one"))
        await gate.reached.wait()
        await other.durable.carry_on(unit.run_id, "other")
        gate.open.set()
        await first
        await other.durable.carry_on(unit.run_id, "late")
    assert ledger.count("do:receipt") == 1


async def test_a_run_that_was_replaced_has_units_of_its_own(place: Place) -> None:
    first = await Announce.with_options(idempotency_key="k").run()
    async with asyncio.timeout(5):
        again = await Announce.with_options(idempotency_key="k", on_conflict="replace").run()
    assert first.run_id == again.run_id
    assert len({first.results["provision"].run_id, again.results["provision"].run_id}) == 2
    async with working(place):
        await settled_everywhere(place)
    assert ledger.count("do:receipt") == 2


# ---------------------------------------------------------------------- a parent that rolls back


class Failing(Reactor, name="un.Failing"):
    first = noted()
    provision = async_reactor(Provision, number=1, after=[first])
    free = async_reactor(Provision, number=2, after=[first], independent=True)

    @step(after=[provision, free])
    async def never(self) -> None:
        raise AssertionError("it waits for both")

    @step(after=[first])
    async def last(self, ctx: Context) -> None:
        await behave["last"](ctx)


async def dispatched(place: Place, count: int) -> None:
    async with asyncio.timeout(30):
        while len([run for run in await runs.list() if run.parent]) < count:
            await asyncio.sleep(0.005)


async def test_a_failure_cancels_what_is_queued_unless_it_is_independent(place: Place) -> None:
    async def last(ctx: Context) -> None:
        await dispatched(place, 2)
        raise ValueError("too bad")

    behave["last"] = last
    outcome = await Failing.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "last"
    assert [str(entry) for entry in outcome.trace.only("undo", "cancel")] == ["undo:first", "cancel:provision"]
    assert outcome.trace.only("cancel")[0].detail == "the unit had not started"
    statuses = {unit.run_id: unit.status for unit in await runs.list(parent=outcome.run_id)}
    created_at = (await runs.find(outcome.run_id)).created_at
    bound = unit_of(outcome.run_id, created_at, "provision")
    free = unit_of(outcome.run_id, created_at, "free", independent=True)
    assert statuses == {bound: "cancelled", free: "pending"}
    called_off = (await runs.find(bound)).outcome
    assert isinstance(called_off, Failure)
    assert called_off.error_type == "aioreactor.errors.StepCancelled"
    async with working(place):
        await settled_everywhere(place)
    assert [line for line in ledger if line == "do:receipt"] == ["do:receipt"]
    assert (await runs.find(free)).status == "completed"


async def test_a_unit_that_has_started_runs_to_its_end(place: Place) -> None:
    gate = Gate()
    behave["receipt"] = gate

    async def last(ctx: Context) -> None:
        await dispatched(place, 2)
        await gate.reached.wait()
        async with asyncio.timeout(30):
            while [run.status for run in await runs.list() if run.parent] != ["running", "running"]:
                await asyncio.sleep(0.005)
        raise ValueError("too bad")

    behave["last"] = last
    async with working(place):
        outcome = await Failing.run()
        assert isinstance(outcome, Failure)
        [told] = outcome.trace.only("settle", "cancel")
        assert (str(told), told.detail) == ("settle:provision", "the unit is running, and is left to itself")
        gate.open.set()
        await settled_everywhere(place)
    assert {unit.status for unit in await runs.list(parent=outcome.run_id)} == {"completed"}


async def test_a_unit_whose_parent_could_not_call_it_off_does_not_start(place: Place) -> None:
    """The parent was dispatching it when another process failed and closed the parent: nobody knew of it."""

    async def last(ctx: Context) -> None:
        await dispatched(place, 2)
        raise ValueError("too bad")

    behave["last"] = last
    async with place.another(queue=f"{place.prefix}-queue") as other:
        assert other.durable is not None

        async def missing(*args: Any, **options: Any) -> None:
            return None

        other.durable.store.withdraw = missing  # type: ignore[method-assign]
        outcome = await Failing.run()
    assert outcome.trace.only("cancel") == ()
    async with working(place):
        await settled_everywhere(place)
    assert ledger.count("do:receipt") == 1
    assert sorted(unit.status for unit in await runs.list(parent=outcome.run_id)) == ["cancelled", "completed"]


async def test_an_undo_calls_off_what_is_still_queued(place: Place) -> None:
    outcome = await Announce.run()
    undone = await runs.undo(outcome.run_id)
    assert isinstance(undone, Failure)
    assert [str(entry) for entry in undone.trace.only("undo", "cancel")] == [
        "undo:last",
        "undo:first",
        "cancel:provision",
    ]
    assert [unit.status for unit in await runs.list(parent=outcome.run_id)] == ["cancelled"]


class Halting(Reactor, name="un.Halting"):
    provision = async_reactor(Provision, number=1)

    @step
    async def stop(self) -> Halt:
        async with asyncio.timeout(30):
            while not [run for run in await runs.list() if run.parent]:
                await asyncio.sleep(0.005)
        return Halt("enough")


async def test_a_halt_leaves_units_alone(place: Place) -> None:
    outcome = await Halting.run()
    assert isinstance(outcome, Halt)
    assert [unit.status for unit in await runs.list(parent=outcome.run_id)] == ["pending"]
    async with working(place):
        await settled_everywhere(place)
    assert ledger == ["do:receipt"]


# ---------------------------------------------------------------------- nested


class Leg(Reactor[Any], name="un.Leg"):
    number: int
    provision = async_reactor(Provision, number=from_input("number"))

    @step
    async def seen(self, provision: Outcome[Receipt] = result(provision)) -> int:
        return provision.unwrap().total

    returns = seen


class Trip(Reactor[Any], name="un.Trip"):
    out = compose(Leg, number=1)
    legs = map_each(Leg, over=from_input("numbers"), item="number")
    numbers: tuple[int, ...] = (2, 3)

    @step
    async def total(self, out: int, legs: Any = result(legs)) -> int:
        return out + int(sum(legs.values()))

    returns = total


@pytest.mark.parametrize("where", ["caller", "worker"])
async def test_units_in_composed_children_and_elements(place: Place, where: str) -> None:
    async with working(place):
        handle = await (Trip.enqueue() if where == "worker" else Trip.spawn())
        assert await handle.result(timeout=30) == Success(60)
    found = await kinds(handle.run_id, "dispatch", "settle")
    paths = ["legs[0].provision", "legs[1].provision", "out.provision"]
    assert sorted(found) == sorted([f"{kind}:{path}" for kind in ("dispatch", "settle") for path in paths])
    assert ledger.count("do:receipt") == 3
    assert len(await runs.list(parent=handle.run_id)) == 3


class Fragile(Reactor[Any], name="un.Fragile"):
    number: int
    provision = async_reactor(Provision, number=from_input("number"))

    @step(after=[])
    async def breaks(self, number: int, ctx: Context) -> None:
        async with asyncio.timeout(30):
            while len([run for run in await runs.list() if run.parent]) < 2:
                await asyncio.sleep(0.005)
        if number == 2:
            raise ValueError("two")


class Tolerant(Reactor, name="un.Tolerant"):
    each = map_each(Fragile, over=from_input("numbers"), item="number", atomic=False)
    numbers: tuple[int, ...] = (1, 2)


async def test_an_element_that_rolled_back_calls_its_queued_unit_off(place: Place) -> None:
    outcome = await Tolerant.run()
    assert isinstance(outcome, Success)
    assert [str(entry) for entry in outcome.trace.only("cancel")] == ["cancel:each[1].provision"]
    assert sorted(unit.status for unit in await runs.list(parent=outcome.run_id)) == ["cancelled", "pending"]
    async with working(place):
        await settled_everywhere(place)
    assert ledger == ["do:receipt"]


class Outer(Reactor[Any], name="un.Outer"):
    leg = async_reactor(Leg, number=1)

    @step
    async def read(self, leg: Outcome[Any] = result(leg)) -> Any:
        return leg

    returns = read


async def test_a_unit_may_dispatch_units(place: Place) -> None:
    async with working(place):
        outcome = await Outer.run()
    assert outcome == Success(Success(10))
    assert ledger == ["do:receipt"]
