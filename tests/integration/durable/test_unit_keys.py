"""A unit that wants what the scopes around its dispatch hold is refused there: its reader would wait for ever."""

from __future__ import annotations

from typing import Any

import pytest

from aioreactor import (
    Failure,
    Lock,
    LockUnavailable,
    OrderedLock,
    Outcome,
    OutOfTurn,
    RateLimit,
    Reactor,
    Semaphore,
    SemaphoreUnavailable,
    Step,
    Success,
    async_reactor,
    async_step,
    compose,
    from_input,
    map_each,
    result,
    runs,
    step,
    value,
)
from tests.integration.durable.kit import Place, ledger, noted
from tests.integration.durable.test_background import place, working
from tests.integration.durable.test_coordination_workers import free

__all__ = ["place"]


class Inner(Reactor[str], name="uk.Inner", coordination=[Lock(lambda i: f"order:{i.number}"), RateLimit("r", 9, 60)]):
    number: int
    work = noted()
    returns = work


class Outer(Reactor[str], name="uk.Outer", coordination=[Lock(lambda i: f"order:{i.mine}"), RateLimit("r", 9, 60)]):
    mine: int
    number: int
    first = noted()
    unit = async_reactor(Inner, after=[first])

    @step
    async def read(self, unit: Outcome[str] = result(unit)) -> str:
        ledger.append("do:read")
        return str(unit.unwrap())

    returns = read


async def test_the_key_the_holder_and_the_ways_out_are_told(place: Place) -> None:
    outcome = await Outer.with_options(run_id="o1").run(mine=7, number=7)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LockUnavailable)
    assert (outcome.step, outcome.error.key, outcome.error.cycle) == ("unit", "order:7", ())
    for part in ("'unit'", "unit Inner", "lock 'order:7'", "o1 holds", "compose(…)"):
        assert part in outcome.message
    assert ledger == ["do:first", "undo:first"]
    assert not await runs.list(parent="o1")
    await free("order:7")


async def test_another_key_is_none_of_its_business(place: Place) -> None:
    async with working(place):
        assert await Outer.run(mine=7, number=8) == Success("work")
    assert ledger == ["do:first", "do:work", "do:read"]


async def test_in_a_worker_too(place: Place) -> None:
    async with working(place):
        outcome = await (await Outer.enqueue(mine=7, number=7)).result(timeout=30)
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.error_type) == ("unit", "aioreactor.errors.LockUnavailable")


class Mail(Step[str], coordination=[Lock(lambda s: f"box:{s.to}")]):
    to: str

    async def run(self) -> str:
        return self.to


class Steps(Reactor, name="uk.Steps", coordination=[Lock("box:a"), Semaphore("many", 2), Semaphore("one", 1)]):
    to: str
    kind: str
    by_class = Mail.async_step()

    @async_step(coordination=[Lock(lambda a: f"box:{a.kind}")])
    async def by_arguments(self, kind: str) -> str:
        return kind

    @async_step(coordination=[Semaphore("many", 2)])
    async def shared(self) -> None: ...


@pytest.mark.parametrize(("to", "kind", "refused"), [("a", "b", "by_class"), ("b", "a", "by_arguments")])
async def test_dispatched_steps_by_their_arguments(place: Place, to: str, kind: str, refused: str) -> None:
    outcome = await Steps.run(to=to, kind=kind)
    assert isinstance(outcome, Failure)
    assert (outcome.step, getattr(outcome.error, "key", "")) == (refused, "box:a")


async def test_a_slot_of_several_can_be_had_beside_the_holder(place: Place) -> None:
    async with working(place):
        outcome = await Steps.with_options(run_id="s1").run(to="b", kind="c")
        assert isinstance(outcome, Success)
        units = await runs.list(parent="s1", elements=True)
        assert len(units) == 3
        for unit in units:
            await place.store.wait_done(unit.run_id, 30)


async def test_a_semaphore_of_one_and_a_turn_are_held_alone_as_well(place: Place) -> None:
    class Single(Reactor, name="uk.Single", coordination=[Semaphore("one", 1)]):
        @async_step(coordination=[Semaphore("one", 1)])
        async def unit(self) -> None: ...

    class Turn(Reactor, name="uk.Turn", coordination=[OrderedLock("line")]):
        a = noted()

    class Turns(Reactor, name="uk.Turns", coordination=[OrderedLock("line")]):
        unit = async_reactor(Turn)

    single, turns = await Single.run(), await Turns.run()
    assert isinstance(single, Failure)
    assert isinstance(single.error, SemaphoreUnavailable)
    assert isinstance(turns, Failure)
    assert isinstance(turns.error, OutOfTurn)
    assert await OrderedLock.peek("line") is None


