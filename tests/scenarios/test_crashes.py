"""Runs that stop before or after any of their checkpoints, and go on in another execution from what was kept.

The journal of these tests keeps records in memory, encoded as the store encodes them. At a chosen write it refuses as
the store refuses a run that belongs to somebody else, which stops the execution on the spot: it runs nothing more and
writes nothing more. Then a second execution is made from the records alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aioreactor import Context, Failure, Halt, Outcome, Reactor, Retry, Success, compose, map_each, result, step, value
from aioreactor.engine.arguments import validated, view_of
from aioreactor.engine.ports import Checkpoint, Environment, Fate
from aioreactor.engine.recovery import restoring
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.snapshot import image_of
from aioreactor.errors import OwnershipLost, SerializationError
from aioreactor.plan.model import PlanNode
from aioreactor.store.plan_codec import PlanCodec


class Records:
    """What is kept of one run, as bytes; and at which write the execution loses it."""

    def __init__(self, stop_at: int = -1, *, after: bool = False) -> None:
        self.codec = PlanCodec()
        self.steps: dict[str, bytes] = {}
        self.trace: list[bytes] = []
        self.fate: bytes | None = None
        self.notes: bytes = b""
        self.status = "running"
        self.writes = 0
        self.stop_at, self.after = stop_at, after
        self.closed: Outcome[Any] | None = None
        self.parted: list[tuple[float, str]] = []

    durable = True
    trusted = True
    behind = False

    def prepare(self, node: PlanNode, path: str, value: Any) -> bytes:
        return self.codec.value(node, path, value)

    def check_state(self, notes: Mapping[str, Any]) -> None:
        self.codec.notes(notes)

    def _write(self, checkpoint: Checkpoint) -> None:
        number, self.writes = self.writes, self.writes + 1
        if number == self.stop_at and not self.after:
            raise OwnershipLost("r", "the test said so")
        for ready in checkpoint.nodes:
            image = image_of(ready, self.codec)
            self.steps[image.path] = self.codec.image(image)
        self.trace += [self.codec.entry(entry) for entry in checkpoint.entries]
        self.status = checkpoint.status
        self.fate = self.codec.fate(checkpoint.fate) if checkpoint.fate is not None else self.fate
        self.notes = self.codec.notes(checkpoint.notes)
        if number == self.stop_at:
            raise OwnershipLost("r", "the test said so")

    async def save(self, checkpoint: Checkpoint) -> None:
        self._write(checkpoint)
        await asyncio.sleep(0)

    async def part(self, checkpoint: Checkpoint, delay: float, waits_for: str) -> str:
        self._write(checkpoint)
        self.parted.append((delay, waits_for))
        return "job"

    async def close(self, checkpoint: Checkpoint, outcome: Outcome[Any]) -> None:
        self._write(checkpoint)
        self.closed = outcome


async def begin(reactor: type[Reactor[Any]], records: Records, **inputs: Any) -> Outcome[Any] | None:
    """Run until the end, or until the records were lost (None)."""
    plan = reactor.plan
    values = validated(plan.fields, inputs, plan.name)
    try:
        return await Execution(Environment(), plan, "r", records).run(view_of(plan, values), values)
    except OwnershipLost:
        return None


async def go_on(reactor: type[Reactor[Any]], before: Records, **inputs: Any) -> tuple[Outcome[Any], Records]:
    """Another execution, from the records alone."""
    plan, codec = reactor.plan, PlanCodec()
    values = validated(plan.fields, inputs, plan.name)
    after = Records()
    after.steps, after.trace, after.fate = dict(before.steps), list(before.trace), before.fate
    images = {path: codec.image_back(path, data) for path, data in before.steps.items()}
    entries = [codec.entry_back(data) for data in before.trace]
    fate: Fate | None = codec.fate_back(before.fate) if before.fate is not None else None
    execution = Execution(Environment(), plan, "r", after)
    execution.state.notes.update(codec.notes_back(before.notes))
    restore = restoring(execution, codec, images, entries, values, fate)
    return await execution.resume(values, restore), after


class World:
    """The effects that stand, and how often each body and action was entered."""

    def __init__(self) -> None:
        self.standing: set[str] = set()
        self.entered: list[str] = []

    def did(self, what: str, path: str) -> int:
        self.entered.append(f"{what}:{path}")
        return self.entered.count(f"{what}:{path}")


world = World()
failing: dict[str, Callable[[int], bool]] = {}


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]
    failing.clear()


def acting(after: list[Any] | None = None, retries: Retry | None = None) -> Any:
    """A step whose effect stands until it is undone or compensated, and which yields to the others in between."""

    async def body(self: Any, ctx: Context) -> str:
        times = world.did("run", ctx.path)
        world.standing.add(ctx.path)
        await asyncio.sleep(0)
        if ctx.path in failing and failing[ctx.path](times):
            raise ValueError(ctx.path)
        return ctx.path

    async def take_back(self: Any, ctx: Context) -> None:
        world.did("back", ctx.path)
        await asyncio.sleep(0)
        world.standing.discard(ctx.path)

    node = step(after=after or [], retries=retries)(body)
    node.undo(take_back)
    node.compensate(take_back)
    return node


class Leg(Reactor[str]):
    n: int = 0
    l1 = acting()
    l2 = acting([l1])
    returns = l2


class Journey(Reactor):
    a = acting()
    b = acting([a])
    c = acting([a])
    leg = compose(Leg, after=[b])
    m = map_each(Leg, over=value([7, 8, 9]), item="n", concurrency=2, after=[c])
    d = acting([leg, m], retries=Retry(max_attempts=2, base_delay=0))


class Tolerant(Reactor):
    a = acting()
    m = map_each(Leg, over=value([7, 8, 9]), item="n", concurrency=2, atomic=False, after=[a])
    z = acting([m])


ALL = {"a", "b", "c", "leg.l1", "leg.l2", "d", *(f"m[{i}].{s}" for i in range(3) for s in ("l1", "l2"))}
CASES: dict[str, tuple[type[Reactor[Any]], dict[str, Callable[[int], bool]], set[str], type]] = {
    "it succeeds": (Journey, {}, ALL, Success),
    "it succeeds at the second attempt": (Journey, {"d": lambda times: times == 1}, ALL, Success),
    "the last step fails": (Journey, {"d": lambda _: True}, set(), Failure),
    "a nested step fails": (Journey, {"leg.l2": lambda _: True}, set(), Failure),
    "an element fails": (Journey, {"m[1].l2": lambda _: True}, set(), Failure),
    "an early step fails while its sibling runs": (Journey, {"c": lambda _: True}, set(), Failure),
    "an element fails where that is tolerated": (
        Tolerant,
        {"m[1].l2": lambda _: True},
        {"a", "z", "m[0].l1", "m[0].l2", "m[2].l1", "m[2].l2"},
        Success,
    ),
    "it fails after an element had failed": (
        Tolerant,
        {"m[1].l2": lambda _: True, "z": lambda _: True},
        set(),
        Failure,
    ),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", CASES)
async def test_wherever_it_stops_it_ends_the_same(case: str, after: bool) -> None:
    reactor, fails, standing, kind = CASES[case]
    failing.update(fails)
    whole = Records()
    reference = await begin(reactor, whole)
    assert isinstance(reference, kind)
    assert world.standing == standing
    assert whole.writes > 5
    for stop_at in range(whole.writes):
        world.__init__()  # type: ignore[misc]
        first = Records(stop_at, after=after)
        assert await begin(reactor, first) is None
        outcome, records = await go_on(reactor, first)
        assert type(outcome) is kind, (stop_at, outcome)
        assert world.standing == standing, (stop_at, world.entered)
        assert records.closed is outcome
        assert outcome.rollback_failures == [] if isinstance(outcome, Failure) else outcome.status == "completed"
        if isinstance(outcome, Failure) and isinstance(reference, Failure):
            assert outcome.step == reference.step
            assert (outcome.error_type, outcome.message) == (reference.error_type, reference.message)


async def test_what_was_kept_is_not_done_again() -> None:
    whole = Records()
    await begin(Journey, whole)
    for stop_at in range(whole.writes):
        world.__init__()  # type: ignore[misc]
        first = Records(stop_at, after=True)
        await begin(Journey, first)
        kept = {path for path, data in first.steps.items() if first.codec.image_back(path, data).status == 2}
        done = list(world.entered)
        await go_on(Journey, first)
        again = set(world.entered[len(done) :])
        assert again.isdisjoint({f"run:{path}" for path in kept}), stop_at


async def test_values_inputs_state_and_attempts_are_those_from_before() -> None:
    seen: list[Any] = []

    class Child(Reactor[int]):
        n: int

        @step
        async def double(self, n: int) -> int:
            return n * 2

        returns = double

    class Remembering(Reactor[int]):
        start: int

        @step
        async def first(self, start: int, ctx: Context) -> int:
            ctx.state["token"] = "t1"
            return start + 1

        child = compose(Child, n=result(first))

        @step(retries=Retry(max_attempts=5, base_delay=0))
        async def last(self, ctx: Context, n: int = result(child), first: int = result(first)) -> int:
            seen.append((ctx.attempt, ctx.state["token"], ctx.idempotency_key, n, first))
            if len(seen) < 3:
                raise ValueError(len(seen))
            return n + first

        returns = last

    whole = Records()
    assert (await begin(Remembering, whole, start=4)) == Success(15)
    for stop_at in range(1, whole.writes - 1):
        seen.clear()
        first = Records(stop_at, after=True)
        await begin(Remembering, first, start=4)
        outcome, _ = await go_on(Remembering, first, start=4)
        assert outcome == Success(15)
        attempts = [entry[0] for entry in seen]
        assert attempts == sorted(attempts)
        assert attempts[-1] == 3
        assert {entry[1:] for entry in seen} == {("t1", "r:last", 10, 5)}


async def test_a_halted_run_stays_halted() -> None:
    class Halting(Reactor):
        a = acting()

        @step(after=[a])
        async def stop(self) -> Halt:
            return Halt("enough")

        b = acting([stop])

    whole = Records()
    assert isinstance(await begin(Halting, whole), Halt)
    for stop_at in range(1, whole.writes):
        world.__init__()  # type: ignore[misc]
        first = Records(stop_at, after=True)
        await begin(Halting, first)
        outcome, _ = await go_on(Halting, first)
        assert isinstance(outcome, Halt)
        assert (outcome.reason, outcome.step) == ("enough", "stop")
        assert world.standing == {"a"}


async def test_a_value_that_cannot_be_kept_fails_its_step_before_anything_depends_on_it() -> None:
    class Odd(Reactor):
        a = acting()

        @step(after=[a])
        async def odd(self) -> int:
            world.did("run", "odd")
            return "no int"  # type: ignore[return-value]

        @odd.compensate
        async def clean(self) -> None:
            world.did("back", "odd")

        b = acting([odd])

    outcome = await begin(Odd, Records())
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, SerializationError)
    assert world.entered == ["run:a", "run:odd", "back:odd", "back:a"]
