"""What the engine asks of coordination, answered by a `Coordinator` over a store."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import asdict
from typing import Any, TypeVar, cast

from aioreactor.coordination import scopes
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.desk import Notice
from aioreactor.coordination.gates import Terms, Wanted
from aioreactor.coordination.holds import Holds
from aioreactor.coordination.orders import Position
from aioreactor.coordination.periods import PeriodClaimed
from aioreactor.coordination.rates import Spender
from aioreactor.coordination.reports import KeyReport
from aioreactor.coordination.slots import Parking
from aioreactor.definition.primitives import Lock, OrderedLock, Primitive, Semaphore
from aioreactor.engine.coordinating import Asking, Heard, PeriodTaken, Wish
from aioreactor.errors import ContentionError, OutOfTurn
from aioreactor.logs import note
from aioreactor.store.errors import StoreError

logger = logging.getLogger("aioreactor.coordination")
P = TypeVar("P", bound=Primitive)


class Gatekeeper:
    """See `engine.ports.Coordinator`.

    Args:
        coordinator: What it stands on; it stays the caller's.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._heard: dict[str, Heard] = {}
        self._elsewhere = coordinator.observer

    # ------------------------------------------------------------------ places

    def place(self, around: Any, name: str) -> scopes.Scope:
        """See `engine.ports.Coordinator`."""
        return scopes.Scope(around, name)

    def here(self) -> scopes.Scope | None:
        """See `engine.ports.Coordinator`."""
        return scopes.current_scope()

    def holder(self, place: scopes.Scope, wish: Wish) -> str:
        """See `engine.ports.Coordinator`."""
        if isinstance(wish.primitive, OrderedLock):
            return place.name if place.holds_turn(wish.key) else ""
        entry = place.find(wish.primitive.kind, wish.key)
        return entry.lease.label if entry is not None and entry.lease.slot.limit == 1 else ""

    def settle(self, context: Context, place: Any) -> None:
        """See `engine.ports.Coordinator`."""
        context.run(scopes.set_scope, place)

    def listen(self, place: Any, heard: Heard | None) -> None:
        """See `engine.ports.Coordinator`."""
        if heard is None:
            self._heard.pop(place.name, None)
            return
        if self._coordinator.observer != self._hear:
            self._elsewhere, self._coordinator.observer = self._coordinator.observer, self._hear
        self._heard[place.name] = heard

    def _hear(self, notice: Notice) -> None:
        heard = self._heard.get(notice.scope)
        if heard is not None:
            heard(notice.fact, notice.kind, notice.key, notice.waited)
        if self._elsewhere is not None:
            self._elsewhere(notice)

    async def inspect(self, key: str) -> KeyReport:
        """Everything there is of a key.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        return await self._coordinator.inspect(key)

    # ------------------------------------------------------------------ taking

    async def acquire(self, wishes: Sequence[Wish], asking: Asking) -> Holds:
        """See `engine.ports.Coordinator`.

        Cancellation: nothing is held.
        """
        given: list[Position] = []
        try:
            wanted = [await self._wanted(wish, asking, given) for wish in wishes if not _nested(wish, asking)]
            return await self._coordinator.acquire(wanted, self._terms(asking))
        except BaseException as error:
            if asking.wake is None or not _comes_back(error):
                await self._resign(given)
            if isinstance(error, PeriodClaimed):
                raise PeriodTaken(str(error)) from error
            raise

    async def _wanted(self, wish: Wish, asking: Asking, given: list[Position]) -> Wanted:
        if not isinstance(wish.primitive, OrderedLock):
            return Wanted(_patient(wish.primitive) if asking.undoing else wish.primitive, wish.key)
        stored = asking.positions.get(wish.key)
        if stored is not None:
            return Wanted(wish.primitive, wish.key, Position(**stored))
        position = Position(**await self.assign(wish, asking.token))
        given.append(position)
        return Wanted(wish.primitive, wish.key, position)

    def _terms(self, asking: Asking) -> Terms:
        parking, wait = None, asking.wait
        if asking.wake is not None:
            parking, wait = Parking(asking.wake, asking.alive, asking.tickets), 0.0
        return Terms(
            asking.place,
            asking.place.name,
            wait=wait,
            admitted=asking.admitted,
            on_lost=asking.on_lost,
            parking=parking,
            outer_holds=asking.outer,
            spender=Spender(*asking.spender) if asking.spender is not None else None,
            bound=None if not asking.bound else "undoing" if asking.undoing else "doing",
        )

    async def adopt(self, data: Mapping[str, Any], asking: Asking) -> tuple[Holds, frozenset[str]]:
        """See `engine.ports.Coordinator`.

        Cancellation: what was adopted ends by itself.
        """
        holds, _ = await self._coordinator.adopt(data, self._terms(asking))
        kept = {f"{lease.slot.kind} {lease.slot.key}" for lease in holds.leases}
        return holds, frozenset(kept | {f"ordered_lock {turn.position.key}" for turn in holds.turns})

    # ------------------------------------------------------------------ positions

    async def assign(self, wish: Wish, token: str) -> dict[str, Any]:
        """See `engine.ports.Coordinator`.

        Cancellation: it may have been handed out; the token finds it.
        """
        position = await self._coordinator.assign(cast("OrderedLock", wish.primitive), wish.key, token, token)
        return asdict(position)

    async def assign_all(self, wanted: Sequence[tuple[Wish, str]]) -> list[dict[str, Any]]:
        """See `engine.ports.Coordinator`.

        Cancellation: some may have been handed out.
        """
        asked = [(cast("OrderedLock", wish.primitive), wish.key, token) for wish, token in wanted]
        return [asdict(position) for position in await self._coordinator.assign_all(asked)]

    async def beat(self, positions: Mapping[str, Mapping[str, Any]]) -> bool:
        """Signs of life of positions whose runs cannot give them; whether one of them is there still.

        Raises:
            StoreError: The store is away.

        Cancellation: some were given.
        """
        found = [await self._coordinator.beat(Position(**stored)) for stored in positions.values()]
        return any(found)

    async def finish(self, positions: Mapping[str, Mapping[str, Any]], *, failed: bool) -> None:
        """Positions are done; those that are gone are left alone.

        Raises:
            StoreError: The store is away.

        Cancellation: some were done.
        """
        for stored in positions.values():
            await self._coordinator.finish(Position(**stored), failed=failed)

    async def resign(self, wishes: Sequence[Wish], asking: Asking) -> None:
        """See `engine.ports.Coordinator`.

        Cancellation: some may be left, and end by themselves.
        """
        await self._coordinator.withdraw(asking.tickets)
        asking.tickets.clear()
        given = [Position(**stored) for stored in asking.positions.values()]
        lines = [
            wish for wish in wishes if isinstance(wish.primitive, OrderedLock) and wish.key not in asking.positions
        ]
        try:
            given += [Position(**await self.assign(wish, asking.token)) for wish in lines]
        except StoreError as error:
            note(logger, logging.WARNING, "release_failed", "it is passed over later", error=error)
        await self._resign(given)

    async def _resign(self, positions: Sequence[Position]) -> None:
        for position in positions:
            try:
                await self._coordinator.finish(position, failed=False)
            except StoreError as error:
                text = "it is passed over later"
                note(logger, logging.WARNING, "release_failed", text, key=position.key, error=error)


def _comes_back(error: BaseException) -> bool:
    if isinstance(error, OutOfTurn):
        return error.reason == "waiting"
    return isinstance(error, ContentionError) and not isinstance(error, PeriodClaimed) and not error.cycle


def _nested(wish: Wish, asking: Asking) -> bool:
    """Whether it is a turn inside a turn of the same key: waiting for it would be for ever."""
    if not isinstance(wish.primitive, OrderedLock) or not asking.place.holds_turn(wish.key):
        return False
    text = "it is inside a turn of the same key already, and goes on in that"
    note(logger, logging.WARNING, "turn_not_nested", text, key=wish.key)
    return True


def _patient(primitive: P) -> P:
    """As a rollback takes it: it waits, since what it is for must not be left undone."""
    if not isinstance(primitive, Lock | Semaphore):
        return primitive
    waiting = copy.copy(primitive)
    waiting.wait = primitive.ttl if primitive.rollback_wait is None else primitive.rollback_wait
    return waiting
