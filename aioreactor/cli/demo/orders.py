"""The order file: a shop and the orders it gets."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from aioreactor.cli.demo.systems import Carrier, Gateway, Loyalty, Shop, Stock

Action: TypeAlias = Literal[
    "reserve", "authorize", "capture", "book", "add", "hand_over", "take_back", "cancel", "refund", "void", "release"
]


class BadOrderFile(Exception):
    """The file cannot be used; the text says why, in one line."""


class Article(Struct, frozen=True, forbid_unknown_fields=True):
    """An article: its price in cents, and how many pieces there are."""

    price: Annotated[int, Meta(ge=1)]
    pieces: Annotated[int, Meta(ge=0)]


class ShopSetup(Struct, frozen=True, forbid_unknown_fields=True):
    """What the shop has and where it ships, as two-letter countries."""

    stock: dict[str, Article]
    ships_to: list[str]


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """One order: ``checkout`` is what `Checkout` is given, good or bad; ``about`` says what is special.

    ``worker``: it is handed off to a worker process. ``kill_after``: that process is killed when it has had this action
    done by the outside systems, before it hears of it.
    """

    checkout: dict[str, Any]
    about: str = ""
    worker: bool = False
    kill_after: Action | None = None

    @property
    def label(self) -> str:
        """How the report names it."""
        return str(self.checkout.get("order_id", "(no order_id)"))


class OrderFile(Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    shop: ShopSetup
    orders: Annotated[list[Order], Meta(min_length=1)]


def read_orders(path: Path | None = None) -> OrderFile:
    """The orders of a file; those that come with the package when there is none.

    Raises:
        BadOrderFile: it cannot be read, is no JSON, or has another shape.
    """
    name = str(path) if path is not None else "the sample orders"
    try:
        content = path.read_bytes() if path is not None else _sample()
        found = msgspec.json.decode(content, type=OrderFile)
    except OSError as error:
        raise BadOrderFile(f"{name}: {error.strerror or error}") from error
    except msgspec.ValidationError as error:
        raise BadOrderFile(f"{name}: {error} (see --sample for the shape)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadOrderFile(f"{name} is not JSON: {error}") from error
    _refuse_repeated(name, found)
    for order in found.orders:
        if order.kill_after is not None and not order.worker:
            raise BadOrderFile(f'{name}: order {order.label!r} has kill_after without "worker": true')
    return found


def sample_text() -> str:
    """The order file that comes with the package."""
    return _sample().decode()


def open_shop(setup: ShopSetup, latency: float) -> Shop:
    """The systems as they are before the first order; each of their actions takes ``latency`` seconds."""
    goods = {sku: (article.price, article.pieces) for sku, article in setup.stock.items()}
    return Shop(Stock(goods, latency), Gateway(latency), Carrier(setup.ships_to, latency), Loyalty(latency))


def _sample() -> bytes:
    return files("aioreactor.cli.demo").joinpath("orders.json").read_bytes()


def _refuse_repeated(name: str, found: OrderFile) -> None:
    labels = [order.label for order in found.orders if "order_id" in order.checkout]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise BadOrderFile(f"{name}: order_id {', '.join(map(repr, twice))} is used more than once")
