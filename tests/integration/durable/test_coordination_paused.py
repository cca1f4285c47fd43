"""What a reactor holds while it waits for somebody's answer: nothing but what it has spent, and its turn."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from aioreactor import Dispatched, Lock, Paused, RateLimit, Reactor, Success, coordination, interrupt
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted
from tests.integration.durable.test_background import place, working

__all__ = ["place"]


class Yes(Struct):
    by: str


class Order(Reactor[str], name="paused.Order", coordination=[Lock("stock"), RateLimit("orders", 2, "day")]):
    reserve = noted()
    approve = interrupt(Yes, after=[reserve])
    ship = noted([approve])
    returns = ship


async def holders() -> list[Any]:
    found = (await coordination.inspect("stock")).lock
    return list(found.holders) if found is not None else []


async def test_a_paused_run_holds_nothing_and_takes_it_again(place: Place) -> None:
    first = await Order.run()
    assert isinstance(first, Paused)
    assert await holders() == []
    second = await Order.run()
    assert isinstance(second, Paused)
    gate = Gate()
    behave["ship"] = gate
    resuming = asyncio.create_task(Order.runs.resume(first.run_id, "approve", {"by": "a"}))
    await gate.reached.wait()
    assert len(await holders()) == 1
    other = await Order.runs.resume(second.run_id, "approve", {"by": "b"})
    assert isinstance(other, Dispatched)  # the lock is taken: accepted, and left to whoever has it next
    gate.open.set()
    assert await resuming == Success("ship")
    async with working(place):
        assert await Order.with_options(run_id=second.run_id).run() == Success("ship")
    assert ledger == ["do:reserve", "do:reserve", "do:ship", "do:ship"]  # and the limit of two was spent twice only
    assert await holders() == []
