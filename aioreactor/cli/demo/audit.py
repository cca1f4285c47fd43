"""Do the books balance? Compares what the systems hold after the runs with what the outcomes say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from aioreactor import Success
from aioreactor.cli.demo.play import Played
from aioreactor.cli.demo.systems import Account, Shop


class Check(NamedTuple):
    """One thing that has to hold."""

    ok: bool
    text: str


def audit(shop: Shop, played: Sequence[Played]) -> list[Check]:
    """All checks. A rolled-back order leaves nothing anywhere; nothing comes into being or gets lost."""
    completed = [each for each in played if each.outcome.status == "completed"]
    halted = [each for each in played if each.outcome.status == "halted"]
    failed = [each for each in played if each.outcome.status not in {"completed", "halted"}]
    return [
        *_common(shop, completed, halted, failed),
        *_killed(shop, [each for each in played if each.worked is not None and each.worked.kill is not None]),
    ]


def _common(shop: Shop, completed: Sequence[Played], halted: Sequence[Played], failed: Sequence[Played]) -> list[Check]:
    return [
        Check(
            all(each.on_hand + each.reserved + each.shipped == each.at_start for each in shop.stock.goods.values()),
            "stock: on hand + reserved + shipped = at start, for every article",
        ),
        Check(
            sum(account.kept for account in shop.gateway.accounts.values())
            == sum(map(_total, completed)) + sum(_account(shop, each).kept for each in halted),
            "money: charged - refunded = the totals of orders that completed or wait for review",
        ),
        Check(
            not any(effects(shop, each) for each in failed),
            f"rollback: orders that failed ({len(failed)}) left nothing reserved, held, kept, shipped or noted",
        ),
        Check(
            all(_kept_in_full(shop, each) for each in halted),
            f"halt: orders that wait for review ({len(halted)}) keep their goods and their payment",
        ),
    ]


def _killed(shop: Shop, killed: Sequence[Played]) -> list[Check]:
    """Nothing when no worker was killed."""
    text = (
        f"killed workers ({len(killed)}): another process went on with their orders, and what it had to ask for "
        "again was done once"
    )
    return [Check(all(_once(shop, each) for each in killed), text)] if killed else []


def _once(shop: Shop, played: Played) -> bool:
    """Whether its money was moved once in each direction at most, and by more than one process."""
    account, outcome = _account(shop, played), played.outcome
    worked = played.worked
    total = outcome.value.total if isinstance(outcome, Success) else outcome.results.get("total", account.charged)
    return (
        worked is not None
        and worked.successor is not None
        and account.charged in {0, total}
        and account.refunded in {0, account.charged}
    )


def effects(shop: Shop, played: Played) -> list[str]:
    """What an order still occupies in the systems, in words; empty when it left no trace."""
    return list(_effects(shop, played.order.label))


def _effects(shop: Shop, order_id: str) -> Iterator[str]:
    account = shop.gateway.accounts.get(order_id, Account())
    if pieces := shop.stock.reserved_for(order_id):
        yield f"{pieces} reserved"
    if account.held:
        yield f"{money(account.held)} held"
    if account.kept:
        yield f"{money(account.kept)} charged"
    if order_id in shop.carrier.parcels:
        yield f"parcel {shop.carrier.parcels[order_id].tracking}"
    if points := shop.loyalty.points.get(order_id):
        yield f"{points} points"


def money(cents: int) -> str:
    """``1,234.50``."""
    return f"{cents / 100:,.2f}"


def ledgers(shop: Shop) -> dict[str, Any]:
    """The systems' books as plain data; money in cents."""
    return {
        "stock": {sku: asdict(goods) for sku, goods in shop.stock.goods.items()},
        "payments": {
            order: {**asdict(account), "kept": account.kept} for order, account in shop.gateway.accounts.items()
        },
        "shipments": {order: label.tracking for order, label in shop.carrier.parcels.items()},
        "points": dict(shop.loyalty.points),
    }


def _account(shop: Shop, played: Played) -> Account:
    return shop.gateway.accounts.get(played.order.label, Account())


def _total(played: Played) -> int:
    return played.outcome.value.total if isinstance(played.outcome, Success) else 0


def _kept_in_full(shop: Shop, played: Played) -> bool:
    kept = _account(shop, played).kept
    return kept > 0 and kept == played.outcome.results["total"] and shop.stock.reserved_for(played.order.label) > 0
