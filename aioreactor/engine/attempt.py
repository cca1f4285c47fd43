"""One attempt of a step: resolve → validate → pass its gates → run → check → record.

The common case, an ``async def`` whose arguments are inputs and results as they are, takes no detour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import CO_COROUTINE
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import CancelScope

from aioreactor.engine import events, gating, reporting
from aioreactor.engine.arguments import FATAL, Frame, checked, cross_checked, resolve, split, validated
from aioreactor.engine.drive import EngineClosed, in_thread, resume, run_in
from aioreactor.engine.scope import Failed, Scope
from aioreactor.engine.signals import signal_in
from aioreactor.engine.state import Readies
from aioreactor.errors import (
    ArgumentError,
    DefinitionError,
    InputValidationError,
    OutputValidationError,
    PayloadTooLarge,
    SerializationError,
    StepCancelled,
    StepTimeout,
)
from aioreactor.failures import describe, error_text
from aioreactor.plan.model import Arg, PlanNode, Source
from aioreactor.results import Failure, Halt, Skipped

if TYPE_CHECKING:
    from aioreactor.engine.gating import Gate, Waker
    from aioreactor.engine.scheduler import Execution

_NO_KEYWORDS: dict[str, Any] = {}
_MISSING: Any = object()


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


class Prepared:
    """What can be worked out once per node. ``fast`` lists, per parameter, whether it is an input, and its key."""

    __slots__ = ("direct", "fast", "fn", "gated", "is_async", "made", "recorded", "scoped")

    def __init__(self, node: PlanNode) -> None:
        assert node.body is not None
        self.fn = node.body.fn
        self.is_async = node.body.is_async
        plain = all(_is_plain(arg) for arg in node.args) and node.step_class is None
        self.fast: tuple[tuple[bool, Any], ...] | None = (
            tuple(
                (arg.source is Source.INPUT, arg.name if arg.source is Source.INPUT else arg.index) for arg in node.args
            )
            if plain
            else None
        )
        calls = [call for call in (node.undo, node.compensate) if call is not None]
        asked = any(arg.source is Source.ARGUMENT for call in calls for arg in call.args)
        self.gated = bool(node.coordination)
        self.recorded = bool(calls) and (asked or node.step_class is not None or (self.gated and not plain))
        self.made = _made_in(node) if self.recorded else ()
        self.scoped = node.timeout is not None or self.gated
        native = isinstance(self.fn, FunctionType) and bool(self.fn.__code__.co_flags & CO_COROUTINE)
        self.direct = native and not self.scoped


def _is_plain(arg: Arg) -> bool:
    simple = arg.source in {Source.INPUT, Source.RESULT} and not arg.path and arg.transform is None
    return simple and arg.check is None and not arg.keyword


def _made_in(node: PlanNode) -> tuple[str, ...]:
    """Arguments that a transformation or a default makes; all others follow from inputs and results."""
    given = {arg.parameter for arg in node.args}
    fields = node.step_class.__aioreactor_fields__.inputs if node.step_class is not None else ()
    transformed = tuple(arg.parameter for arg in node.args if arg.transform is not None)
    return transformed + tuple(field.name for field in fields if field.name not in given)


def prepared_of(node: PlanNode) -> Prepared:
    """The prepared form of a step, made on first use."""
    if node.prepared is None:
        node.prepared = Prepared(node)
    made: Prepared = node.prepared
    return made


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


def remember(scope: Scope, index: int, prepared: Prepared, values: Mapping[str, Any]) -> None:
    """Keep what a body was given, for its undo and compensate."""
    scope.arguments = scope.arguments or {}
    scope.arguments[index] = values
    if prepared.made:
        scope.made = scope.made or {}
        scope.made[index] = {name: values[name] for name in prepared.made if name in values}


def bind_class(ex: Execution, frame: Frame, node: PlanNode, values: Mapping[str, Any], owner: str) -> Bound:
    """An instance of the step class, checked as a whole, and its ``run``."""
    assert node.body is not None
    instance = instance_of(ex, node, values)
    cross_checked(instance, owner)
    positional, keywords = split(node.body, resolve(node.body.args, frame))
    return Bound(instance, positional, keywords)


def instance_of(ex: Execution, node: PlanNode, values: Mapping[str, Any]) -> Any:
    """A fresh instance of a step class: nothing is kept between its actions."""
    cls = node.step_class
    assert cls is not None
    instance = object.__new__(cls)
    instance.__dict__.update(values)
    for field in cls.__aioreactor_fields__.resources:
        instance.__dict__[field.name] = ex.resource(field.name, field.annotation)
    return instance


# ---------------------------------------------------------------------- run


async def enter(
    ex: Execution,
    scope: Scope,
    index: int,
    node: PlanNode,
    prepared: Prepared,
    bound: Bound,
    gate: Gate | None = None,
) -> Any:
    """Run the body in a context of its own, under its timeout; give what it returned.

    Raises:
        StepTimeout: it took too long, and was cancelled.
        CutShort: the engine cancelled it.
        LeaseLost: what it held was lost, and so it was cancelled.
        BaseException: whatever it raises itself.

    Cancellation: goes to the body.
    """
    if gate is not None:
        await gate.checked()
    context = (ex.base if scope.guard is None else scope.guard.base).copy()
    if gate is not None:
        gating.coordinator_of(ex).settle(context, gate.place)
    if prepared.is_async:
        body = context.run(prepared.fn, bound.owner, *bound.positional, **bound.keywords)
    else:
        call = partial(prepared.fn, bound.owner, *bound.positional, **bound.keywords)
        grace = ex.span(scope, "settle_timeout")
        body = in_thread(call, limiter=ex.environment.limiter(), grace=grace, name=scope.path_of(index))
    if prepared.scoped or scope.parent is not None:
        return await _within(ex, scope, index, node.timeout, run_in(context, body), gate)
    return await run_in(context, body)


class CutShort(BaseException):
    """The engine cancelled this body; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


