"""Which scopes a failure, a halt or a cancellation stops, so that nothing new starts in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioreactor.engine.scope import Failed, MapRun, NodeStatus, Scope
from aioreactor.engine.state_effects import Stopped, Wake
from aioreactor.engine.state_opening import OpeningState

if TYPE_CHECKING:
    from aioreactor.engine.state import Readies

_RUNNING = int(NodeStatus.RUNNING)


class StoppingState(OpeningState):
    """The part of a `RunState` that stops scopes."""

    __slots__ = ()

    def fail_scope(self, scope: Scope, failed: Failed, *, always: bool = False) -> Readies:
        """A scope as a whole failed (its deadline passed). ``always``: also when nothing in it is in progress."""
        if scope.failure is None and (scope.active or always):
            self._fail_around(scope, failed)
        return ()

    def cancel(self) -> Readies:
        """The run was cancelled from outside: nothing new starts."""
        self.cancelled = True
        if not self.root.stopped:
            self._stop(self.root)
        return ()

    def stop_all(self) -> None:
        """Nothing starts any more, wherever."""
        self._stop(self.root)

    def _fail_around(self, scope: Scope, failed: Failed) -> bool:
        """A failure dooms what is around it, unless that has halted or was cancelled before: then it comes too late."""
        if self.cancelled or self._is_halting(scope):
            self.late_errors.append(failed)
            return False
        self._doom(scope, failed)
        return True

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

    def _is_halting(self, scope: Scope | None) -> bool:
        if self.halt is not None:
            return True
        while scope is not None:
            if scope.halt is not None:
                return True
            scope = scope.owner
        return False

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
