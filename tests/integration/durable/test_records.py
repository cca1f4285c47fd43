"""What a stored run tells, and what can be stored."""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic
import pytest

import aioreactor
from aioreactor import (
    Context,
    Failure,
    Halt,
    MapResults,
    NotResumable,
    PayloadTooLarge,
    Reactor,
    Redact,
    RunNotFound,
    SerializationError,
    Skipped,
    Success,
    compose,
    halt,
    map_each,
    skip,
    step,
    value,
)
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises


class Room(msgspec.Struct):
    number: int
    price: Decimal


class Guest(pydantic.BaseModel):
    name: str
    born: datetime


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


VALUES: dict[str, tuple[Any, Any]] = {
    "struct": (Room, Room(7, Decimal("1.10"))),
    "decimal": (Decimal, Decimal("0.10")),
    "uuid": (UUID, UUID(int=7)),
    "moment": (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    "numbers": (set[int], {1, 2}),
    "pair": (tuple[int, str], (1, "a")),
    "blob": (bytes, b"\x00\xff"),
    "guest": (Guest, Guest(name="Ann", born=datetime(2000, 1, 1, tzinfo=UTC))),
    "colour": (Colour, Colour.RED),
    "point": (Point, Point(3)),
    "prices": (dict[UUID, Decimal], {UUID(int=1): Decimal("2.50")}),
    "either": (Room | None, None),
    "span": (timedelta, timedelta(seconds=3)),
}


def _typed(annotation: Any, found: Any) -> Any:
    async def body(self: Any) -> Any:
        return found

    body.__annotations__["return"] = annotation
    return step(body)


class Values(Reactor):
    struct = _typed(*VALUES["struct"])
    decimal = _typed(*VALUES["decimal"])
    uuid = _typed(*VALUES["uuid"])
    moment = _typed(*VALUES["moment"])
    numbers = _typed(*VALUES["numbers"])
    pair = _typed(*VALUES["pair"])
    blob = _typed(*VALUES["blob"])
    guest = _typed(*VALUES["guest"])
    colour = _typed(*VALUES["colour"])
    point = _typed(*VALUES["point"])
    prices = _typed(*VALUES["prices"])
    either = _typed(*VALUES["either"])
    span = _typed(*VALUES["span"])


class Secretive(Reactor):
    user: str
    card: Annotated[str, Redact]
    a = noted()


class Chain(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b])


class Trip(Reactor):
    t1 = noted()
    t2 = noted(after=[t1])


class Leg(Reactor):
    k: int
    t1 = noted()
    t2 = noted(after=[t1])


class Inner(Reactor):
    n: int
    i1 = noted()
    each = map_each(Leg, over=value([1, 2]), item="k", after=[i1])
    returns = each


class Deep(Reactor):
    inner = compose(Inner, n=3)
    many = map_each(Inner, over=value([1, 2]), item="n")


class Skipper(Reactor):
    s = noted()


class SkipsOnHalt(Reactor):
    trip = compose(Skipper, on_halt="skip")
    z = noted(after=[trip])


class Loose(Reactor):
    n: int
    e = noted()


class Collects(Reactor):
    m = map_each(Loose, over=value([0, 1, 2]), item="n", atomic=False, concurrency=1)


async def test_values_come_back_with_their_types(place: Place) -> None:
    outcome = await Values.with_options(run_id="v").run()
    assert isinstance(outcome, Success)
    found = await Values.runs.find("v")
    assert found.outcome is not None
    for results in (found.results, found.outcome.results, found.outcome.value):
        assert dict(results) == {name: expected for name, (_, expected) in VALUES.items()}
        assert all(type(results[name]) is type(expected) for name, (_, expected) in VALUES.items())


async def test_a_snapshot_has_everything(place: Place) -> None:
    gate = Gate()
    behave["a"] = gate
    handle = await Secretive.with_options(run_id="s", tags=["vip", "eu"]).spawn(user="ann", card="4111-1111")
    await gate.reached.wait()
    found = await aioreactor.runs.find("s")
    assert (found.run_id, found.reactor, found.status) == ("s", Secretive.plan.name, "running")
    assert found.outcome is None
    assert found.inputs["user"] == "ann"
    assert "4111" not in repr(found)
    gate.open.set()
    outcome = await handle.result()
    assert outcome.ok
    found = await aioreactor.runs.find("s")
    assert found.status == "completed"
    assert found.tags == ("vip", "eu")
    assert found.created_at <= found.updated_at
    assert [(each.path, each.status, each.failed_attempts) for each in found.steps] == [("a", "completed", 0)]
    assert str(found.trace) == "run:a success:a"
    assert isinstance(found.outcome, Success)
    assert found.outcome == outcome or found.outcome.value == outcome.value
    with pytest.raises(RunNotFound):
        await Chain.runs.find("s")
    with pytest.raises(RunNotFound):
        await Chain.runs.find("nobody")


