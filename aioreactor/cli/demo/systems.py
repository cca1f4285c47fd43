"""The outside systems of the demo shop, in memory, each with a ledger of its own.

They behave as real ones do: they take time, refuse, and now and then do not answer. Every action is idempotent: a
rollback may call one twice, and so may a worker that goes on where another one was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec import Struct


class OutOfStock(Exception):
    """There is less of it than was asked for."""

    retryable = False


class GatewayTimeout(Exception):
    """The card gateway did not answer; it may next time."""


class CardDeclined(Exception):
    """The bank said no; it will say so again."""

    retryable = False


class ShippingRefused(Exception):
    """The carrier does not go there."""

    retryable = False


class Reservation(Struct, frozen=True):
    """Goods put aside for an order; ``amount`` is their price in cents."""

    id: str
    order_id: str
    sku: str
    quantity: int
    amount: int


class Hold(Struct, frozen=True):
    """Money that a bank has set aside, in cents."""

    id: str
    order_id: str
    amount: int


class Receipt(Struct, frozen=True):
    """Money taken, in cents."""

    id: str
    order_id: str
    amount: int


class Label(Struct, frozen=True):
    """A parcel that the carrier has accepted."""

    tracking: str
    order_id: str


@dataclass(slots=True)
class Goods:
    """One article: its price in cents, and where its pieces are."""

    price: int
    at_start: int
    on_hand: int = 0
    reserved: int = 0
    shipped: int = 0


class Stock:
    """How many pieces of what are on hand, put aside, or gone."""

    def __init__(self, goods: Mapping[str, tuple[int, int]], latency: float = 0.0) -> None:
        self.goods = {sku: Goods(price, pieces, on_hand=pieces) for sku, (price, pieces) in goods.items()}
        self.reservations: dict[str, Reservation] = {}
        self._latency = latency

    async def reserve(self, order_id: str, sku: str, quantity: int) -> Reservation:
        """Put pieces aside, once per order and article.

        Raises:
            OutOfStock: there are not that many.

        Cancellation: nothing was put aside.
        """
        await asyncio.sleep(self._latency)
        known = self.reservations.get(f"res-{order_id}-{sku}")
        if known is not None:
            return known
        goods = self.goods.get(sku)
        left = goods.on_hand if goods is not None else 0
        if goods is None or left < quantity:
            raise OutOfStock(f"{quantity} of {sku!r} wanted, {left} left")
        goods.on_hand -= quantity
        goods.reserved += quantity
        made = Reservation(f"res-{order_id}-{sku}", order_id, sku, quantity, goods.price * quantity)
        self.reservations[made.id] = made
        return made

    async def release(self, reservation: Reservation) -> None:
        """Put them back on the shelf.

        Cancellation: they are still put aside.
        """
        await asyncio.sleep(self._latency)
        if self.reservations.pop(reservation.id, None) is not None:
            self.goods[reservation.sku].reserved -= reservation.quantity
            self.goods[reservation.sku].on_hand += reservation.quantity

    async def hand_over(self, order_id: str) -> None:
        """What was put aside for this order leaves the house.

        Cancellation: it is still there.
        """
        for made in [each for each in self.reservations.values() if each.order_id == order_id]:
            del self.reservations[made.id]
            self.goods[made.sku].reserved -= made.quantity
            self.goods[made.sku].shipped += made.quantity

    def reserved_for(self, order_id: str) -> int:
        """Pieces put aside for an order."""
        return sum(each.quantity for each in self.reservations.values() if each.order_id == order_id)


@dataclass(slots=True)
class Account:
    """What one order did to the shop's money, in cents. ``held`` has not moved yet."""

    held: int = 0
    charged: int = 0
    refunded: int = 0

    @property
    def kept(self) -> int:
        """What the shop has of it."""
        return self.charged - self.refunded