async def _within(ex: Execution, scope: Scope, index: int, timeout: float | None, body: Any, gate: Gate | None) -> Any:
    limit = CancelScope() if timeout is None else CancelScope(deadline=asyncio.get_running_loop().time() + timeout)
    ex.bodies[limit] = scope
    if gate is not None:
        gate.limit = limit
    value = _MISSING
    cause: BaseException | None = None
    try:
        with limit:
            value = await body
    except (asyncio.CancelledError, EngineClosed):
        raise
    except Exception as error:
        if not limit.cancel_called or limit in ex.cutting:
            raise
        cause = error
    finally:
        del ex.bodies[limit]
        if gate is not None:
            gate.limit = None
    if not limit.cancel_called:
        return value
    reason = ex.cutting.pop(limit, None)
    if reason is None and gate is not None and gate.lost is not None:
        raise gate.lost from cause
    if reason is None:
        assert timeout is not None
        raise StepTimeout(scope.path_of(index), timeout) from cause
    if value is _MISSING:
        raise CutShort(reason)
    return value


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


def output_error(check: Callable[[Any], Any], value: Any, path: str) -> OutputValidationError | None:
    """What is wrong with a body's result."""
    try:
        check(value)
    except FATAL:
        raise
    except BaseException as error:
        found = OutputValidationError(path, error_text(error) or type(error).__name__)
        found.__cause__ = error
        return found
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


def unawaited(value: Any) -> TypeError:
    """The error of a body that returned a coroutine or a generator, which is closed."""
    name = getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, (CoroutineType, GeneratorType)):
        value.close()
    kind = "coroutine" if isinstance(value, CoroutineType) else "generator"
    return TypeError(f"the body returned the {kind} {name!r} instead of a value; await it (or return a list)")


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
