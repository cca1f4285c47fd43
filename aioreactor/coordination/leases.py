"""Slots, and leases of them: a lock is a semaphore of one slot. A lease is a slot that this process has at the server.

Entries are the shares that scopes of this process have in it. It is given back when the last entry is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from aioreactor.coordination.cycles import Cycle
from aioreactor.coordination.desk import GRACE, Desk, settled
from aioreactor.coordination.keys import SlotKind
from aioreactor.coordination.renewer import Kept, trust
from aioreactor.coordination.scopes import LocalTurn, Scope
from aioreactor.definition.primitives import Lock, Semaphore
from aioreactor.errors import ContentionError, LeaseLost, LockUnavailable, SemaphoreUnavailable
from aioreactor.logs import note
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

    def unavailable(self, cycle: Cycle | None = None) -> ContentionError:
        """What to raise."""
        text = f"lock {self.key!r} is held by another owner"
        if self.kind == "semaphore":
            text = f"semaphore {self.key!r}: all {self.limit} slots are taken"
        if cycle is not None:
            text += f", and waiting would never end: {cycle}"
        error = (LockUnavailable if self.kind == "lock" else SemaphoreUnavailable)(self.key, text)
        error.cycle = tuple(map(str, cycle.links)) if cycle is not None else ()
        return error


class Lease(Kept):
    """A slot that this process holds, renewed until it is given back.

    Attributes:
        token: By which the server knows the holder.
        fence: Grows with each holder of the key.
        entries: The shares in it.
    """

    __slots__ = ("desk", "entries", "fence", "label", "slot", "token")

    def __init__(self, desk: Desk, slot: Slot, token: str, fence: int, trusted_until: float, label: str = "") -> None:
        super().__init__(slot.ttl, trusted_until, extends=slot.extends)
        self.desk = desk
        self.slot = slot
        self.token = token
        self.fence = fence
        self.label = label
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
