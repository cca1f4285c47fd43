"""Leaving a run unfinished: handing it to a worker, or parking it until something is due.

Overview. Once an execution is to leave, nothing new starts: a node whose turn comes is *held* instead, bodies in flight
settle, waits are cut short without failing anything. When nothing is in progress any more the run is saved and let go,
and whoever takes it starts what was held; no step is suspected of having been in flight. If the run fails, halts or is
cancelled before that, this comes first: what is held is given up, and the run ends here.

Three reasons. A *hand-off* comes when the plan's ``background`` trigger is reached, in the process that began the run.
A *park* comes in a worker when the run is quiescent: no body is running, and all that is in progress waits for longer
than ``park_after`` seconds; elsewhere it comes for a timer. A *pause* comes when all that is in progress waits for
somebody's answer: nobody takes the run up again before there is one, or its time is over.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from aioreactor.engine.limiter import Ready, emptied
from aioreactor.engine.pausing import deadlines, expires_now, give_up, scope_deadlines
from aioreactor.engine.ports import Environment, Journal
from aioreactor.engine.scope import MapRun, NodeStatus, Scope
from aioreactor.engine.waiting import Waiting
from aioreactor.plan.model import Plan

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Later
    from aioreactor.engine.state import Readies

GiveUp: TypeAlias = "Callable[[], Readies]"
_REACHED = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)


@dataclass(frozen=True, slots=True)
class Leaving:
    """Why an execution leaves its run.

    ``path`` is that of the step behind it. ``due``, in seconds since the epoch, is when it is to be taken up again;
    None is at once. ``waits_for`` says so to people.
    """

    kind: Literal["hand_off", "park", "pause"]
    path: str = ""
    due: float | None = None
    waits_for: str = ""


class Leavable(Waiting):
    """The part of an `Execution` that leaves its run unfinished."""

    __slots__ = ("_bounded", "_gated", "_held", "awaits_trigger", "may_park", "park_after", "park_timers_after")

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        Waiting.__init__(self, environment, plan, run_id, journal)
        self._bounded = False
        """Whether anything in the plan waits for a slot."""
        self._gated = False
        """Whether a node whose turn has come may be held."""
        self._held: list[tuple[Scope, GiveUp]] = []
        self.awaits_trigger = False
        """Whether reaching the plan's ``background`` trigger hands the run to a worker."""
        self.park_after: float | None = None
        """Seconds; a quiescent run that will wait for longer is parked. None waits in place."""
        self.park_timers_after: float | None = None
        """The same, where ``park_after`` is None, for a run that waits for a timer first."""
        self.may_park = False
        """Whether what its gates refuse comes back later, instead of failing."""

    @abstractmethod
    def _free_slot(self, scope: Scope) -> None:
        """Give a step's slots back, and start who waited for them."""

    def consider_leaving(self) -> None:
        """Leave the run if nothing but waiting, for long or for somebody, is in progress."""
        if self.leaving is None and self.lost is None:
            found = _to_rest(self, list(self._sleepers.values()))
            if found is not None:
                self.leave(found)

    def leave(self, leaving: Leaving) -> None:
        """Leave the run as soon as what is in flight has settled; nothing new starts from now on."""
        if self.leaving is not None or self.lost is not None or self.state.root.stopped:
            return
        self.leaving, self._gated = leaving, True
        self._wake_all()
        for scope, index in _queued(list(self.state.scopes())) if self._bounded else ():
            self.hold(scope, partial(self.state.drop, scope, index))

    def hold(self, scope: Scope, give_up: GiveUp) -> None:
        """Something that was to start, or to go on, stays as it is for whoever goes on with the run.

        ``give_up`` is called if its scope is stopped before the run is left.
        """
        self._held.append((scope, give_up))

    def _turned_away(self, scope: Scope, index: int) -> bool:
        """Whether a node whose turn has come is held."""
        if scope.stopped:
            return False
        if self.leaving is None and self.awaits_trigger:
            found = _reached(self)
            if found is not None:
                self.leave(found)
        if self.leaving is None:
            return False
        if scope.limiters and scope.plan.nodes[index].kind == "step":
            self._free_slot(scope)
        self.hold(scope, partial(self.state.drop, scope, index))
        return True

    def _given_up(self) -> list[Ready]:
        """What is held, or open, in stopped scopes does not wait for anybody any more."""
        ready = give_up(self) if self.open_nodes else []
        held, self._held = self._held, []
        for scope, drop in held:
            if scope.stopped:
                ready += drop()
            else:
                self._held.append((scope, drop))
        return ready


