"""The check-out itself. ``aioreactor worker checkout.shop`` executes it; the web application imports it to begin one."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from msgspec import Meta, Struct

import aioreactor
from aioreactor import Context, Reactor, Resource, Retry, fail, interrupt, result, step
from checkout.books import PRICES, Books

PACKING = float(os.environ.get("CHECKOUT_PACKING", "1"))
"""Seconds per piece."""


class Reservation(Struct):
    key: str
    cents: int


class Approval(Struct):
    """What the people in the office answer."""

    approved: bool
    by: Annotated[str, Meta(min_length=1)]


class Checkout(Reactor[str], name="shop.Checkout"):
    """Reserve, wait for somebody to approve, charge, pack. Whatever goes wrong, all of it is taken back."""

    order_id: Annotated[int, Meta(ge=1, le=999_999_999)]
    email: Annotated[str, Meta(pattern=r".+@.+")]
    item: str
    quantity: Annotated[int, Meta(ge=1, le=99)] = 1

    def validate(self) -> dict[str, list[str]]:
        return {} if self.item in PRICES else {"item": [f"there is {', '.join(PRICES)}"]}

    @step
    def reserve(self, item: str, quantity: int, ctx: Context, books: Annotated[Books, Resource]) -> Reservation:
        books.reserve(ctx.idempotency_key, item, quantity)
        return Reservation(ctx.idempotency_key, PRICES[item] * quantity)

    @reserve.undo
    def release(self, reserve: Reservation, books: Annotated[Books, Resource]) -> None:
        books.release(reserve.key)

    @reserve.compensate
    def release_if_any(self, ctx: Context, books: Annotated[Books, Resource]) -> None:
        """It was cut off, or has failed: nobody knows whether something is reserved."""
        books.release(ctx.idempotency_key)

    # The webhook has its answer as soon as the approval is stored; a worker goes on.
    approval = interrupt(Approval, after=[reserve], timeout=24 * 3600, resume="background")

    @step(retries=Retry(max_attempts=3, backoff="exponential", base_delay=0.5), timeout=15)
    def charge(
        self,
        approval: Approval,
        email: str,
        ctx: Context,
        books: Annotated[Books, Resource],
        cents: int = result(reserve, "cents"),
    ) -> str:
        if not approval.approved:
            fail(f"refused by {approval.by}", retry=False)
        books.pay(ctx.idempotency_key, email, cents)
        return ctx.idempotency_key

    @charge.undo
    def refund(self, charge: str, books: Annotated[Books, Resource]) -> None:
        books.refund(charge)

    @charge.compensate
    def refund_if_any(self, ctx: Context, books: Annotated[Books, Resource]) -> None:
        books.refund(ctx.idempotency_key)

    @step(after=[charge])
    async def pack(self, item: str, quantity: int) -> str:
        await asyncio.sleep(PACKING * quantity)
        return f"{quantity} of {item}, packed"

    returns = pack


# Wherever this module is imported, by the worker and by the web application; AIOREACTOR_REDIS_URL says where runs are kept.
aioreactor.configure(resources={"books": Books(os.environ.get("CHECKOUT_BOOKS", "checkout.sqlite"))})
