"""The gates before a body, in their fixed order, and what lets a body through.

Ordered turn, period, rate limit, lock, semaphore, period again: what is likely to refuse at once comes first, what is
held comes last, and a period is looked at again under the lock, since somebody may have succeeded while we waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from aioreactor.coordination import orders, periods, rates, slots
from aioreactor.coordination.calendars import Bucket
from aioreactor.coordination.desk import Desk
from aioreactor.coordination.holds import Holds
from aioreactor.coordination.keys import SlotKind
from aioreactor.coordination.orders import Position, Turn
from aioreactor.coordination.periods import Claim
from aioreactor.coordination.rates import Spender
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Bound, Entry, Lease, Parking, Slot
from aioreactor.coordination.sparing import spare
from aioreactor.coordination.watching import OuterHolds
from aioreactor.definition.primitives import Lock, OrderedLock, Period, Primitive, RateLimit, Semaphore
from aioreactor.errors import ContentionError, LeaseLost, OutOfTurn

_ORDER = ("ordered_lock", "period", "rate_limit", "lock", "semaphore")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A declaration with its key computed; an ordered lock with the position that was assigned to it."""

    primitive: Primitive
    key: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a body passes its gates.

    Attributes:
        scope: Whose; what the scopes around it hold is entered again.
        label: Who, for people.
        wait: Seconds for each gate, instead of the primitive's own.
        admitted: It passed those that spend something before (rate limit, period); they are left out.
        on_lost: Called in the loop, once for each hold that is lost.
        parking: How to be called when a lock, semaphore or turn that was refused is there.
        bound, outer_holds: See `slots.enter`.
        spender: Who spends rate limits, where that is known again after a crash.
    """

    scope: Scope
    label: str = ""
    wait: float | None = None
    admitted: bool = False
    on_lost: Callable[[LeaseLost], None] | None = None
    parking: Parking | None = None
    bound: Bound | None = "doing"
    outer_holds: OuterHolds | None = None
    spender: Spender | None = None

    def wait_of(self, primitive: Any) -> float:
        """Seconds to wait for this one."""
        return float(primitive.wait) if self.wait is None else self.wait


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """By gate, and within a gate by key: everybody takes them in the same order."""
    return sorted(wanted, key=lambda each: (_ORDER.index(each.primitive.kind), each.key))


class Limits:
    """The rate limits among what is wanted; an unknown name is a mistake of configuration, found before all else."""

    def __init__(self, ordered: Sequence[Wanted], terms: Terms, named: Mapping[str, Mapping[str | float, int]]) -> None:
        self.windows: dict[int, rates.Windows] = {}
        self.keep = rates.RESTORABLE
        self.spenders: dict[int, Spender] = {}
        for each in ordered if not terms.admitted else ():
            if isinstance(each.primitive, RateLimit):
                if terms.spender is not None:  # a key may be limited in two ways
                    name = f"{terms.spender.name}#{len(self.windows)}"
                    self.spenders[id(each)] = terms.spender._replace(name=name)
                self.windows[id(each)] = rates.Windows.of(each.primitive, each.key, named)
            if not isinstance(each.primitive, Period | OrderedLock):
                # As long as a later gate may take, this can be given back.
                self.keep += terms.wait_of(each.primitive)


class Gates:
    """Takes one thing after another; what refuses has everything before it given back.

    Args:
        desk: Of this event loop.
        named: Configured rate limits.
    """

    def __init__(self, desk: Desk, named: Mapping[str, Mapping[str | float, int]]) -> None:
        self._desk = desk
        self._named = named

    async def acquire(self, wanted: Sequence[Wanted], terms: Terms) -> Holds:
        """See `Coordinator.acquire`.

        Cancellation: nothing is held.
        """
        holds = Holds(self._desk, terms.scope, terms.label)
        ordered = in_order(wanted)
        limits = Limits(ordered, terms, self._named)
        try:
            for each in ordered:
                await self._pass(each, holds, terms, limits)
            await self._again(ordered, holds, terms)
        except BaseException as error:
            await holds.give_back()
            if terms.parking is not None and isinstance(error, ContentionError):
                await spare(self._desk, terms.parking, error)
            raise
        return holds

    async def _pass(self, each: Wanted, holds: Holds, terms: Terms, limits: Limits) -> None:
        primitive = each.primitive
        if isinstance(primitive, OrderedLock):
            holds.turns.append(await self._turn(primitive, each, terms))
        elif isinstance(primitive, Lock | Semaphore):
            holds.entries.append(await self._slot(primitive, each.key, terms))
        elif isinstance(primitive, RateLimit) and not terms.admitted:
            holds.spent.append(
                await rates.spend(
                    self._desk,
                    limits.windows[id(each)],
                    terms.scope.name,
                    wait=terms.wait_of(primitive),
                    keep=limits.keep,
                    spender=limits.spenders.get(id(each)),
                )
            )
        elif isinstance(primitive, Period) and not terms.admitted:
            holds.claims.append(await self._claim(primitive, each.key, terms))

    async def _again(self, ordered: Sequence[Wanted], holds: Holds, terms: Terms) -> None:
        again = [each for each in ordered if isinstance(each.primitive, Period)]
        if terms.admitted or not holds.entries or not again:
            return
        holds.claims = [await self._claim(cast("Period", each.primitive), each.key, terms) for each in again]

    async def _claim(self, primitive: Period, key: str, terms: Terms) -> Claim:
        claim = await periods.check(self._desk, primitive, key)
        if not claim.first:
            self._desk.tell("contended", "period", key, terms.scope.name)
            raise claim.refusal()
        return claim

    async def _slot(self, primitive: Lock | Semaphore, key: str, terms: Terms) -> Entry:
        return await slots.enter(
            self._desk,
            Slot.of(primitive, key),
            terms.scope,
            wait=terms.wait_of(primitive),
            label=terms.label,
            on_lost=terms.on_lost,
            parking=terms.parking,
            bound=terms.bound,
            outer_holds=terms.outer_holds,
        )

    async def _turn(self, primitive: OrderedLock, each: Wanted, terms: Terms) -> Turn:
        if each.position is None:
            raise ValueError(f"ordered lock {each.key!r}: a position has to be assigned first")
        listens = terms.parking is not None
        if terms.parking is not None:
            await self._desk.inbox.open()
            self._desk.inbox.call_back(each.position.token, terms.parking.wake)
        try:
            turn = await orders.take_turn(
                self._desk,
                each.position,
                terms.scope,
                strict=primitive.strict,
                wait=terms.wait_of(primitive),
                on_lost=terms.on_lost,
                listens=listens,
            )
        except BaseException as error:
            if not isinstance(error, OutOfTurn) or error.reason != "waiting":
                self._desk.inbox.forget(each.position.token)
            raise
        self._desk.inbox.forget(each.position.token)
        return turn

    async def adopt(self, data: Mapping[str, Any], terms: Terms) -> tuple[Holds, list[str]]:
        """See `Coordinator.adopt`.

        Cancellation: what was adopted is let go of, and ends by itself.
        """
        holds, lost = Holds(self._desk, terms.scope, terms.label), []
        for row in data["leases"]:
            slot = Slot(
                cast("SlotKind", row["kind"]), row["key"], row["limit"], row["ttl"], row["extends"], row["on_lost"]
            )
            lease = Lease(self._desk, slot, row["token"], row["fence"], 0.0, terms.label)
            if await lease.renew(ttl=slot.ttl):
                lost.append(slot.name)
                continue
            self._desk.renewer.keep(lease)
            holds.entries.append(Entry(lease, terms.scope, None, terms.on_lost))
        for row in data["turns"]:
            asked, position = time.monotonic(), Position(**row)
            if await orders.beat(self._desk, position):
                lost.append(f"ordered_lock:{position.key}")
            else:
                holds.turns.append(Turn(self._desk, position, asked, terms.scope, terms.on_lost))
        holds.claims = [Claim(key, field, Bucket(start, end), True) for key, field, start, end in data["claims"]]
        return holds, lost
