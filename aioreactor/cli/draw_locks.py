"""Keys of coordination, drawn: their holders, waiters, counters, markers and lines; and the same as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from aioreactor.coordination.reports import KeyReport, OrderReport, SlotReport
    from aioreactor.durable.owners import Owner

Printable = Callable[[str], str]


def named(owner: Owner | None, label: str) -> str:
    """Who it is, for people."""
    if owner is None or not owner.run:
        return label or "somebody"
    step = f", step {owner.step}" if owner.step else ""
    return f"run {owner.run}{step}" + (f", attempt {owner.attempt}" if owner.attempt > 1 else "")


def span(seconds: float) -> str:
    """So long, in a unit that fits."""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def moment(seconds: float) -> str:
    """A time, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


# ---------------------------------------------------------------------- one key


def draw_key(report: KeyReport, owners: Mapping[str, Owner], printable: Printable) -> list[RenderableType]:
    """Everything there is of a key."""
    parts = list(_parts(report, lambda label: printable(named(owners.get(label), label))))
    if not parts:
        return [Text(printable(f"Nobody holds or waits for {report.key!r}, and nothing was counted or marked."))]
    return [Text(printable(repr(report.key)), style="bold"), *parts]


def _parts(report: KeyReport, who: Callable[[str], str]) -> Iterator[RenderableType]:
    for slots in (report.lock, report.semaphore):
        if slots is not None:
            yield from _slots(slots, who)
    if report.counters:
        yield from _table(
            "rate limit", ("window", "used", "limit", "counted", "all free in"),
            [(span(each.window), f"{each.used}", f"{each.limit}", each.algorithm, span(each.rolls_in))
             for each in report.counters],
        )  # fmt: skip
    if report.markers:
        yield from _table(
            "period", ("bucket", "began", "marked", "by"),
            [(each.bucket, moment(each.starts), moment(each.marked_at), who(each.marked_by))
             for each in report.markers],
        )  # fmt: skip
    if report.order is not None:
        yield from _order(report.order, who)


def _slots(slots: SlotReport, who: Callable[[str], str]) -> Iterator[RenderableType]:
    taken = f"{slots.kind}, {len(slots.holders)} of {slots.limit} taken" if slots.kind == "semaphore" else slots.kind
    holders = [(who(each.label), span(each.age), span(each.time_left), f"{each.token}") for each in slots.holders]
    yield from _table(taken, ("held by", "for", "time left", "token"), holders or [("nobody", "", "", "")])
    if slots.waiters:
        rows = [
            (f"{place}", who(each.label), span(each.alive_for) if each.alive_for > 0 else "given up")
            for place, each in enumerate(slots.waiters, 1)
        ]
        yield from _table(f"in line for the {slots.kind}", ("place", "who", "alive for"), rows)


def _order(order: OrderReport, who: Callable[[str], str]) -> Iterator[RenderableType]:
    failed = f", the first that failed: {order.first_failed}" if order.first_failed is not None else ""
    rows = [
        (
            f"{each.number}",
            who(each.label),
            "in flight" if each.running else "waits",
            span(each.silent_for),
            span(each.poison_after - each.silent_for),
        )
        for each in order.places
    ]
    title = f"ordered lock, {order.handed_out} positions were handed out{failed}"
    yield from _table(title, ("position", "who", "", "silent for", "passed over in"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    yield Text(title)
    yield table


# ---------------------------------------------------------------------- many keys


def draw_keys(found: Sequence[tuple[KeyReport, Mapping[str, Owner]]], printable: Printable) -> Table:
    """What is in use, a line for each kind of each key."""
    rows: list[tuple[str, ...]] = []
    for report, owners in found:
        for slots in (report.lock, report.semaphore):
            if slots is not None:
                first = [printable(named(owners.get(each.label), each.label)) for each in slots.holders]
                rows.append((printable(report.key), slots.kind, _several(first), f"{len(slots.waiters)}"))
        if report.order is not None:
            running = report.order.in_flight
            first = [printable(named(owners.get(running.label), running.label))] if running is not None else []
            waiting = len(report.order.places) - len(first)
            rows.append((printable(report.key), "ordered lock", _several(first), f"{waiting}"))
    table = Table()
    for name in ("key", "kind", "held by", "in line"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _several(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0] if names else "nobody"


# ---------------------------------------------------------------------- plain data


def as_data(report: KeyReport, owners: Mapping[str, Owner]) -> dict[str, Any]:
    """A report as plain data; whoever has a label has ``run``, ``step`` and ``attempt``, too, if it is of a run."""
    data: dict[str, Any] = msgspec.to_builtins(report)
    for slots in (data["lock"], data["semaphore"]):
        for each in (*slots["holders"], *slots["waiters"]) if slots is not None else ():
            each.update(_owner(owners.get(each["label"])))
    if report.order is not None:
        running = report.order.in_flight
        data["order"]["in_flight"] = running.number if running is not None else None
        for each in data["order"]["places"]:
            each.update(_owner(owners.get(each["label"])))
    return data


def _owner(owner: Owner | None) -> dict[str, Any]:
    if owner is None or not owner.run:
        return {"run": None, "step": None, "attempt": None}
    return {"run": owner.run, "step": owner.step or None, "attempt": owner.attempt or None}
