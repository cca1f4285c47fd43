"""Units: parts of a run that are dispatched as runs of their own, and who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from aioreactor import (
    Context,
    Dispatched,
    Failure,
    Halt,
    Outcome,
    Reactor,
    Redact,
    Retry,
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
)
from aioreactor.store.keys import run_id_for_unit
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import parked, place, rung, working

__all__ = ["place"]


class Receipt(Struct):
    number: int
    total: int


class Provision(Reactor[Receipt], name="un.Provision"):
    number: Annotated[int, Meta(ge=1)]

    @step
    async def receipt(self, number: int, ctx: Context) -> Receipt:
        ledger.append(f"do:{ctx.path}")
        if "receipt" in behave:
            found = behave["receipt"](ctx)
            if asyncio.iscoroutine(found):
                await found
        return Receipt(number, 10 * number)

    returns = receipt


class Order(Reactor[Any], name="un.Order"):
    number: int = 1
    first = noted()
    provision = async_reactor(Provision, number=from_input("number"), after=[first])
    second = noted([first])

    @step(after=[second])
    async def read(self, ctx: Context, provision: Outcome[Receipt] = result(provision)) -> Any:
        ledger.append("do:read")
        if "read" in behave:
            behave["read"](ctx)
        return provision

    returns = read


async def kinds(run_id: str, *wanted: str) -> list[str]:
    return [str(entry) for entry in (await runs.find(run_id)).trace.only(*wanted)]


async def test_smoke(place: Place) -> None:
    async with working(place):
        outcome = await Order.run()
    assert isinstance(outcome, Success), outcome
    assert outcome.value == Success(Receipt(1, 10))
    print(outcome.trace, ledger)
