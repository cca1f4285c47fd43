"""The end of a run: its fate, the rollback that this asks for, and the outcome.

Everything here is shielded: however often the caller is cancelled meanwhile, it is carried out once and to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio import lowlevel

from aioreactor.engine import events, fan_rollback, guard_ends, guarding, pausing, rollback
from aioreactor.engine.leaving import Leaving, pause
from aioreactor.engine.reporting import failure_of, record_of
from aioreactor.engine.scope import Failed
from aioreactor.engine.units import withdraw
from aioreactor.errors import OwnershipLost, StepCancelled
from aioreactor.results import Dispatched, Failure, Halt, Outcome, Paused, Success
from aioreactor.trace import Status

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution
    from aioreactor.engine.snoozing import Waker

R = TypeVar("R")


async def conclude(ex: Execution) -> Outcome[Any]:
    """Roll back where that is due, tell who listens, and give the outcome.

    Raises:
        KeyboardInterrupt, SystemExit: the run was interrupted; it is aborted.

    Cancellation: whatever arrives meanwhile is raised when all is done.
    """
    state = ex.state
    clean = state.completed and ex.cancelled is None and ex.interrupted is None and state.root.failure is None
    if clean and state.root.hooks is None and not ex.journal.durable and state.root.guard is None:
        return Success(state.root.value(), _record=record_of(ex, "completed"))
    if ex.lost is None:
        ex.outcome = await ex.shielded(_conclude(ex))
    if ex.lost is not None:
        await guarding.call_off(ex)
        if isinstance(ex.lost, OwnershipLost):
            guard_ends.abandon(ex)
        else:
            await guard_ends.leave(ex, 0.0)
        if ex.cancelled is not None:
            await _let_cancel_go_on(ex, None)
        raise ex.lost
    outcome = ex.outcome
    assert outcome is not None
    if ex.cancelled is not None and outcome.ok and not ex.journal.durable:
        # Cancelled after it had ended well, before the caller could know: nobody else ever will, so it is undone.
        outcome = ex.outcome = await ex.shielded(_undo_late(ex))
    if ex.interrupted is not None:
        raise ex.interrupted
    if ex.cancelled is not None:
        await _let_cancel_go_on(ex, outcome)
    return outcome


async def _let_cancel_go_on(ex: Execution, outcome: Outcome[Any] | None) -> None:
    error = ex.cancelled
    assert error is not None
    left = getattr(outcome, "rollback_failures", [])
    if left:
        error.add_note(f"{ex.plan.name}: {len(left)} rollback actions did not complete: {left!r}")
    if anyio.current_effective_deadline() == float("-inf"):
        await lowlevel.checkpoint()  # the cancelled scope around us raises its own error, which it knows again
    raise error


async def _conclude(ex: Execution) -> Outcome[Any]:
    outcome = await _settle_fate(ex)
    if not isinstance(outcome, (Dispatched, Paused)):
        await _finish(ex, outcome)
    return outcome


async def _undo_late(ex: Execution) -> Outcome[Any]:
    outcome = await _cancelled(ex)
    await _finish(ex, outcome)
    return outcome


async def _settle_fate(ex: Execution) -> Outcome[Any]:
    state = ex.state
    if ex.interrupted is not None:
        return _aborted(ex, f"interrupted by {type(ex.interrupted).__name__}")
    if state.failures:
        return await _failed(ex)
    if state.cancelled:
        return await _cancelled(ex)
    if state.halt is not None:
        return await _halted(ex)
    unfinished = not (state.completed and state.admitted)
    if unfinished and (ex.leaving is not None or ex.open_nodes):
        leaving = ex.leaving or pause(ex)
        return await (_paused(ex, leaving) if leaving.kind == "pause" else _left(ex, leaving))
    return Success(state.root.value(), _record=record_of(ex, "completed"))


async def _failed(ex: Execution) -> Outcome[Any]:
    await rollback.roll_back(ex, ex.state.root)
    if ex.resting is not None:
        return await _left(ex, ex.resting, "rolling_back")
    if ex.interrupted is not None:
        return _aborted(ex, f"interrupted by {type(ex.interrupted).__name__}")
    failures = tuple(ex.state.failures)
    return failure_of(ex, failures[0], failures, "failed", ex.state.rollback_failures)


async def _cancelled(ex: Execution) -> Outcome[Any]:
    if ex.ordered is not None and ex.ordered.mode == "stop":
        ex.state.served = max(ex.state.served, ex.ordered.number)
        await fan_rollback.stop_all(ex)
        return _stopped(ex, ex.ordered.reason, "cancelled")
    if ex.cancelled is not None and ex.policy(ex.state.root, "on_cancel") == "abort":
        return _aborted(ex, "the run was cancelled")
    await rollback.roll_back(ex, ex.state.root)
    if ex.resting is not None:
        return await _left(ex, ex.resting, "rolling_back")
    if ex.interrupted is not None:
        return _aborted(ex, f"interrupted by {type(ex.interrupted).__name__}")
    return _stopped(ex, ex.ordered.reason if ex.ordered is not None else "the run was cancelled", "cancelled")


async def _halted(ex: Execution) -> Outcome[Any]:
    state = ex.state
    assert state.halt is not None
    await rollback.roll_back(ex, state.root, undo=False)
    if ex.resting is not None:
        return await _left(ex, ex.resting, "rolling_back")
    reason, path = state.halt
    return Halt(
        reason,
        path,
        errors=[failed.error for failed in state.late_errors],
        rollback_failures=state.rollback_failures,
        _record=record_of(ex, "halted"),
    )


async def _left(ex: Execution, leaving: Leaving, status: Status = "running") -> Dispatched:
    ex.state.log(leaving.kind, leaving.path, 1, leaving.waits_for)
    delay = max(0.0, leaving.due - ex.clock.now()) if leaving.due is not None else 0.0
    await guard_ends.leave(ex, delay)
    job_id = await ex.part(delay, leaving.waits_for, status)
    if ex.parted and any(waker.woken for waker in _wakers(ex)):
        ex.journal.rouse()  # it was called while it was being left
    if ex.units is not None and leaving.kind == "park" and ex.lost is None:
        await ex.units.parted()
    if ex.fans is not None and leaving.kind == "park" and ex.lost is None:
        await ex.fans.parted()
    await ex.sent()
    if ex.lost is None and leaving.kind == "hand_off":
        await ex.tell(ex.state.root, "on_run_hand_off", events.RunHandedOff, job_id=job_id)
    elif ex.lost is None:
        await ex.tell(ex.state.root, "on_run_park", events.RunParked, delay=delay, waits_for=leaving.waits_for)
    return Dispatched(job_id, _record=record_of(ex, status))


async def _paused(ex: Execution, leaving: Leaving) -> Paused:
    """Nothing can go on before somebody answers, or the first deadline passes."""
    found = pausing.shown(ex)
    delay = max(0.001, leaving.due - ex.clock.now()) if leaving.due is not None else 0.0
    await guard_ends.pause(ex)
    await ex.part(delay, leaving.waits_for, "paused")
    await ex.sent()
    return Paused(found, _record=record_of(ex, "paused"))


def _wakers(ex: Execution) -> list[Waker]:
    parked = [each.waker for scope in ex.state.scopes() for each in (scope.parks or {}).values()]
    own = ex.unadmitted.waker if ex.unadmitted is not None else None
    return [waker for waker in (*parked, own) if waker is not None]


def _aborted(ex: Execution, reason: str) -> Failure:
    return _stopped(ex, reason, "aborted")


def _stopped(ex: Execution, reason: str, status: Status) -> Failure:
    cut = next((entry for entry in ex.state.trace if entry[1] == "cancel"), None)
    path = cut[2] if cut is not None else None
    root = ex.state.root
    failed = Failed(StepCancelled(path or ex.plan.name, reason), root, None)
    failed.path = path or ""
    return failure_of(ex, failed, (failed,), status, ex.state.rollback_failures)


def cancelled_outcome(ex: Execution) -> Failure:
    """The outcome of a run whose task was cancelled; the task itself ends with the ``CancelledError``."""
    if ex.outcome is not None:
        assert isinstance(ex.outcome, Failure)
        return ex.outcome
    return _stopped(ex, "the run was cancelled before it began", "cancelled")


async def _finish(ex: Execution, outcome: Outcome[Any]) -> None:
    if ex.units is not None and outcome.status in ("failed", "cancelled"):
        await withdraw(ex)
    ended = True
    if ex.state.recording:
        await guard_ends.mark(ex, outcome)
        ended = await ex.close(outcome)
    await ex.sent()
    if not ended:
        return
    await guard_ends.finish(ex, outcome)
    duration = ex.since(ex.began_at)
    root = ex.state.root
    await ex.tell(root, "on_run_finish", events.RunFinished, outcome=outcome, status=outcome.status, duration=duration)
