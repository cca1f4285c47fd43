"""Leaving a run unfinished: handing it to a worker, or parking it until something is due.

Overview. Once an execution is to leave, nothing new starts: a node whose turn comes is *held* instead, bodies in flight
settle, waits are cut short without failing anything. When nothing is in progress any more the run is saved and let go,
and whoever takes it starts what was held; no step is suspected of having been in flight. If the run fails, halts or is
cancelled before that, this comes first: what is held is given up, and the run ends here.

Two reasons. A *hand-off* comes when the plan's ``background`` trigger is reached, in the process that began the run. A
*park* comes in a worker when the run is quiescent: no body is running, and all that is in progress waits for longer
than ``park_after`` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from aioreactor.engine.limiter import Ready, emptied
from aioreactor.engine.scope import MapRun, NodeStatus, Scope

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Later
    from aioreactor.engine.scheduler import Execution
    from aioreactor.engine.state import Readies

GiveUp: TypeAlias = "Callable[[], Readies]"
_REACHED = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)


@dataclass(frozen=True, slots=True)
class Leaving:
    """Why an execution leaves its run.

    ``path`` is that of the step behind it. ``due``, in seconds since the epoch, is when it is to be taken up again;
    None is at once. ``waits_for`` says so to people.
    """

    kind: Literal["hand_off", "park"]
    path: str = ""
    due: float | None = None
    waits_for: str = ""


def reached(ex: Execution) -> Leaving | None:
    """The hand-off, if the plan's trigger has been reached."""
    side, index = ex.plan.background
    status = ex.state.root.status[index]
    if status == NodeStatus.READY if side == "before" else status in _REACHED:
        return Leaving("hand_off", ex.plan.nodes[index].name, None, "a worker")
    return None


def queued(scopes: list[Scope]) -> list[Ready]:
    """Takes out everything that waits for a slot somewhere."""
    return [each for scope in scopes for each in emptied(scope)]


def to_park(ex: Execution, sleeping: list[tuple[Later, float]], longest: float) -> Leaving | None:
    """The park, if nothing but ``sleeping`` is in progress, for longer than ``longest`` seconds from now.

    ``sleeping`` gives, with each attempt that waits, when it is due.
    """
    if not _is_quiet(ex, {(later.scope, later.index) for later, _ in sleeping}):
        return None
    later, due = min(sleeping, key=lambda each: each[1])
    if due - ex.clock.now() <= longest:
        return None
    deadlines = [scope.deadline for scope in ex.state.scopes() if scope.deadline is not None and scope.active]
    path = later.scope.path_of(later.index)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due))
    unit = next((later.unit for later, _ in sleeping if later.unit), "")
    waits_for = f"unit {unit!r}, until {moment}" if unit else f"the next attempt of step {path!r}, due {moment}"
    return Leaving("park", path, min([due, *deadlines]), waits_for)


def _is_quiet(ex: Execution, sleeping: set[Ready]) -> bool:
    for scope in ex.state.scopes():
        if scope.stopped:
            return False
        for index, status in enumerate(scope.status):
            at_work = status == NodeStatus.READY or (status == NodeStatus.RUNNING and _is_busy(scope, index))
            if at_work and (scope, index) not in sleeping:
                return False
    return True


def _is_busy(scope: Scope, index: int) -> bool:
    """Whether a node that was entered is at work itself, rather than what is inside it."""
    inner = scope.children.get(index) if scope.children else None
    if isinstance(inner, MapRun):
        return inner.reading or inner.settled
    return inner is None