async def test_what_a_composed_reactor_holds_counts_inside_of_it_only(place: Place) -> None:
    class Leg(Outer, name="uk.Leg"):
        pass

    class Trip(Reactor, name="uk.Trip"):
        leg = compose(Leg, mine=7, number=7)

    class Beside(Reactor, name="uk.Beside"):
        mine: int = 7
        number: int = 7
        leg = compose(Leg, mine=8, number=9)
        unit = async_reactor(Inner)

    outcome = await Trip.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "leg.unit"
    async with working(place):
        assert isinstance(await Beside.run(), Success)


async def test_fixed_keys_of_the_steps_in_a_unit_count_when_it_is_read(place: Place) -> None:
    class Part(Reactor[str], name="uk.Part"):
        a = noted(coordination=[Lock("k")])
        returns = a

    class Whole(Reactor[str], name="uk.Whole"):
        part = compose(Part)
        returns = part

    class Reads(Reactor[Any], name="uk.Reads", coordination=[Lock("k")]):
        unit = async_reactor(Whole)
        last = noted([unit])

    class Sends(Reactor[Any], name="uk.Sends", coordination=[Lock("k")]):
        unit = async_reactor(Whole)

    outcome = await Reads.run()
    assert isinstance(outcome, Failure)
    assert "step 'a' of the unit" in outcome.message
    async with working(place):
        sent = await Sends.with_options(run_id=f"{place.prefix}s").run()
        assert isinstance(sent, Success)
        (unit,) = await runs.list(parent=f"{place.prefix}s")
        assert await Whole.with_options(run_id=unit.run_id).run() == Success("part.a")


# ---------------------------------------------------------------------- elements that are dealt to workers


class Ship(Reactor[str], name="uk.Ship", coordination=[Lock(lambda i: f"stock:{i.sku}")]):
    sku: str
    work = noted()
    returns = work


class Deals(Reactor, name="uk.Deals", coordination=[Lock("stock:a")]):
    skus: list[str]
    first = noted()
    each = map_each(Ship, over=from_input("skus"), item="sku", fan_out=True, after=[first])


class DealsSteps(Reactor, name="uk.DealsSteps", coordination=[Lock("stock:a"), Semaphore("two", 2)]):
    skus: list[str]

    @map_each(
        over=from_input("skus"),
        fan_out=True,
        coordination=[Lock(lambda arguments: f"stock:{arguments.sku}"), Semaphore("two", 2)],
    )
    async def each(self, sku: str) -> str:
        ledger.append(f"do:{sku}")
        return sku


class DealsFixed(Reactor, name="uk.DealsFixed", coordination=[Lock("stock:a")]):
    skus: list[str]

    @map_each(over=from_input("skus"), fan_out=True, coordination=[Lock("stock:a")])
    async def each(self, sku: str) -> str:
        ledger.append(f"do:{sku}")
        return sku


@pytest.mark.parametrize("reactor", [Deals, DealsSteps, DealsFixed])
async def test_an_element_that_wants_what_is_held_around_its_map(place: Place, reactor: Any) -> None:
    async with working(place):
        outcome = await (await reactor.enqueue(skus=["b", "c", "a"])).result(timeout=30)
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.error_type) == ("each", "aioreactor.errors.LockUnavailable")
    who = "every element" if reactor is DealsFixed else "element 2"
    assert outcome.message.startswith(f"map 'each': {who} wants lock 'stock:a', which {outcome.run_id} holds")
    assert [line for line in ledger if "first" not in line] == []  # nothing was dealt
    await free("stock:a")


@pytest.mark.parametrize("reactor", [Deals, DealsSteps])
async def test_elements_that_want_other_keys(place: Place, reactor: Any) -> None:
    async with working(place):
        outcome = await (await reactor.enqueue(skus=["b", "c"])).result(timeout=30)
    assert isinstance(outcome, Success), outcome
    assert len([line for line in ledger if "first" not in line]) == 2


async def test_what_stands_at_the_map_replaces_what_the_class_declares(place: Place) -> None:
    class Freely(Reactor, name="uk.Freely", coordination=[Lock("stock:a")]):
        each = map_each(Ship, over=value(["a"]), item="sku", fan_out=True, coordination=[Lock("free")])

    class Bound(Reactor, name="uk.Bound", coordination=[Lock("stock:a")]):
        each = map_each(Ship, over=value(["b"]), item="sku", fan_out=True, coordination=[Lock("stock:a")])

    async with working(place):
        assert isinstance(await (await Freely.enqueue()).result(timeout=30), Success)
        outcome = await (await Bound.enqueue()).result(timeout=30)
    assert isinstance(outcome, Failure)
    assert "every element wants lock 'stock:a'" in outcome.message
