"""Primitives used alone: ``async with Lock("order:7") as held``.

Each ``async with`` is a body in a scope of its own, inside the scope of the body that runs here. Tasks that a body
starts inherit its scope by their context.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aioreactor.coordination import orders, periods, rates, slots
from aioreactor.coordination.desk import Desk, new_token, settled
from aioreactor.coordination.orders import Position, Turn
from aioreactor.coordination.periods import Claim
from aioreactor.coordination.scopes import Scope, current_scope, set_scope
from aioreactor.coordination.slots import Entry, Slot
from aioreactor.definition.primitives import Lock, OrderedLock, Period, Primitive, RateLimit, Semaphore
from aioreactor.errors import LeaseLost
from aioreactor.logs import note
from aioreactor.store.errors import StoreError

if TYPE_CHECKING:
    from aioreactor.coordination.coordinator import Coordinator

logger = logging.getLogger("aioreactor.coordination")
_NOWHERE = Scope()
_SLOTS = (Lock, Semaphore)


class Entered:
    """What ``async with`` gives: something that is here until it is left.

    Attributes:
        key: Of the primitive.
    """

    def __init__(self, key: str, scope: Scope) -> None:
        self.key = key
        self._scope = scope

    def is_here(self) -> bool:
        """Whether it was entered in this context, or around it."""
        here = current_scope()
        return here is not None and here.is_within(self._scope)

    async def leave(self, error: BaseException | None) -> None:
        """Leave it; ``error`` is what the body raised.

        Cancellation: it is left all the same.
        """
        self._step_out()

    def _step_out(self) -> None:
        # Others may be entered inside and left later; the scope is out of sight when it is the innermost.
        if current_scope() is self._scope:
            set_scope(self._scope.parent)


class _Guarded(Entered):
    """One whose body is cancelled when the hold is lost."""

    def __init__(self, key: str, scope: Scope) -> None:
        super().__init__(key, scope)
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._lost: LeaseLost | None = None
        self._left = False

    def _on_lost(self, error: LeaseLost) -> None:
        # A task that asks itself is told by what `check` raises; cancelled as well, it would be so one await later.
        if self._task is not None and not self._left and self._task is not asyncio.current_task():
            self._lost = error
            self._task.cancel(str(error))

    def _leaving(self) -> None:
        """From now on nothing cancels the body."""
        self._left = True
        self._step_out()

    def _raise_lost(self, error: BaseException | None) -> None:
        """Tell the body's own cancellation from one that comes from outside.

        Raises:
            LeaseLost: the body was cancelled for it, and for nothing else.
        """
        if self._lost is None or self._task is None:
            return
        if self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            raise self._lost from error


class Held(_Guarded):
    """A `Lock` or a `Semaphore` that is held."""

    entry: Entry

    @property
    def token(self) -> int:
        """The fencing token: it only grows per key, for storage that refuses an older one."""
        return self.entry.lease.fence

    @property
    def lost(self) -> LeaseLost | None:
        """Why it is not held any more, as far as is known."""
        return self.entry.lease.error

    async def check(self) -> None:
        """Return if it is held now; asks the store.

        Raises:
            LeaseLost: It is not.
            StoreError: The store could not be asked.

        Cancellation: nothing happens.
        """
        await self.entry.lease.check()

    async def leave(self, error: BaseException | None) -> None:
        """Give it back, and raise `LeaseLost` if the body was cancelled for it.

        Cancellation: it is given back all the same.
        """
        self._leaving()
        try:
            await self.entry.leave()
        finally:
            self._raise_lost(error)


class HeldTurn(_Guarded):
    """A turn of an `OrderedLock`.

    Attributes:
        position: In the line, from 1; 0 if the body is inside a turn of the same key, which goes on.
    """

    turn: Turn | None = None
    position = 0

    async def check(self) -> None:
        """Return if it is still its turn; asks the store.

        Raises:
            LeaseLost: It was passed over.
            StoreError: The store could not be asked.

        Cancellation: nothing happens.
        """
        if self.turn is not None:
            await self.turn.check()

    async def leave(self, error: BaseException | None) -> None:
        """Let the line advance; anything that was raised is a failure.

        Cancellation: it advances all the same.
        """
        self._leaving()
        try:
            if self.turn is not None and self.turn.error is None:
                await self.turn.end(failed=error is not None)
        finally:
            self._raise_lost(error)


class HeldClaim(Entered):
    """A calendar bucket. ``first`` is false if somebody succeeded in it already."""

    claim: Claim
    _desk: Desk
    _label: str

    @property
    def first(self) -> bool:
        """Whether nobody had succeeded in this bucket."""
        return self.claim.first

    @property
    def starts(self) -> Any:
        """When the bucket begins, as a datetime in UTC."""
        return self.claim.starts

    async def leave(self, error: BaseException | None) -> None:
        """Mark the bucket if the body succeeded.

        Raises:
            StoreError: It could not be marked.

        Cancellation: it is marked all the same.
        """
        self._step_out()
        if error is None and self.claim.first:
            await settled(periods.mark(self._desk, self.claim, self._label))


async def enter(coordinator: Coordinator, primitive: Primitive) -> Entered:
    """Take a primitive for the body that begins here.

    Raises:
        ContentionError: It was not to be had within its ``wait``.
        UnknownRateLimit: Its limits are not configured.
        ValueError: Its key is computed from inputs, which there are none of here.
        StoreError: The store is away.

    Cancellation: nothing is held.
    """
    if callable(primitive.key):
        reason = "its key is computed from inputs or arguments; alone it needs a text"
        raise ValueError(f"{primitive!r}: {reason}")  # noqa: TRY004 - it is of a right type, for another place
    key, desk = primitive.key, coordinator.desk()
    if isinstance(primitive, RateLimit):
        return await _spent(coordinator, desk, primitive, key)
    scope = Scope(current_scope(), coordinator.label)
    entered = await _taken(coordinator, desk, primitive, key, scope)
    set_scope(scope)
    return entered


async def _taken(coordinator: Coordinator, desk: Desk, primitive: Primitive, key: str, scope: Scope) -> Entered:
    if isinstance(primitive, _SLOTS):
        held = Held(key, scope)
        held.entry = await slots.enter(
            desk, Slot.of(primitive, key), scope, wait=primitive.wait, label=coordinator.label, on_lost=held._on_lost
        )
        return held
    if isinstance(primitive, Period):
        found = HeldClaim(key, scope)
        found.claim, found._desk, found._label = await periods.check(desk, primitive, key), desk, coordinator.label
        return found
    assert isinstance(primitive, OrderedLock)
    return await _turn(coordinator, desk, primitive, key, scope)


async def _spent(coordinator: Coordinator, desk: Desk, primitive: RateLimit, key: str) -> Entered:
    windows = rates.Windows.of(primitive, key, coordinator.rate_limits)
    await rates.spend(desk, windows, coordinator.label, wait=primitive.wait)
    # Nothing is held, and nothing is left: it needs no scope.
    return Entered(key, _NOWHERE)


async def _turn(coordinator: Coordinator, desk: Desk, primitive: OrderedLock, key: str, scope: Scope) -> HeldTurn:
    held = HeldTurn(key, scope)
    if scope.holds_turn(key):
        text = "it is inside a turn of the same key already, and goes on in that"
        note(logger, logging.WARNING, "turn_not_nested", text, key=key)
        return held
    position = await _position(coordinator, desk, primitive, key)
    try:
        held.turn = await orders.take_turn(
            desk, position, scope, strict=primitive.strict, wait=primitive.wait, on_lost=held._on_lost
        )
    except BaseException:
        await settled(orders.leave_line(desk, position))
        raise
    held.position = position.number
    return held


async def _position(coordinator: Coordinator, desk: Desk, primitive: OrderedLock, key: str) -> Position:
    token = new_token()
    assigning = orders.assign(desk, key, primitive.poison_after, token=token, label=coordinator.label)
    try:
        return await assigning
    except asyncio.CancelledError:
        await settled(_unassign(coordinator, desk, primitive, key, token))
        raise


async def _unassign(coordinator: Coordinator, desk: Desk, primitive: OrderedLock, key: str, token: str) -> None:
    # Whether a position was handed out is not known: the same token finds it, or gets one.
    try:
        position = await orders.assign(desk, key, primitive.poison_after, token=token, label=coordinator.label)
        await orders.finish(desk, position, failed=False)
    except StoreError as error:
        note(logger, logging.WARNING, "release_failed", "it is passed over later", key=key, error=error)
