"""What people get to see of a run: arguments as they may be shown, failures, and in the end the outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio import CancelScope, lowlevel

from aioreactor.engine import events, rollback
from aioreactor.engine.arguments import Frame, value_of
from aioreactor.engine.scope import Failed, MapRun, NodeStatus, Scope
from aioreactor.errors import StepCancelled
from aioreactor.plan.model import Arg, Plan, Source
from aioreactor.redaction import REDACTED, display, display_fields, is_redacted, secrets_in, secrets_of_fields
from aioreactor.results import ElementOutcome, Failure, Halt, Outcome, RunRecord, Skipped, Status, Success

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")
R = TypeVar("R")
_NOT_SHOWN = frozenset({Source.CONTEXT, Source.RESOURCE, Source.ERROR})


# ---------------------------------------------------------------------- what may be shown


def shown_inputs(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with the marked ones hidden."""
    return display_fields(inputs, plan.fields.hidden)


def shown_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """An event's own fields as they may be shown."""
    return {name: display(item) if name in {"value", "reason"} else item for name, item in fields.items()}


def _hides(scope: Scope, arg: Arg) -> bool:
    """Whether an argument comes from a marked input, or goes to a marked parameter."""
    from_input = arg.source is Source.INPUT and arg.name in scope.origin.plan.fields.hidden and not arg.transform
    return from_input or is_redacted(arg.annotation)


def shown_arguments(ex: Execution, scope: Scope, index: int) -> dict[str, Any]:
    """What a step was given; also learns which texts of it are secret."""
    node = scope.plan.nodes[index]
    recorded = scope.arguments.get(index) if scope.arguments else None
    values = recorded if recorded is not None else _resolved(ex, scope, index, node.args)
    hidden = {arg.parameter for arg in node.args if _hides(scope, arg)}
    if node.step_class is not None:
        hidden |= node.step_class.__aioreactor_fields__.hidden
    ex.learn_secrets(secrets_of_fields(values, hidden))
    return display_fields(values, hidden)


def _resolved(ex: Execution, scope: Scope, index: int, args: tuple[Arg, ...]) -> dict[str, Any]:
    frame = Frame(ex, scope, index)
    values = {}
    for arg in args:
        if arg.source not in _NOT_SHOWN and not (arg.source is Source.ITEM and scope.element is None):
            try:
                values[arg.parameter] = value_of(arg, frame)
            except Exception:  # noqa: BLE001, S112 - it could not be resolved: that is what is being reported
                continue
    return values


def first_in_flight(scope: Scope) -> str | None:
    """Path of the first step in progress, in definition order."""
    for node in scope.plan.nodes:
        if scope.status[node.index] == NodeStatus.RUNNING:
            inner = scope.children.get(node.index) if scope.children else None
            if isinstance(inner, Scope):
                return first_in_flight(inner)
            if isinstance(inner, MapRun):
                found = (first_in_flight(element) for i, element in inner.elements.items() if i not in inner.outcomes)
                return next((path for path in found if path), inner.path)
            return scope.path_of(node.index)
    return None


def log_source_close(ex: Execution, run: MapRun, error: BaseException) -> None:
    """A map's source raised when it was closed."""
    logger.warning(
        "source_close_failed run=%s step=%s: %s",
        ex.state.run_id,
        run.path,
        ex.scrub(repr(error)),
        extra={"event": "source_close_failed", "run_id": ex.state.run_id, "path": run.path},
    )


# ---------------------------------------------------------------------- outcomes


def _record(ex: Execution, status: Status) -> RunRecord:
    root = ex.state.root
    return RunRecord(ex.state.run_id, ex.plan.name, status, root.results_by_name, ex.state.trace)


def element_outcome(ex: Execution, run: MapRun, index: int) -> ElementOutcome[Any]:
    """An element's outcome as the reader of the map gets it."""
    found = run.outcomes.get(index)
    if isinstance(found, (Success, Skipped)):
        return found
    if isinstance(found, Failed):
        inside = f"{run.path}[{index}]"
        left = [entry for entry in ex.state.rollback_failures if _is_inside(entry.step, inside)]
        made = _failure(ex, found, (found,), "failed", left)
        run.outcomes[index] = found
        return made
    return Skipped(None)


def _is_inside(path: str, top: str) -> bool:
    return path == top or path.startswith((f"{top}.", f"{top}["))


def _failure(ex: Execution, first: Failed, failures: tuple[Failed, ...], status: Status, left: list[Any]) -> Failure:
    root = ex.state.root
    ex.learn_secrets(text for item in root.inputs.values() for text in secrets_in(item))
    return Failure(
        first.error,
        first.path or None,
        retry=first.retryable,
        errors=[failed.error for failed in failures],
        inputs=shown_inputs(ex.plan, root.inputs),
        arguments=first.arguments,
        attempts=first.attempts,
        rollback_failures=left,
        _scrub=ex.scrubber,
        _record=_record(ex, status),
    )


