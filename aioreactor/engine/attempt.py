"""One attempt of a step: resolve → validate → pass its gates → run → check → record.

The common case, an ``async def`` whose arguments are inputs and results as they are, takes no detour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from aioreactor.engine import events, gating, reporting
from aioreactor.engine.arguments import Frame, checked, cross_checked, resolve, split, validated
from aioreactor.engine.bodies import CutShort, enter, output_error, unawaited
from aioreactor.engine.drive import EngineClosed, resume
from aioreactor.engine.ports import JournalFailed
from aioreactor.engine.preparing import Prepared, instance_of, prepared_of, remember
from aioreactor.engine.scope import Failed, Scope
from aioreactor.engine.signals import signal_in
from aioreactor.engine.state import Readies
from aioreactor.errors import (
    ArgumentError,
    DefinitionError,
    InputValidationError,
    PayloadTooLarge,
    SerializationError,
    StepCancelled,
    StepTimeout,
)
from aioreactor.failures import describe
from aioreactor.plan.model import PlanNode
from aioreactor.results import Failure, Halt, Skipped

if TYPE_CHECKING:
    from aioreactor.engine.gating import Gate
    from aioreactor.engine.scheduler import Execution
    from aioreactor.engine.snoozing import Waker

_NO_KEYWORDS: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Later:
    """The attempt failed, or was refused by its gates, and is to be repeated after ``delay`` seconds.

    Or it has not begun: it is to be tried when ``unit`` has ended, after ``delay`` seconds at the latest.
    """

    scope: Scope
    index: int
    delay: float
    waits_for: str = ""
    """What it was refused, if it was."""
    waker: Waker | None = None
    unit: str = ""


class Bound(NamedTuple):
    """Everything a body is called with; ``owner`` is its ``self``."""

    owner: Any
    positional: list[Any]
    keywords: dict[str, Any]


async def run_step(ex: Execution, scope: Scope, index: int, gate: Gate | None = None) -> Readies | Later:
    """Make one attempt and tell the run state what came of it. ``gate``: it has passed its gates already.

    Cancellation: a real one is noted with the execution and does not come out of here.
    """
    node = scope.plan.nodes[index]
    prepared: Prepared = node.prepared or prepared_of(node)
    number = scope.attempts.get(index, 0) + 1 if scope.attempts else 1
    given: Any
    try:
        if gate is not None:
            owner, given, keywords = gate.bound
        elif prepared.fast is not None:
            origin = scope.origin
            inputs, results = origin.inputs, origin.results
            given = [inputs[key] if is_input else results[key] for is_input, key in prepared.fast]
            owner, keywords = scope.view, _NO_KEYWORDS
        else:
            owner, given, keywords = bind(ex, scope, index, node, prepared, number)
    except (ArgumentError, InputValidationError, DefinitionError) as error:
        return await ended(ex, scope, index, number, error, started=False, retry=False)
    if prepared.gated and gate is None:
        return await gating.gated(ex, scope, index, number, Bound(owner, given, keywords))
    hooks = scope.hooks
    if hooks is not None:
        await ex.tell(scope, "on_step_start", events.StepStarted, index, number)
        if scope.stopped:
            return ex.state.drop(scope, index)
    began = ex.clock.monotonic() if hooks is not None else 0.0
    state = ex.state
    if state.recording and not ex.journal.trusted and not await ex.may_begin(scope):
        return state.drop(scope, index)
    path = state.enter(scope, index, number)
    try:
        if prepared.direct and scope.parent is None:
            context = ex.base.copy()
            body = prepared.fn(owner, *given, **keywords)
            try:
                yielded = context.run(body.send, None)
            except StopIteration as stop:
                value = stop.value
            else:
                value = await resume(body, context, yielded)
        else:
            value = await enter(ex, scope, index, node, prepared, Bound(owner, given, keywords), gate)
    except EngineClosed:
        raise
    except BaseException as error:
        return await _raised(ex, scope, index, number, error, began)
    if type(value) in _SPECIAL:
        return await _special(ex, scope, index, number, value, began)
    if hooks is None and node.output is None and not state.recording:
        state.trace.append((state.now(), "success", path, number, ""))
        return state.complete(scope, index, value)
    return await _succeeded(ex, scope, index, number, value, began)


# ---------------------------------------------------------------------- resolve and validate


def bind(ex: Execution, scope: Scope, index: int, node: PlanNode, prepared: Prepared, number: int) -> Bound:
    """Resolve and validate the arguments.

    Raises:
        ArgumentError, InputValidationError, DefinitionError: as the functions of ``arguments`` do.
    """
    frame = Frame(ex, scope, index, attempt=number)
    values = resolve(node.args, frame)
    owner = f"step {scope.path_of(index)!r}"
    if node.step_class is not None:
        values = validated(node.step_class.__aioreactor_fields__, values, owner)
        bound = bind_class(ex, frame, node, values, owner)
    else:
        assert node.body is not None
        values = checked(node.args, values, owner)
        positional, keywords = split(node.body, values)
        bound = Bound(scope.view, positional, keywords)
    if prepared.recorded:
        remember(scope, index, prepared, values)
    return bound


def bind_class(ex: Execution, frame: Frame, node: PlanNode, values: Mapping[str, Any], owner: str) -> Bound:
    """An instance of the step class, checked as a whole, and its ``run``."""
    assert node.body is not None
    instance = instance_of(ex, node, values)
    cross_checked(instance, owner)
    positional, keywords = split(node.body, resolve(node.body.args, frame))
    return Bound(instance, positional, keywords)


# ---------------------------------------------------------------------- check and record


async def _succeeded(ex: Execution, scope: Scope, index: int, number: int, value: Any, began: float) -> Readies | Later:
    node = scope.plan.nodes[index]
    if node.output is not None:
        error = output_error(node.output, value, scope.path_of(index))
        if error is not None:
            return await ended(ex, scope, index, number, error, started=True, retry=False, began=began)
    state = ex.state
    if state.recording:
        unkept = keep(ex, scope, index, value)
        if unkept is not None:
            return await ended(ex, scope, index, number, unkept, started=True, retry=False, began=began)
    state.log("success", scope.path_of(index), number)
    ready = state.complete(scope, index, value)
    if state.recording:
        await ex.save()
    if scope.hooks is not None:
        await ex.tell(
            scope, "on_step_success", events.StepSucceeded, index, number, value=value, duration=ex.since(began)
        )
    return ready


def keep(ex: Execution, scope: Scope, index: int, value: Any) -> Exception | None:
    """Encode a value for the journal before anything depends on it; what is wrong with it, or None."""
    try:
        blob = ex.journal.prepare(scope.plan.nodes[index], scope.path_of(index), value)
        if ex.state.notes:
            ex.journal.check_state(ex.state.notes)
    except (SerializationError, PayloadTooLarge) as error:
        return error
    scope.blobs = scope.blobs or {}
    scope.blobs[index] = blob
    return None


async def _skipped(ex: Execution, scope: Scope, index: int, number: int, value: Any, began: float) -> Readies | Later:
    node = scope.plan.nodes[index]
    error: Exception | None = None
    if node.output is not None:
        error = output_error(node.output, value, scope.path_of(index))
    if error is not None:
        return await ended(ex, scope, index, number, error, started=True, retry=False, began=began)
    if ex.state.recording:
        error = keep(ex, scope, index, value)
        if error is not None:
            return await ended(ex, scope, index, number, error, started=True, retry=False, began=began)
    ex.state.log("skip", scope.path_of(index), number)
    ready = ex.state.complete(scope, index, value, skipped=True)
    if ex.state.recording:
        await ex.save()
    await ex.tell(scope, "on_step_skip", events.StepSkipped, index, number, value=value, duration=ex.since(began))
    return ready


async def _halted(ex: Execution, scope: Scope, index: int, number: int, reason: Any, began: float) -> Readies:
    ex.state.log("halt", scope.path_of(index), number, "" if reason is None else ex.scrub(reporting.text_of(reason)))
    ready = ex.state.halted(scope, index, reason)
    if ex.state.recording:
        await ex.save()
    await ex.tell(scope, "on_step_halt", events.StepHalted, index, number, reason=reason, duration=ex.since(began))
    return ready


_SPECIAL: frozenset[type] = frozenset({Skipped, Halt, Failure, CoroutineType, GeneratorType, AsyncGeneratorType})


async def _special(ex: Execution, scope: Scope, index: int, number: int, value: Any, began: float) -> Readies | Later:
    """A returned signal, or something that nobody will await."""
    if isinstance(value, Skipped):
        return await _skipped(ex, scope, index, number, value.value, began)
    if isinstance(value, Halt):
        return await _halted(ex, scope, index, number, value.reason, began)
    if isinstance(value, Failure):
        return await ended(ex, scope, index, number, value.error, started=True, retry=value.retryable, began=began)
    error = unawaited(value)
    return await ended(ex, scope, index, number, error, started=True, retry=False, began=began)


async def _raised(
    ex: Execution, scope: Scope, index: int, number: int, error: BaseException, began: float
) -> Readies | Later:
    if isinstance(error, CutShort):
        return await _was_cut(ex, scope, index, number, error.reason, began)
    if isinstance(error, asyncio.CancelledError) and ex.note_if_cancelled(error):
        return await _was_cut(ex, scope, index, number, ex.cut_reason, began)
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        ex.interrupt(error)
        return await _was_cut(ex, scope, index, number, f"interrupted by {type(error).__name__}", began)
    signal = signal_in(error)
    if signal is None:
        return await ended(ex, scope, index, number, error, started=True, retry=True, began=began)
    if type(signal.outcome) in _SPECIAL:
        return await _special(ex, scope, index, number, signal.outcome, began)
    return await _succeeded(ex, scope, index, number, signal.outcome, began)


async def _was_cut(ex: Execution, scope: Scope, index: int, number: int, reason: str, began: float) -> Readies:
    path = scope.path_of(index)
    error = StepCancelled(path, reason)
    ex.state.log("cancel", path, number, reason)
    ready = ex.state.cut(scope, index, error)
    await ex.tell(scope, "on_step_cancel", events.StepCancelled, index, number, error=error, duration=ex.since(began))
    return ready


async def ended(
    ex: Execution,
    scope: Scope,
    index: int,
    number: int,
    error: BaseException,
    *,
    started: bool,
    retry: bool,
    began: float = 0.0,
) -> Readies | Later:
    """An attempt failed: try again where policy allows, else fail the step."""
    state, path, policy = ex.state, scope.path_of(index), scope.plan.nodes[index].retry
    again = started and retry and number < policy.max_attempts and policy.allows(error)
    failed = Failed(error, scope, index, attempts=number if started else 0, retryable=retry and policy.allows(error))
    failed.arguments = reporting.shown_arguments(ex, scope, index)
    if isinstance(error, StepTimeout):
        state.log("timeout", path, number)
    state.log("failure", path, number, ex.scrub(describe(error)))
    delay = policy.delay(number) if again and not scope.stopped else 0.0
    undecided = not again and started and retry and policy.on_exhausted == "pause" and policy.allows(error)
    final = not again or scope.stopped
    if undecided and not scope.stopped and ex.mailbox is not None:
        ex.await_decision(scope, index, failed)
        ready: Readies = []
    elif final:
        ready = state.fail(scope, index, failed, started=started)
        ready = [*ready, *ex.apply_effects()]
    else:
        state.retrying(scope, index, failed, ex.clock.now() + delay)
        state.log("retry", path, number, f"{delay:g} s")
        ready = []
    if state.recording:
        await ex.save()
    await ex.tell(
        scope,
        "on_step_failure",
        events.StepFailed,
        index,
        number,
        error=error,
        started=started,
        final=final,
        duration=ex.since(began) if started else 0.0,
    )
    if final:
        return ready
    await ex.tell(scope, "on_step_retry", events.StepRetried, index, number, error=error, delay=delay)
    return Later(scope, index, delay)


def dropped(ex: Execution, scope: Scope, index: int, error: JournalFailed | asyncio.CancelledError) -> Readies:
    """Nothing comes of a node here, since the store is away or the run is cancelled.

    Raises:
        CancelledError: ``error``, if it is not the run that is cancelled.
    """
    if isinstance(error, JournalFailed):
        ex.lose(error)
    elif not ex.note_if_cancelled(error):
        raise error
    return ex.state.drop(scope, index)
