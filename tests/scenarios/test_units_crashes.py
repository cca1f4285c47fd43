"""Runs with units that stop at any of their checkpoints and go on elsewhere: each unit is sent once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from aioreactor import Dispatched, Failure, Outcome, Reactor, Success, async_reactor, async_step, compose, result, step
from aioreactor.engine.arguments import validated, view_of
from aioreactor.engine.leaving import Leaving
from aioreactor.engine.ports import Environment, Fate, JournalFailed, Sent
from aioreactor.engine.recovery import restoring
from aioreactor.engine.scheduler import Execution
from aioreactor.errors import OwnershipLost, UnitTimeout
from aioreactor.plan.model import PlanNode
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.trace import RunRecord, Status
from tests.scenarios.test_crashes import Records, acting, failing, fresh_world, world
from tests.scenarios.test_leaving import Leaver

__all__ = ["fresh_world"]


class Office:
    """Where units are sent: as a store knows them, and executed as soon as somebody waits for one."""

    longest_wait = 60.0
    longest_park = 60.0

    def __init__(self) -> None:
        self.created: list[str] = []
        self.inputs: dict[str, dict[str, Any]] = {}
        self.status: dict[str, Status] = {}
        self.asked: list[str] = []

    async def dispatch(self, path: str, node: PlanNode, inputs: Mapping[str, Any]) -> Sent:
        await asyncio.sleep(0)
        if path not in self.status:
            self.created.append(path)
            self.inputs[path], self.status[path] = dict(inputs), "pending"
        return Sent(f"unit-{path}", f"job-{path}", 0.0)

    async def outcome(self, path: str, node: PlanNode) -> Outcome[Any] | None:
        await asyncio.sleep(0)
        if self.status[path] != "completed":
            return None
        assert node.unit is not None
        return Success(path, _record=RunRecord(f"unit-{path}", node.unit.name, "completed"))

    async def ended(self, path: str, node: PlanNode) -> None:
        await asyncio.sleep(0)
        self.status[path] = "completed"

    async def withdraw(self, path: str, node: PlanNode) -> Status | None:
        self.asked.append(path)
        await asyncio.sleep(0)
        if self.status.get(path) == "pending":
            self.status[path] = "cancelled"
        return self.status.get(path)

    async def parted(self) -> None: ...


class Child(Reactor[str]):
    what: str
    only = acting()
    returns = only


class Part(Reactor[str]):
    p1 = acting()

    @async_step
    async def mail(self, p1: str) -> str:
        raise AssertionError("the office executes it")

    returns = p1


class Journey(Reactor[str]):
    a = acting()
    part = compose(Part, after=[a])
    sent = async_reactor(Child, what=result(a))
    unread = async_reactor(Child, what=result(part))

    @async_step
    async def unit(self, a: str) -> str:
        raise AssertionError("the office executes it")

    b = acting([a])

    @step(after=["b"])
    async def read(self, sent: Outcome[str] = result(sent), unit: str | Failure = result(unit)) -> str:
        world.did("run", "read")
        world.standing.add("read")
        if "read" in failing and failing["read"](1):
            raise ValueError("read")
        return f"{sent.value if isinstance(sent, Success) else sent} {unit}"

    @read.undo
    async def unread_it(self, read: str, unit: str | Failure) -> None:
        assert unit == "unit"
        world.did("back", "read")
        world.standing.discard("read")

    @read.compensate
    async def clean_up(self, sent: Outcome[str]) -> None:
        assert sent == Success("sent")
        world.did("back", "read")
        world.standing.discard("read")

    last = acting([read])
    returns = read


PATHS = ["part.mail", "sent", "unit", "unread"]


async def executing(
    office: Office, records: Records, before: Records | None = None, **options: Any
) -> Outcome[Any] | None:
    """From the start, or from records; None if it lost its run."""
    plan, codec = Journey.plan, PlanCodec()
    values = validated(plan.fields, {}, plan.name)
    execution = Execution(Environment(), plan, "r", records)
    execution.units = office
    execution.park_after = options.get("park_after")
    if isinstance(records, Leaver):
        records.execution = execution
    try:
        if before is None:
            return await execution.run(view_of(plan, values), values)
        records.steps, records.trace, records.fate = dict(before.steps), list(before.trace), before.fate
        images = {path: codec.image_back(path, data) for path, data in before.steps.items()}
        entries = [codec.entry_back(data) for data in before.trace]
        fate: Fate | None = codec.fate_back(before.fate) if before.fate is not None else None
        restore = restoring(execution, codec, images, entries, values, fate, quiet=options.get("quiet", False))
        return await execution.resume(values, restore)
    except OwnershipLost:
        return None


async def test_as_it_is_when_nothing_happens() -> None:
    office, records = Office(), Records()
    outcome = await executing(office, records)
    assert isinstance(outcome, Success)
    assert outcome.value == "sent unit"
    assert sorted(office.created) == PATHS
    assert office.inputs["unit"] == {"@path": "unit", "@a": "a"}
    assert office.inputs["part.mail"] == {"@path": "part.mail", "@p1": "part.p1"}
    assert office.inputs["sent"] == {"what": "a"}
    assert office.status == {"part.mail": "pending", "sent": "completed", "unit": "completed", "unread": "pending"}
    results = outcome.results
    assert (results["sent"], results["unit"]) == (Success("sent"), "unit")
    assert isinstance(results["unread"], Dispatched)
    assert results["unread"].run_id == "unit-unread"
    assert office.asked == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("breaks", ["", "read", "last"])
async def test_wherever_it_stops_each_unit_is_sent_once_and_it_ends_the_same(breaks: str, after: bool) -> None:
    if breaks:
        failing[breaks] = lambda _: True
    whole = Records()
    reference = await executing(Office(), whole)
    standing = set(world.standing)
    for stop_at in range(whole.writes - after):  # after the last one it is over
        world.__init__()  # type: ignore[misc]
        office, records = Office(), Records(stop_at, after=after)
        outcome = await executing(office, records)
        again = Records()
        if outcome is None:
            outcome = await executing(office, again, records)
        where = (stop_at, breaks, after)
        assert type(outcome) is type(reference), where
        assert world.standing == standing, where
        assert sorted(office.created) == PATHS, where
        if breaks:
            assert isinstance(outcome, Failure)
            assert outcome.step == breaks, where
            assert [office.status[path] for path in ("part.mail", "unread")] == ["cancelled"] * 2, where
            called_off = [str(entry) for entry in outcome.trace.only("cancel")]
            assert sorted(called_off) == ["cancel:part.mail", "cancel:unread"], where
        else:
            assert outcome == reference, where
            assert repr(outcome.results) == repr(reference.results), where  # type: ignore[union-attr]
            assert office.asked == [], where
        settled = Counter(str(entry) for entry in outcome.trace.only("dispatch", "settle"))  # type: ignore[union-attr]
        assert settled == Counter([*(f"dispatch:{path}" for path in PATHS), "settle:sent", "settle:unit"]), where


async def test_wherever_it_is_left_it_ends_the_same() -> None:
    whole = Records()
    await executing(Office(), whole)
    entered = Counter(world.entered)
    left = 0
    for leave_at in range(whole.writes - 1):
        world.__init__()  # type: ignore[misc]
        office, records = Office(), Leaver(leave_at)
        outcome = await executing(office, records)
        if isinstance(outcome, Dispatched):
            left += 1
            outcome = await executing(office, Records(), records, quiet=True)
        assert outcome == Success("sent unit"), leave_at
        assert sorted(office.created) == PATHS, leave_at
        assert Counter(world.entered) == entered, leave_at
    assert left > 3


class Closed(Office):
    """Its units never end by themselves."""

    async def ended(self, path: str, node: PlanNode) -> None:
        await asyncio.Event().wait()


async def test_in_a_worker_it_is_parked_for_its_units_and_taken_up_when_they_have_ended() -> None:
    office, records = Closed(), Records()
    office.longest_park = 1e10
    assert isinstance(await executing(office, records, park_after=2), Dispatched)
    [(delay, waits_for)] = records.parted
    assert delay > 1e9
    assert waits_for.startswith("unit 'sent', until ")
    office.status["sent"] = "completed"
    again = Records()
    assert isinstance(await executing(office, again, records, park_after=2, quiet=True), Dispatched)
    assert again.parted[0][1].startswith("unit 'unit', until ")
    office.status["unit"] = "completed"
    assert await executing(office, Records(), again, park_after=2, quiet=True) == Success("sent unit")
    assert sorted(office.created) == PATHS


async def test_time_in_a_worker_counts_from_the_dispatch_and_here_from_the_wait() -> None:
    office = Closed()
    outcome = await executing(office, Records(), park_after=2)  # it was dispatched at 0, decades ago
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, UnitTimeout)
    assert outcome.error.waited > 1e9
    here = Closed()
    here.longest_wait = 0.01
    outcome = await executing(here, Records())
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, UnitTimeout)
    assert 0.01 <= outcome.error.waited < 1e6
    assert (outcome.step, outcome.attempts) == ("read", 0)
    assert "run:read" not in world.entered
    assert world.standing == set()


async def test_a_run_may_be_left_while_it_waits() -> None:
    office, records = Closed(), Leaver()
    running = asyncio.ensure_future(executing(office, records))
    while records.execution is None or not records.execution._sleepers:
        await asyncio.sleep(0)
    records.execution.leave(Leaving("hand_off", "here"))
    assert isinstance(await running, Dispatched)
    office.status.update(sent="completed", unit="completed")
    assert await executing(office, Records(), records, quiet=True) == Success("sent unit")


async def test_a_failure_beside_it_cuts_the_wait_short() -> None:
    office, gate = Closed(), asyncio.Event()

    async def body(self: Any) -> None:
        await gate.wait()
        raise ValueError("beside")

    class Beside(Journey):
        beside = step(body)

    plan = Beside.plan
    records = Records()
    execution = Execution(Environment(), plan, "r", records)
    execution.units = office
    running = asyncio.ensure_future(execution.run(view_of(plan, {}), {}))
    while not execution._sleepers:
        await asyncio.sleep(0)
    gate.set()
    outcome = await running
    assert isinstance(outcome, Failure)
    assert outcome.step == "beside"
    assert "run:read" not in world.entered
    assert world.standing == set()
    assert set(office.status.values()) == {"cancelled"}


async def test_a_cancelled_caller_rolls_back_and_calls_off() -> None:
    office, records = Closed(), Leaver()
    running = asyncio.ensure_future(executing(office, records))
    while records.execution is None or not records.execution._sleepers:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.standing == set()
    assert set(office.status.values()) == {"cancelled"}
    assert records.closed is not None
    assert records.closed.status == "cancelled"


class Deaf(Office):
    """The first waits break off, as when the server is away for a moment."""

    breaks = 3

    async def ended(self, path: str, node: PlanNode) -> None:
        await super().ended(path, node)
        self.breaks -= 1
        if self.breaks >= 0:
            self.status[path] = "running"
            raise JournalFailed("away")


async def test_who_cannot_be_told_looks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aioreactor.engine.units.PAUSE", 0.0)
    office = Deaf()
    assert await executing(office, Records()) == Success("sent unit")
    assert caplog.text.count("unit_not_heard") == 3
    assert sorted(office.created) == PATHS


class Away(Office):
    """The store is away when the outcome is asked for."""

    async def outcome(self, path: str, node: PlanNode) -> Outcome[Any] | None:
        raise JournalFailed("away")


async def test_a_store_that_is_away_stops_the_run_where_it_is() -> None:
    records = Records()
    with pytest.raises(JournalFailed):
        await executing(Away(), records)
    assert records.closed is None
    assert "read" not in world.standing
    assert world.standing >= {"a", "b"}  # nothing is rolled back: whoever goes on does that
    assert await executing(Knowing(), Records(), records) == Success("sent unit")


class Knowing(Office):
    """Knows all units already, as the store does when the run goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.status = dict.fromkeys(PATHS, "completed")
