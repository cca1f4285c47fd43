"""Which rollback action comes next. Pure: reads and pops the stacks that `RunState` kept.

Failed steps first, in the order they failed; then what completed, newest first. A nested scope that was cut is
compensated by being rolled back itself; a completed one is undone at its place in the parent's order; the elements
of a map go highest index first.
"""

from __future__ import annotations

from dataclasses import dataclass

from aioreactor.engine.scope import FanRun, MapRun, Scope
from aioreactor.results import RollbackKind, Success


@dataclass(frozen=True, slots=True)
class Action:
    """Call the compensate or undo of node ``index`` in ``scope``; for ``undo_all``, of the map ``run``.

    With a `FanRun` and another kind: have its elements rolled back, wherever they are.
    """

    kind: RollbackKind
    scope: Scope
    index: int
    run: MapRun | None = None

    @property
    def path(self) -> str:
        """Dotted path of the step."""
        return self.run.path if self.run is not None else self.scope.path_of(self.index)


def next_action(scope: Scope, *, undo: bool = True) -> Action | None:
    """The next action in this scope, or None when nothing is left. It stays next until `done` is called.

    ``undo=False``: only what failed (a run that halted keeps what was done).
    """
    return _next_compensate(scope, undo=undo) or (_next_undo(scope) if undo else None)


def _next_compensate(scope: Scope, *, undo: bool) -> Action | None:
    while scope.failed:
        index = scope.failed[0]
        node = scope.plan.nodes[index]
        if node.kind == "step":
            if node.compensate is not None:
                return Action("compensate", scope, index)
        else:
            action = _next_inside(scope, index, "compensate", undo=undo)
            if action is not None:
                return action
        scope.failed.popleft()
    return None


def _next_undo(scope: Scope) -> Action | None:
    while scope.completed:
        index = scope.completed[-1]
        node = scope.plan.nodes[index]
        if node.kind == "step":
            if node.undo is not None:
                return Action("undo", scope, index)
        else:
            action = _next_inside(scope, index, "undo", undo=True)
            if action is not None:
                return action
        scope.completed.pop()
    return None


def _next_inside(scope: Scope, index: int, kind: RollbackKind, *, undo: bool) -> Action | None:
    inner = scope.children.get(index) if scope.children else None
    if inner is None:
        return None
    if isinstance(inner, FanRun):
        return _next_in_fan(inner, kind, undo=undo)
    return _next_in_map(inner, undo=undo) if isinstance(inner, MapRun) else next_action(inner, undo=undo)


def _next_in_map(run: MapRun, *, undo: bool) -> Action | None:
    if run.to_roll_back is None:
        run.to_roll_back = sorted(run.elements)
    together = run.node.undo_all is not None
    while run.to_roll_back:
        index = run.to_roll_back[-1]
        completed = isinstance(run.outcomes.get(index), Success)
        action = None if together and completed else next_action(run.elements[index], undo=undo)
        if action is not None:
            return action
        run.to_roll_back.pop()
    if together and undo and not run.undone and any(isinstance(item, Success) for item in run.outcomes.values()):
        return Action("undo_all", run.scope, run.index, run)
    return None


def _next_in_fan(run: FanRun, kind: RollbackKind, *, undo: bool) -> Action | None:
    """Its elements are stopped and rolled back where they are, all of that as one action."""
    if not run.back:
        return Action(kind, run.scope, run.index, run)
    if undo and run.node.undo_all is not None and not run.undone and run.succeeded:
        return Action("undo_all", run.scope, run.index, run)
    return None


def done(action: Action) -> None:
    """The action has returned (or failed, and was reported): take its entry off."""
    if isinstance(action.run, FanRun) and action.kind != "undo_all":
        action.run.back = True
    elif action.run is not None:
        action.run.undone = True
    elif action.kind == "compensate":
        assert action.scope.failed is not None
        action.scope.failed.popleft()
    else:
        action.scope.completed.pop()
