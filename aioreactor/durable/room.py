"""How many elements a session may execute at a time: it grows while it is served quickly, within its worker's room."""

from __future__ import annotations

from typing import Literal

from aioreactor.rooms import room_here

NOWHERE = 16
"""Elements at a time where no worker says how many may run."""
FIRST = 8


class Slots:
    """The places of one session. The first one is that of the delivery that opened it.

    Args:
        chunk: So many at most; "auto" is as many as the worker has room for.
    """

    def __init__(self, chunk: int | Literal["auto"]) -> None:
        self._room = room_here.get()
        most = self._room.most if self._room is not None else NOWHERE
        self._most = most if chunk == "auto" else min(chunk, max(most, 1))
        self.count = 1

    def first(self) -> int:
        """Take a few; gives how many there are."""
        self._take(min(FIRST, self._most))
        return self.count

    def grow(self, busy: int) -> None:
        """Take more, twice as many as there are if all of them are taken."""
        if busy >= self.count // 2:
            self._take(min(self.count * 2, self._most))

    def shrink(self, busy: int) -> None:
        """Give back what is not taken any more."""
        spare = self.count - max(busy, 1)
        if spare > 0:
            self.count -= spare
            if self._room is not None:
                self._room.give_back(spare)

    def _take(self, wanted: int) -> None:
        more = wanted - self.count
        if more > 0:
            self.count += more if self._room is None else self._room.lend(more)

    def give_back_all(self) -> None:
        """All but that of the delivery."""
        if self._room is not None:
            self._room.give_back(self.count - 1)
        self.count = 1
