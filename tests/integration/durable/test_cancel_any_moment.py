"""A run with bodies side by side, units and a fan-out is cancelled at every moment: nothing runs afterwards."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from aioreactor import (
    Context,
    FanOut,
    NotResumable,
    Reactor,
    RunNotFound,
    async_reactor,
    async_step,
    map_each,
    runs,
    step,
    value,
)
from tests.integration.durable.fan_kit import until_ended
from tests.integration.durable.kit import Place, behave, ledger, noted
from tests.integration.durable.test_background import place, working

__all__ = ["place"]


class Parcel(Reactor[str], name="moment.Parcel"):
    pack = noted()
    send = noted([pack])
    returns = send


class Order(Reactor[str], name="moment.Order"):
    a = noted()
    left, right = noted([a]), noted([a])
    deep = noted([left])
    parcel = async_reactor(Parcel, after=[a])

    @async_step(after=[a])
    async def mail(self, ctx: Context) -> str:
        ledger.append("do:mail")
        await behave["mail"](ctx)
        return "mailed"

    @map_each(over=value([1, 2, 3]), after=[a], fan_out=FanOut(batch_size=2))
    async def boxes(self, n: int, ctx: Context) -> int:
        ledger.append(f"do:box{n}")
        await behave["box"](ctx)
        return n

    @boxes.undo
    async def unbox(self, n: int) -> None:
        ledger.append(f"undo:box{n}")

    @boxes.compensate
    async def doubt(self, n: int) -> None:
        ledger.append(f"comp:box{n}")

    @step(after=[deep, right, boxes])
    async def read(self, parcel: Any, mail: Any) -> str:
        ledger.append("do:read")
        return f"{mail}"

    @read.undo
    async def unread(self) -> None:
        ledger.append("undo:read")

    @read.compensate
    async def uncertain(self) -> None:
        ledger.append("comp:read")

    returns = read


DEEP = os.environ.get("AIOREACTOR_FAULTS") == "deep"
LINES = 13
"""How many there are in the ledger of a run that is not disturbed, with its units."""
TURNS = 40
"""So many turns of the loop after a line, at most, comes a cancel."""
OF_UNITS = {"pack", "send", "mail"}
BODIES = ("a", "left", "right", "deep", "pack", "send", "mail", "box")


class Inside:
    """Bodies take some turns of the loop, and tell whether they are inside."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()

    async def __call__(self, ctx: Context) -> None:
        name = ctx.path
        self.inside[name] += 1
        try:
            for _ in range(6):
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        finally:
            self.inside[name] -= 1

    def of_run(self) -> set[str]:
        return {name for name, number in self.inside.items() if number} - OF_UNITS


def own(lines: list[str]) -> list[str]:
    """What the run did itself, without its units."""
    return [line for line in lines if line.partition(":")[2] not in OF_UNITS]


def balanced(lines: list[str]) -> bool:
    done = Counter(line.partition(":")[2] for line in lines if line.startswith("do:"))
    back = Counter(line.partition(":")[2] for line in lines if not line.startswith("do:"))
    return done == back


async def units_at_rest(place: Place, run_id: str) -> list[str]:
    """The units, when those that have started are at their ends; those that had not were called off."""
    page = await runs.list(parent=run_id, elements=True)
    assert [each.status for each in page if "[" in each.run_id and each.status in ("running", "pending")] == []
    found = [each for each in page if "[" not in each.run_id]
    for unit in found:
        await place.store.wait_done(unit.run_id, 20)
    return [(await runs.find(unit.run_id)).status for unit in found]


async def moment(place: Place, handle: Any, inside: Inside, lines: int, turns: int, mode: Any) -> str:
    """Cancel a run so many turns after it has written so many lines; gives what became of it."""
    over = asyncio.ensure_future(handle.result(timeout=20))
    while len(ledger) < lines and not over.done():
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    over.cancel()
    await asyncio.wait({over})
    try:
        ended = await runs.cancel(handle.run_id, mode=mode, timeout=20)
    except RunNotFound:  # it is not created yet
        await handle.cancel()
        return "early"
    except NotResumable:
        return "late"
    assert inside.of_run() == set()  # bodies have stopped when the outcome is there
    before = own(list(ledger))
    assert set(await units_at_rest(place, handle.run_id)) <= {"cancelled", "completed"}
    assert own(list(ledger)) == before, "something ran afterwards"
    assert (await runs.find(handle.run_id)).status == ended.status == "cancelled"
    return "cancelled"


def moments() -> Iterator[tuple[int, int]]:
    """After each line, at each turn from it on; by default at two of them, by chance."""
    for lines in range(LINES + 1):
        yield from ((lines, turns) for turns in (range(TURNS) if DEEP else random.sample(range(TURNS), 2)))
    yield LINES, 1000


@pytest.mark.parametrize("mode", ["rollback", "stop"])
@pytest.mark.parametrize("where", ["caller", "worker"])
async def test_cancelled_at_every_moment(place: Place, mode: str, where: str) -> None:
    seen: Counter[str] = Counter()
    depths: Counter[int] = Counter()
    async with working(place, park_after=0.01):
        for lines, turns in moments():
            ledger.clear()
            inside = Inside()
            behave.update(dict.fromkeys(BODIES, inside))
            handle = await (Order.spawn() if where == "caller" else Order.enqueue())
            found = await moment(place, handle, inside, lines, turns, mode)
            seen[found] += 1
            if found == "late":
                assert (await handle.result(timeout=20)).status == "completed"
                continue
            written = own(list(ledger))
            depths[len(written)] += 1
            if mode == "rollback" or found == "early":
                assert balanced(written), written
                continue
            assert all(line.startswith("do:") for line in written), written
            await runs.undo(handle.run_id)
            await until_ended(handle.run_id)  # what was stopped stays owed, all of it
            assert balanced(own(list(ledger))), ledger
    assert seen["late"] >= 1
    assert seen["cancelled"] > LINES / 2
    assert len(depths) > (2 if DEEP else 1), depths  # at different places in the run