def refused(plan: Plan, run_id: str, error: BaseException, inputs: Mapping[str, Any]) -> Failure:
    """The outcome of a run whose inputs are not valid: nothing has run."""
    from aioreactor.redaction import Scrubber

    hidden = plan.fields.hidden
    return Failure(
        error,
        None,
        retry=False,
        inputs={name: REDACTED if name in hidden else display(item) for name, item in inputs.items()},
        _scrub=Scrubber(secrets_of_fields(inputs, hidden)),
        _record=RunRecord(run_id, plan.name, "failed"),
    )


# ---------------------------------------------------------------------- the end of a run


async def conclude(ex: Execution) -> Outcome[Any]:
    """Roll back where that is due, tell who listens, and give the outcome.

    Raises:
        KeyboardInterrupt, SystemExit: the run was interrupted; it is aborted.

    Cancellation: whatever arrives meanwhile is raised when all is done.
    """
    state = ex.state
    clean = state.completed and ex.cancelled is None and ex.interrupted is None and state.root.failure is None
    if clean and state.root.hooks is None and not ex.journal.durable:
        return Success(state.root.value(), _record=_record(ex, "completed"))
    outcome = ex.outcome = await _shielded(ex, _conclude(ex))
    if ex.interrupted is not None:
        raise ex.interrupted
    if ex.cancelled is not None:
        await _let_cancel_go_on(ex, outcome)
    return outcome


async def _let_cancel_go_on(ex: Execution, outcome: Outcome[Any]) -> None:
    error = ex.cancelled
    assert error is not None
    left = getattr(outcome, "rollback_failures", [])
    if left:
        error.add_note(f"{ex.plan.name}: {len(left)} rollback actions did not complete: {left!r}")
    if anyio.current_effective_deadline() == float("-inf"):
        await lowlevel.checkpoint()  # the cancelled scope around us raises its own error, which it knows again
    raise error


async def _shielded(ex: Execution, work: Coroutine[Any, Any, R]) -> R:
    """Wait for the end of ``work`` however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    with CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                ex.note_cancel(error)
    return task.result()


async def _conclude(ex: Execution) -> Outcome[Any]:
    cancelled_before = ex.cancelled is not None
    outcome = await _settle_fate(ex)
    await _finish(ex, outcome)
    if ex.cancelled is not None and not cancelled_before and outcome.ok and not ex.journal.durable:
        # Cancelled after it had ended well, before the caller could know: nobody else ever will, so it is undone.
        outcome = await _cancelled(ex)
        await _finish(ex, outcome)
    return outcome


async def _settle_fate(ex: Execution) -> Outcome[Any]:
    state = ex.state
    if ex.interrupted is not None:
        return _aborted(ex, f"interrupted by {type(ex.interrupted).__name__}")
    if state.failures:
        return await _failed(ex)
    if ex.cancelled is not None:
        return await _cancelled(ex)
    if state.halt is not None:
        return await _halted(ex)
    return Success(state.root.value(), _record=_record(ex, "completed"))


async def _failed(ex: Execution) -> Outcome[Any]:
    rollback.bound_by_policy(ex)
    await rollback.roll_back(ex, ex.state.root)
    if ex.interrupted is not None:
        return _aborted(ex, f"interrupted by {type(ex.interrupted).__name__}")
    failures = tuple(ex.state.failures)
    return _failure(ex, failures[0], failures, "failed", ex.state.rollback_failures)


async def _cancelled(ex: Execution) -> Outcome[Any]:
    if ex.option(ex.plan, "on_cancel") == "abort":
        return _aborted(ex, "the run was cancelled")
    await rollback.roll_back(ex, ex.state.root)
    if ex.interrupted is not None:
        return _aborted(ex, f"interrupted by {type(ex.interrupted).__name__}")
    return _stopped(ex, "the run was cancelled", "cancelled")


async def _halted(ex: Execution) -> Outcome[Any]:
    state = ex.state
    assert state.halt is not None
    await rollback.roll_back(ex, state.root, undo=False)
    reason, path = state.halt
    return Halt(
        reason,
        path,
        errors=[failed.error for failed in state.late_errors],
        rollback_failures=state.rollback_failures,
        _record=_record(ex, "halted"),
    )


def _aborted(ex: Execution, reason: str) -> Failure:
    return _stopped(ex, reason, "aborted")


def _stopped(ex: Execution, reason: str, status: Status) -> Failure:
    cut = next((entry for entry in ex.state.trace if entry[1] == "cancel"), None)
    path = cut[2] if cut is not None else None
    root = ex.state.root
    failed = Failed(StepCancelled(path or ex.plan.name, reason), root, None)
    failed.path = path or ""
    return _failure(ex, failed, (failed,), status, ex.state.rollback_failures)


def cancelled_outcome(ex: Execution) -> Failure:
    """The outcome of a run whose task was cancelled; the task itself ends with the ``CancelledError``."""
    if ex.outcome is not None:
        assert isinstance(ex.outcome, Failure)
        return ex.outcome
    return _stopped(ex, "the run was cancelled before it began", "cancelled")


async def _finish(ex: Execution, outcome: Outcome[Any]) -> None:
    if ex.state.recording:
        await ex.close(outcome)
    duration = ex.since(ex.began_at)
    root = ex.state.root
    await ex.tell(root, "on_run_finish", events.RunFinished, outcome=outcome, status=outcome.status, duration=duration)
