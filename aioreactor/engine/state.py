"""Run state and its legal transitions: pure, synchronous, no tasks, no clock of its own.

Every transition returns the nodes that may start now, as ``(scope, index)`` in definition order; they are already
marked as in progress and each has to be answered by exactly one further transition. What is rarer goes into
``effects``, which the execution empties after each transition.

`RunState` consists of layers: ``state_changes`` (what happened, and what of it has to be written), ``state_opening``
(scopes begin), ``state_stopping`` (scopes are stopped), and, here, how ends of nodes lead to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from aioreactor.engine.limiter import Ready
from aioreactor.engine.scope import Failed, FanRun, MapRun, NodeStatus, Parked, Scope
from aioreactor.engine.state_changes import WHOLE
from aioreactor.engine.state_effects import RollBack, Wake
from aioreactor.engine.state_stopping import StoppingState
from aioreactor.errors import StepCancelled
from aioreactor.results import Failure, Skipped, Success

NONE: tuple[Ready, ...] = ()
CRASHED = "the process that ran it ended"
Readies: TypeAlias = Sequence[Ready]
_READY, _RUNNING = int(NodeStatus.READY), int(NodeStatus.RUNNING)
_COMPLETED, _SKIPPED = int(NodeStatus.COMPLETED), int(NodeStatus.SKIPPED)


class RunState(StoppingState):
    """One run, and what ends of its nodes, elements and scopes lead to."""

    __slots__ = ()

    # ------------------------------------------------------------------ attempts of a node

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
        was cancelled); a map whose elements are done, but which is not completed, is cut.
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


def is_failure(outcome: Any) -> bool:
    """Whether an element's outcome is a failure, before or after it was made into a `Failure`."""
    return isinstance(outcome, (Failed, Failure))
