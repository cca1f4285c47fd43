"""Maps that fan out end as the same maps do inline, entry for entry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from msgspec import Meta

from aioreactor import (
    Context,
    Failure,
    Halt,
    MapResults,
    Page,
    Reactor,
    Retry,
    Skipped,
    Step,
    compose,
    fail,
    from_input,
    map_each,
    result,
    runs,
    skip,
    step,
    value,
)
from tests.integration.durable.fan_kit import (
    ONE,
    WIDE,
    act,
    behave,
    differences,
    fails_until,
    gives,
    hands,
    ledger,
    noted,
    place_of,
    plain,
    raises,
    twins,
    whole,
)
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    ledger.clear()
    behave.clear()
    yield
    ledger.clear()
    behave.clear()


# ---------------------------------------------------------------------- shapes: what is mapped


def methods(name: str, **options: Any) -> Any:
    class Methods(Reactor, name=name):
        a = noted()

        @map_each(over=value([10, 11, 12, 13]), after=[a], **options)
        async def m(self, n: int, ctx: Context) -> str:
            return await act("do", ctx, n) or f"{place_of(ctx)}={n}"

        @m.undo
        async def undo_m(self, result: str, n: int, ctx: Context) -> None:
            assert result.endswith(f"={n}")
            await act("undo", ctx, n)

        @m.compensate
        async def comp_m(self, error: BaseException, n: int, ctx: Context) -> None:
            await act("comp", ctx, error)

        z = noted([m])

    return Methods


class Charge(Step[str]):
    n: Annotated[int, Meta(le=1000)]
    base: int = 5

    async def run(self, ctx: Context) -> str:
        return await act("do", ctx, self.n) or f"{self.n}+{self.base}"

    async def undo(self, result: str, ctx: Context) -> None:
        assert result == f"{self.n}+{self.base}"
        await act("undo", ctx, self.n)

    async def compensate(self, error: BaseException, ctx: Context) -> None:
        await act("comp", ctx, error)


def classes(name: str, **options: Any) -> Any:
    class Classes(Reactor, name=name):
        a = noted()
        m = map_each(Charge, over=value([10, 11, 12, 13]), item="n", base=value(7), after=[a], **options)
        z = noted([m])

    return Classes


class Leg(Reactor[str], name="fan.Leg"):
    n: int
    e1 = noted()
    e2 = noted([e1])
    e3 = noted([e2])
    returns = e3


def legs(name: str, **options: Any) -> Any:
    class Legs(Reactor, name=name):
        a = noted()
        m = map_each(Leg, over=value([10, 11, 12, 13]), item="n", after=[a], **options)
        z = noted([m])

    return Legs


def composed(name: str, **options: Any) -> Any:
    class Inner(Reactor, name=f"{name}.Inner"):
        b = noted()
        m = map_each(Leg, over=value([10, 11, 12, 13]), item="n", after=[b], **options)
        c = noted([m])

    class Composed(Reactor, name=name):
        a = noted()
        trip = compose(Inner, after=[a])
        z = noted([trip])

    return Composed


def twice(name: str, **options: Any) -> Any:
    class Twice(Reactor, name=name):
        a = noted()
        m = map_each(Leg, over=value([10, 11, 12]), item="n", after=[a], **options)
        b = noted([m])
        k = map_each(Leg, over=value([10, 11]), item="n", after=[b], **options)
        z = noted([k])

    return Twice


class Nest(Reactor, name="fan.Nest"):
    n: int
    p = noted()
    inner = map_each(Leg, over=value([1, 2]), item="n", after=[p], fan_out=True, concurrency=1)
    q = noted([inner])


def nested(name: str, **options: Any) -> Any:
    class Nested(Reactor, name=name):
        a = noted()
        m = map_each(Nest, over=value([10, 11]), item="n", after=[a], **options)
        z = noted([m])

    return Nested


BOOM = {"z": raises(ValueError("z"))}
BAD_UNDOS = {
    "undo:m[1].e2": raises(OSError("undo of e2")),
    "undo:m[2].e3": gives(Failure("no")),
    "undo:m[2]": raises(OSError("undo of 2")),
    "undo:m[0]": raises(OSError("undo of 0")),
    "undo:trip.m[1].e2": raises(OSError("deep")),
    "undo:trip.m[3].e1": raises(OSError("deeper")),
    "undo:k[1].e3": raises(OSError("in k")),
    "undo:m[1].inner[0].e2": raises(OSError("nested")),
    "undo:m[0].q": raises(OSError("q")),
}
STEPS = {"m[2]", "m[1].e2", "m[2].e3", "trip.m[2].e2", "trip.c", "k[1].e3", "m[1].inner[1].e2", "m[1].q"}
CASES: dict[str, dict[str, Callable[..., Any]]] = {
    "all well": {},
    "a later step fails": BOOM,
    "a later step fails, and undos do": {**BOOM, **BAD_UNDOS},
    "an element fails": {path: raises(ValueError(path)) for path in STEPS},
    "an element fails, and rollback does": {
        **{path: raises(ValueError(path)) for path in STEPS},
        **{f"comp:{path}": raises(KeyError(path)) for path in STEPS},
        **BAD_UNDOS,
    },
    "an element is skipped": {**{path: gives(Skipped("s")) for path in ("m[1]", "m[1].e3", "trip.m[1].e3")}, **BOOM},
    "an element halts": {path: gives(Halt("enough")) for path in STEPS},
    "an element returns a failure": {path: gives(Failure("oh", retry=False)) for path in STEPS},
    "an element skips from below": {"m[2]": lambda *_: skip("3"), "m[1].e2": lambda *_: skip("4")},
    "an element fails from below": {path: lambda *_: fail("below", retry=False) for path in STEPS},
    "the first element fails": {p: raises(ValueError(p)) for p in ("m[0]", "m[0].e1", "trip.m[0].e1", "k[0].e1")},
    "a custom base exception": {path: raises(GeneratorExit("g")) for path in STEPS},
    "a group": {path: raises(ExceptionGroup("g", [ValueError("1"), KeyError("2")])) for path in STEPS},
}
SHAPES = [methods, classes, legs, composed, twice, nested]


async def compared(
    place: Place, build: Any, options: dict[str, Any], *, live: bool = True, park_after: float = 0.2, **inputs: Any
) -> tuple[Any, list[str]]:
    """Run both; everything that has to be the same is. Gives the outcome and the ledger of the one that fanned out.

    ``live``: the inline one runs here, from its beginning to its end; else in a worker, too.
    """
    inline, fan = twins(build, options).values()
    async with hands(place, park_after=park_after):
        ledger.clear()
        first = await (inline.run(**inputs) if live else (await inline.enqueue(**inputs)).result(timeout=30))
        expected, lines = whole(first), list(ledger)
        ledger.clear()
        handle = await fan.enqueue(**inputs)
        outcome = await handle.result(timeout=30)
        assert differences(whole(outcome), expected) == []
        assert differences(whole((await runs.find(handle.run_id)).outcome), expected) == []
        compare_lines(list(ledger), lines, exact=options is ONE)
        await assert_nothing_is_left(place, handle.run_id)
    return outcome, list(ledger)


def compare_lines(fan: list[str], inline: list[str], *, exact: bool) -> None:
    """What bodies did; where elements run side by side, all that has to hold of their order."""
    if exact:
        assert fan == inline
        return
    assert sorted(fan) == sorted(inline)
    for prefix in {line.partition(":")[2].partition("]")[0] for line in fan}:
        mine = [[x for x in lines if x.partition(":")[2].partition("]")[0] == prefix] for lines in (fan, inline)]
        assert mine[0] == mine[1], prefix
    outside = [[(i, x) for i, x in enumerate(lines) if "[" not in x] for lines in (fan, inline)]
    assert outside[0] == outside[1]  # what is around a map comes before, or after, all of its elements


async def assert_nothing_is_left(place: Place, run_id: str) -> None:
    """No run of an element; and no key at all once the run is deleted."""
    assert not [row for row in await runs.list(parent=run_id, elements=True) if "[" in row.run_id]
    await runs.delete(run_id)
    assert await place.do("KEYS", f"{place.prefix}:*{run_id}*") == []


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "collecting"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
async def test_one_at_a_time(place: Place, build: Any, case: str, atomic: bool) -> None:
    behave.update(CASES[case])
    await compared(place, lambda name, **more: build(name, atomic=atomic, **more), ONE)
