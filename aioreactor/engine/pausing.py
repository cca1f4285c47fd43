"""Nodes at which a run waits for somebody: interrupts, steps whose attempts were exhausted, and durable timers.

Overview. What is *open* has no task of its own. It counts as in progress, so its run does not complete; when nothing
else can go on the run is left, as ``paused``. An answer completes it as the end of a body would complete a step. Open
nodes stay READY, with an `Opening` beside; that is what tells them from nodes whose turn has just come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from aioreactor.definition.markers import Default
from aioreactor.definition.nodes import InterruptNode, TimerNode
from aioreactor.engine import events, reporting
from aioreactor.engine.arguments import FATAL, Frame, resolve
from aioreactor.engine.attempt import Later, ended
from aioreactor.engine.context import Context
from aioreactor.engine.limiter import Ready
from aioreactor.engine.scope import Failed, NodeStatus, Opening, Scope
from aioreactor.engine.state import NONE, Readies
from aioreactor.errors import ArgumentError, CorrelationTaken, InputValidationError, InterruptTimeout
from aioreactor.failures import describe
from aioreactor.plan.model import PlanNode
from aioreactor.results import OpenInterrupt

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution
    from aioreactor.engine.waiting import Waiting

LATE = 0.002
"""Seconds after its deadline at which an interrupt expires: by then the store accepts no answer any more."""


class Correlations(Protocol):
    """Keeps correlation ids apart among the open interrupts of one reactor."""

    async def claim(self, reactor: str, correlation_id: str, path: str) -> str | None:
        """Note that this run's interrupt at ``path`` waits for this id; gives the run that does already, if one does.

        Cancellation: it was noted, or not.
        """
        ...

    def answered(self, reactor: str, correlation_id: str, path: str) -> None:
        """The interrupt is open no more, so that another may have its id."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """An event that is told when what it tells of is kept."""

    scope: Scope
    index: int
    hook: str
    event: Any
    fields: dict[str, Any]

    async def tell(self, ex: Execution) -> None:
        """Call the hooks that listen."""
        await ex.tell(self.scope, self.hook, self.event, self.index, **self.fields)


def interrupt_of(node: PlanNode) -> InterruptNode[Any]:
    """The definition of an interrupt."""
    assert isinstance(node.node, InterruptNode)
    return node.node


# ---------------------------------------------------------------------- opening


async def open_interrupt(ex: Execution, scope: Scope, index: int) -> Readies | Later:
    """Open an interrupt: from now on it can be answered.

    Cancellation: noted with the execution.
    """
    node = scope.plan.nodes[index]
    given = interrupt_of(node)
    path = scope.path_of(index)
    try:
        correlation_id = await _correlation_id(ex, scope, index, given)
    except (ArgumentError, CorrelationTaken) as error:
        return await ended(ex, scope, index, 1, error, started=False, retry=False)
    if scope.stopped:
        return ex.state.drop(scope, index)
    deadline = ex.clock.now() + given.timeout if given.timeout is not None else None
    scope.opened = scope.opened or {}
    scope.opened[index] = opening = Opening(deadline, correlation_id)
    _register(ex, scope, index)
    ex.state.touch(scope, index)
    ex.state.log("interrupt", path, 1, correlation_id or "")
    await ex.save()
    shown = {"correlation_id": correlation_id, "deadline": opening.deadline}
    await Told(scope, index, "on_interrupt_open", events.InterruptOpened, shown).tell(ex)
    return NONE


async def _correlation_id(ex: Execution, scope: Scope, index: int, given: InterruptNode[Any]) -> str | None:
    """The id that the outside answers with.

    Raises:
        ArgumentError: it cannot be computed.
        CorrelationTaken: another open interrupt waits for it.
    """
    if given.correlation_id is None:
        return None
    path = scope.path_of(index)
    try:
        found = given.correlation_id(Context(ex, scope, index, 1))
    except FATAL:
        raise
    except BaseException as error:
        raise ArgumentError(path, "correlation_id", describe(error)) from error
    if not isinstance(found, str) or not found:
        raise ArgumentError(path, "correlation_id", f"it gave {found!r}, which is no text")
    taken = await ex.correlations.claim(ex.plan.name, found, path) if ex.correlations is not None else None
    if taken is not None:
        raise CorrelationTaken(path, found, taken)
    return found


def _register(ex: Execution, scope: Scope, index: int) -> None:
    path = scope.path_of(index)
    ex.open_nodes[path] = (scope, index)
    opening = _opening(scope, index)
    node = scope.plan.nodes[index].node
    if opening.deadline is not None and isinstance(node, InterruptNode) and node.on_timeout != "wait":
        delay = max(0.0, opening.deadline - ex.clock.now()) + LATE
        ex.at_a_time(delay, partial(_ring, ex, path))


def without_open(ex: Execution, ready: Readies) -> Readies:
    """Of what a run that is gone on with begins with: what is not open; the others are open again."""
    left = []
    for scope, index in ready:
        if not scope.opened or index not in scope.opened:
            left.append((scope, index))
        elif not scope.stopped:
            _register(ex, scope, index)
            opening = _opening(scope, index)
            if _is_over(ex, scope, index, opening):
                ex.tasks.start_soon(_expire, ex, scope.path_of(index))
        else:
            left.append((scope, index))
    return left


def _is_over(ex: Execution, scope: Scope, index: int, opening: Opening) -> bool:
    node = scope.plan.nodes[index].node
    enforced = isinstance(node, InterruptNode) and node.on_timeout != "wait"
    return enforced and opening.deadline is not None and opening.deadline + LATE <= ex.clock.now()


def give_up(ex: Waiting) -> list[Ready]:
    """What is open in stopped scopes waits for nobody any more; gives what that makes ready."""
    ready: list[Ready] = []
    for path, (scope, index) in list(ex.open_nodes.items()):
        if scope.stopped:
            _close(ex, path)
            ready += ex.state.drop(scope, index)
            ex.state.touch(scope, index)
    return ready


def _opening(scope: Scope, index: int) -> Opening:
    assert scope.opened is not None
    return scope.opened[index]


def _close(ex: Waiting, path: str) -> None:
    scope, index = ex.open_nodes.pop(path)
    assert scope.opened is not None
    opening = scope.opened.pop(index)
    if opening.correlation_id is not None and ex.correlations is not None:
        ex.correlations.answered(ex.plan.name, opening.correlation_id, path)


def shown(ex: Execution) -> tuple[OpenInterrupt, ...]:
    """What is open, as the caller gets it, in the order in which it was opened."""
    return tuple(
        OpenInterrupt(path, _opening(scope, index).correlation_id, _opening(scope, index).deadline)
        for path, (scope, index) in ex.open_nodes.items()
    )


def deadlines(ex: Waiting) -> list[float]:
    """When something that is open has to be looked at, in seconds since the epoch."""
    found = []
    for scope, index in ex.open_nodes.values():
        node, deadline = scope.plan.nodes[index].node, _opening(scope, index).deadline
        if deadline is not None and isinstance(node, InterruptNode) and node.on_timeout != "wait":
            found.append(deadline + LATE)
    return found


def expires_now(ex: Waiting) -> bool:
    """Whether the time of something that is open is up, so that the run has a reason to go on."""
    return bool(ex.open_nodes) and any(deadline <= ex.clock.now() for deadline in deadlines(ex))


# ---------------------------------------------------------------------- answers


def answer(ex: Execution, path: str, value: Any, told: list[Told]) -> Readies:
    """An interrupt got its payload."""
    scope, index = ex.open_nodes.get(path, (None, 0))
    if scope is None or scope.plan.nodes[index].kind != "interrupt":
        return NONE
    _close(ex, path)
    ex.state.log("resume", path)
    told.append(Told(scope, index, "on_interrupt_resumed", events.InterruptResumed, {"value": value}))
    return ex.state.complete(scope, index, value)


def count_mistake(ex: Execution, path: str, owner: str, field_errors: dict[str, list[str]]) -> Readies:
    """An interrupt got a payload that does not fit; when that were too many, it fails."""
    scope, index = ex.open_nodes.get(path, (None, 0))
    if scope is None:
        return NONE
    opening = _opening(scope, index)
    opening.refused += 1
    ex.state.touch(scope, index)
    if opening.refused < (interrupt_of(scope.plan.nodes[index]).max_attempts or opening.refused + 1):
        return NONE
    _close(ex, path)
    error = InputValidationError(owner, field_errors)
    error.add_note(f"{opening.refused} payloads in all did not fit (max_attempts)")
    return _fail(ex, scope, index, error, started=False)


def decide(ex: Execution, path: str, verdict: str, value: Any) -> Readies:
    """Somebody decided what becomes of a step whose attempts were exhausted."""
    scope, index = ex.open_nodes.get(path, (None, 0))
    if scope is None or scope.plan.nodes[index].kind == "interrupt":
        return NONE
    _close(ex, path)
    ex.state.log("resume", path, scope.attempt_of(index), verdict)
    if verdict == "retry":
        ex.state.touch(scope, index)
        return ((scope, index),)
    if verdict == "fail":
        assert scope.errors is not None
        return _fail(ex, scope, index, scope.errors[index], started=True)
    return ex.state.complete(scope, index, value, skipped=verdict == "skip")


def _fail(ex: Execution, scope: Scope, index: int, error: BaseException, *, started: bool) -> Readies:
    path = scope.path_of(index)
    failed = Failed(error, scope, index, attempts=scope.attempt_of(index))
    failed.arguments = reporting.shown_arguments(ex, scope, index)
    ex.state.log("failure", path, max(1, failed.attempts), ex.scrub(describe(error)))
    return ex.state.fail(scope, index, failed, started=started)


def await_decision(ex: Execution, scope: Scope, index: int, failed: Failed) -> None:
    """The attempts of a step are exhausted, and people are to say what becomes of it."""
    ex.state.retrying(scope, index, failed, 0.0)
    scope.status[index] = NodeStatus.READY
    scope.opened = scope.opened or {}
    scope.opened[index] = Opening(None, None)
    ex.state.log("interrupt", scope.path_of(index), failed.attempts, "attempts exhausted")
    _register(ex, scope, index)


# ---------------------------------------------------------------------- time


def _ring(ex: Execution, path: str) -> None:
    if ex.listening and path in ex.open_nodes:
        ex.tasks.start_soon(_expire, ex, path)


async def _expire(ex: Execution, path: str) -> None:
    """The time of an interrupt is up; what was accepted before that counts."""
    await ex.serve_now()
    scope, index = ex.open_nodes.get(path, (None, 0))
    if scope is None or scope.stopped or ex.leaving is not None:
        return
    given = interrupt_of(scope.plan.nodes[index])
    _close(ex, path)
    told = Told(scope, index, "on_interrupt_expired", events.InterruptExpired, {"timeout": given.timeout or 0.0})
    if isinstance(given.on_timeout, Default):
        ex.state.log("timeout", path)
        ready: Any = [*ex.state.complete(scope, index, given.on_timeout.value), *ex.apply_effects()]
        await ex.save()
    else:
        error = InterruptTimeout(path, given.timeout or 0.0)
        ready = await ended(ex, scope, index, 1, error, started=False, retry=False)
    await told.tell(ex)
    ex.start_all(ready)
    ex.consider_leaving()


async def run_timer(ex: Execution, scope: Scope, index: int) -> Readies | Later:
    """Wait for a timer's moment, which is kept when it is known; it completes when that has come.

    Cancellation: noted with the execution.
    """
    due = scope.due.get(index) if scope.due else None
    if due is None:
        try:
            due = _due_of(ex, scope, index)
        except ArgumentError as error:
            return await ended(ex, scope, index, 1, error, started=False, retry=False)
        scope.due = scope.due or {}
        scope.due[index] = due
        if due > ex.clock.now():
            ex.state.touch(scope, index)
            await ex.save()
    if scope.stopped:
        return ex.state.drop(scope, index)
    delay = due - ex.clock.now()
    if delay > 0:
        return Later(scope, index, delay)
    ex.state.log("success", scope.path_of(index))
    ready = ex.state.complete(scope, index, None)
    await ex.save()
    return ready


def _due_of(ex: Execution, scope: Scope, index: int) -> float:
    """When a timer is over.

    Raises:
        ArgumentError: what it waits until is no moment.
    """
    node = scope.plan.nodes[index]
    assert isinstance(node.node, TimerNode)
    if node.node.seconds is not None:
        return ex.clock.now() + node.node.seconds
    moment = node.node.until
    if node.args:
        moment = next(iter(resolve(node.args, Frame(ex, scope, index)).values()))
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ArgumentError(scope.path_of(index), "until", f"{moment!r} is not a datetime with a time zone")
    return moment.timestamp()


def overdue(ex: Execution) -> bool:
    """Whether the deadline of a scope has passed, which a timer of its own is about to tell."""
    now = ex.clock.now()
    return any(scope.failure is None and not scope.stopped and deadline <= now for scope, deadline in _bounded(ex))


def scope_deadlines(ex: Waiting) -> list[float]:
    """When what is in progress in some scope has to be over, in seconds since the epoch."""
    return [deadline for _, deadline in _bounded(ex)]


def _bounded(ex: Waiting) -> Iterator[tuple[Scope, float]]:
    """Scopes at work with a deadline that is enforced: one that the code does not declare any more is not."""
    for scope in ex.state.scopes():
        if scope.deadline is not None and scope.active > 0 and ex.option(scope.plan, "deadline") is not None:
            yield scope, scope.deadline
