"""What people get to see of a run: arguments as they may be shown, failures, and in the end the outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from aioreactor.engine.arguments import Frame, value_of
from aioreactor.engine.scope import Failed, MapRun, NodeStatus, Scope
from aioreactor.logs import note
from aioreactor.map_results import ElementOutcome
from aioreactor.plan.model import Arg, Plan, Source
from aioreactor.plan.units import ITEM
from aioreactor.redaction import Scrubber, display, display_fields, is_redacted, secrets_of_fields
from aioreactor.results import Failure, Skipped, Success
from aioreactor.trace import RunRecord, Status

if TYPE_CHECKING:
    from aioreactor.engine.services import Services

logger = logging.getLogger("aioreactor.engine")
R = TypeVar("R")
_NOT_SHOWN = frozenset({Source.CONTEXT, Source.RESOURCE, Source.ERROR})


# ---------------------------------------------------------------------- what may be shown


def text_of(thing: object) -> str:
    """Its ``str``; a text that says so when that raises itself."""
    try:
        return str(thing)
    except Exception as error:
        return f"<{type(thing).__qualname__} whose text cannot be had: {type(error).__name__}>"


def shown_inputs(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with the marked ones hidden; without an element's item, of which only parts may be marked."""
    given = {name: item for name, item in inputs.items() if name != ITEM}
    return display_fields(given, plan.fields.hidden)


def shown_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """An event's own fields as they may be shown."""
    return {name: display(item) if name in {"value", "reason"} else item for name, item in fields.items()}


def _hides(scope: Scope, arg: Arg) -> bool:
    """Whether an argument comes from a marked input, or goes to a marked parameter."""
    from_input = arg.source is Source.INPUT and arg.name in scope.origin.plan.fields.hidden and not arg.transform
    return from_input or is_redacted(arg.annotation)


def shown_arguments(ex: Services, scope: Scope, index: int) -> dict[str, Any]:
    """What a step was given; also learns which texts of it are secret."""
    node = scope.plan.nodes[index]
    recorded = scope.arguments.get(index) if scope.arguments else None
    values = recorded if recorded is not None else _resolved(ex, scope, index, node.args)
    hidden = {arg.parameter for arg in node.args if _hides(scope, arg)}
    if node.step_class is not None:
        hidden |= node.step_class.__aioreactor_fields__.hidden
    ex.learn_secrets(secrets_of_fields(values, hidden))
    return display_fields(values, hidden)


def _resolved(ex: Services, scope: Scope, index: int, args: tuple[Arg, ...]) -> dict[str, Any]:
    frame = Frame(ex, scope, index)
    values = {}
    for arg in args:
        if arg.source not in _NOT_SHOWN and not (arg.source is Source.ITEM and scope.element is None):
            try:
                values[arg.parameter] = value_of(arg, frame)
            except Exception:  # noqa: S112 - it could not be resolved: that is what is being reported
                continue
    return values


def first_in_flight(scope: Scope) -> tuple[Scope, int] | None:
    """The first step in progress, in definition order."""
    for node in scope.plan.nodes:
        if scope.status[node.index] in (NodeStatus.RUNNING, NodeStatus.READY):
            inner = scope.children.get(node.index) if scope.children else None
            if isinstance(inner, Scope):
                return first_in_flight(inner)
            if isinstance(inner, MapRun):
                found = (first_in_flight(element) for i, element in inner.elements.items() if i not in inner.outcomes)
                return next((step for step in found if step), (scope, node.index))
            return scope, node.index
    return None


def blame_first_in_flight(ex: Services, failed: Failed, scope: Scope) -> None:
    """A failure of a whole scope names the first step in flight, if there is one."""
    found = first_in_flight(scope)
    failed.path = ""
    if found is not None:
        where, index = found
        failed.path = where.path_of(index)
        failed.attempts = where.attempt_of(index) + 1
        failed.arguments = shown_arguments(ex, where, index)


def log_source_close(ex: Services, run: MapRun, error: BaseException) -> None:
    """A map's source raised when it was closed."""
    text = ex.scrub(repr(error))
    note(logger, logging.WARNING, "source_close_failed", text, run_id=ex.state.run_id, path=run.path)


# ---------------------------------------------------------------------- outcomes


def record_of(ex: Services, status: Status) -> RunRecord:
    """What all outcomes of this run share."""
    root = ex.state.root
    return RunRecord(ex.state.run_id, ex.plan.name, status, root.results_by_name, ex.state.trace)


def element_outcome(ex: Services, run: MapRun, index: int) -> ElementOutcome[Any]:
    """An element's outcome as the reader of the map gets it."""
    found = run.outcomes.get(index)
    if isinstance(found, (Success, Skipped)):
        return found
    if isinstance(found, Failed):
        inside = f"{run.path}[{index}]"
        left = [entry for entry in ex.state.rollback_failures if _is_inside(entry.step, inside)]
        made = failure_of(ex, found, (found,), "failed", left)
        run.outcomes[index] = found
        return made
    return Skipped(None)


def _is_inside(path: str, top: str) -> bool:
    return path == top or path.startswith((f"{top}.", f"{top}["))


def failure_of(ex: Services, first: Failed, failures: tuple[Failed, ...], status: Status, left: list[Any]) -> Failure:
    """A failure as people get it: redacted, with everything that happened attached."""
    root = ex.state.root
    ex.learn_inputs(root.inputs, ())
    return Failure(
        first.error,
        first.path or None,
        retry=first.retryable,
        errors=[failed.error for failed in failures],
        inputs=shown_inputs(ex.plan, ex.own(root.inputs)),
        arguments=first.arguments,
        attempts=first.attempts,
        rollback_failures=left,
        _scrub=ex.scrubber,
        _record=record_of(ex, status),
    )


def refused(plan: Plan, run_id: str, error: BaseException, inputs: Mapping[str, Any]) -> Failure:
    """The outcome of a run whose inputs are not valid: nothing has run."""
    declared = {field.name for field in plan.fields.inputs}
    hidden = plan.fields.hidden | (inputs.keys() - declared)  # a misspelt secret is still one
    return Failure(
        error,
        None,
        retry=False,
        inputs=display_fields(inputs, hidden),
        _scrub=Scrubber(secrets_of_fields(inputs, hidden)),
        _record=RunRecord(run_id, plan.name, "failed"),
    )
