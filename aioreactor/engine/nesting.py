"""Composed children: their inputs, and how they begin inside the parent's run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioreactor.engine import guarding_nested
from aioreactor.engine.arguments import Frame, cross_checked, resolve, validated, view_of
from aioreactor.engine.attempt import Later, ended
from aioreactor.engine.gating import Barred
from aioreactor.engine.scope import Scope
from aioreactor.engine.state import Readies
from aioreactor.errors import ArgumentError, DefinitionError, InputValidationError
from aioreactor.plan.model import Arg, Plan
from aioreactor.redaction import secrets_of_fields

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

REFUSALS = (ArgumentError, InputValidationError, DefinitionError)


def child_inputs(
    ex: Execution, frame: Frame, args: tuple[Arg, ...], plan: Plan, owner: str
) -> tuple[Any, dict[str, Any]]:
    """The child's view and its validated inputs.

    Raises:
        ArgumentError, InputValidationError, DefinitionError: they cannot be resolved, or do not fit.
    """
    inputs = validated(plan.fields, resolve(args, frame), owner)
    ex.learn_secrets(secrets_of_fields(inputs, plan.fields.hidden))
    resources = {field.name: ex.resource(field.name, field.annotation) for field in plan.fields.resources}
    view = view_of(plan, inputs, resources)
    cross_checked(view, owner)
    return view, inputs


async def run_child(ex: Execution, scope: Scope, index: int) -> Readies | Later:
    """Begin a composed child; its steps are what is ready next.

    Cancellation: noted with the execution.
    """
    node = scope.plan.nodes[index]
    plan = node.child
    assert plan is not None
    owner = f"{plan.reactor.__qualname__} in step {scope.path_of(index)!r}"
    try:
        view, inputs = child_inputs(ex, Frame(ex, scope, index), node.args, plan, owner)
    except REFUSALS as error:
        return await ended(ex, scope, index, 1, error, started=False, retry=False)
    guard: Any = None
    if ex.coordinator is not None:
        guard = await guarding_nested.child_passed(ex, scope, index, view)
        if isinstance(guard, Barred):
            return guard.then
    ready = ex.state.open_child(scope, index, view, inputs)
    if guard is not None and scope.children:
        guard.enter(ex, scope.children[index], ex.base.copy())
    adopt(ex, scope.children[index] if scope.children else None, plan)
    if ex.state.recording:
        await ex.save()  # after a crash the child has to be known, in case one of its bodies was in flight
    return ready


def adopt(ex: Execution, child: Any, plan: Plan) -> None:
    """Give a scope that was just opened its own middlewares and its own deadline."""
    if plan.options.middlewares:
        child.hooks = ex.hooks_of(child.hooks, plan.options.middlewares)
    ex.watch_deadline(child)
