"""What the demo prints: a tree per order, a table of all, the books, and whether they balance."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aioreactor import Failure, Halt, Success
from aioreactor.cli.demo.audit import Check, effects, ledgers, money
from aioreactor.cli.demo.checkout import Checkout
from aioreactor.cli.demo.orders import OrderFile
from aioreactor.cli.demo.play import NotRun, Played
from aioreactor.cli.demo.report_workers import by_whom, where_done, worked_json
from aioreactor.cli.demo.systems import Shop
from aioreactor.cli.draw_trace import STYLES, draw_run, mark, span
from aioreactor.cli.output import Symbols, printable
from aioreactor.cli.plan_texts import action_text
from aioreactor.cli.trace_json import milliseconds, run_dict

SHAPE = """\
reserve (each line), screen   at the same time
total                         adds up
payment                       a reactor of its own: authorize, then charge
review                        may halt the run
ship, points                  at the same time
confirm                       hands the goods over"""


NEXT = """\
The workflow is aioreactor/cli/demo/checkout.py. Its picture:
  aioreactor graph aioreactor.cli.demo.checkout:Checkout"""


def introduction(file: OrderFile, symbols: Symbols) -> RenderableType:
    """What is about to happen."""
    legend = Text("  ").join(
        Text.assemble(mark(status, symbols), " ", word)
        for status, word in (
            ("completed", "done"),
            ("failed", "failed"),
            ("skipped", "skipped"),
            ("halted", "halted"),
        )
    )
    legend.append_text(Text.assemble("  ", (symbols.retry, "yellow"), " tried again"))
    legend.append_text(Text.assemble("  ", (symbols.undone, "magenta"), " undone"))
    orders, away = len(file.orders), sum(order.worker for order in file.orders)
    handed = f"; {away} of them in worker processes" if away else ""
    return Group(
        Text(f"{orders} orders go through one check-out{handed}."),
        Text("It works on four systems: stock, cards, carrier, points."),
        Text("When a step fails, whatever was done before is undone, newest first."),
        Padding(Text(SHAPE, style="dim"), (1, 0, 1, 3)),
        legend,
        "",
    )


def order_tree(played: Played, symbols: Symbols) -> RenderableType:
    """One order: what it was given, its steps, its rollback."""
    head = Text.assemble(
        mark(_status(played), symbols),
        " ",
        (printable(played.order.label), "bold"),
        "  ",
        (verdict(played), STYLES.get(_status(played), "")),
        (f"  {span(played.tree.duration)}".rstrip(), "dim"),
    )
    if played.order.about:
        head.append(f"\n{printable(played.order.about)}", style="italic")
    head.append(f"\n{printable(_given(played))}", style="dim")
    for line in by_whom(played):
        head.append(f"\n{line}", style="blue")
    where = partial(where_done, played.worked, symbols) if played.worked is not None else _nowhere
    tree = draw_run(played.tree, symbols, head, partial(action_text, Checkout.plan), where)
    return Padding(tree, (0, 0, 1, 0))


def verdict(played: Played) -> str:
    """What became of the order, in two words or three."""
    outcome = played.outcome
    if isinstance(outcome, Failure) and not outcome.trace:
        return "refused, nothing ran"
    if isinstance(outcome, Failure):
        left = len(outcome.rollback_failures)
        rolled = f"{left} rollback actions did NOT complete" if left else "rolled back"
        return f"failed at {outcome.step}, {rolled}"
    if isinstance(outcome, Halt):
        return f"halted at {outcome.step}, keeps what was done"
    return outcome.status


def why(played: Played) -> str:
    """The reason, or what the customer got, in one line."""
    outcome = played.outcome
    if isinstance(outcome, Success):
        return f"{money(outcome.value.total)} paid, {outcome.value.points} points"
    if isinstance(outcome, Halt):
        return str(outcome.reason)
    if isinstance(outcome, Failure) and outcome.field_errors:
        return f"not valid: {', '.join(outcome.field_errors)}"
    return f"{outcome.step}: {outcome.message}" if isinstance(outcome, Failure) else ""


def summary(shop: Shop, played: Sequence[Played], symbols: Symbols) -> RenderableType:
    """A row per order, with what it still occupies in the systems."""
    table = Table(title="What became of them", title_justify="left", title_style="bold", expand=False)
    table.add_column("order", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("why")
    table.add_column("left in the systems")
    for each in played:
        status = _status(each)
        short = "refused" if not each.outcome.trace else each.outcome.status
        table.add_row(
            printable(each.order.label),
            Text.assemble(mark(status, symbols), " ", (short, STYLES.get(status, ""))),
            printable(why(each)),
            ", ".join(effects(shop, each)) or Text("nothing", style="dim"),
        )
    return table


def books(shop: Shop, checks: Sequence[Check], symbols: Symbols) -> RenderableType:
    """The ledgers of stock and payments, and what was checked."""
    lines = [
        Text.assemble(
            (f"{symbols.completed} " if check.ok else f"{symbols.failed} ", "green" if check.ok else "bold red"),
            check.text,
        )
        for check in checks
    ]
    good = all(check.ok for check in checks)
    last = Text(
        "The books balance." if good else "The books do NOT balance.", style="bold green" if good else "bold red"
    )
    return Group("", _stock_table(shop), "", _payment_table(shop), "", *lines, "", last, "", Text(NEXT, style="dim"))


def as_json(
    shop: Shop, played: Sequence[Played], checks: Sequence[Check], not_run: NotRun | None = None
) -> dict[str, Any]:
    """All of it as plain data; money in cents, spans in milliseconds."""
    return {
        "orders": [_order_json(shop, each) for each in played],
        "not_run": None if not_run is None else {"orders": list(not_run.orders), "reason": not_run.reason},
        "ledgers": ledgers(shop),
        "checks": [check._asdict() for check in checks],
        "balanced": all(check.ok for check in checks),
    }


def _order_json(shop: Shop, played: Played) -> dict[str, Any]:
    outcome = played.outcome
    return {
        "order_id": played.order.label,
        "about": played.order.about,
        "inputs": dict(played.inputs),
        "value": outcome.value if isinstance(outcome, Success) else None,
        "why": why(played),
        "left_in_systems": effects(shop, played),
        "duration_ms": milliseconds(played.tree.duration),
        "worker": worked_json(played.worked),
        "run": run_dict(played.tree),
    }


def _nowhere(_kind: str, _path: str) -> str:
    return ""


def _status(played: Played) -> str:
    return played.outcome.status


def _given(played: Played) -> str:
    lines = played.inputs.get("lines")
    shown = {name: value for name, value in played.inputs.items() if name not in {"order_id", "lines"}}
    parts = [f"{name}={value}" for name, value in shown.items()]
    return ", ".join([*parts, f"lines={_count(lines)}"])


def _count(lines: object) -> object:
    return len(lines) if isinstance(lines, Sized) and not isinstance(lines, str) else lines


def _stock_table(shop: Shop) -> Table:
    table = Table(title="Stock, in pieces", title_justify="left", title_style="bold")
    table.add_column("article")
    for name in ("at start", "on hand", "reserved", "shipped"):
        table.add_column(name, justify="right")
    for sku, goods in shop.stock.goods.items():
        counts = (goods.at_start, goods.on_hand, goods.reserved, goods.shipped)
        table.add_row(printable(sku), *map(str, counts))
    return table


def _payment_table(shop: Shop) -> Table:
    accounts = shop.gateway.accounts
    table = Table(title="Payments", title_justify="left", title_style="bold", show_footer=True)
    table.add_column("order", "total")
    for name in ("held", "charged", "refunded", "kept"):
        table.add_column(name, money(sum(getattr(each, name) for each in accounts.values())), justify="right")
    for order_id, account in accounts.items():
        amounts = (account.held, account.charged, account.refunded, account.kept)
        table.add_row(printable(order_id), *map(money, amounts))
    return table