class Gateway:
    """The card gateway. Like real ones it has test cards: ``tok_declined…`` and ``tok_flaky…`` (two time-outs)."""

    def __init__(self, latency: float = 0.0) -> None:
        self.accounts: dict[str, Account] = {}
        self._holds: dict[str, Hold] = {}
        self._receipts: dict[str, Receipt] = {}
        self._timeouts_left: dict[str, int] = {}
        self._latency = latency

    def _account(self, order_id: str) -> Account:
        return self.accounts.setdefault(order_id, Account())

    async def authorize(self, order_id: str, amount: int, card_token: str) -> Hold:
        """Have the bank set money aside.

        Cancellation: nothing was set aside.
        """
        await asyncio.sleep(self._latency)
        hold = Hold(f"hold-{order_id}", order_id, amount)
        if hold.id not in self._holds:
            self._holds[hold.id] = hold
            self._account(order_id).held += amount
        if card_token.startswith("tok_flaky"):
            self._timeouts_left.setdefault(order_id, 2)
        return hold

    async def void(self, hold: Hold) -> None:
        """Let go of what was set aside and not taken.

        Cancellation: it is still set aside.
        """
        await asyncio.sleep(self._latency)
        if self._holds.pop(hold.id, None) is not None:
            self._account(hold.order_id).held -= hold.amount

    async def capture(self, hold: Hold, card_token: str) -> Receipt:
        """Take what was set aside.

        Raises:
            GatewayTimeout: no answer.
            CardDeclined: the bank refuses.

        Cancellation: nothing was taken.
        """
        await asyncio.sleep(self._latency)
        if self._timeouts_left.get(hold.order_id, 0):
            self._timeouts_left[hold.order_id] -= 1
            raise GatewayTimeout("the card gateway did not answer")
        if card_token.startswith("tok_declined"):
            raise CardDeclined(f"the bank declined card {card_token}")
        receipt = Receipt(f"rcpt-{hold.order_id}", hold.order_id, hold.amount)
        if self._holds.pop(hold.id, None) is not None:
            self._receipts[receipt.id] = receipt
            self._account(hold.order_id).held -= hold.amount
            self._account(hold.order_id).charged += hold.amount
        return receipt

    async def refund(self, receipt_id: str) -> None:
        """Give it back; harmless when nothing was taken.

        Cancellation: nothing was given back.
        """
        await asyncio.sleep(self._latency)
        receipt = self._receipts.pop(receipt_id, None)
        if receipt is not None:
            self._account(receipt.order_id).refunded += receipt.amount


class Carrier:
    """The shipping system."""

    def __init__(self, ships_to: Collection[str], latency: float = 0.0) -> None:
        self.ships_to = frozenset(ships_to)
        self.parcels: dict[str, Label] = {}
        self._latency = latency

    async def book(self, order_id: str, country: str) -> Label:
        """Have a parcel collected.

        Raises:
            ShippingRefused: it does not go there.

        Cancellation: nothing is booked.
        """
        await asyncio.sleep(self._latency)
        if country not in self.ships_to:
            raise ShippingRefused(f"no carrier goes to {country}")
        label = Label(f"track-{order_id}", order_id)
        self.parcels[order_id] = label
        return label

    async def cancel(self, order_id: str) -> None:
        """Call the collection off; harmless when there is none.

        Cancellation: it is still booked.
        """
        await asyncio.sleep(self._latency)
        self.parcels.pop(order_id, None)


class Loyalty:
    """Points of members."""

    def __init__(self, latency: float = 0.0) -> None:
        self.points: dict[str, int] = {}
        self._latency = latency

    async def add(self, order_id: str, points: int) -> int:
        """Note points for an order.

        Cancellation: none are noted.
        """
        await asyncio.sleep(self._latency)
        self.points[order_id] = points
        return points

    async def take_back(self, order_id: str) -> None:
        """Strike them out.

        Cancellation: they still stand.
        """
        await asyncio.sleep(self._latency)
        self.points.pop(order_id, None)


@dataclass(frozen=True, slots=True)
class Shop:
    """All systems of the shop together."""

    stock: Stock
    gateway: Gateway = field(default_factory=Gateway)
    carrier: Carrier = field(default_factory=lambda: Carrier(()))
    loyalty: Loyalty = field(default_factory=Loyalty)

    def resources(self) -> dict[str, object]:
        """What the workflow's steps ask for, by name."""
        return {"stock": self.stock, "gateway": self.gateway, "carrier": self.carrier, "loyalty": self.loyalty}
