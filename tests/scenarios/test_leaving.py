"""A run that is left unfinished, at whatever point, and gone on with elsewhere, ends as if nobody had left it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from aioreactor import (
    Context,
    Dispatched,
    Failure,
    Halt,
    Outcome,
    Reactor,
    Retry,
    Skipped,
    Success,
    after,
    before,
    map_each,
    result,
    step,
    value,
)
from aioreactor.engine.arguments import validated, view_of
from aioreactor.engine.leaving import Leaving
from aioreactor.engine.ports import Checkpoint, Environment
from aioreactor.engine.recovery import restoring
from aioreactor.engine.scheduler import Execution
from aioreactor.store.plan_codec import PlanCodec
from tests.scenarios.test_crashes import CASES, Journey, Records, acting, failing, fresh_world, world

__all__ = ["fresh_world"]


class Leaver(Records):
    """Has its execution leave at one of its writes."""

    def __init__(self, leave_at: int = -1) -> None:
        super().__init__()
        self.leave_at = leave_at
        self.execution: Execution | None = None

    async def save(self, checkpoint: Checkpoint) -> None:
        if self.writes == self.leave_at and self.execution is not None:
            self.execution.leave(Leaving("hand_off", "here"))
        await super().save(checkpoint)


async def begin(
    reactor: type[Reactor[Any]], records: Records, *, triggers: bool = False, park_after: float | None = None
) -> Outcome[Any]:
    values = validated(reactor.plan.fields, {}, reactor.plan.name)
    execution = Execution(Environment(), reactor.plan, "r", records)
    execution.awaits_trigger, execution.park_after = triggers, park_after
    if isinstance(records, Leaver):
        records.execution = execution
    return await execution.run(view_of(reactor.plan, values), values)


async def go_on(reactor: type[Reactor[Any]], before: Records, *, park_after: float | None = None) -> Outcome[Any]:
    """Another execution, from the records alone, nothing having been in flight."""
    plan, codec = reactor.plan, PlanCodec()
    values = validated(plan.fields, {}, plan.name)
    later = Records()
    later.steps, later.trace, later.fate = before.steps, before.trace, before.fate
    images = {path: codec.image_back(path, data) for path, data in before.steps.items()}
    entries = [codec.entry_back(data) for data in before.trace]
    execution = Execution(Environment(), plan, "r", later)
    execution.park_after = park_after
    restore = restoring(execution, codec, images, entries, values, None, quiet=True)
    return await execution.resume(values, restore)


def kinds(outcome: Outcome[Any], *wanted: str) -> list[str]:
    return [str(entry) for entry in outcome.trace.only(*wanted)]


@pytest.mark.parametrize("case", CASES)
async def test_wherever_it_is_left_it_ends_the_same(case: str) -> None:
    reactor, fails, standing, kind = CASES[case]
    failing.update(fails)
    whole = Leaver()
    reference = await begin(reactor, whole)
    entered = Counter(world.entered)
    left = 0
    for leave_at in range(whole.writes - 1):
        world.__init__()  # type: ignore[misc]
        records = Leaver(leave_at)
        outcome = await begin(reactor, records)
        if isinstance(outcome, Dispatched):
            left += 1
            assert records.parted == [(0.0, "")]
            assert records.closed is None
            outcome = await go_on(reactor, records)
        assert type(outcome) is kind, (leave_at, outcome)
        assert world.standing == standing, (leave_at, world.entered)
        if kind is Success:
            assert Counter(world.entered) == entered, leave_at
            assert repr(outcome.results) == repr(reference.results)
        else:
            assert all(world.entered.count(each) == 1 for each in world.entered if each.startswith("back")), leave_at
    assert left >= 1


@pytest.mark.parametrize("case", ["it succeeds", "it succeeds at the second attempt"])
async def test_it_may_be_left_again_and_again(case: str) -> None:
    _, fails, standing, _ = CASES[case]
    failing.update(fails)
    whole = Leaver()
    await begin(Journey, whole)
    entered = Counter(world.entered)
    world.__init__()  # type: ignore[misc]
    outcome: Outcome[Any] = await begin(Journey, records := Leaver(0))
    rounds = 0
    while isinstance(outcome, Dispatched):
        rounds += 1
        plan, codec = Journey.plan, PlanCodec()
        again = Leaver(1)
        again.steps, again.trace = records.steps, records.trace
        images = {path: codec.image_back(path, data) for path, data in records.steps.items()}
        again.execution = Execution(Environment(), plan, "r", again)
        restore = restoring(again.execution, codec, images, [], {}, None, quiet=True)
        outcome = await again.execution.resume({}, restore)
        records = again
    assert rounds > 5
    assert isinstance(outcome, Success)
    assert world.standing == standing
    assert Counter(world.entered) == entered


# ---------------------------------------------------------------------- triggers


def with_background(reactor: type[Reactor[Any]], made: Callable[[Any], Any], name: str) -> type[Reactor[Any]]:
    return type(f"{reactor.__name__}Left", (reactor,), {"background": made(name), "__doc__": None})


def dashed(entries: list[str]) -> str:
    return " ".join(entries)


class Diamond(Reactor[str]):
    a = acting()
    b = acting([a])
    c = acting([a])
    d = acting([b, c])
    returns = d


@pytest.mark.parametrize(
    ("made", "name", "here"),
    [
        (after, "a", "run:a"),
        (before, "a", ""),
        (after, "b", "run:a run:b run:c"),
        (before, "b", "run:a"),
        (before, "d", "run:a run:b run:c"),
        (after, "d", "run:a run:b run:c run:d"),
    ],
)
async def test_a_trigger_stops_what_is_new_and_lets_what_began_end(made: Any, name: str, here: str) -> None:
    reactor = with_background(Diamond, made, name)
    records = Leaver()
    outcome = await begin(reactor, records, triggers=True)
    assert dashed(kinds(outcome, "run")) == here
    if (made, name) == (after, "d"):
        assert outcome == Success("d")  # nothing is left to be handed off
        return
    assert isinstance(outcome, Dispatched)
    assert (outcome.job_id, outcome.status, outcome.ok) == ("job", "running", True)
    assert sorted(outcome.results) == sorted(entry[4:] for entry in here.split())
    assert kinds(outcome, "hand_off") == [f"hand_off:{name}"]
    ended = await go_on(reactor, records)
    assert ended == Success("d")
    assert Counter(world.entered) == Counter(["run:a", "run:b", "run:c", "run:d"])


async def test_a_skipped_trigger_counts_and_a_halt_stops_instead() -> None:
    class Skips(Reactor):
        @step
        async def first(self) -> Skipped:
            return Skipped(1)

        second = acting([first])
        background = after(first)

    class Halts(Reactor):
        @step
        async def first(self) -> Halt:
            return Halt("no more")

        second = acting([first])
        background = after(first)

    assert isinstance(await begin(Skips, Leaver(), triggers=True), Dispatched)
    assert isinstance(await begin(Halts, Leaver(), triggers=True), Halt)
    assert world.entered == []


async def test_in_a_worker_and_without_being_reached_a_trigger_does_nothing() -> None:
    reactor = with_background(Diamond, after, "a")
    assert await begin(reactor, Leaver()) == Success("d")
    failing["a"] = lambda _: True
    assert isinstance(await begin(reactor, Leaver(), triggers=True), Failure)


async def test_a_failure_while_it_is_being_left_rolls_back_here_and_gives_up_what_was_held() -> None:
    """c fails after b has handed off; d, ready or not, never starts, and nothing is left to a worker."""
    entered = asyncio.Event()

    class Late(Reactor):
        a = acting()
        b = acting([a])

        @step(after=[a])
        async def c(self) -> None:
            entered.set()
            while "run:b" not in world.entered:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            raise ValueError("late")

        d = acting([b])
        e = acting([a], retries=Retry(max_attempts=2, base_delay=1000))
        background = after(b)

    failing["e"] = lambda _: True
    records = Leaver()
    outcome = await begin(Late, records, triggers=True)
    assert isinstance(outcome, Failure)
    assert outcome.step == "c"
    assert records.parted == []
    assert world.standing == set()
    assert kinds(outcome, "run", "compensate", "undo") == [
        "run:a",
        "run:b",
        "run:c",
        "run:e",
        "compensate:e",
        "undo:b",
        "undo:a",
    ]


async def test_elements_that_have_not_begun_are_left_too() -> None:
    taken: list[int] = []

    class Many(Reactor[list[str]]):
        @map_each(over=value(list(range(6))), concurrency=2)
        async def each(self, item: int) -> str:
            taken.append(item)
            await asyncio.sleep(0)
            return str(item)

        @step
        async def listed(self, each: Any = result(each)) -> list[str]:
            return list(each.values())

        returns = listed

    reference = Leaver()
    assert (await begin(Many, reference)) == Success(["0", "1", "2", "3", "4", "5"])
    for leave_at in range(reference.writes - 1):
        taken.clear()
        records = Leaver(leave_at)
        outcome = await begin(Many, records)
        if isinstance(outcome, Dispatched):
            outcome = await go_on(Many, records)
        assert outcome == Success(["0", "1", "2", "3", "4", "5"]), leave_at
        assert sorted(taken) == list(range(6)), leave_at


# ---------------------------------------------------------------------- parking


class Waiting(Reactor[str], retries=Retry(max_attempts=2, base_delay=3600)):
    a = acting()
    b = acting([a])
    c = acting([a])
    d = acting([b, c])
    returns = d


async def test_what_only_waits_is_parked_until_the_first_is_due() -> None:
    failing.update({"b": lambda times: times == 1, "c": lambda times: times == 1})
    records = Leaver()
    outcome = await begin(Waiting, records, park_after=2)
    assert isinstance(outcome, Dispatched)
    [(delay, waits_for)] = records.parted
    assert 3590 < delay <= 3600
    assert waits_for.startswith("the next attempt of step 'b', due 20")
    assert kinds(outcome, "park") == ["park:b"]
    assert world.entered == ["run:a", "run:b", "run:c"]
    images = {path: records.codec.image_back(path, data) for path, data in records.steps.items()}
    assert [(path, images[path].attempts, images[path].due > 0) for path in ("b", "c")] == [
        ("b", 1, True),
        ("c", 1, True),
    ]


async def test_one_that_is_taken_up_early_waits_for_the_rest_and_is_parked_again() -> None:
    failing["b"] = lambda times: times == 1
    records = Leaver()
    await begin(Waiting, records, park_after=2)
    again = await go_on(Waiting, records, park_after=2)
    assert isinstance(again, Dispatched)
    assert world.entered == ["run:a", "run:b", "run:c"]


async def test_short_waits_and_waits_beside_running_bodies_are_not_parked() -> None:
    gate = asyncio.Event()

    class Beside(Reactor, retries=Retry(max_attempts=2, base_delay=1000)):
        b = acting()

        @step
        async def long(self) -> None:
            await gate.wait()

        @step(retries=Retry(max_attempts=2, base_delay=0.001))
        async def short(self, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise ValueError

    failing["b"] = lambda times: times == 1
    records = Leaver()
    running = asyncio.ensure_future(begin(Beside, records, park_after=2))
    while records.writes < 4:
        await asyncio.sleep(0)
    assert not records.parted
    assert not running.done()
    gate.set()
    assert isinstance(await running, Dispatched)
    assert len(records.parted) == 1


async def test_a_deadline_comes_before_what_is_due_later() -> None:
    class Bounded(Waiting, deadline=100):
        pass

    failing["b"] = lambda times: times == 1
    records = Leaver()
    assert isinstance(await begin(Bounded, records, park_after=2), Dispatched)
    [(delay, _)] = records.parted
    assert 90 < delay <= 100


async def test_what_waits_inside_elements_and_children_is_parked() -> None:
    class Leg(Reactor[str], retries=Retry(max_attempts=2, base_delay=3600)):
        n: int
        l1 = acting()
        returns = l1

    class Trips(Reactor):
        m = map_each(Leg, over=value([1, 2, 3]), item="n", concurrency=2)

    failing.update({"m[0].l1": lambda times: times == 1, "m[1].l1": lambda times: times == 1})
    records = Leaver()
    outcome = await begin(Trips, records, park_after=2)
    assert isinstance(outcome, Dispatched)
    assert world.entered == ["run:m[0].l1", "run:m[1].l1"]
    assert records.parted[0][1].startswith("the next attempt of step 'm[0].l1'")


# ---------------------------------------------------------------------- what is stored for who goes on


async def test_a_nested_deadline_goes_on_from_where_it_was() -> None:
    class Leg(Reactor[str], deadline=500, retries=Retry(max_attempts=2, base_delay=1000)):
        l1 = acting()
        returns = l1

    from aioreactor import compose

    class Trip(Reactor):
        leg = compose(Leg)

    failing["leg.l1"] = lambda times: times == 1
    records = Leaver()
    assert isinstance(await begin(Trip, records, park_after=2), Dispatched)
    codec = PlanCodec()
    image = codec.image_back("leg", records.steps["leg"])
    [(delay, _)] = records.parted
    assert 490 < delay <= 500
    codec.ahead = 1000  # a process whose clock is 1,000 s behind: for it, the deadline comes 1,000 s earlier
    assert image.due - codec.image_back("leg", records.steps["leg"]).due == pytest.approx(1000)


async def test_arguments_that_cannot_be_made_again_are_kept_for_the_undo() -> None:
    numbers = iter(range(1, 100))
    undone: list[Any] = []

    def number(_: Any) -> int:
        return next(numbers)

    class Numbered(Reactor):
        a = acting()

        @step
        async def book(self, code: int = result(a, transform=number)) -> str:
            return str(code)

        @book.undo
        async def cancel(self, code: int) -> None:
            undone.append(code)

        last = acting([book])

    failing["last"] = lambda _: True
    records = Leaver(1)
    assert isinstance(await begin(Numbered, records), Dispatched)
    outcome = await go_on(Numbered, records)
    assert isinstance(outcome, Failure)
    assert undone == [1]