async def test_secrets_are_not_in_the_record_of_a_failure(place: Place) -> None:
    behave["a"] = raises(ValueError("refused 4111-1111"))
    outcome = await Secretive.with_options(run_id="s").run(user="ann", card="4111-1111")
    assert not outcome.ok
    found = await aioreactor.runs.find("s")
    assert isinstance(found.outcome, Failure)
    assert "4111" not in repr(found) + str(found.outcome) + repr(found.outcome.error) + str(found.trace)
    raw = await place.do("HGETALL", place.store.space.run("s"))
    pairs = dict(zip(raw[::2], raw[1::2], strict=True))
    assert not [name for name, blob in pairs.items() if b"4111" in blob and name != b"inputs"]


async def test_a_failure_comes_back(place: Place) -> None:
    behave["c"] = raises(KeyError("gone"))
    behave["undo:a"] = raises(RuntimeError("stuck"))
    outcome = await Chain.with_options(run_id="f").run()
    found = (await Chain.runs.find("f")).outcome
    assert isinstance(outcome, Failure)
    assert isinstance(found, Failure)
    assert (found.step, found.status, found.run_id) == (outcome.step, "failed", "f")
    assert isinstance(found.error, KeyError)
    assert [(e.step, e.kind, e.reason) for e in found.rollback_failures] == [("a", "undo", "raised")]
    assert str(found.trace) == str(outcome.trace)
    assert dict(found.results) == dict(outcome.results)


async def test_a_halt_comes_back_even_with_a_reason_that_nobody_can_store(place: Place) -> None:
    behave["b"] = lambda ctx: halt(object())
    outcome = await Chain.with_options(run_id="h").run()
    assert isinstance(outcome, Halt)
    found = await Chain.runs.find("h")
    assert found.status == "halted"
    assert isinstance(found.outcome, Halt)
    assert found.outcome.step == "b"


async def test_values_of_nested_maps_and_children_come_back(place: Place) -> None:
    outcome = await Deep.with_options(run_id="n").run()
    found = (await Deep.runs.find("n")).outcome
    assert isinstance(outcome, Success)
    assert isinstance(found, Success)
    assert repr(found.value) == repr(outcome.value)
    assert isinstance(found.value["inner"], MapResults)
    assert [list(each) for each in found.value["many"]] == [list(each) for each in outcome.value["many"]]


async def test_a_child_that_halted_into_a_skip_comes_back(place: Place) -> None:
    behave["trip.s"] = lambda ctx: halt("no")
    outcome = await SkipsOnHalt.with_options(run_id="n").run()
    found = (await SkipsOnHalt.runs.find("n")).outcome
    assert isinstance(outcome, Success)
    assert isinstance(found, Success)
    assert outcome.value == {"trip": None, "z": "z"}
    assert found.value == outcome.value


async def test_failed_elements_of_a_map_that_collects_come_back(place: Place) -> None:
    behave["m[1].e"] = raises(ValueError("no"))
    behave["m[2].e"] = lambda ctx: skip("later")
    outcome = await Collects.with_options(run_id="n").run()
    assert isinstance(outcome, Success)
    found = (await Collects.runs.find("n")).results["m"]
    given = outcome.value["m"]
    assert [type(each) for each in found.outcomes()] == [type(each) for each in given.outcomes()]
    assert isinstance(found[1], Failure)
    assert isinstance(found[1].error, ValueError)
    assert found[1].step == given[1].step == "m[1].e"


@pytest.mark.parametrize("made", [object, lambda: [object()], lambda: {1: lambda: 0}])
async def test_what_cannot_be_stored_fails_its_step(place: Place, made: Any) -> None:
    behave["b"] = lambda ctx: made()
    outcome = await Chain.with_options(run_id="x").run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, SerializationError)
    assert outcome.step == "b"
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]
    assert (await Chain.runs.find("x")).status == "failed"


async def test_what_is_too_large_fails_its_step(place: Place) -> None:
    behave["b"] = lambda ctx: "x" * 2000
    async with place.another(max_value_bytes=1000):
        outcome = await Chain.with_options(run_id="x").run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, PayloadTooLarge)
    assert "b" in str(outcome.error)
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


class Odd:
    pass


