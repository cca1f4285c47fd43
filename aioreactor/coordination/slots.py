"""Locks and semaphores: both are slots of a key, a lock has one. Taken, waited for, entered again, given back.

A lease is a slot at the server; entries are the shares that scopes of this process have in it. It is given back when
the last entry is left. Within a lease's first entry a chain of scopes enters without asking the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aioreactor.coordination.desk import GRACE, RECHECK, Desk, new_token, settled
from aioreactor.coordination.inbox import Summons
from aioreactor.coordination.keys import SlotKind
from aioreactor.coordination.renewer import trust
from aioreactor.coordination.scopes import LocalTurn, Scope
from aioreactor.definition.primitives import Lock, Semaphore
from aioreactor.errors import ContentionError, LeaseLost, LockUnavailable, SemaphoreUnavailable
from aioreactor.logs import note
from aioreactor.store.calls import Value
from aioreactor.store.client import LEASE_LANE
from aioreactor.store.errors import StoreError

logger = logging.getLogger("aioreactor.coordination")
_LETTING_GO = 2.0
"""Seconds for which giving back is tried when the store is away: the lease ends by itself."""

_REASONS = {"gone": "it was taken from us, or the store forgot it", "expired": "its time was over"}


@dataclass(frozen=True, slots=True)
class Slot:
    """One of ``limit`` places at a key. Spans in seconds."""

    kind: SlotKind
    key: str
    limit: int
    ttl: float
    extends: bool
    on_lost: Literal["cancel", "warn"]

    @classmethod
    def of(cls, primitive: Lock | Semaphore, key: str) -> Slot:
        """What a declaration asks for."""
        if primitive.resolved is not None:
            resolved: Slot = primitive.resolved
            return resolved
        limit = primitive.limit if isinstance(primitive, Semaphore) else 1
        kind: SlotKind = "semaphore" if isinstance(primitive, Semaphore) else "lock"
        made = cls(kind, key, limit, primitive.ttl, primitive.auto_extend, primitive.on_lost)
        if primitive.key == key:
            primitive.resolved = made
        return made

    @property
    def name(self) -> str:
        """Kind and key as one text."""
        return f"{self.kind}:{self.key}"

    @property
    def ttl_ms(self) -> int:
        """As the scripts want it."""
        return int(self.ttl * 1000)

    @property
    def grace(self) -> float:
        """For how long a waiter has it when it is given to it."""
        return min(self.ttl, GRACE)

    def unavailable(self) -> ContentionError:
        """What to raise."""
        if self.kind == "lock":
            return LockUnavailable(self.key, f"lock {self.key!r} is held by another owner")
        return SemaphoreUnavailable(self.key, f"semaphore {self.key!r}: all {self.limit} slots are taken")


@dataclass(slots=True)
class Parking:
    """For one that goes away when it is refused, and is called when the key was given to it.

    Attributes:
        wake: Called once, in this loop; from then on the key is kept for it for `GRACE` seconds.
        alive: Seconds for which its place in line is kept.
        tickets: Its places, by `Slot.name`; plain data, to be passed again by whoever comes back, wherever.
    """

    wake: Callable[[], None]
    alive: float = 60.0
    tickets: dict[str, str] = field(default_factory=dict)


class Lease:
    """A slot that this process holds, renewed until it is given back.

    Attributes:
        token: By which the server knows the holder.
        fence: Grows with each holder of the key.
        trusted_until: `time.monotonic` until which nobody else can have it.
        error: Set when it was lost.
        entries: The shares in it.
    """

    __slots__ = (
        "desk", "entries", "error", "extends", "fence", "label", "renewing", "slot", "token", "trusted_until", "ttl",
    )  # fmt: skip

    def __init__(self, desk: Desk, slot: Slot, token: str, fence: int, trusted_until: float, label: str = "") -> None:
        self.desk = desk
        self.slot = slot
        self.token = token
        self.fence = fence
        self.label = label
        self.trusted_until = trusted_until
        self.ttl = slot.ttl
        self.extends = slot.extends
        self.renewing = False
        self.error: LeaseLost | None = None
        self.entries: list[Entry] = []

    async def renew(self, *, retry_for: float | None = None, ttl: float | None = None) -> str:
        """Make it last, or with ``auto_extend`` off, look whether it is there; why it is lost, or nothing.

        Cancellation: it was renewed, or not.
        """
        asked, more = time.monotonic(), self.ttl if ttl is None else ttl
        ttl_ms = int(more * 1000) if self.extends or ttl is not None else 0
        keys = self.desk.keys.slots(self.slot.kind, self.slot.key)[:2]
        reply = await self.desk.call("slot_renew", keys, [self.token, ttl_ms], lane=LEASE_LANE, retry_for=retry_for)
        if reply.word == "LOST":
            why: str = reply.values[0].decode()
            return _REASONS.get(why, why)
        if not ttl_ms:
            self.trusted_until = max(self.trusted_until, trust(asked, reply.values[0] / 1000))
        else:
            self.trusted_until = max(self.trusted_until, trust(asked, more))
        return ""

    async def check(self) -> None:
        """Return if it is surely held now.

        Raises:
            LeaseLost: It is not.
            StoreError: The store could not be asked.

        Cancellation: nothing happens.
        """
        if self.error is None:
            why = await self.renew()
            if why:
                self.lose(why)
        if self.error is not None:
            raise self.error

    def lose(self, why: str) -> None:
        """Note that it is lost, and tell every share in it, once."""
        if self.error is not None:
            return
        self.desk.renewer.drop(self)
        self.error = LeaseLost(self.slot.key, why)
        text = "what it protects goes on" if self.slot.on_lost == "warn" else "what it protected is cancelled"
        note(logger, logging.WARNING, "hold_lost", text, kind=self.slot.kind, key=self.slot.key, reason=why)
        for entry in list(self.entries):
            self.desk.tell("lost", self.slot.kind, self.slot.key, entry.scope.name)
            entry.tell(self.error)

    async def release(self) -> None:
        """Give it back; the next in line has it at once. If the store is away, it ends by itself.

        Cancellation: it is given back all the same.
        """
        self.desk.renewer.drop(self)
        await give_back(self.desk, self.slot, self.token)


class Entry:
    """A scope's share in a lease.

    Attributes:
        turn: Of the bodies inside it that enter again.
        outer: The entry within which it was made.
    """

    __slots__ = ("lease", "on_lost", "outer", "scope", "turn")

    def __init__(
        self, lease: Lease, scope: Scope, outer: Entry | None, on_lost: Callable[[LeaseLost], None] | None
    ) -> None:
        self.lease = lease
        self.scope = scope
        self.outer = outer
        self.on_lost = on_lost
        self.turn = LocalTurn()
        scope.entries.append(self)
        lease.entries.append(self)

    def tell(self, error: LeaseLost) -> None:
        """The lease is lost."""
        if self.on_lost is not None and self.lease.slot.on_lost == "cancel":
            self.on_lost(error)

    @property
    def is_open(self) -> bool:
        """Whether it was not left yet."""
        return self in self.scope.entries

    def close(self) -> bool:
        """Leave it without a word to the server; whether it was the last share in its lease."""
        if not self.is_open:
            return False
        self.scope.entries.remove(self)
        self.lease.entries.remove(self)
        if self.outer is not None:
            self.outer.turn.give()
        return not self.lease.entries

    async def leave(self) -> None:
        """Leave it; the last share gives the slot back. Calling it again does nothing.

        Cancellation: the same.
        """
        if self.close():
            slot, desk = self.lease.slot, self.lease.desk
            await self.lease.release()
            if self.lease.error is None:
                desk.tell("released", slot.kind, slot.key, self.scope.name)


async def give_back(desk: Desk, slot: Slot, token: str) -> None:
    """Be rid of a slot, of a place in line, or of whatever a call that was cut off has left of either.

    Cancellation: the same.
    """
    keys = desk.keys.slots(slot.kind, slot.key)
    try:
        try:
            await desk.call("slot_release", keys, [token], retry_for=_LETTING_GO)
        except asyncio.CancelledError:
            # Whether it was sent is not known; the second time does no harm.
            await settled(_again(desk, keys, token))
            raise
    except StoreError as error:
        text = "the store is away; the hold ends by itself"
        note(logger, logging.WARNING, "release_failed", text, kind=slot.kind, key=slot.key, error=error)


async def _again(desk: Desk, keys: Any, token: str) -> None:
    try:
        await desk.call("slot_release", keys, [token], retry_for=_LETTING_GO)
    except StoreError as error:
        note(logger, logging.WARNING, "release_failed", "the hold ends by itself", key=keys[0], error=error)


async def enter(
    desk: Desk,
    slot: Slot,
    scope: Scope,
    *,
    wait: float,
    label: str = "",
    on_lost: Callable[[LeaseLost], None] | None = None,
    parking: Parking | None = None,
) -> Entry:
    """Have a share in a slot: within one that the chain of scopes holds, else a slot of its own.

    Args:
        desk: Of this event loop.
        slot: Which.
        scope: Whose; what it and those around it hold is entered again.
        wait: Seconds from now.
        label: Who, for people.
        on_lost: Called once, in the loop, if the slot's ``on_lost`` is "cancel".
        parking: On refusal, keep a place in line; and the places that were kept before.

    Raises:
        ContentionError: It was not to be had within ``wait``.
        StoreError: The store is away.

    Cancellation: nothing is held.
    """
    began = time.monotonic()
    while True:
        outer = scope.find(slot.kind, slot.key)
        if outer is None or (slot.kind == "semaphore" and outer.turn.taken):
            lease = await take(desk, slot, scope, wait=wait, label=label, began=began, parking=parking)
            return Entry(lease, scope, None, on_lost)
        if not await outer.turn.take(began + wait - time.monotonic()):
            if parking is not None:
                outer.turn.call_back(parking.wake)
            raise slot.unavailable()
        if outer.is_open:
            return Entry(outer.lease, scope, outer, on_lost)
        outer.turn.give()


async def take(
    desk: Desk,
    slot: Slot,
    scope: Scope,
    *,
    wait: float = 0,
    label: str = "",
    began: float | None = None,
    parking: Parking | None = None,
) -> Lease:
    """A slot at the server; see `enter`.

    Raises:
        ContentionError: It was not to be had within ``wait``.
        StoreError: The store is away.

    Cancellation: nothing is held; a place in line that was kept before is kept, and may have been given a slot.
    """
    began = time.monotonic() if began is None else began
    ticket = parking.tickets.pop(slot.name, None) if parking is not None else None
    if ticket is not None:
        desk.inbox.forget(ticket)
    token = ticket or new_token()
    line = Line(desk, slot, token, label)
    try:
        lease = await line.ask(stay=wait > 0 and desk.inbox.is_open)
        if lease is None:
            desk.tell("contended", slot.kind, slot.key, scope.name)
            lease = await line.stand(began + wait) if wait > 0 else None
        if lease is None and parking is not None:
            lease = await line.park(parking)
    except (asyncio.CancelledError, StoreError):
        if parking is not None and ticket is not None:
            parking.tickets[slot.name] = ticket  # others may know it: whoever asks has it given back, or does not
        else:
            # Whether the last question was sent, and answered, is not known.
            await settled(give_back(desk, slot, token))
        raise
    if lease is None:
        if wait > 0 and parking is None:
            await give_back(desk, slot, token)
        raise slot.unavailable()
    desk.renewer.keep(lease)
    desk.tell("acquired", slot.kind, slot.key, scope.name, time.monotonic() - began)
    return lease


class Line:
    """One that asks for a slot.

    Attributes:
        ms_left: Until the first lease ends, when it asked last.
    """

    def __init__(self, desk: Desk, slot: Slot, token: str, label: str) -> None:
        self.ms_left = 0
        self._desk = desk
        self._slot = slot
        self._token = token
        self._label = label
        self._keys = desk.keys.slots(slot.kind, slot.key)
        self._first = False
        self._given_before = 0
        self._asked = 0.0

    async def ask(self, *, stay: bool, alive: float = GRACE, parks: bool = False) -> Lease | None:
        """Try once; with ``stay``, stand in line from now on, and count as alive for ``alive`` seconds.

        One that parks need not listen: what it is given is kept for it for `GRACE`, wherever it comes back.

        Raises:
            StoreError: The store is away.

        Cancellation: whether it has a slot, or a place in line, is not known.
        """
        slot, self._asked = self._slot, time.monotonic()
        alive_ms = int(alive * 1000) if stay else 0
        grace_ms, heard = int((GRACE if parks else slot.grace) * 1000), int(self._desk.is_heard and not parks)
        args: list[Value] = [self._token, slot.limit, slot.ttl_ms, alive_ms, grace_ms, heard]
        args += [self._desk.inbox.channel, self._label]
        reply = await self._desk.call("slot_take", self._keys, args)
        if reply.word == "TAKEN":
            return self._lease(reply.values[0], slot.ttl)
        self.ms_left = reply.values[0]
        self._first = False
        if reply.word == "WAITS":
            _, ahead, self._given_before = reply.values
            self._first = ahead == 0
        return None

    async def stand(self, until: float) -> Lease | None:
        """Wait in line until then.

        Raises:
            StoreError: The store is away.

        Cancellation: whether it has a slot, or a place in line, is not known.
        """
        with self._desk.inbox.expect(self._token) as summons:
            await self._desk.inbox.open()
            while True:
                lease = await self.ask(stay=True) or await self._summoned(summons, until)
                if lease is not None or time.monotonic() >= until:
                    return lease

    async def park(self, parking: Parking) -> Lease | None:
        """Leave a place in line, unless there is a slot now.

        Raises:
            StoreError: The store is away.

        Cancellation: whether it has a slot, or a place in line, is not known.
        """
        await self._desk.inbox.open()
        self._desk.inbox.call_back(self._token, parking.wake)
        try:
            lease = await self.ask(stay=True, alive=parking.alive, parks=True)
        except BaseException:
            self._desk.inbox.forget(self._token)
            raise
        if lease is None:
            parking.tickets[self._slot.name] = self._token
        else:
            self._desk.inbox.forget(self._token)
        return lease

    async def _summoned(self, summons: Summons, until: float) -> Lease | None:
        pause = min(RECHECK, self._slot.grace / 3, until - time.monotonic())
        if self._first:
            pause = min(pause, (self.ms_left + 1) / 1000)
        fence = await summons.wait(pause)
        # What was given before we asked may be over: asking tells. A message of that can come after the answer.
        if fence is None or fence <= self._given_before:
            return None
        # It was given to us after we asked, for no less than the grace: so much is sure. If we slept longer, we ask.
        lease = self._lease(fence, self._slot.grace)
        return lease if time.monotonic() < lease.trusted_until else None

    def _lease(self, fence: int, lasts: float) -> Lease:
        return Lease(self._desk, self._slot, self._token, fence, trust(self._asked, lasts), self._label)
