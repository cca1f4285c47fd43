"""Fan-outs end the same in whatever order elements end, how often rings come, and wherever a process dies."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from aioreactor import Context, FanOut, Reactor
from tests.integration.durable.fan_kit import (
    WIDE,
    assert_nothing_is_left,
    behave,
    differences,
    ledger,
    place_of,
    raises,
    twins,
    whole,
)
from tests.integration.durable.fan_yard import Died, Yard, standing
from tests.integration.durable.kit import Place
from tests.integration.durable.test_fan_oracle import composed, legs, methods, twice

DEEP = os.environ.get("AIOREACTOR_FAULTS") == "deep"
SEED = int(os.environ.get("AIOREACTOR_FAULTS_SEED") or random.SystemRandom().randrange(1 << 30))
RANDOM = random.Random(SEED)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    ledger.clear()
    behave.clear()
    yield
    ledger.clear()
    behave.clear()


EVERY = [
    (order, fails) for items in range(1, 5) for order in itertools.permutations(range(items)) for fails in range(items)
]
"""The orders in which up to four elements can end, each with each of them failing."""


class Turns:
    """Elements end in this order, whatever order they begin in."""

    def __init__(self, order: tuple[int, ...], fails: int) -> None:
        self.order, self.fails, self.ended = order, fails, set[int]()

    async def __call__(self, ctx: Context, *given: Any) -> None:
        me = int(place_of(ctx)[2])
        before = set(self.order[: self.order.index(me)])
        for _ in range(200):
            begun = {line for line in ledger if line.startswith("do:m[")}
            if len(begun) == len(self.order) and before <= self.ended:
                break
            await asyncio.sleep(0)
        self.ended.add(me)
        if me == self.fails:
            raise ValueError(f"{me} fails")


class Orders:
    """The same map of each length, inline and fanned out; how the inline one ends."""

    def __init__(self) -> None:
        self.pairs = [twins(functools.partial(methods, items=items), WIDE) for items in range(1, 5)]

    def fan(self, order: tuple[int, ...]) -> type[Reactor[Any]]:
        return self.pairs[len(order) - 1]["fan"]

    async def inline(self, order: tuple[int, ...], fails: int) -> dict[str, Any]:
        ledger.clear()
        behave.clear()
        turns = Turns(order, fails)
        behave.update({f"m[{i}]": turns for i in order})
        found = whole(await self.pairs[len(order) - 1]["inline"].run())
        assert (found["errors"], found["step"]) == ([("ValueError", f"{fails} fails")], f"m[{fails}]")
        assert standing() == set()
        return found


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
async def test_whatever_order_elements_end_in(place: Place, twice: bool) -> None:
    orders = Orders()
    for order, fails in EVERY if DEEP else RANDOM.sample(EVERY, 8):
        expected = await orders.inline(order, fails)
        ledger.clear()
        turns = Turns(order, fails)
        behave.update({f"m[{i}]": turns for i in order})
        run_id = f"{place.prefix}r"
        outcome = await Yard(place, twice=twice, dice=RANDOM).end(orders.fan(order), run_id)
        wrong = differences(whole(outcome), expected)
        assert not wrong, (SEED, order, fails, wrong)
        assert standing() == set(), (SEED, order, fails, ledger)
        assert max(Counter(ledger).values()) == 1, (SEED, order, fails, ledger)
        assert ledger[-1] == "undo:a"
        undone = [line for line in ledger if line.startswith("undo:m")]
        assert undone == sorted(undone, reverse=True)
        await assert_nothing_is_left(place, run_id)


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "served"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
async def test_whatever_order_elements_end_in_and_wherever_a_process_dies(
    place: Place, twice: bool, applied: bool
) -> None:
    orders = Orders()
    deaths = 0
    for order, fails in EVERY if DEEP else RANDOM.sample(EVERY, 1):
        expected = await orders.inline(order, fails)
        dies_at = 0 if DEEP else RANDOM.randrange(4)
        while await fails_and_dies(
            place, orders.fan(order), order, fails, expected, dies_at, twice=twice, applied=applied
        ):
            deaths += 1
            dies_at += 1 if DEEP else 4
    assert deaths >= 4, SEED


async def fails_and_dies(
    place: Place,
    reactor: Any,
    order: tuple[int, ...],
    fails: int,
    expected: dict[str, Any],
    dies_at: int,
    *,
    twice: bool,
    applied: bool,
) -> int:
    """One run whose elements end in this order, and whose process dies at this call; how often one died."""
    where = (SEED, order, fails, dies_at, twice, applied)
    ledger.clear()
    yard = Yard(place, dies_at=dies_at, applied=applied, twice=twice, dice=RANDOM)
    turns = Turns(order, fails)
    behave.update({f"m[{i}]": _alive(yard, turns) for i in order})
    behave.update({path: _alive(yard, None) for path in ("a", "undo:a", *(f"undo:m[{i}]" for i in order))})
    behave[f"comp:m[{fails}]"] = _alive(yard, None)
    run_id = f"{place.prefix}r"
    wrong = differences(whole(await yard.end(reactor, run_id)), expected)
    assert not wrong, (*where, wrong, ledger)
    assert standing() == set(), (*where, ledger)
    assert max(Counter(ledger).values()) <= 1 + yard.deaths, (*where, ledger)
    assert Counter(ledger)[f"comp:m[{fails}]"] >= 1, (*where, ledger)
    await assert_nothing_is_left(place, run_id, crashed=True)
    return yard.deaths


CRASHES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "methods, all well": (methods, {}, {}),
    "methods, one fails": (methods, {}, {"m[1]": raises(ValueError("one"))}),
    "methods, one fails of those that collect": (methods, {"atomic": False}, {"m[1]": raises(ValueError("one"))}),
    "methods, a later step fails": (methods, {}, {"z": raises(ValueError("z")), "undo:m[2]": raises(OSError("u"))}),
    "legs, all well": (legs, {}, {}),
    "legs, one fails": (legs, {}, {"m[1].e2": raises(ValueError("one")), "comp:m[1].e2": raises(OSError("c"))}),
    "legs, one fails of those that collect": (
        legs,
        {"atomic": False},
        {"m[1].e2": raises(ValueError("one")), "undo:m[1].e1": raises(OSError("u")), "z": raises(KeyError("z"))},
    ),
    "legs, a later step fails": (legs, {}, {"z": raises(ValueError("z")), "undo:m[2].e2": raises(OSError("u"))}),
    "composed, a later step fails": (composed, {}, {"z": raises(ValueError("z"))}),
    "twice, a later step fails": (twice, {}, {"z": raises(ValueError("z"))}),
    "inline legs, one fails of those that collect": (
        legs,
        {"atomic": False, "concurrency": 2, "fan_out": False},
        {"m[1].e2": raises(ValueError("one")), "undo:m[1].e1": raises(OSError("u"))},
    ),
}


VARIANTS = list(itertools.product((2, None), (False, True)))
"""Windows; whether what the process died at was served."""


@pytest.mark.parametrize("case", CRASHES)
async def test_wherever_a_process_dies(place: Place, case: str) -> None:
    for window, applied in VARIANTS if DEEP else [RANDOM.choice(VARIANTS)]:
        await dies_everywhere(place, case, window, applied=applied)


async def dies_everywhere(place: Place, case: str, window: int | None, *, applied: bool) -> None:
    build, options, acts = CRASHES[case]
    reactor = build(f"fc.Dying{next(_numbers)}", **{"fan_out": FanOut(batch_size=window), **options})
    behave.clear()
    behave.update(acts)
    ledger.clear()
    undisturbed = Yard(place)
    expected = whole(await undisturbed.end(reactor, f"{place.prefix}w"))
    stands, calls, once = standing(), undisturbed.calls, Counter(ledger)
    await assert_nothing_is_left(place, f"{place.prefix}w")
    stride = 1 if DEEP else max(1, calls // 2)
    for dies_at in range(RANDOM.randrange(stride), calls, stride):
        where = (SEED, case, window, applied, dies_at)
        ledger.clear()
        yard = Yard(place, dies_at=dies_at, applied=applied)
        behave.update({path: _alive(yard, acts.get(path)) for path in _paths(once)})
        outcome = await yard.end(reactor, f"{place.prefix}x")
        wrong = differences(whole(outcome), expected)
        assert not wrong, (*where, wrong, ledger)
        assert standing() == stands, (*where, ledger)
        again = Counter(ledger) - once
        assert all(count == 1 for count in again.values()), (*where, again)
        await assert_nothing_is_left(place, f"{place.prefix}x", crashed=True)


def _paths(lines: Counter[str]) -> list[str]:
    return [line[3:] if line.startswith("do:") else line for line in lines]


def _alive(yard: Yard, action: Any) -> Any:
    """A body of a process that is dead does nothing any more."""

    def behave_so(ctx: Context, *given: Any) -> Any:
        if yard.dead:
            ledger.pop()  # it was not there to do this
            raise Died
        return action(ctx, *given) if action is not None else None

    return behave_so


async def test_what_an_element_left_behind_is_not_taken_for_its_rollback(place: Place) -> None:
    """It was counted, and whoever did so died before it removed the element's run."""
    reactor = legs(f"fc.Left{next(_numbers)}", fan_out=True)
    yard, kept = Yard(place), []

    class Keeps(Yard):
        def before_send(self, call: Any) -> None:
            if call.name == "run_delete" and not self.deaths:
                kept.append(call.name)
                self._die()
            super().before_send(call)

    behave["z"] = raises(ValueError("z"))
    expected = whole(await yard.end(reactor, f"{place.prefix}w"))
    once = Counter(ledger)
    ledger.clear()
    yard = Keeps(place)
    outcome = await yard.end(reactor, f"{place.prefix}x")
    assert kept == ["run_delete"]
    assert differences(whole(outcome), expected) == []
    assert Counter(ledger) == once
    await assert_nothing_is_left(place, f"{place.prefix}x", crashed=True)
