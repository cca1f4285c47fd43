"""The one object through which primitives are taken, shown and freed: of one store, in any number of event loops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from aioreactor.coordination import alone, orders, reports, slots, watching
from aioreactor.coordination.alone import Entered
from aioreactor.coordination.cycles import Cycle, Wait
from aioreactor.coordination.desk import Audience, Desk, Observer
from aioreactor.coordination.gates import Gates, Terms, Wanted
from aioreactor.coordination.holds import Holds
from aioreactor.coordination.keys import CoordinationKeys, SlotKind
from aioreactor.coordination.orders import Position, Seat
from aioreactor.coordination.reports import KeyReport
from aioreactor.coordination.slots import Slot
from aioreactor.definition.primitives import OrderedLock, Primitive
from aioreactor.logs import note
from aioreactor.store.client import StoreClient
from aioreactor.store.pushes import Pushes
from aioreactor.store.store import default_owner

logger = logging.getLogger("aioreactor.coordination")


class Coordinator(Audience):
    """Coordination over one store.

    Args:
        client: The way to the server; it stays the caller's.
        pushes: Gives the subscriptions of the running event loop; they stay the caller's.
        prefix: Of all keys.
        rate_limits: Limits by name.
        observer: Called, in the loop, with everything that happens to a key; it must not raise.

    Attributes:
        label: Who takes primitives alone, for people: this host and process.
    """

    def __init__(
        self,
        client: StoreClient,
        pushes: Callable[[], Pushes],
        *,
        prefix: str = "aioreactor",
        rate_limits: Mapping[str, Mapping[str | float, int]] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.keys = CoordinationKeys(prefix)
        self.rate_limits = rate_limits or {}
        self.observer = observer
        self.label = default_owner()
        self._client = client
        self._pushes = pushes
        self._last: Desk | None = None
        self._desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()

    def desk(self) -> Desk:
        """What this event loop has of it."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last.loop is loop:
            return last
        desk = self._desks.get(loop)
        if desk is None:
            desk = self._desks[loop] = Desk(self._client, self._pushes(), self.keys, self)
        self._last = desk
        return desk

    async def aclose(self) -> None:
        """Keep nothing of this event loop any more; what is still held ends by itself.

        Cancellation: the same.
        """
        self._last = None
        desk = self._desks.pop(asyncio.get_running_loop(), None)
        if desk is not None:
            await desk.aclose()

    # ------------------------------------------------------------------ alone

    def enter(self, primitive: Primitive) -> Coroutine[Any, Any, Entered]:
        """Take a primitive for the body that begins here, to be awaited; see `alone.enter`."""
        return alone.enter(self, primitive)

    # ------------------------------------------------------------------ for the engine

    async def acquire(self, wanted: Sequence[Wanted], terms: Terms) -> Holds:
        """Pass all gates, in their fixed order; what refuses has everything before it given back.

        Raises:
            LockUnavailable, SemaphoreUnavailable, RateLimited, OutOfTurn, PeriodClaimed: That gate refuses. With
                ``terms.parking``, a lock, semaphore or turn has a place in line, and calls when it is there.
            UnknownRateLimit: Found before anything is taken.
            ValueError: A key cannot be one, or a position is missing.
            StoreError: The store is away.

        Cancellation: nothing is held.
        """
        return await Gates(self.desk(), self.rate_limits).acquire(wanted, terms)

    async def assign(self, primitive: OrderedLock, key: str, token: str, label: str = "") -> Position:
        """The next position in the line of a key; a ``token`` (of a run) that has one keeps it.

        Raises:
            StoreError: The store is away; with the same token it can be tried again.

        Cancellation: it may have been handed out.
        """
        return await orders.assign(self.desk(), key, primitive.poison_after, token=token, label=label)

    async def assign_all(self, wanted: Sequence[tuple[OrderedLock, str, str]]) -> list[Position]:
        """The next positions for many, each a primitive, a key and a token, in this order; see `assign`.

        Raises:
            StoreError: The store is away; some may have been handed out.

        Cancellation: some may have been handed out.
        """
        seats = [Seat(key, primitive.poison_after, token, token) for primitive, key, token in wanted]
        return await orders.assign_all(self.desk(), seats)

    async def beat(self, position: Position) -> bool:
        """A sign of life of a position that waits in a queue; False if it is gone.

        Raises:
            StoreError: The store is away.

        Cancellation: it was given, or not.
        """
        return not await orders.beat(self.desk(), position)

    async def finish(self, position: Position, *, failed: bool) -> bool:
        """A position is done, though its turn is not held here (refused by a strict chain, cancelled); False if gone.

        Raises:
            StoreError: The store is away.

        Cancellation: it was done, or not.
        """
        return await orders.finish(self.desk(), position, failed=failed)

    async def adopt(self, data: Mapping[str, Any], terms: Terms) -> tuple[Holds, list[str]]:
        """Go on with what `Holds.park` or `Holds.to_data` gave; and what of it was lost ("lock:order:7").

        Raises:
            StoreError: The store is away.

        Cancellation: what was adopted ends by itself.
        """
        return await Gates(self.desk(), self.rate_limits).adopt(data, terms)

    async def withdraw(self, tickets: Mapping[str, str]) -> None:
        """Give up the places in line of a `Parking`.

        Cancellation: the same.
        """
        desk = self.desk()
        for name, token in tickets.items():
            kind, _, key = name.partition(":")
            found: SlotKind = "lock" if kind == "lock" else "semaphore"
            desk.inbox.forget(token)
            await slots.give_back(desk, Slot(found, key, 1, 1, False, "warn"), token)

    async def find_cycle(self, tickets: Mapping[str, str]) -> Cycle | None:
        """The ring of waits that one of the places in line of a `Parking` is part of.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        for name, token in tickets.items():
            kind, _, key = name.partition(":")
            wait = Wait(token, "lock" if kind == "lock" else "semaphore", key)
            cycle = await watching.find_cycle(self.desk(), wait)
            if cycle is not None:
                return cycle
        return None

    # ------------------------------------------------------------------ for operators

    async def inspect(self, key: str) -> KeyReport:
        """Everything there is of a key.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        return await reports.inspect(self.desk(), key)

    @property
    def can_list(self) -> bool:
        """Whether `keys_in_use` can be asked: not of a cluster, whose nodes have some of the names each."""
        return self._client._settings.endpoint.kind != "cluster"

    async def keys_in_use(self, limit: int = 100) -> list[str]:
        """Keys that somebody holds, waits for or stands in line for; goes through the names of all keys of the server.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        return await reports.keys_in_use(self.desk(), limit)

    async def force_release(self, key: str, kind: SlotKind = "lock") -> list[str]:
        """Take the slots of a key from whoever holds them, and give them to those in line; labels of who lost one.

        Raises:
            StoreError: The store is away.

        Cancellation: it was done, or not.
        """
        desk = self.desk()
        reply = await desk.call("slot_force", desk.keys.slots(kind, key))
        freed = [label.decode() for label in reply.values[0]]
        note(logger, logging.WARNING, "force_released", kind=kind, key=key, holders=freed)
        return freed

    async def skip(self, key: str) -> int | None:
        """See `OrderedLock.skip`.

        Cancellation: it was done, or not.
        """
        desk = self.desk()
        reply = await desk.call("order_skip", desk.keys.order(key))
        if reply.word == "EMPTY":
            return None
        number, label = reply.values
        note(logger, logging.WARNING, "position_skipped", key=key, position=number, holder=label.decode())
        return int(number)

    async def reset(self, key: str) -> int:
        """See `OrderedLock.reset`.

        Cancellation: it was done, or not.
        """
        desk = self.desk()
        reply = await desk.call("order_reset", desk.keys.order(key))
        note(logger, logging.WARNING, "line_reset", key=key, positions=reply.values[0])
        return int(reply.values[0])