class MapsOdd(Reactor):
    a = noted()

    @map_each(over=lambda self: [Odd(), Odd()], after=[a])
    async def m(self, it: Any, ctx: Context) -> str:
        ledger.append(f"do:{ctx.path}")
        return "x"

    z = noted(after=[m])


class TakesOdd(Reactor):
    odd: Any
    t = noted()


class ComposesOdd(Reactor):
    a = noted()
    trip = compose(TakesOdd, odd=value(Odd()), after=[a])
    z = noted(after=[trip])


class CollectsOdd(Reactor):
    a = noted()
    m = map_each(Leg, over=value([1, 2]), item="k", after=[a])

    @m.collect
    def _m(self, results: Any) -> Any:
        return Odd()

    z = noted(after=[m])


@pytest.mark.parametrize("reactor", [MapsOdd, ComposesOdd, CollectsOdd])
async def test_items_inputs_and_collected_values_that_cannot_be_stored_fail_the_run(place: Place, reactor: Any) -> None:
    outcome = await reactor.with_options(run_id="x").run()
    assert isinstance(outcome, Failure), outcome
    assert ledger[-1] == "undo:a"
    assert "do:z" not in ledger
    assert (await reactor.runs.find("x")).status == "failed"


@pytest.mark.parametrize("where", ["a", "b", "c"])
async def test_shared_state_that_cannot_be_stored_fails_the_run(place: Place, where: str) -> None:
    def act(ctx: Context) -> None:
        ctx.state["odd"] = Odd()

    behave[where] = act
    outcome = await Chain.with_options(run_id="x").run()
    assert isinstance(outcome, Failure), outcome
    assert (await Chain.runs.find("x")).status == "failed"


async def test_inputs_that_cannot_be_stored_are_refused_before_anything_runs(place: Place) -> None:
    outcome = await TakesOdd.with_options(run_id="x").run(odd=Odd())
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, SerializationError)
    assert ledger == []
    with pytest.raises(RunNotFound):
        await aioreactor.runs.find("x")


async def test_pages_newest_first(place: Place) -> None:
    for number in range(7):
        behave["b"] = raises(ValueError()) if number % 2 else lambda ctx: None
        await Chain.with_options(run_id=f"r{number}", tags=[f"t{number % 3}"]).run()
    await Trip.with_options(run_id="other").run()
    seen, cursor = [], ""
    while True:
        page = await Chain.runs.list(limit=3, cursor=cursor)
        assert len(page) <= 3
        seen += [run.run_id for run in page]
        cursor = page.cursor
        if not cursor:
            break
    assert seen == [f"r{n}" for n in reversed(range(7))]
    assert [run.run_id for run in await Chain.runs.list(status="failed")] == ["r5", "r3", "r1"]
    assert [run.run_id for run in await aioreactor.runs.list(tag="t0")] == ["r6", "r3", "r0"]
    assert len(await aioreactor.runs.list()) == 8
    everything = await aioreactor.runs.list()
    assert list(await aioreactor.runs.list(since=everything[0].created_at + 3600)) == []


async def test_deleted_runs_are_gone(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    handle = await Chain.with_options(run_id="x").spawn()
    await gate.reached.wait()
    with pytest.raises(NotResumable):
        await aioreactor.runs.delete("x")
    gate.open.set()
    assert (await handle.result()).ok
    await aioreactor.runs.delete("x")
    with pytest.raises(RunNotFound):
        await aioreactor.runs.find("x")
    with pytest.raises(RunNotFound):
        await aioreactor.runs.delete("x")
    assert list(await aioreactor.runs.list()) == []
    keys = [key for key in await place.do("KEYS", f"{place.prefix}:*") if b"{:index}" not in key]
    assert keys == []


async def test_retention_starts_when_a_run_ends(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    async with place.another(retention=100.0):
        handle = await Chain.with_options(run_id="x").spawn()
        await gate.reached.wait()
        assert await place.do("PTTL", place.store.space.run("x")) == -1
        gate.open.set()
        await handle.result()
    keys = [key for key in await place.do("KEYS", f"{place.prefix}:*") if b"{:index}" not in key]
    assert keys
    for key in keys:
        assert 90_000 < await place.do("PTTL", key) <= 100_000


async def test_skipped_values_come_back(place: Place) -> None:
    behave["b"] = lambda ctx: Skipped("later")
    outcome = await Chain.with_options(run_id="x").run()
    found = await Chain.runs.find("x")
    assert found.results == outcome.results
    assert [each.status for each in found.steps if each.path == "b"] == ["skipped"]
