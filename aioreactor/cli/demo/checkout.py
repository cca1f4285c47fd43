"""The workflow of the demo: a check-out that touches four systems and leaves none of them half done.

reserve (each line) ─┐                                                 ┌─ ship ───┐
                     ├─ total ── payment (authorize ── charge) ── review          ├─ confirm
screen ──────────────┘                                                 └─ points ─┘
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from aioreactor import (
    Halt,
    MapResults,
    Reactor,
    Redact,
    Resource,
    Retry,
    Skipped,
    Step,
    compose,
    fail,
    from_input,
    map_each,
    result,
    step,
)
from aioreactor.cli.demo.systems import (
    Carrier,
    Gateway,
    GatewayTimeout,
    Hold,
    Label,
    Loyalty,
    Receipt,
    Reservation,
    Stock,
)

REVIEW_ABOVE = 100_000  # cents
CENTS_PER_POINT = 100


class Line(Struct, frozen=True):
    """One line of an order."""

    sku: str
    quantity: Annotated[int, Meta(ge=1)]


class Confirmation(Struct, frozen=True):
    """What the customer gets to see."""

    order_id: str
    total: int
    tracking: str
    points: int


class Charge(Step[Receipt], retries=Retry(max_attempts=3, base_delay=0.1, retry_on=GatewayTimeout), timeout=5):
    """Take the money that was set aside."""

    order_id: str
    hold: Hold
    card_token: Annotated[str, Redact]
    gateway: Annotated[Gateway, Resource]

    async def run(self) -> Receipt:
        """Take it."""
        return await self.gateway.capture(self.hold, self.card_token)

    async def undo(self, result: Receipt) -> None:
        """Refund the card."""
        await self.gateway.refund(result.id)

    async def compensate(self) -> None:
        """Refund it in case the bank took it after all."""
        await self.gateway.refund(f"rcpt-{self.order_id}")


class TakePayment(Reactor[Receipt]):
    """Set the money aside, then take it. A reactor of its own, so that others can compose it too."""

    order_id: str
    amount: Annotated[int, Meta(ge=1)]
    card_token: Annotated[str, Redact]

    @step
    async def authorize(self, amount: int, card_token: str, gateway: Annotated[Gateway, Resource]) -> Hold:
        """Have the bank set the money aside."""
        return await gateway.authorize(self.order_id, amount, card_token)

    @authorize.undo
    async def void(self, authorize: Hold, gateway: Annotated[Gateway, Resource]) -> None:
        """Let go of the money set aside."""
        await gateway.void(authorize)

    charge = Charge.step(hold=result(authorize))
    returns = charge


class Checkout(Reactor[Confirmation], deadline=30):
    """Reserve the goods, take the money, ship; when anything fails, undo what was done, newest first."""

    order_id: Annotated[str, Meta(pattern=r"^[A-Z]-\d+$")]
    email: Annotated[str, Meta(pattern=r"^[^@\s]+@[^@\s]+\.[a-z]+$")]
    country: Annotated[str, Meta(pattern=r"^[A-Z]{2}$")]
    lines: Annotated[list[Line], Meta(min_length=1)]
    card_token: Annotated[str, Redact, Meta(min_length=8)]
    member: bool = True

    def validate(self) -> dict[str, list[str]] | None:
        """Rules that concern several values at once."""
        skus = [line.sku for line in self.lines]
        twice = sorted({sku for sku in skus if skus.count(sku) > 1})
        return {"lines": [f"{sku!r} stands on two lines; add the quantities up" for sku in twice]} if twice else None

    @map_each(over=from_input("lines"), concurrency=4)
    async def reserve(self, line: Line, stock: Annotated[Stock, Resource]) -> Reservation:
        """Put the goods of one line aside."""
        return await stock.reserve(self.order_id, line.sku, line.quantity)

    @reserve.undo
    async def release(self, result: Reservation, stock: Annotated[Stock, Resource]) -> None:
        """Put the goods back on the shelf."""
        await stock.release(result)

    @step
    async def screen(self, email: str) -> None:
        """Check the address, while the goods are being reserved."""
        if email.endswith(".invalid"):
            fail("no mail can reach this address")

    @step(after=[screen])
    def total(self, reserve: MapResults[Reservation]) -> int:
        """Add up, in cents. A plain function is fine too; it runs in a thread."""
        return sum(reservation.amount for reservation in reserve.values())

    payment = compose(TakePayment, amount=result(total))

    @step(after=[payment])
    async def review(self, total: int) -> Halt | None:
        """Stop here when a person has to look first; everything done so far is kept."""
        if total > REVIEW_ABOVE:
            return Halt(f"held for review: more than {REVIEW_ABOVE // 100:,}.00 in one order")
        return None

    @step(after=[review])
    async def ship(self, country: str, carrier: Annotated[Carrier, Resource]) -> Label:
        """Have the parcel collected."""
        return await carrier.book(self.order_id, country)

    @ship.compensate
    @ship.undo
    async def call_off(self, carrier: Annotated[Carrier, Resource]) -> None:
        """Call the collection off."""
        await carrier.cancel(self.order_id)

    @step(after=[review])
    async def points(self, total: int, loyalty: Annotated[Loyalty, Resource]) -> int | Skipped[int]:
        """Note points, for members only."""
        if not self.member:
            return Skipped(0)
        return await loyalty.add(self.order_id, total // CENTS_PER_POINT)

    @points.undo
    async def strike_points(self, loyalty: Annotated[Loyalty, Resource]) -> None:
        """Strike the points out."""
        await loyalty.take_back(self.order_id)

    @step
    async def confirm(self, total: int, ship: Label, points: int, stock: Annotated[Stock, Resource]) -> Confirmation:
        """Hand the goods over and tell the customer."""
        await stock.hand_over(self.order_id)
        return Confirmation(self.order_id, total, ship.tracking, points)

    returns = confirm
