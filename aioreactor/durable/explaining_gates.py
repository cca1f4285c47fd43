"""What a step or a run waits for at its gates, as the keys themselves tell it: who holds them, and who is in line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from aioreactor.coordination.reports import KeyReport, OrderReport, SlotReport
from aioreactor.explanations import Reason, ReasonKind

MOST = 3
"""So many holders are named."""


class Inspects(Protocol):
    """See `durable.gatekeeper.Gatekeeper`."""

    async def inspect(self, key: str) -> KeyReport:
        """Everything there is of a key."""
        ...


class Keys:
    """Looks at each key once, however many steps wait for it."""

    def __init__(self, looks: Inspects) -> None:
        self._looks = looks
        self._seen: dict[str, KeyReport] = {}

    async def inspect(self, key: str) -> KeyReport:
        """Everything there is of a key.

        Raises:
            StoreError: the store is away.

        Cancellation: nothing happens.
        """
        if key not in self._seen:
            self._seen[key] = await self._looks.inspect(key)
        return self._seen[key]


async def refused(
    keys: Keys, name: str, path: str, label: str, since: float | None, until: float | None
) -> Reason | None:
    """Why a step or run that was refused by ``name`` (``lock order:7``) waits; ``label`` is what its own begin with."""
    kind, _, key = name.partition(" ")
    if kind not in ("lock", "semaphore", "rate_limit", "ordered_lock"):
        return None
    report = await keys.inspect(key)
    if kind == "rate_limit":
        return _rate(report, path, since, until)
    if kind == "ordered_lock":
        return _line(report, path, label, since, until)
    return _slots(report, kind, path, label, since, until)


async def waiting(keys: Keys, names: Sequence[str], path: str, label: str) -> Reason | None:
    """The reason of one that stands in line for one of these where it is executed; None if it does not.

    For a rate limit nobody stands in line, so that such a wait cannot be told from a body at work.
    """
    for name in names:
        kind, _, key = name.partition(" ")
        report = await keys.inspect(key)
        if kind in ("lock", "semaphore"):
            slots = report.lock if kind == "lock" else report.semaphore
            if slots is not None and any(_is_own(waiter.label, label) for waiter in slots.waiters):
                return _slots(report, kind, path, label, None, None)
        if kind == "ordered_lock" and report.order is not None:
            own = [place for place in report.order.places if _is_own(place.label, label)]
            if own and not own[0].running and own[0] is not report.order.places[0]:
                return _line(report, path, label, None, None)
    return None


def _is_own(label: str, own: str) -> bool:
    return label == own or label.startswith(f"{own}:")


def _slots(report: KeyReport, kind: str, path: str, label: str, since: float | None, until: float | None) -> Reason:
    found: SlotReport | None = report.lock if kind == "lock" else report.semaphore
    what, word = f"{kind} {report.key!r}", cast("ReasonKind", kind)
    if found is None or not found.holders:
        return Reason(word, f"waits for {what}, which nobody holds now", path, since, until)
    holders = ", ".join(f"{each.label} for {each.age:.0f} s" for each in found.holders[:MOST])
    more = f" and {len(found.holders) - MOST} more" if len(found.holders) > MOST else ""
    of = f"{len(found.holders)} of {found.limit} slots: " if kind == "semaphore" else ""
    line = [place for place, waiter in enumerate(found.waiters, 1) if _is_own(waiter.label, label)]
    place = f"; {line[0]} of {len(found.waiters)} in line" if line else ""
    return Reason(
        word, f"waits for {what}, held by {of}{holders}{more}{place}", path, since, until, found.holders[0].label
    )


def _rate(report: KeyReport, path: str, since: float | None, until: float | None) -> Reason:
    what = f"rate limit {report.key!r}"
    full = [each for each in report.counters if each.used >= each.limit]
    if not full:
        return Reason("rate_limit", f"waits for {what}, which has room again", path, since, until)
    used = ", ".join(f"{each.used} of {each.limit} in {each.window:g} s are used" for each in full)
    rolls = max(each.rolls_in for each in full)
    return Reason("rate_limit", f"waits for {what}: {used}; all of it is free in {rolls:.1f} s", path, since, until)


def _line(report: KeyReport, path: str, label: str, since: float | None, until: float | None) -> Reason:
    what, order = f"its turn in ordered lock {report.key!r}", report.order
    own, first = _places(order, label)
    if order is None or first is None or own is first:
        return Reason("ordered_lock", f"waits for {what}, which has come", path, since, until)
    does = (
        "runs" if first.running else f"is silent for {first.silent_for:.0f} s, passed over after {first.poison_after:g}"
    )
    mine = f" at position {own.number}" if own is not None else ""
    text = f"waits for {what}{mine}; the line stands at {first.number}, {first.label}, which {does}"
    return Reason("ordered_lock", text, path, since, until, first.label)


def _places(order: OrderReport | None, label: str) -> tuple[Any, Any]:
    """One's own place in a line, and the first."""
    if order is None or not order.places:
        return None, None
    own = next((place for place in order.places if _is_own(place.label, label)), None)
    return own, order.in_flight or order.places[0]
