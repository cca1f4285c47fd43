"""Periods of steps: whatever happens between a completion and its marker, it is marked in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from aioreactor import (
    Failure,
    OwnershipLost,
    Paused,
    Period,
    Reactor,
    Success,
    compose,
    coordination,
    from_input,
    interrupt,
    map_each,
    step,
)
from aioreactor.coordination import periods
from aioreactor.store.errors import StoreClosed
from aioreactor.store.plan_codec import PlanCodec
from tests.integration.durable.kit import Place, behave, ledger, noted, raises

NIGHT: list[Any] = [Period("night", every="year")]


class Yes(Struct):
    by: str


class Nightly(Reactor[str], name="cm.Nightly"):
    a = noted(coordination=NIGHT)
    b = noted([a])
    returns = b


class Asks(Reactor, name="cm.Asks"):
    a = noted(coordination=NIGHT)
    approve = interrupt(Yes, after=[a])


async def marked(key: str = "night") -> list[str]:
    return [marker.marked_by for marker in (await coordination.inspect(key)).markers]


async def owed(place: Place, run_id: str) -> dict[str, Any]:
    row = await place.store.peek(run_id)
    assert row is not None
    found: dict[str, Any] = (PlanCodec().gates_back(row.gates) or {}).get("owed", {})
    return found


class Marking:
    """Stands for `periods.mark`: comes late, or finds the store away; until it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[Marking], Any]) -> None:
        self.reached, self.woken, self.let, self.calls = asyncio.Event(), asyncio.Event(), False, 0
        self.real, self.act = periods.mark, act
        monkeypatch.setattr(periods, "mark", self)

    async def __call__(self, *args: Any) -> bool:
        self.calls += 1
        self.reached.set()
        if not self.let:
            await self.act(self)
        return await self.real(*args)


async def late(marking: Marking) -> None:
    await marking.woken.wait()


async def away(marking: Marking) -> None:
    raise StoreClosed("away")


class Around(Reactor, name="cm.Around"):
    inner = compose(Nightly)


@pytest.mark.parametrize("reactor", [Nightly, Around])
async def test_who_recovers_the_run_marks_what_it_owes(
    place: Place, monkeypatch: pytest.MonkeyPatch, reactor: Any
) -> None:
    marking, run_id = Marking(monkeypatch, late), f"{place.prefix}r"
    path = "inner.a" if reactor is not Nightly else "a"
    async with place.another():
        running = asyncio.create_task(reactor.with_options(run_id=run_id).run())
        await marking.reached.wait()
        assert list(await owed(place, run_id)) == [f"{run_id}:{path}:1"]
        assert await marked() == []
        marking.let = True
        await place.lapse(run_id)
        assert await place.sweep_elsewhere() == [run_id]
        assert await marked() == [f"{run_id}:{path}:1"]
        assert ledger == [f"do:{path}", f"do:{path[:-1]}b"]
        marking.woken.set()  # by its own clock that process has the run still
        with pytest.raises(OwnershipLost):
            await running
    assert await owed(place, run_id) == {}
    assert isinstance(await Nightly.run(), Success)  # its step is skipped
    assert ledger[-1:] == ["do:b"]
    assert ledger.count("do:a") == (reactor is Nightly)


async def test_what_the_store_was_away_for_is_marked_at_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    marking = Marking(monkeypatch, away)

    async def let(ctx: Any) -> None:
        assert await marked() == []
        marking.let = True

    behave["b"] = let
    with caplog.at_level(logging.WARNING, "aioreactor.engine"):
        assert await Nightly.with_options(run_id=f"{place.prefix}r").run() == Success("b")
    assert [getattr(record, "event", "") for record in caplog.records] == ["hold_not_released"]
    assert (await marked(), marking.calls) == ([f"{place.prefix}r:a:1"], 2)
    assert await owed(place, f"{place.prefix}r") == {}


async def test_a_run_that_fails_afterwards_marks_its_steps_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    marking = Marking(monkeypatch, away)

    async def fail(ctx: Any) -> None:
        marking.let = True
        raise ValueError("no")

    behave["b"] = fail
    outcome = await Nightly.with_options(run_id=f"{place.prefix}r").run()
    assert isinstance(outcome, Failure)
    assert await marked() == [f"{place.prefix}r:a:1"]


async def test_a_paused_run_goes_on_owing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    marking = Marking(monkeypatch, away)
    paused = await Asks.run()
    assert isinstance(paused, Paused)
    assert list(await owed(place, paused.run_id)) == [f"{paused.run_id}:a:1"]
    marking.let = True
    async with place.another():
        assert isinstance(await Asks.runs.resume(paused.run_id, "approve", {"by": "a"}), Success)
    assert await marked() == [f"{paused.run_id}:a:1"]


async def test_nothing_is_owed_for_what_did_not_complete(place: Place) -> None:
    behave["a"] = raises(ValueError("no"))
    outcome = await Nightly.with_options(run_id=f"{place.prefix}r").run()
    assert isinstance(outcome, Failure)
    assert (await marked(), await owed(place, f"{place.prefix}r")) == ([], {})


async def test_elements_of_a_map(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mapped(Reactor, name="cm.Mapped"):
        keys: list[str]

        @map_each(over=from_input("keys"), coordination=[Period(lambda arguments: arguments.key, every="year")])
        async def each(self, key: str) -> str:
            ledger.append(key)
            return key

        @step(after=[each])
        async def last(self) -> None:
            ledger.append("last")

    marking, run_id = Marking(monkeypatch, late), f"{place.prefix}r"
    async with place.another():
        running = asyncio.create_task(Mapped.with_options(run_id=run_id).run(keys=["x"]))
        await marking.reached.wait()
        marking.let = True
        await place.lapse(run_id)
        assert await place.sweep_elsewhere() == [run_id]
        assert [by.rpartition(":")[0] for by in await marked("x")] == [f"{run_id}:each[0]"]
        assert ledger == ["x", "last"]
        marking.woken.set()
        with pytest.raises(OwnershipLost):
            await running
