"""Run state and its legal transitions: pure, synchronous, no tasks, no clock of its own.

Every transition returns the nodes that may start now, as ``(scope, index)`` in definition order; they are already
marked as in progress and each has to be answered by exactly one further transition. What is rarer goes into
``effects``, which the scheduler empties after each transition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aioreactor.engine.limiter import Limiter, Ready
from aioreactor.engine.scope import Failed, FanRun, MapRun, NodeStatus, Parked, Scope
from aioreactor.errors import StepCancelled
from aioreactor.plan.model import Plan
from aioreactor.results import Failure, Skipped, Success
from aioreactor.trace import RawEntry

NONE: tuple[Ready, ...] = ()
CRASHED = "the process that ran it ended"
WHOLE = -1
"""The index under which an element as a whole, rather than a node of it, is noted as changed."""
Readies: TypeAlias = Sequence[Ready]
_READY, _RUNNING = int(NodeStatus.READY), int(NodeStatus.RUNNING)
_COMPLETED, _SKIPPED = int(NodeStatus.COMPLETED), int(NodeStatus.SKIPPED)


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


class RunState:
    """One run. ``now`` stamps the trace; ``recording`` notes which nodes changed, for a journal that keeps them."""

    __slots__ = (
        "_logged",
        "_sequence",
        "cancelled",
        "dirty",
        "effects",
        "failures",
        "freed",
        "gates",
        "halt",
        "late_errors",
        "notes",
        "now",
        "recording",
        "rollback_failures",
        "root",
        "run_id",
        "served",
        "trace",
        "unadopted",
    )

    def __init__(self, plan: Plan, run_id: str, now: Callable[[], float], *, recording: bool = False) -> None:
        self.run_id = run_id
        self.now = now
        self.root = Scope(plan, None, -1, "")
        self.trace: list[RawEntry] = []
        self.effects: list[Effect] = []
        self.failures: list[Failed] = []
        self.late_errors: list[Failed] = []
        self.halt: tuple[Any, str] | None = None
        self.cancelled = False
        self.rollback_failures: list[Any] = []
        self.notes: dict[str, Any] = {}
        self.gates: dict[str, Any] | None = None
        """How far the run is with its own gates, and what it holds, as data."""
        self.freed: list[Scope] = []
        """Nested scopes that have ended, and hold something."""
        self.unadopted: list[tuple[Scope, Mapping[str, Any]]] = []
        """What nested scopes held in another process, and is to be taken up again."""
        self.recording = recording
        self.served = 0
        """Number of the last request of somebody else's that was carried out."""
        self.dirty: dict[Ready, None] = {}
        self._sequence = 0
        self._logged = 0

    # ------------------------------------------------------------------ looking

    @property
    def settled(self) -> bool:
        """Whether nothing is in progress any more."""
        return self.root.active == 0

    @property
    def completed(self) -> bool:
        """Whether every step completed (or was skipped)."""
        return self.root.left == 0

    @property
    def admitted(self) -> bool:
        """Whether the run has done something that it would have to take back, or has passed gates of its own."""
        return self._sequence > 0 or self.root.guard is not None

    def log(self, kind: str, path: str, attempt: int = 1, detail: str = "") -> None:
        """Add a trace entry."""
        self.trace.append((self.now(), kind, path, attempt, detail))

    def take_changes(self) -> tuple[list[Ready], list[RawEntry]]:
        """What a checkpoint has to write: nodes that changed, and trace entries, since the last one."""
        nodes, self.dirty = list(self.dirty), {}
        entries, self._logged = self.trace[self._logged :], len(self.trace)
        return nodes, entries

    def adopt_trace(self, entries: list[RawEntry]) -> None:
        """What happened before, in other executions; it is stored already."""
        self.trace[:0] = entries
        self._logged += len(entries)

    def resume_sequence(self, last: int) -> None:
        """Go on counting after what was stored."""
        self._sequence = max(self._sequence, last)

    def touch(self, scope: Scope, index: int, *, ordered: bool = False) -> None:
        """A node changed. ``ordered``: it joined a stack of the rollback, whose order has to be kept."""
        if self.recording:
            self.dirty[scope, index] = None
            if ordered:
                self._sequence += 1
                scope.order = scope.order or {}
                scope.order[index] = self._sequence

    # ------------------------------------------------------------------ opening

    def open_root(self, view: Any, inputs: Mapping[str, Any]) -> Readies:
        """Begin the run with validated inputs."""
        self.root.view, self.root.inputs = view, inputs
        return self._begin(self.root)

    def open_child(self, scope: Scope, index: int, view: Any, inputs: Mapping[str, Any]) -> Readies:
        """Begin a composed child with validated inputs."""
        child = self.adopt_child(scope, index)
        child.view, child.inputs = view, inputs
        scope.status[index] = NodeStatus.RUNNING
        self.touch(scope, index)
        return self._begin(child)

    def adopt_child(self, scope: Scope, index: int) -> Scope:
        """The scope of a composed child, empty."""
        plan = scope.plan.nodes[index].child
        assert plan is not None
        child = Scope(plan, scope, index, scope.path_of(index))
        self._adopt(child, scope)
        scope.children = scope.children or {}
        scope.children[index] = child
        return child

    def open_map(self, scope: Scope, index: int) -> MapRun:
        """Begin a map; its elements come by `open_element`."""
        run = self.adopt_map(scope, index)
        scope.status[index] = NodeStatus.RUNNING
        self.touch(scope, index)
        return run

    def adopt_map(self, scope: Scope, index: int) -> MapRun:
        """The record of a map, without elements."""
        run = MapRun(scope, index)
        scope.children = scope.children or {}
        scope.children[index] = run
        return run

    def open_fan(self, scope: Scope, index: int) -> FanRun:
        """Begin a map whose elements are elsewhere, or go on with it."""
        run = FanRun(scope, index)
        scope.children = scope.children or {}
        scope.children[index] = run
        scope.status[index] = NodeStatus.RUNNING
        self.touch(scope, index)
        return run

    def open_element(self, run: MapRun, item: Any) -> Scope:
        """Make the next element; `begin_element` starts it, once its inputs are known."""
        element = Scope(run.plan, run, run.index, f"{run.path}[{run.opened}]")
        element.element, element.item = run.opened, item
        self._adopt(element, run.scope)
        if run.plan.element:
            element.origin, element.view, element.inputs = run.scope.origin, run.scope.view, run.scope.inputs
        run.elements[run.opened] = element
        run.opened += 1
        run.in_flight += 1
        self.touch(run.scope, run.index)
        return element

    def begin_element(self, element: Scope) -> Readies:
        """Start an element."""
        self.touch(element, 0 if element.plan.element else WHOLE)
        return self._begin(element)

    def _adopt(self, child: Scope, around: Scope) -> None:
        child.hooks, child.limiters, child.guard = around.hooks, around.limiters, around.guard
        limit = child.plan.options.max_concurrency
        if limit is not None:
            child.limiters = (*around.limiters, Limiter(limit))

    def _begin(self, scope: Scope) -> Readies:
        roots = scope.plan.roots
        if not roots:
            return self._close(scope)
        scope.active = len(roots)
        for index in roots:
            scope.status[index] = NodeStatus.READY
        return [(scope, index) for index in roots]

    def enter(self, scope: Scope, index: int, attempt: int) -> str:
        """The body of a step is entered; gives its path."""
        scope.status[index] = _RUNNING
        if scope.suspects:
            scope.suspects.discard(index)
        path = scope.path_of(index)
        self.trace.append((self.now(), "run", path, attempt, ""))
        return path

    def retrying(self, scope: Scope, index: int, failed: Failed, due: float) -> None:
        """An attempt failed, another one follows at ``due``."""
        scope.due = scope.due or {}
        scope.due[index] = due
        scope.attempts = scope.attempts or {}
        scope.attempts[index] = failed.attempts
        scope.errors = scope.errors or {}
        scope.errors[index] = failed.error
        self.touch(scope, index)

    def snooze(self, scope: Scope, index: int, parked: Parked, due: float) -> None:
        """A step was refused by its gates, and is tried again at ``due``, or when it is called."""
        scope.parks = scope.parks or {}
        scope.parks[index] = parked
        scope.due = scope.due or {}
        scope.due[index] = due
        self.touch(scope, index)

    # ------------------------------------------------------------------ ends of a node

    def complete(self, scope: Scope, index: int, value: Any, *, skipped: bool = False) -> Readies:
        """A node completed, or was skipped, with this value."""
        node = scope.plan.nodes[index]
        scope.results[index] = value
        scope.active -= 1
        scope.left -= 1
        if skipped:
            scope.status[index] = _SKIPPED
        else:
            scope.status[index] = _COMPLETED
            if node.undo is not None or (node.kind != "step" and node.unit is None):
                scope.completed.append(index)
        if self.recording:
            self.touch(scope, index, ordered=True)
        if not scope.left:
            return self._close(scope)
        if scope.stopped:
            return self._settle(scope)
        waiting, ready = scope.waiting, []
        for dependant in node.dependants:
            left = waiting[dependant] = waiting[dependant] - 1
            if not left:
                scope.status[dependant] = _READY
                ready.append((scope, dependant))
        scope.active += len(ready)
        return ready

    def _close(self, scope: Scope) -> Readies:
        """Everything in a scope completed: so did its node in the parent."""
        parent = scope.parent
        if parent is None:
            return NONE
        self._free(scope)
        if isinstance(parent, MapRun):
            skipped = scope.plan.element and scope.status[0] == NodeStatus.SKIPPED
            value = scope.value()
            return self._element_ended(parent, scope, Skipped(value) if skipped else Success(value))
        return self.complete(parent, scope.index, scope.value())

    def _free(self, scope: Scope) -> None:
        if scope.guard is not None and scope.guard.scope is scope:
            self.freed.append(scope)

    def fail(self, scope: Scope, index: int, failed: Failed, *, started: bool) -> Readies:
        """A node failed for good. ``started``: its work began, so it is compensated."""
        scope.status[index] = NodeStatus.FAILED
        scope.active -= 1
        self._owe(scope, index, failed.error, started=started)
        self.touch(scope, index)
        self._fail_around(scope, failed)
        return self._settle(scope)

    def _fail_around(self, scope: Scope, failed: Failed) -> bool:
        """A failure dooms what is around it, unless that has halted or was cancelled before: then it comes too late."""
        if self.cancelled or self._is_halting(scope):
            self.late_errors.append(failed)
            return False
        self._doom(scope, failed)
        return True

    def _owe(self, scope: Scope, index: int, error: BaseException, *, started: bool) -> None:
        scope.errors = scope.errors or {}
        scope.errors[index] = error
        if started:
            if scope.failed is None:
                scope.failed = deque()
            scope.failed.append(index)
        self.touch(scope, index, ordered=started)

    def cut(self, scope: Scope, index: int, error: BaseException) -> Readies:
        """A body in flight was cancelled by the engine: it has started, so it is compensated."""
        scope.status[index] = NodeStatus.CUT
        scope.active -= 1
        self._owe(scope, index, error, started=True)
        self.touch(scope, index)
        return self._settle(scope)

    def drop(self, scope: Scope, index: int) -> Readies:
        """A node that was ready does not start any more, because its scope was stopped before.

        One that waited for its next attempt has started, so it fails now with its last error (or is cut, when the run
        was cancelled); a map whose elements
        are done, but which is not completed, is cut.
        """
        attempts = scope.attempt_of(index)
        if attempts and scope.attempts is not None and scope.errors is not None:
            scope.attempts[index] = attempts - 1  # the last one is the one that ends now
            if self.cancelled:
                return self.cut(scope, index, scope.errors[index])
            return self.fail(scope, index, Failed(scope.errors[index], scope, index, attempts=attempts), started=True)
        if scope.children and index in scope.children:
            return self._node_cut(scope, index, halted=self._is_halting(scope))
        if scope.suspects and index in scope.suspects:
            return self.cut(scope, index, StepCancelled(scope.path_of(index), CRASHED))
        scope.status[index] = NodeStatus.WAITING
        scope.active -= 1
        return self._settle(scope)

    def halted(self, scope: Scope, index: int, reason: Any, *, path: str | None = None) -> Readies:
        """A body halted: the run, or the nearest composed child with ``on_halt="skip"``, stops cleanly.

        ``path``: of the step that did, where that is inside the node.
        """
        path = path if path is not None else scope.path_of(index)
        scope.status[index] = NodeStatus.HALTED
        scope.active -= 1
        self.touch(scope, index)
        inner = self._skipping(scope)
        if inner is not None:
            if inner.failure is None and not inner.stopped:
                inner.halt = (reason, path)
                self._halt(inner)
        elif not self.root.stopped:
            self.halt = (reason, path)
            self._halt(self.root)
        return self._settle(scope)

    def _halt(self, scope: Scope) -> None:
        self._stop(scope)
        self.effects.append(Stopped(()))

    def _skipping(self, scope: Scope) -> Scope | None:
        current: Scope | None = scope
        while current is not None:
            around = current.parent
            if isinstance(around, Scope) and around.plan.nodes[current.index].on_halt == "skip":
                return current
            current = current.owner
        return None

    # ------------------------------------------------------------------ stopping

    def fail_scope(self, scope: Scope, failed: Failed, *, always: bool = False) -> Readies:
        """A scope as a whole failed (its deadline passed). ``always``: also when nothing in it is in progress."""
        if scope.failure is None and (scope.active or always):
            self._fail_around(scope, failed)
        return NONE

    def cancel(self) -> Readies:
        """The run was cancelled from outside: nothing new starts."""
        self.cancelled = True
        if not self.root.stopped:
            self._stop(self.root)
        return NONE

    def stop_all(self) -> None:
        """Nothing starts any more, wherever."""
        self._stop(self.root)

    def _doom(self, scope: Scope, failed: Failed) -> None:
        """Fail a scope and all around it, up to the element of a map that collects."""
        chain: list[Scope] = []
        current: Scope | None = scope
        while current is not None:
            current.failure = current.failure or failed
            chain.append(current)
            around = current.parent
            if isinstance(around, MapRun):
                if not around.node.atomic:
                    break
                around.failure = around.failure or failed
            current = current.owner
        else:
            self.failures.append(failed)
        self.effects.append(Stopped(tuple(chain)))
        if not chain[-1].stopped:
            self._stop(chain[-1])

    def _stop(self, scope: Scope) -> None:
        scope.stopped = True
        if self.recording:
            # Who goes on after a crash has to know which bodies were in flight: they will not be entered again.
            for index, status in enumerate(scope.status):
                if status == _RUNNING:
                    self.touch(scope, index)
        for inner in (scope.children or {}).values():
            if isinstance(inner, Scope):
                self._stop(inner)
            else:
                self._stop_map(inner)

    def _stop_map(self, run: MapRun) -> None:
        run.stopped = True
        self.effects.append(Wake(run))
        for index, element in run.elements.items():
            if index not in run.outcomes:
                self._stop(element)

    # ------------------------------------------------------------------ settling

    def _settle(self, scope: Scope) -> Readies:
        """Something ended in a scope; when it is stopped and nothing is left in progress, tell the parent."""
        if not scope.stopped or scope.active:
            return NONE
        parent = scope.parent
        if parent is None:
            return NONE
        if scope.failure is not None:
            self.effects.append(RollBack(scope))
            return NONE
        if isinstance(parent, MapRun):
            return self._element_ended(parent, scope, None)
        if scope.halt is not None:
            self.effects.append(RollBack(scope, undo=False))
            return NONE
        return self._node_cut(parent, scope.index, halted=self._is_halting(scope))

    def _is_halting(self, scope: Scope | None) -> bool:
        if self.halt is not None:
            return True
        while scope is not None:
            if scope.halt is not None:
                return True
            scope = scope.owner
        return False

    def _node_cut(self, scope: Scope, index: int, *, halted: bool) -> Readies:
        """A compose or map node was stopped half-way; unless the run halted, it has to be rolled back."""
        scope.status[index] = NodeStatus.HALTED if halted else NodeStatus.CUT
        scope.active -= 1
        if scope.failed is None:
            scope.failed = deque()
        scope.failed.append(index)
        self.touch(scope, index, ordered=True)
        return self._settle(scope)

    def rolled_back(self, scope: Scope) -> Readies:
        """A nested scope that failed has been rolled back: now its node in the parent fails (or is skipped)."""
        parent, failed = scope.parent, scope.failure
        assert parent is not None
        self._free(scope)
        if failed is None:
            assert isinstance(parent, Scope)
            return self.complete(parent, scope.index, None, skipped=True)
        assert failed is not None
        if isinstance(parent, MapRun):
            return self._element_ended(parent, scope, failed)
        parent.status[scope.index] = NodeStatus.FAILED
        parent.active -= 1
        self.touch(parent, scope.index)
        return self._settle(parent)

    def rolled(self, scope: Scope, index: int, *, undone: bool, complete: bool) -> None:
        """A rollback action has ended. One that did not complete stays owed in the store, for a later undo."""
        if self.recording and complete:
            completed = undone and scope.status[index] == NodeStatus.COMPLETED  # not so a failed map's `undo_all`
            scope.status[index] = NodeStatus.UNDONE if completed else NodeStatus.COMPENSATED
            self.touch(scope, index)

    # ------------------------------------------------------------------ maps

    def _element_ended(self, run: MapRun, element: Scope, outcome: Any) -> Readies:
        """``outcome`` is a `Success` or `Skipped`, a `Failed` that was rolled back, or None for one that was cut."""
        assert element.element is not None
        if outcome is not None:
            run.outcomes[element.element] = outcome
        run.in_flight -= 1
        self.effects.append(Wake(run, element.element))
        return self._settle_map(run)

    def element_refused(self, element: Scope, failed: Failed) -> Readies:
        """An element never started, because its inputs are not valid."""
        run = element.parent
        assert isinstance(run, MapRun)
        doomed = self._fail_around(element, failed)
        self.touch(element, WHOLE)
        return self._element_ended(run, element, failed if doomed else None)

    def fan_failed(self, run: FanRun, failures: Sequence[Failed]) -> Readies:
        """A map whose elements are elsewhere has settled, and some of them failed, in this order."""
        for failed in failures:
            if self._fail_around(run.scope, failed):
                run.failure = run.failure or failed
        if run.failure is not None:
            return self._map_failed(run)
        return self._node_cut(run.scope, run.index, halted=self._is_halting(run.scope))

    def source_ended(self, run: MapRun) -> Readies:
        """No further element will come."""
        run.exhausted = True
        return self._settle_map(run)

    def source_failed(self, run: MapRun, failed: Failed) -> Readies:
        """The source raised: the map fails as an atomic one does."""
        run.exhausted = True
        if self._fail_around(run.scope, failed):
            run.failure = run.failure or failed
        return self._settle_map(run)

    def _settle_map(self, run: MapRun) -> Readies:
        if not run.settled:
            return NONE
        if not run.stopped and run.failure is None:
            return [(run.scope, run.index)]
        if run.failure is not None:
            return self._map_failed(run)
        return self._node_cut(run.scope, run.index, halted=self._is_halting(run.scope))

    def _map_failed(self, run: MapRun) -> Readies:
        assert run.failure is not None
        scope, index = run.scope, run.index
        scope.status[index] = NodeStatus.FAILED
        scope.active -= 1
        self._owe(scope, index, run.failure.error, started=True)
        self.touch(scope, index)
        return self._settle(scope)

    def scopes(self) -> Iterator[Scope]:
        """All scopes, the root first."""
        stack = [self.root]
        while stack:
            scope = stack.pop()
            yield scope
            for inner in (scope.children or {}).values():
                stack.extend([inner] if isinstance(inner, Scope) else inner.elements.values())


def is_failure(outcome: Any) -> bool:
    """Whether an element's outcome is a failure, before or after it was made into a `Failure`."""
    return isinstance(outcome, (Failed, Failure))
