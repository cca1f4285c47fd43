"""Ordered locks: positions are handed out, and have their turn strictly one after another.

Positions of a key that are in line together are an epoch; when the last one is done, nothing is left of it. A position
gives signs of life, queued or running; one that gave none for `poison_after` is passed over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from aioreactor.coordination.desk import RECHECK, Desk, new_token, settled
from aioreactor.coordination.renewer import Kept, trust
from aioreactor.coordination.scopes import Scope
from aioreactor.errors import LeaseLost, OutOfTurn
from aioreactor.logs import note
from aioreactor.store.calls import Value
from aioreactor.store.client import DEFAULT_LANE, LEASE_LANE
from aioreactor.store.errors import StoreError
from aioreactor.store.scripts import Reply

logger = logging.getLogger("aioreactor.coordination")
PER_SCRIPT = 250
"""Positions that one script hands out; some milliseconds of the server's one thread."""

_LETTING_GO = 2.0
_REASONS = {
    "STALE": ("stale_epoch", "the line that it stood in is long gone"),
    "PASSED": ("passed_over", "it is done, gave no sign of life, or was skipped"),
    "FAILED": ("ordered_chain_failed", "an earlier one failed, and the chain is strict"),
}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the line of a key. Plain data, to be stored and sent.

    Attributes:
        epoch: Of the line; another one is another line.
        number: From 1, in the order in which they were handed out.
        poison_after: Seconds without a sign of life after which it is passed over.
    """

    key: str
    epoch: str
    number: int
    token: str
    poison_after: float


class Seat(NamedTuple):
    """A position that is wanted; a ``token`` that has one keeps it."""

    key: str
    poison_after: float
    token: str
    label: str = ""


async def assign(desk: Desk, key: str, poison_after: float, *, token: str | None = None, label: str = "") -> Position:
    """The next position in the line of a key; a ``token`` that has one keeps it.

    Raises:
        StoreError: The store is away; without a token of the caller's, a position may be left until it is poison.

    Cancellation: as for an error.
    """
    (position,) = await assign_all(desk, [Seat(key, poison_after, token or new_token(), label)])
    return position


async def assign_all(desk: Desk, seats: Sequence[Seat]) -> list[Position]:
    """The next positions of many, in this order in the line of each key; a round trip for `PER_SCRIPT` of each key.

    Raises:
        StoreError: The store is away; some may have been handed out.

    Cancellation: as for an error.
    """
    left: dict[str, deque[Seat]] = {}
    for seat in seats:
        left.setdefault(seat.key, deque()).append(seat)
    found: dict[tuple[str, str], Position] = {}
    while left:
        some = [[line.popleft() for _ in range(min(len(line), PER_SCRIPT))] for line in left.values()]
        calls = [(desk.keys.order(part[0].key), [arg for seat in part for arg in _arguments(seat)]) for part in some]
        for part, reply in zip(some, await desk.call_all("order_assign", calls), strict=True):
            epoch, numbers = reply.values
            for seat, number in zip(part, numbers, strict=True):
                place = Position(seat.key, epoch.decode(), number, seat.token, seat.poison_after)
                found[seat.key, seat.token] = place
        left = {key: line for key, line in left.items() if line}
    return [found[seat.key, seat.token] for seat in seats]


def _arguments(seat: Seat) -> tuple[Value, Value, Value]:
    return seat.token, int(seat.poison_after * 1000), seat.label


async def beat(
    desk: Desk, position: Position, stage: str = "", *, lane: str = LEASE_LANE, retry_for: float | None = None
) -> str:
    """A sign of life, and with ``stage`` what it does from now on; why the position is lost, or nothing.

    Raises:
        StoreError: The store is away.

    Cancellation: it was given, or not.
    """
    args: list[Value] = [position.epoch, position.number, position.token, stage]
    reply = await desk.call("order_beat", desk.keys.order(position.key), args, lane=lane, retry_for=retry_for)
    if reply.word == "ALIVE":
        return ""
    return "its line was reset" if reply.values[0] == b"stale" else "it was passed over"


async def finish(desk: Desk, position: Position, *, failed: bool) -> bool:
    """The position is done, the line advances; False if it was gone.

    Raises:
        StoreError: The store is away.

    Cancellation: it was done, or not; it does no harm to do it again.
    """
    args: list[Value] = [position.epoch, position.number, position.token, int(failed)]
    reply = await desk.call("order_finish", desk.keys.order(position.key), args)
    return reply.word == "FINISHED"


class Turn(Kept):
    """A position whose turn it is; gives signs of life until it is over, or it is passed over all the same."""

    __slots__ = ("desk", "on_lost", "position", "scope")

    def __init__(
        self, desk: Desk, position: Position, asked: float, scope: Scope, on_lost: Callable[[LeaseLost], None] | None
    ) -> None:
        super().__init__(position.poison_after, trust(asked, position.poison_after))
        self.desk = desk
        self.position = position
        self.scope = scope
        self.on_lost = on_lost
        scope.turns.append(position.key)
        desk.renewer.keep(self)

    async def renew(self, *, retry_for: float | None = None) -> str:
        """Give a sign of life; why it is lost, or nothing.

        Cancellation: it was given, or not.
        """
        asked = time.monotonic()
        why = await beat(self.desk, self.position, retry_for=retry_for)
        if not why:
            self.trusted_until = max(self.trusted_until, trust(asked, self.ttl))
        return why

    def lose(self, why: str) -> None:
        """Note that it was passed over, and tell the holder, once."""
        if self.error is not None:
            return
        self.drop()
        key = self.position.key
        self.error = LeaseLost(key, why)
        note(logger, logging.WARNING, "turn_lost", key=key, position=self.position.number, reason=why)
        self.desk.tell("lost", "ordered_lock", key, self.scope.name)
        if self.on_lost is not None:
            self.on_lost(self.error)

    def drop(self) -> None:
        """Give no more signs of life."""
        self.desk.renewer.drop(self)
        if self.position.key in self.scope.turns:
            self.scope.turns.remove(self.position.key)

    async def end(self, *, failed: bool) -> None:
        """It is done: the line advances.

        Raises:
            StoreError: The store is away; the position is poison after a while.

        Cancellation: the same.
        """
        self.drop()
        await over(self.desk, self.position, failed=failed)
        self.desk.tell("released", "ordered_lock", self.position.key, self.scope.name)

    async def yield_back(self) -> None:
        """It did not run: it stays first in line.

        Raises:
            StoreError: The store is away.

        Cancellation: it was noted, or not.
        """
        self.drop()
        await _yield_back(self.desk, self.position)


async def _yield_back(desk: Desk, position: Position) -> None:
    # On the lane on which it was asked for, lest it overtake the question.
    await beat(desk, position, "queued", lane=DEFAULT_LANE, retry_for=_LETTING_GO)


async def over(desk: Desk, position: Position, *, failed: bool) -> None:
    """`finish`, whatever happens to the caller.

    Raises:
        StoreError: The store is away.

    Cancellation: raised when it is done.
    """
    try:
        await finish(desk, position, failed=failed)
    except asyncio.CancelledError:
        await settled(finish(desk, position, failed=failed))
        raise


async def take_turn(
    desk: Desk,
    position: Position,
    scope: Scope,
    *,
    strict: bool,
    wait: float,
    on_lost: Callable[[LeaseLost], None] | None = None,
    listens: bool = False,
) -> Turn:
    """Have the turn of a position.

    Args:
        desk: Of this event loop.
        position: Whose.
        scope: For which body.
        strict: After a failure the rest of the line is refused.
        wait: Seconds from now.
        on_lost: Called once, in the loop, if it is passed over.
        listens: The inbox expects its token, or calls back.

    Raises:
        OutOfTurn: It is not, within ``wait``; ``reason`` says why. It keeps its position.
        StoreError: The store is away.

    Cancellation: it keeps its position.
    """
    began = time.monotonic()
    listens = listens or desk.inbox.is_open
    asked, reply = await _ask(desk, position, strict=strict, listens=listens)
    if reply.word == "WAITS":
        desk.tell("contended", "ordered_lock", position.key, scope.name)
        if wait > 0:
            asked, reply = await _wait(desk, position, strict=strict, until=began + wait)
    if reply.word != "TURN":
        raise _refusal(position, reply)
    desk.tell("acquired", "ordered_lock", position.key, scope.name, time.monotonic() - began)
    return Turn(desk, position, asked, scope, on_lost)


async def _ask(desk: Desk, position: Position, *, strict: bool, listens: bool) -> tuple[float, Reply]:
    asked, channel = time.monotonic(), desk.inbox.channel if listens else "-"
    args: list[Value] = [position.epoch, position.number, position.token, int(strict), channel]
    try:
        return asked, await desk.call("order_turn", desk.keys.order(position.key), args)
    except asyncio.CancelledError:
        # Whether it was sent is not known; it may be its turn now, and it will not run.
        with suppress(StoreError):
            await settled(_yield_back(desk, position))
        raise


async def _wait(desk: Desk, position: Position, *, strict: bool, until: float) -> tuple[float, Reply]:
    with desk.inbox.expect(position.token) as summons:
        await desk.inbox.open()
        while True:
            asked, reply = await _ask(desk, position, strict=strict, listens=True)
            left = until - time.monotonic()
            if reply.word != "WAITS" or left <= 0:
                return asked, reply
            head_s = (reply.values[1] + 1) / 1000
            await summons.wait(min(RECHECK, position.poison_after / 3, head_s, left))


def _refusal(position: Position, reply: Reply) -> OutOfTurn:
    where = f"ordered lock {position.key!r}, position {position.number}"
    if reply.word in _REASONS:
        reason, text = _REASONS[reply.word]
        return OutOfTurn(position.key, f"{where}: {text}", reason)
    return OutOfTurn(position.key, f"{where}: {reply.values[0]} before it did not finish yet")


async def leave_line(desk: Desk, position: Position) -> None:
    """Give a position up that never ran. If the store is away, it is poison after a while.

    Cancellation: the same.
    """
    try:
        await over(desk, position, failed=False)
    except StoreError as error:
        note(logger, logging.WARNING, "release_failed", "it is passed over later", key=position.key, error=error)
