"""Carrying out a rollback: the actions that ``rollback_order`` names, one at a time, each bounded and reported."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.engine import covering, events, fan_rollback
from aioreactor.engine.arguments import Frame, resolve, split
from aioreactor.engine.bodies import unawaited
from aioreactor.engine.drive import EngineClosed, in_thread, run_in
from aioreactor.engine.preparing import instance_of
from aioreactor.engine.reporting import text_of
from aioreactor.engine.rollback_order import Action, done, next_action
from aioreactor.engine.scope import FanRun, MapRun, Scope
from aioreactor.engine.signals import FailSignal, HaltSignal, signal_in
from aioreactor.failures import describe
from aioreactor.logs import note
from aioreactor.plan.model import Call
from aioreactor.results import Failure, Halt, RollbackFailure, RollbackReason, Success

if TYPE_CHECKING:
    from aioreactor.engine.cancelling import Cancellable
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.rollback")


class _Incomplete(Exception):
    """An action did not complete."""

    def __init__(self, reason: RollbackReason, message: str, key: str | None = None) -> None:
        self.reason: RollbackReason = reason
        self.message = message
        self.key = key


async def roll_back(ex: Execution, scope: Scope, *, undo: bool = True) -> None:
    """Roll a scope back: compensate what failed, then undo what completed, newest first.

    ``undo=False`` only compensates. What does not complete is reported, and the rest goes on. Stops early only when
    the run is interrupted or lost; what is left stays on the stacks.

    Cancellation: the caller shields it.
    """
    if next_action(scope, undo=undo) is None:
        return
    began, before = ex.clock.monotonic(), len(ex.state.rollback_failures)
    span = ex.policy(scope, "rollback_timeout")
    limit = math.inf if span is None else asyncio.get_running_loop().time() + span
    error = scope.failure.error if scope.failure is not None else None
    if ex.state.recording:
        await ex.save(firm=True)  # that the run goes back is kept before anything is taken back
    await _tell(ex, scope, limit, "on_rollback_start", events.RollbackStarted, error=error)
    tried = {(each.kind, each.step) for each in ex.state.rollback_failures}  # before the run was left in the middle
    while ex.may_go_back and (action := next_action(scope, undo=undo)) is not None:
        if (action.kind, action.path) in tried:
            done(action)  # it stays owed, for a later undo
            continue
        found = await _carried_out(ex, action, limit, undo=undo, may_rest=scope.parent is None)
        if not ex.may_go_back or found is None:
            break  # it stays owed: whoever goes on calls it again
        done(action)
        if not _goes_on(action, undo=undo):
            ex.state.rolled(action.scope, action.index, undone=action.kind != "compensate", complete=not found)
        for failure in found:
            if failure not in ex.state.rollback_failures:
                _report(ex, failure)
        if ex.state.recording:
            await ex.save(firm=True)  # before the next one begins
    failures = tuple(ex.state.rollback_failures[before:])
    finished = partial(_tell, ex, scope, limit, "on_rollback_finish", events.RollbackFinished)
    await finished(failures=failures, duration=ex.since(began))


async def _carried_out(
    ex: Execution, action: Action, limit: float, *, undo: bool, may_rest: bool
) -> Sequence[RollbackFailure] | None:
    """Carry one action out; gives what did not complete, None when it goes on elsewhere."""
    if isinstance(action.run, FanRun) and action.kind != "undo_all":
        return await fan_rollback.go_back(ex, action.run, undo=undo, may_rest=may_rest)
    failure = await _perform(ex, action, limit)
    return [] if failure is None else [failure]


def _goes_on(action: Action, *, undo: bool) -> bool:
    """Whether the same node has another action after this one."""
    run = action.run
    together = isinstance(run, FanRun) and run.node.undo_all is not None and undo and run.succeeded > 0
    return together and action.kind != "undo_all"


async def _tell(ex: Execution, scope: Scope, limit: float, *event: Any, **fields: Any) -> None:
    """Tell the hooks, within the time that the action or the rollback has: one that hangs holds up no undo."""
    if scope.hooks is None:
        return
    span = ex.span(scope, "undo_timeout")
    bound = CancelScope(deadline=min(asyncio.get_running_loop().time() + span, limit, ex.rollback_limit))
    ex.rollback_scopes.add(bound)
    try:
        with bound:
            await ex.tell(scope, *event, **fields)
    finally:
        ex.rollback_scopes.discard(bound)
    if bound.cancel_called:
        text = "cut off, so that the rollback can go on"
        note(logger, logging.WARNING, "hook_timed_out", text, run_id=ex.state.run_id, hook=event[0])


def bound_by_cancel(ex: Cancellable) -> None:
    """Somebody waits for the rollback with a cancellation pending: from now on it has to end in time."""
    span = ex.policy(ex.state.root, "rollback_timeout")
    span = ex.environment.cancel_rollback_timeout if span is None else span
    ex.rollback_limit = min(ex.rollback_limit, asyncio.get_running_loop().time() + span)
    for running in ex.rollback_scopes:
        running.deadline = min(running.deadline, ex.rollback_limit)


def _report(ex: Execution, failure: RollbackFailure) -> None:
    ex.state.rollback_failures.append(failure)
    ex.state.log("rollback_failure", failure.step, 1, f"{failure.kind} {failure.reason}")
    note(
        logger,
        logging.ERROR,
        "rollback_failure",
        failure.message,
        run_id=ex.state.run_id,
        path=failure.step,
        kind=failure.kind,
        reason=failure.reason,
    )


async def _perform(ex: Execution, action: Action, limit: float) -> RollbackFailure | None:
    """One action, with its events; what went wrong with it, or None. ``limit``: when this rollback has to end."""
    scope, began = action.scope, ex.clock.monotonic()
    compensating = action.kind == "compensate"
    attempt = scope.attempt_of(action.index) + 1
    failure: RollbackFailure | None = None
    try:
        limit = min(limit, ex.rollback_limit)
        if asyncio.get_running_loop().time() >= limit:
            raise _Incomplete("timed_out", f"not called: {_OUT_OF_TIME}")
        if compensating:
            await _tell(ex, scope, limit, "on_compensate_start", events.CompensateStarted, action.index, attempt)
        else:
            await _tell(ex, scope, limit, "on_undo_start", events.UndoStarted, action.index, attempt, kind=action.kind)
        if ex.state.recording and not ex.journal.trusted:
            await ex.save(always=True)  # the loop stood still: is the run still ours?
        if ex.lost is not None:
            return None
        await _call_covered(ex, action, attempt, limit)
    except _Incomplete as problem:
        failure = _failure(ex, action, problem)
    if ex.interrupted is not None or ex.lost is not None:
        return failure
    if compensating:
        finished: Any = partial(_tell, ex, scope, limit, "on_compensate_finish", events.CompensateFinished)
    else:
        finished = partial(_tell, ex, scope, limit, "on_undo_finish", events.UndoFinished, kind=action.kind)
    await finished(action.index, attempt, failure=failure, duration=ex.since(began))
    return failure


def _failure(ex: Execution, action: Action, problem: _Incomplete) -> RollbackFailure:
    map_step, element = action.scope.enclosing_map() or (None, None)
    message = ex.scrub(problem.message)
    return RollbackFailure(action.path, action.kind, problem.reason, message, problem.key, map_step, element)


async def _call_covered(ex: Execution, action: Action, attempt: int, limit: float) -> None:
    """Call it under the locks and semaphores that its body had.

    Raises:
        _Incomplete: as `_call`, or they cannot be had.
    """
    if ex.coordinator is None:
        await _call(ex, action, attempt, limit, None)
        return
    try:
        cover = await covering.covered(ex, action, attempt, limit)
    except covering.Uncovered as error:
        raise _Incomplete("coordination_unavailable", f"not called: {error.message}", error.key) from error
    try:
        await _call(ex, action, attempt, limit, cover)
    finally:
        await covering.uncover(ex, cover)


async def _call(ex: Execution, action: Action, attempt: int, whole: float, cover: covering.Cover | None) -> None:
    """Call it, under its time limit.

    Raises:
        _Incomplete: it raised, returned a `Failure`, or ran out of time.
    """
    span = ex.span(action.scope, "undo_timeout")
    own = asyncio.get_running_loop().time() + span
    limit = CancelScope(deadline=min(own, whole))
    ex.rollback_scopes.add(limit)
    if cover is not None:
        cover.limit = limit
    value: Any = None
    try:
        bound, is_async = _bind(ex, action, attempt)
        ex.state.log(action.kind, action.path, attempt)
        with limit:
            value = await _enter(ex, action, bound, cover, is_async=is_async)
    except EngineClosed:
        raise
    except BaseException as error:
        _require_covered(cover)
        _classify(ex, error, _time_text(limit, own, span) if limit.cancel_called else None)
        return
    finally:
        ex.rollback_scopes.discard(limit)
    _require_covered(cover)
    if limit.cancel_called:
        raise _Incomplete("timed_out", _time_text(limit, own, span))
    if isinstance(value, (Failure, Halt)):
        raise _Incomplete("returned_failure", _returned_text(value))
    if hasattr(value, "send") and hasattr(value, "throw"):
        raise _Incomplete("raised", str(unawaited(value)))


def _require_covered(cover: covering.Cover | None) -> None:
    """Whatever came of an action whose hold was lost on the way, it was cut off.

    Raises:
        _Incomplete: one was.
    """
    if cover is not None and cover.lost is not None:
        raise _Incomplete("coordination_unavailable", f"cut off: {cover.lost}", cover.lost.key) from cover.lost


_OUT_OF_TIME = "the rollback as a whole ran out of time"


def _time_text(limit: CancelScope, own: float, span: float) -> str:
    """Which of the two limits it was that passed."""
    return f"cut off: {_OUT_OF_TIME}" if limit.deadline < own else f"it did not end within undo_timeout={span:g} s"


def _returned_text(value: Failure | Halt) -> str:
    return describe(value.error) if isinstance(value, Failure) else f"halted: {text_of(value.reason)}"


def _classify(ex: Execution, error: BaseException, timed_out: str | None) -> None:
    """Whether what came out of an action means that it did not complete; ``timed_out`` says how its time ran out."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        ex.interrupt(error)
        return
    if timed_out:
        raise _Incomplete("timed_out", timed_out) from error
    signal = signal_in(error)
    if isinstance(signal, (HaltSignal, FailSignal)):
        raise _Incomplete("returned_failure", _returned_text(signal.outcome)) from error
    if signal is None:
        raise _Incomplete("raised", describe(error)) from error


