"""Going on with a run that another execution began: its stored images become the state of a new execution."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aioreactor.engine import reporting
from aioreactor.engine.arguments import Frame, resolve, validated, view_of
from aioreactor.engine.nesting import adopt
from aioreactor.engine.orders import Cancel
from aioreactor.engine.ports import Fate
from aioreactor.engine.preparing import prepared_of
from aioreactor.engine.scope import Failed, FanRun, NodeStatus, Scope
from aioreactor.engine.snapshot import Codec, Image, Restorer
from aioreactor.engine.state import Readies
from aioreactor.errors import ArgumentError, DefinitionError, InputValidationError
from aioreactor.logs import note
from aioreactor.map_results import MapResults
from aioreactor.results import Success
from aioreactor.trace import RawEntry

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")


def restoring(
    ex: Execution,
    codec: Codec,
    images: Mapping[str, Image],
    entries: list[RawEntry],
    inputs: Mapping[str, Any],
    fate: Fate | None,
    *,
    quiet: bool = False,
) -> Callable[[], Readies]:
    """What `Execution.resume` calls to fill its state; it gives the nodes that may start. ``quiet``: see `Restorer`."""

    def restore() -> Readies:
        state = ex.state
        state.adopt_trace(entries)
        state.root.inputs = inputs
        if fate is not None:
            _meet(ex, fate)
        ready = Restorer(state, images, codec, failing=fate is not None, quiet=quiet).restore()
        state.dirty.clear()  # all of it is stored already
        if state.cancelled:
            state.stop_all()  # cancelled before it was restored: nothing of it starts
        fill_values(ex, state.root)
        for scope in state.scopes():
            furnish(ex, scope, watch=fate is None)
        return ready

    return restore


def _meet(ex: Execution, fate: Fate) -> None:
    """The run was going back already: nothing starts any more."""
    state, root = ex.state, ex.state.root
    root.stopped = True
    state.rollback_failures[:] = fate.left
    if fate.kind == "failed":
        assert fate.error is not None
        failed = Failed(
            fate.error, root, None, attempts=fate.attempts, retryable=fate.retryable, arguments=fate.arguments
        )
        failed.path = fate.path
        state.failures += [failed, *(Failed(error, root, None) for error in fate.others)]
        root.failure = failed
    elif fate.kind == "halted":
        state.halt = (fate.reason, fate.path)
        state.late_errors += [Failed(error, root, None) for error in fate.others]
    else:
        state.cancelled = True
        if isinstance(fate.reason, str):
            ex.ordered = Cancel(0, fate.reason, "rollback")


def furnish(ex: Execution, scope: Scope, *, watch: bool) -> None:
    """What a scope has that is not stored: its view, hooks, deadline; and the results of its maps."""
    if scope.plan.element:
        scope.origin = scope.owner.origin if scope.owner is not None else scope
        scope.view, scope.inputs = scope.origin.view, scope.origin.inputs
        _remember_arguments(ex, scope)
        return
    ex.learn_inputs(scope.inputs, scope.plan.fields.hidden)
    resources = {item.name: ex.resource(item.name, item.annotation) for item in scope.plan.fields.resources}
    scope.view = view_of(scope.plan, scope.inputs, resources)
    if scope.parent is not None and watch and scope.active:
        adopt(ex, scope, scope.plan)
    _remember_arguments(ex, scope)


_ENTERED = (NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.CUT)


def _remember_arguments(ex: Execution, scope: Scope) -> None:
    """What bodies were given, for undos and compensates that ask for it: resolved again from what is stored."""
    for node in scope.plan.nodes:
        if node.kind != "step" or scope.status[node.index] not in _ENTERED or not prepared_of(node).recorded:
            continue
        try:
            made = scope.made.get(node.index, {}) if scope.made else {}
            wired = tuple(arg for arg in node.args if arg.parameter not in made)
            values: Any = {**resolve(wired, Frame(ex, scope, node.index)), **made}
            if node.step_class is not None:
                values = validated(node.step_class.__aioreactor_fields__, values, f"step {scope.path_of(node.index)!r}")
        except (ArgumentError, InputValidationError, DefinitionError) as error:
            note(logger, logging.WARNING, "arguments_lost", str(error), path=scope.path_of(node.index))
            continue
        scope.arguments = scope.arguments or {}
        scope.arguments[node.index] = values


def fill_values(ex: Execution, scope: Scope) -> None:
    """The values that follow from others: of maps and composed children that completed, innermost first."""
    for index, inner in (scope.children or {}).items():
        done = scope.status[index] in (NodeStatus.COMPLETED, NodeStatus.UNDONE)
        if isinstance(inner, Scope):
            fill_values(ex, inner)
            if done:
                scope.results[index] = inner.value()
            continue
        if isinstance(inner, FanRun):
            continue  # see `fanning.bind`
        for number, element in inner.elements.items():
            fill_values(ex, element)
            if isinstance(inner.outcomes.get(number), Success):
                inner.outcomes[number] = Success(element.value())
        if done and inner.node.collect is None:
            scope.results[index] = MapResults([reporting.element_outcome(ex, inner, i) for i in range(inner.opened)])
