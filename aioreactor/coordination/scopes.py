"""Who is inside of whom: re-entrancy follows a chain of scopes, never a run or a task.

A body has a scope; what it starts itself runs in that scope; a body inside it has a scope whose parent is that one. An
entry (a scope's share in a hold) is found by the scopes below it. Bodies that enter the same entry take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioreactor.coordination.slots import Entry


class Scope:
    """One body, and what it holds.

    Args:
        parent: The body that it runs in, if it is inside one.
        name: For events and people, such as a run and a step.

    Attributes:
        entries: What it holds, in the order of taking.
        turns: Keys of ordered locks whose turn it has.
    """

    __slots__ = ("entries", "name", "parent", "turns")

    def __init__(self, parent: Scope | None = None, name: str = "") -> None:
        self.parent = parent
        self.name: str = name or (parent.name if parent is not None else "")
        self.entries: list[Entry] = []
        self.turns: list[str] = []

    def find(self, kind: str, key: str) -> Entry | None:
        """The innermost entry of this scope, or of one around it."""
        scope: Scope | None = self
        while scope is not None:
            for entry in reversed(scope.entries):
                if entry.lease.slot.key == key and entry.lease.slot.kind == kind:
                    return entry
            scope = scope.parent
        return None

    def holds_turn(self, key: str) -> bool:
        """Whether this scope, or one around it, has its turn of an ordered lock."""
        scope: Scope | None = self
        while scope is not None:
            if key in scope.turns:
                return True
            scope = scope.parent
        return False

    def is_within(self, other: Scope) -> bool:
        """Whether it is ``other`` or inside of it."""
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.parent
        return scope is other


class LocalTurn:
    """Bodies under one entry, one at a time, first come first served."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None  # most entries are never entered again

    @property
    def taken(self) -> bool:
        """Whether a body is inside."""
        return self._lock is not None and self._lock.locked()

    async def take(self, wait: float) -> bool:
        """Have the turn within ``wait`` seconds; False if not.

        Cancellation: the turn is not taken.
        """
        lock = self._lock = self._lock or asyncio.Lock()
        if lock.locked() and wait <= 0:
            return False
        try:
            async with asyncio.timeout(max(wait, 0) if lock.locked() else None):
                await lock.acquire()
        except TimeoutError:
            return False
        return True

    def give(self) -> None:
        """Let the next one in."""
        assert self._lock is not None
        self._lock.release()


_current: ContextVar[Scope | None] = ContextVar("aioreactor_scope", default=None)


def current_scope() -> Scope | None:
    """The scope of the body that runs here."""
    return _current.get()


def set_scope(scope: Scope | None) -> None:
    """What runs in this context from now on is in that scope."""
    _current.set(scope)


@contextmanager
def within(scope: Scope | None) -> Iterator[None]:
    """Run what is inside in that scope; None: in nobody's."""
    before = _current.set(scope)
    try:
        yield
    finally:
        _current.reset(before)