def _bind(ex: Execution, action: Action, attempt: int) -> tuple[Callable[..., Any], bool]:
    """The callable with the same arguments that the forward attempt saw."""
    scope, index = action.scope, action.index
    node = scope.plan.nodes[index]
    if action.run is not None:
        assert node.undo_all is not None
        frame = Frame(ex, scope, index, attempt=attempt, own_result=_completed_results(ex, action.run))
        return _method(node.undo_all, scope.view, frame)
    call = node.compensate if action.kind == "compensate" else node.undo
    assert call is not None
    error = scope.errors.get(index) if scope.errors else None
    frame = Frame(ex, scope, index, attempt=attempt, error=error, own_result=scope.results[index])
    if node.step_class is None:
        return _method(call, scope.view, frame)
    recorded = scope.arguments[index] if scope.arguments else {}
    return _method(call, instance_of(ex, node, recorded), frame)


def _method(call: Call, owner: Any, frame: Frame) -> tuple[Callable[..., Any], bool]:
    positional, keywords = split(call, resolve(call.args, frame))
    return partial(call.fn, owner, *positional, **keywords), call.is_async


def _completed_results(ex: Execution, run: MapRun) -> AsyncIterator[Any]:
    return fan_rollback.completed_results(ex, run) if isinstance(run, FanRun) else _results_here(run)


async def _results_here(run: MapRun) -> AsyncIterator[Any]:
    for index in sorted(run.outcomes):
        outcome = run.outcomes[index]
        if isinstance(outcome, Success):
            yield outcome.value


async def _enter(
    ex: Execution, action: Action, bound: Callable[..., Any], cover: covering.Cover | None, *, is_async: bool
) -> Any:
    guard = action.scope.guard
    context = (ex.base if guard is None else guard.base).copy()
    if cover is not None and ex.coordinator is not None:
        ex.coordinator.settle(context, cover.place)
    if is_async:
        return await run_in(context, context.run(bound))
    name = f"{action.kind} of {action.path}"
    return await run_in(context, in_thread(bound, limiter=ex.environment.limiter(), grace=0.0, name=name))
