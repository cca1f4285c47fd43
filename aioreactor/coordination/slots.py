"""Locks and semaphores are taken here: a slot at the server, waited for in line, or entered again.

Within a lease's first entry a chain of scopes enters without asking the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from aioreactor.coordination.cycles import Cycle, Wait
from aioreactor.coordination.desk import GRACE, RECHECK, Desk, new_token, settled
from aioreactor.coordination.inbox import Summons
from aioreactor.coordination.leases import Entry, Lease, Slot, give_back
from aioreactor.coordination.renewer import trust
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.watching import OuterHolds, Watch, watch_of
from aioreactor.errors import LeaseLost
from aioreactor.store.calls import Value
from aioreactor.store.errors import StoreError

__all__ = ["Bound", "Entry", "Lease", "Line", "Parking", "Slot", "enter", "give_back", "take"]

Bound: TypeAlias = Literal["doing", "undoing"]
"""That of one whose surrounding holds are not given back before it has ended: going forward, or rolling back."""


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


async def enter(
    desk: Desk,
    slot: Slot,
    scope: Scope,
    *,
    wait: float,
    label: str = "",
    on_lost: Callable[[LeaseLost], None] | None = None,
    parking: Parking | None = None,
    bound: Bound | None = None,
    outer_holds: OuterHolds | None = None,
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
        bound: What the scopes around hold is not given back before this one has ended, so that it may wait in a ring.
        outer_holds: Tokens of what is held elsewhere until this one has ended.

    Raises:
        ContentionError: It was not to be had within ``wait``.
        StoreError: The store is away.

    Cancellation: nothing is held.
    """
    began = time.monotonic()
    while True:
        outer = scope.find(slot.kind, slot.key)
        if outer is None or (slot.kind == "semaphore" and outer.turn.taken):
            ways: Any = {"label": label, "parking": parking, "bound": bound, "outer_holds": outer_holds}
            lease = await take(desk, slot, scope, wait=wait, began=began, **ways)
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
    bound: Bound | None = None,
    outer_holds: OuterHolds | None = None,
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
    wait_for = Wait(token, slot.kind, slot.key, 0, bound == "undoing")
    watch = watch_of(desk, wait_for, scope, outer_holds) if bound is not None else None
    if watch is not None and ticket is not None:
        watch.goes_on()
    line = Line(desk, slot, token, label, watch)
    try:
        lease = await line.ask(stay=wait > 0 and desk.inbox.is_open)
        if lease is None:
            desk.tell("contended", slot.kind, slot.key, scope.name)
            lease = await line.stand(began + wait) if wait > 0 else None
        if lease is None and parking is not None and line.cycle is None:
            lease = await line.park(parking)
        if lease is not None:
            await line.unwatch()
    except (asyncio.CancelledError, StoreError):
        if parking is not None and ticket is not None:
            parking.tickets[slot.name] = ticket  # others may know it: whoever asks has it given back, or does not
        else:
            # Whether the last question was sent, and answered, is not known.
            await settled(line.leave())
        raise
    if lease is None:
        if line.cycle is not None or (wait > 0 and parking is None):
            await line.leave()
        raise slot.unavailable(line.cycle)
    desk.renewer.keep(lease)
    desk.tell("acquired", slot.kind, slot.key, scope.name, time.monotonic() - began)
    return lease


class Line:
    """One that asks for a slot.

    Attributes:
        ms_left: Until the first lease ends, when it asked last.
        cycle: The ring of waits for which it is not to wait any more.
    """

    def __init__(self, desk: Desk, slot: Slot, token: str, label: str, watch: Watch | None = None) -> None:
        self.ms_left = 0
        self.cycle: Cycle | None = None
        self._watch = watch
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
                lease = await self.ask(stay=True)
                if lease is not None or await self._in_ring(GRACE):
                    return lease
                lease = await self._summoned(summons, until)
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
            stays = lease is None and not await self._in_ring(parking.alive)
        except BaseException:
            self._desk.inbox.forget(self._token)
            raise
        if stays:
            parking.tickets[self._slot.name] = self._token
        else:
            self._desk.inbox.forget(self._token)
        return lease

    async def _in_ring(self, alive: float) -> bool:
        if self._watch is not None:
            self.cycle = await self._watch.look(alive)
        return self.cycle is not None

    async def unwatch(self) -> None:
        """It does not wait any more.

        Cancellation: others may look for it for a while, and do not find it in line.
        """
        if self._watch is not None:
            await self._watch.drop()

    async def leave(self) -> None:
        """Give back whatever there is: a slot, a place in line, or neither.

        Cancellation: it is given back all the same.
        """
        await give_back(self._desk, self._slot, self._token)
        await self.unwatch()

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
