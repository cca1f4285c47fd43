"""Sees to it that nobody waits in a ring for ever; see `cycles`.

Who is refused, and is inside of holds, notes with each of these that it waits, and then looks: so whoever closes a
ring sees all of it, whichever of them that is, and none is overlooked. The notes only say where to look. What counts
is who holds a key and stands in line for it, read key by key, since a server may have one of them and not the other;
a ring counts when it was seen twice, because then all of it was there at one moment.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias, cast

from aioreactor.coordination.cycles import Cycle, Survey, Wait, cycle_of
from aioreactor.coordination.desk import Desk
from aioreactor.coordination.keys import SlotKind
from aioreactor.coordination.scopes import Scope
from aioreactor.logs import note
from aioreactor.store.errors import StoreError

logger = logging.getLogger("aioreactor.coordination")
OuterHolds: TypeAlias = Callable[[], Awaitable[Sequence[str]]]
"""Gives tokens of what other runs hold until the one that waits has ended."""

MOST = 128
"""Waits that are followed; whoever is in a ring with more of them is not found."""

_KEPT = 60.0
"""Seconds for which a note outlives the place in line."""

_LOOKS = 4
_DROPPING = 1.0


class Watch:
    """One that waits inside of holds. Says so, and looks whether that would ever end.

    Args:
        desk: Of this event loop.
        wait: What it waits for.
        holds: Tokens of those that it is inside of here.
        outer: Gives those that it is inside of elsewhere.
    """

    __slots__ = ("_desk", "_holds", "_noted", "_outer", "_wait")

    def __init__(self, desk: Desk, wait: Wait, holds: list[str], outer: OuterHolds | None) -> None:
        self._desk = desk
        self._wait = wait
        self._holds = holds
        self._outer = outer
        self._noted: list[str] = []

    async def look(self, alive: float) -> Cycle | None:
        """Note the wait, which lasts for ``alive`` seconds unless it asks again; the ring that it is to fail for.

        Raises:
            StoreError: The store is away.

        Cancellation: it may be noted.
        """
        wait, keep_ms = self._wait, int((alive + _KEPT) * 1000)
        text = f"{wait.kind} {int(wait.undoing)} {wait.key}"
        self._noted = [*self._holds, *(await self._outer() if self._outer is not None else ())]
        for held in self._noted:
            await self._desk.call("wait_note", [self._desk.keys.waits(held)], [wait.token, keep_ms, text])
        cycle = await find_cycle(self._desk, wait) if self._noted else None
        if cycle is None or cycle.fails is None:
            return None
        if cycle.fails.token == wait.token:
            text = "one of its waits fails, since none of them would end"
            note(logger, logging.WARNING, "wait_cycle", text, cycle=list(map(str, cycle.links)))
            return cycle
        await _call(self._desk, cycle.fails)
        return None

    def goes_on(self) -> None:
        """It waited before, in the same place in line."""
        self._noted = list(self._holds)

    async def drop(self) -> None:
        """It does not wait any more.

        Cancellation: some of it may be noted still, and is forgotten after a while.
        """
        noted, self._noted = self._noted, []
        with suppress(StoreError):
            for held in noted:
                keys = [self._desk.keys.waits(held)]
                await self._desk.call("wait_drop", keys, [self._wait.token], retry_for=_DROPPING)


def watch_of(desk: Desk, wait: Wait, scope: Scope, outer: OuterHolds | None) -> Watch | None:
    """What a wait in a scope has to look out for; None if it is inside of nothing, or waits for others in there."""
    holds = _around(scope)
    if scope.find(wait.kind, wait.key) is not None or not (holds or outer):
        return None
    return Watch(desk, wait, holds, outer)


def _around(scope: Scope) -> list[str]:
    """Tokens of what a scope is inside of."""
    found: dict[str, None] = {}
    around: Scope | None = scope
    while around is not None:
        found |= {entry.lease.token: None for entry in around.entries if entry.lease.error is None}
        around = around.parent
    return list(found)


async def _call(desk: Desk, wait: Wait) -> None:
    """Have it look as well: it may have looked when the ring was not closed yet, by a clock of another server."""
    keys = [desk.keys.slots(wait.kind, wait.key).waiters]
    await desk.call("wait_call", keys, [wait.token])


# ---------------------------------------------------------------------- looking


async def find_cycle(desk: Desk, wait: Wait) -> Cycle | None:
    """The ring that a wait is part of, whoever is to fail for it.

    Raises:
        StoreError: The store is away.

    Cancellation: nothing happens.
    """
    before = None
    for _ in range(_LOOKS):
        survey = await _Look(desk).survey(wait)
        cycle = cycle_of(survey, wait.token)
        if cycle is None:
            return None
        seen = {each: frozenset(survey.blockers[each]) for each in cycle.members}
        if seen == before:
            return cycle
        before = seen
    return None


class _Line(NamedTuple):
    """Of one key: who holds it, if it is full, and who stands in line, each with a label."""

    holders: dict[str, str]
    waiters: dict[str, str]


class _Look:
    """Follows waits from one to the next, and reads each key and each hold once."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._found = Survey()
        self._lines: dict[tuple[SlotKind, str], _Line] = {}

    async def survey(self, start: Wait) -> Survey:
        """Everything that a wait leads to, up to `MOST` waits."""
        todo = [start]
        for wait in todo:
            todo += await self._follow(wait)
            if len(todo) > MOST:
                return Survey()
        return self._found

    async def _follow(self, wait: Wait) -> list[Wait]:
        found, line = self._found, await self._line(wait.kind, wait.key)
        if wait.token in line.holders or wait.token not in line.waiters or not line.holders:
            return []  # it was given what it waited for, or went away, or is about to be given it
        before = found.waits.get(wait.token)
        if before is not None and before.rank >= wait.rank:
            return []
        found.waits[wait.token], found.blockers[wait.token] = wait, tuple(line.holders)
        found.labels[wait.token] = line.waiters[wait.token]
        found.labels |= line.holders
        behind: list[Wait] = []
        for held in line.holders:
            if held not in found.inside:
                inside = await self._inside(held)
                found.inside[held] = tuple(each.token for each in inside)
                behind += inside
        return behind

    async def _line(self, kind: SlotKind, key: str) -> _Line:
        if (kind, key) not in self._lines:
            keys = self._desk.keys.slots(kind, key)
            now_ms, limit, holding, waiting = (await self._desk.call("slot_inspect", keys)).values
            holders = {token.decode(): _rest(fact, 2) for token, _, fact in holding}
            waiters = {token.decode(): _rest(row, 4) for token, row in waiting if _alive(row, now_ms)}
            full = len(holders) >= limit
            self._lines[kind, key] = _Line(holders if full else {}, waiters)
        return self._lines[kind, key]

    async def _inside(self, held: str) -> list[Wait]:
        (rows,) = (await self._desk.call("wait_list", [self._desk.keys.waits(held)])).values
        return list(_waits(rows))


def _waits(rows: list[bytes]) -> Iterable[Wait]:
    for token, row in zip(rows[::2], rows[1::2], strict=True):
        since, kind, undoing, key = row.decode().split(" ", 3)
        yield Wait(token.decode(), cast("SlotKind", kind), key, int(since), undoing == "1")


def _rest(row: bytes, skipped: int) -> str:
    """The label at the end of a row."""
    parts = row.decode().split(" ", skipped)
    return parts[skipped] if len(parts) > skipped else "somebody"


def _alive(row: bytes, now_ms: int) -> bool:
    return bool(row) and int(row.split(b" ", 1)[0]) > now_ms
