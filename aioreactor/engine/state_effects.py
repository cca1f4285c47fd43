"""What the run state decides besides starting nodes; the execution empties the list after each transition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from aioreactor.engine.scope import MapRun, Scope


@dataclass(frozen=True, slots=True)
class Stopped:
    """These scopes were stopped by a failure, innermost first: settle or cancel what is in flight.

    Without scopes: something halted, so what is in flight goes on, and what waits does not.
    """

    chain: tuple[Scope, ...]


@dataclass(frozen=True, slots=True)
class RollBack:
    """A nested scope has settled: roll it back, then call `RunState.rolled_back`.

    ``undo=False``: it halted, and only what failed after that is compensated.
    """

    scope: Scope
    undo: bool = True


@dataclass(frozen=True, slots=True)
class Wake:
    """A map has room again, or no reason to go on; ``ended`` is the element that ended, if one did."""

    map: MapRun
    ended: int | None = None


Effect: TypeAlias = Stopped | RollBack | Wake