def _reached(ex: Leavable) -> Leaving | None:
    """The hand-off, if the plan's trigger has been reached."""
    side, index = ex.plan.background
    status = ex.state.root.status[index]
    if status == NodeStatus.READY if side == "before" else status in _REACHED:
        return Leaving("hand_off", ex.plan.nodes[index].name, None, "a worker")
    return None


def _queued(scopes: list[Scope]) -> list[Ready]:
    """Takes out everything that waits for a slot somewhere."""
    return [each for scope in scopes for each in emptied(scope)]


def _to_rest(ex: Leavable, sleeping: list[tuple[Later, float]]) -> Leaving | None:
    """The park or pause, if nothing but ``sleeping`` and what is open is in progress, and that for long enough.

    ``sleeping`` gives, with each node that waits, when it is due.
    """
    if not (sleeping or ex.open_nodes) or ex.serving or expires_now(ex):
        return None
    resting = {(later.scope, later.index) for later, _ in sleeping} | set(ex.open_nodes.values())
    if not _is_quiet(ex, resting):
        return None
    return _park(ex, sleeping) if sleeping else pause(ex)


def pause(ex: Leavable) -> Leaving:
    """The pause for what is open."""
    names = ", ".join(repr(path) for path in ex.open_nodes)
    return Leaving("pause", next(iter(ex.open_nodes), ""), _earliest(ex), f"an answer to {names}")


def _park(ex: Leavable, sleeping: list[tuple[Later, float]]) -> Leaving | None:
    later, due = min(sleeping, key=lambda each: each[1])
    is_timer = later.scope.plan.nodes[later.index].kind == "timer"
    longest = ex.park_after if ex.park_after is not None or not is_timer else ex.park_timers_after
    if longest is None or due - ex.clock.now() <= longest:
        return None
    path = later.scope.path_of(later.index)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due))
    unit = next((each.unit for each, _ in sleeping if each.unit), "")
    what = f"timer {path!r}" if is_timer else f"the next attempt of step {path!r}"
    text = later.waits_for or (f"unit {unit!r}, until {moment}" if unit else f"{what}, due {moment}")
    return Leaving("park", path, min(due, _earliest(ex) or due), text)


def _earliest(ex: Leavable) -> float | None:
    """The first deadline that somebody has to be there for."""
    return min([*scope_deadlines(ex), *deadlines(ex)], default=None)


def _is_quiet(ex: Leavable, resting: set[Ready]) -> bool:
    for scope in ex.state.scopes():
        if scope.stopped:
            if not _is_over(scope):
                return False
            continue
        for index, status in enumerate(scope.status):
            at_work = status == NodeStatus.READY or (status == NodeStatus.RUNNING and _is_busy(scope, index))
            if at_work and (scope, index) not in resting:
                return False
    return True


def _is_over(scope: Scope) -> bool:
    """Whether what a scope came to is known around it: it settled, and was rolled back where that was due."""
    current: Scope | None = scope
    while current is not None:
        parent = current.parent
        if isinstance(parent, MapRun) and current.element in parent.outcomes:
            return True
        if isinstance(parent, Scope) and parent.status[current.index] not in (NodeStatus.READY, NodeStatus.RUNNING):
            return True
        current = current.owner
    return False


def _is_busy(scope: Scope, index: int) -> bool:
    """Whether a node that was entered is at work itself, rather than what is inside it."""
    inner = scope.children.get(index) if scope.children else None
    if isinstance(inner, MapRun):
        return inner.reading or inner.settled or (inner.has_room and not inner.exhausted)
    return inner is None
