"""Room for more executions than the one that was delivered, in the worker that one runs in. Pure."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Room(Protocol):
    """A worker's bounded number of executions."""

    @property
    def most(self) -> int:
        """How many executions all deliveries that have several may have here together, so that others have room."""
        ...

    def enter(self) -> bool:
        """One of those begins, in the place that it was delivered to; False if they have as many as they may."""
        ...

    def leave(self) -> None:
        """It has ended."""
        ...

    def lend(self, wanted: int) -> int:
        """Up to so many more executions may run here; gives how many."""
        ...

    def give_back(self, count: int) -> None:
        """So many executions that were lent have ended."""
        ...


room_here: ContextVar[Room | None] = ContextVar("aioreactor_room", default=None)
"""Where the code that runs now was delivered to; None is nowhere in particular."""
