"""A run's tree as plain data for ``--json``. Spans are milliseconds, as the names say."""

from __future__ import annotations

from typing import Any

from aioreactor.cli.render_trace import Attempt, RollbackAction, RunTree, StepTree


def run_dict(run: RunTree) -> dict[str, Any]:
    """The run, its steps nested, and its rollback in order."""
    return {
        "run_id": run.run_id,
        "reactor": run.reactor,
        "status": run.status,
        "duration_ms": milliseconds(run.duration),
        "stopped_at": run.stopped_at,
        "error": run.error or None,
        "reason": run.reason or None,
        "field_errors": dict(run.field_errors),
        "steps": [_step_dict(step) for step in run.steps],
        "rollback": [_action_dict(action) for action in run.rollback],
    }


def milliseconds(seconds: float | None) -> float | None:
    """Rounded to the microsecond; None stays None."""
    return None if seconds is None else round(seconds * 1000, 3)


def _step_dict(step: StepTree) -> dict[str, Any]:
    return {
        "name": step.name,
        "path": step.path,
        "status": step.status,
        "duration_ms": milliseconds(step.duration),
        "detail": step.detail or None,
        "attempts": [_attempt_dict(attempt) for attempt in step.attempts],
        "rolled_back": bool(step.rollback) and all(action.complete for action in step.rollback),
        "notes": list(step.notes),
        "steps": [_step_dict(child) for child in step.children],
    }


def _attempt_dict(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "status": attempt.status,
        "duration_ms": milliseconds(attempt.duration),
        "error": attempt.error or None,
        "timed_out": attempt.timed_out,
        "retried_in": attempt.retried_in or None,
    }


def _action_dict(action: RollbackAction) -> dict[str, Any]:
    return {
        "order": action.order,
        "kind": action.kind,
        "path": action.path,
        "complete": action.complete,
        "problem": action.problem or None,
    }
