"""Maps that fan out end as the same maps do inline, entry for entry."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from msgspec import Meta

from aioreactor import (
    Context,
    Failure,
    Halt,
    Reactor,
    Skipped,
    Step,
    compose,
    fail,
    map_each,
    skip,
    value,
)
from tests.integration.durable.fan_kit import (
    ONE,
    WIDE,
    act,
    behave,
    compared,
    gives,
    ledger,
    noted,
    place_of,
    raises,
)
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import place

__all__ = ["place"]
DEEP = os.environ.get("AIOREACTOR_FAULTS") == "deep"
RANDOM = random.Random(os.environ.get("AIOREACTOR_FAULTS_SEED", "1"))
"""Which of the combinations are tried by default: the same for all processes of a parallel run."""


@pytest.fixture(autouse=True)
def clean(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    ledger.clear()
    behave.clear()
    yield
    ledger.clear()
    behave.clear()
    assert [record.getMessage() for record in caplog.records if "carry_failed" in record.getMessage()] == []


# ---------------------------------------------------------------------- shapes: what is mapped


def methods(name: str, *, items: int = 4, **options: Any) -> Any:
    class Methods(Reactor, name=name):
        a = noted()

        @map_each(over=value(list(range(10, 10 + items))), after=[a], **options)
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


ATOMIC = pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "collecting"])
EVERY = [(build, case) for build in SHAPES for case in CASES]
SOME = EVERY if DEEP else RANDOM.sample(EVERY, 9)


def named(each: Any) -> str:
    return f"{each[0].__name__}-{each[1]}"


@ATOMIC
@pytest.mark.parametrize("given", SOME, ids=named)
async def test_one_at_a_time(place: Place, given: Any, atomic: bool) -> None:
    build, case = given
    behave.update(CASES[case])
    await compared(place, lambda name, **more: build(name, atomic=atomic, **more), ONE)


@ATOMIC
@pytest.mark.parametrize("given", EVERY if DEEP else RANDOM.sample(EVERY, 9), ids=named)
async def test_parked_at_every_turn(place: Place, given: Any, atomic: bool) -> None:
    build, case = given
    behave.update(CASES[case])
    await compared(place, lambda name, **more: build(name, atomic=atomic, **more), ONE, park_after=0.0)


def when_all_run(action: Callable[..., Any]) -> Callable[..., Any]:
    """Act once every element has begun, so that it does not depend on chance which ones do."""

    async def act_then(ctx: Context, *given: Any) -> Any:
        async with asyncio.timeout(10):
            while len({line for line in ledger if line.startswith("do:m[")}) < 4:
                await asyncio.sleep(0)
        return action(ctx, *given)

    return act_then


GOES_ON = [case for case in CASES if case.startswith(("all well", "a later step"))]
SINGLE = [methods, classes]
WIDELY = [
    (build, case, atomic)
    for build, case in EVERY
    for atomic in (True, False)
    if case in GOES_ON or build in SINGLE or (not atomic and "halts" not in case)
]


@pytest.mark.parametrize(
    "given", WIDELY if DEEP else RANDOM.sample(WIDELY, 10), ids=lambda each: f"{each[0].__name__}-{each[1]}-{each[2]}"
)
async def test_side_by_side(place: Place, given: Any) -> None:
    """Elements of several steps go on with the next one while another one fails or halts, so those are left out."""
    build, case, atomic = given
    behave.update(CASES[case])
    if case not in GOES_ON and build in SINGLE:
        behave.update({path: when_all_run(act) for path, act in CASES[case].items() if path.startswith("m[")})
    await compared(place, lambda name, **more: build(name, atomic=atomic, **more), WIDE)
