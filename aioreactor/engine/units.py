"""Units: nodes that are dispatched as runs of their own, and nodes that wait for what comes of them.

Dispatching completes the node, with a `Dispatched` that stands for the unit. Only who reads it, or names it in
``after``, waits: such a node is ready like any other, but before its turn each of its units has to have ended. Its
outcome then takes the place of what stood for it, and is kept with the run, so that nobody depends on the unit's own
record later. A wait is a sleep like the one before another attempt: what is left holds it, and a worker whose run only
waits parks it.

A unit is tracked by nobody's rollback. One that no worker has taken by the time that its parent has rolled back is
ended where it waits; whether that was in time is decided by the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.engine import events
from aioreactor.engine.arguments import Frame, checked, cross_checked, resolve, validated, view_of
from aioreactor.engine.attempt import Later, dropped, ended, keep
from aioreactor.engine.drive import shielded
from aioreactor.engine.ports import JournalFailed
from aioreactor.engine.preparing import instance_of
from aioreactor.engine.scope import MapRun, NodeStatus, Scope
from aioreactor.engine.state import Readies
from aioreactor.engine.unit_keys import refuse_held
from aioreactor.errors import (
    ArgumentError,
    ContentionError,
    DefinitionError,
    InputValidationError,
    PayloadTooLarge,
    RunNotFound,
    SerializationError,
    UnitTimeout,
    UnknownReactor,
)
from aioreactor.failures import describe
from aioreactor.logs import note
from aioreactor.plan.model import PlanNode
from aioreactor.plan.units import PATH
from aioreactor.redaction import secrets_of_fields
from aioreactor.results import Dispatched, Outcome, Success
from aioreactor.trace import RunRecord

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution
    from aioreactor.engine.services import Services

logger = logging.getLogger("aioreactor.engine")
PAUSE = 1.0
"""Seconds after which is looked again when it cannot be waited for a unit's end."""

_REFUSALS = (
    ArgumentError, InputValidationError, DefinitionError, SerializationError, PayloadTooLarge, ContentionError,
)  # fmt: skip
_UNREADABLE = (RunNotFound, SerializationError, UnknownReactor, PayloadTooLarge)
_OVER = ("completed", "failed", "halted", "aborted")


# ---------------------------------------------------------------------- dispatching


async def dispatch(ex: Execution, scope: Scope, index: int) -> Readies | Later:
    """Make a node a run of its own; it completes, and what only comes after its outcome waits.

    Cancellation: noted with the execution.
    """
    node, path = scope.plan.nodes[index], scope.path_of(index)
    units = ex.units
    assert units is not None
    assert node.unit is not None
    try:
        inputs = _inputs(ex, scope, index)
        # What it builds on is kept before another process acts on it, however far behind the journal writes.
        await ex.save(firm=True)
        if scope.stopped or ex.lost is not None:
            return ex.state.drop(scope, index)
        sent = await shielded(units.dispatch(path, node, inputs))
    except _REFUSALS as error:
        return await ended(ex, scope, index, 1, error, started=False, retry=False)
    except (JournalFailed, asyncio.CancelledError) as error:
        return dropped(ex, scope, index, error)
    scope.due = scope.due or {}
    scope.due[index] = sent.at
    ex.state.log("dispatch", path, 1, sent.run_id)
    standing = Dispatched(sent.job_id, _record=RunRecord(sent.run_id, node.unit.name, "pending"))
    keep(ex, scope, index, standing)
    ready = ex.state.complete(scope, index, standing)
    await ex.save()
    await ex.tell(scope, "on_unit_dispatched", events.UnitDispatched, index, unit_id=sent.run_id, job_id=sent.job_id)
    return ready


def _inputs(ex: Execution, scope: Scope, index: int) -> dict[str, Any]:
    """The inputs of the unit's run, checked.

    Raises:
        ArgumentError, InputValidationError, DefinitionError: they cannot be resolved, or do not fit.
        ContentionError: it would wait for what is held around it.
    """
    node, path = scope.plan.nodes[index], scope.path_of(index)
    plan = node.unit
    assert plan is not None
    known: Mapping[str, Any]
    given = resolve(node.passed, Frame(ex, scope, index))
    if not plan.unit_of:
        owner = f"{plan.reactor.__qualname__} in step {path!r}"
        known = inputs = validated(plan.fields, given, owner)
        cross_checked(view_of(plan, inputs), owner)
    else:
        known = _checked_step(ex, scope, index)
        inputs = {**scope.inputs, PATH: path, **given}
    refuse_held(ex, scope, index, known)
    ex.learn_secrets(secrets_of_fields(inputs, plan.fields.hidden))
    return inputs


def _checked_step(ex: Execution, scope: Scope, index: int) -> Mapping[str, Any]:
    """The arguments of a step as far as they are known here; those that every attempt would refuse are refused.

    Raises:
        ArgumentError, InputValidationError: they do not fit.
    """
    node, owner = scope.plan.nodes[index], f"step {scope.path_of(index)!r}"
    args = tuple(arg for arg in node.args if arg.source.value not in ("context", "resource"))
    values = resolve(args, Frame(ex, scope, index))
    if node.step_class is None:
        checked(args, values, owner)
        return values
    fields = node.step_class.__aioreactor_fields__
    values = validated(fields, values, owner)
    if not fields.resources:
        cross_checked(instance_of(ex, node, values), owner)
    return values


# ---------------------------------------------------------------------- waiting for outcomes


async def settled(ex: Execution, scope: Scope, index: int) -> Readies | Later | None:
    """None if a node's turn has come; else how long it waits for a unit, or what came of that.

    Cancellation: noted with the execution.
    """
    if scope.stopped:
        return None
    for unit in scope.plan.nodes[index].units:
        if not is_standing(scope, unit):
            continue
        try:
            found = await _settle(ex, scope, unit)
        except (JournalFailed, asyncio.CancelledError) as error:
            return dropped(ex, scope, index, error)
        except _UNREADABLE as error:
            raised = ArgumentError(scope.path_of(index), scope.plan.nodes[unit].name, describe(error))
            raised.__cause__ = error
            return await ended(ex, scope, index, 1, raised, started=False, retry=False)
        if not found:
            return await _wait(ex, scope, index, unit)
    ex.unit_waits.pop((scope, index), None)
    return ex.state.drop(scope, index) if scope.stopped else None


def is_standing(scope: Scope, unit: int) -> bool:
    """Whether a unit was dispatched, and its outcome is not here yet."""
    return type(scope.results[unit]) is Dispatched


async def _settle(ex: Execution, scope: Scope, unit: int) -> bool:
    """Take over the outcome of a unit, if it has ended; whether it has."""
    node, path = scope.plan.nodes[unit], scope.path_of(unit)
    assert ex.units is not None
    outcome = await ex.units.outcome(path, node)
    if outcome is None:
        return False
    if not is_standing(scope, unit):
        return True  # another reader was faster
    value = _read_as(node, outcome)
    unkept = keep(ex, scope, unit, value)
    if unkept is not None:
        raise unkept
    scope.results[unit] = value
    ex.state.touch(scope, unit)
    ex.state.log("settle", path, 1, outcome.status)
    await ex.save()
    await ex.tell(scope, "on_unit_finish", events.UnitFinished, unit, unit_id=outcome.run_id, outcome=outcome)
    return True


def _read_as(node: PlanNode, outcome: Outcome[Any]) -> Any:
    """What a reader gets: of a step its value, where there is one."""
    return outcome.value if node.kind == "async_step" and isinstance(outcome, Success) else outcome


async def _wait(ex: Execution, scope: Scope, index: int, unit: int) -> Readies | Later:
    units, now = ex.units, ex.clock.monotonic()
    assert units is not None
    since = ex.unit_waits.setdefault((scope, index), now)
    dispatched_at = scope.due.get(unit, 0.0) if scope.due else 0.0
    waited = ex.clock.now() - dispatched_at if ex.park_after is not None else now - since
    left = (units.longest_park if ex.park_after is not None else units.longest_wait) - waited
    path = scope.path_of(unit)
    if left > 0:
        return Later(scope, index, left, unit=path)
    error = UnitTimeout(path, round(waited, 3))
    return await ended(ex, scope, index, 1, error, started=False, retry=False)


async def watch(ex: Services, later: Later, limit: CancelScope, ring: Callable[[], None]) -> None:
    """Ring when the unit that ``later`` waits for has ended.

    Cancellation: nobody waits any more.
    """
    assert ex.units is not None
    scope = later.scope
    unit = next(i for i in scope.plan.nodes[later.index].units if scope.path_of(i) == later.unit)
    with limit:
        try:
            await ex.units.ended(later.unit, scope.plan.nodes[unit])
        except Exception as error:  # what is wrong is met again, and reported, by who looks at the unit
            note(logger, logging.WARNING, "unit_not_heard", repr(error), run_id=ex.state.run_id, path=later.unit)
            await asyncio.sleep(PAUSE)
        ring()


# ---------------------------------------------------------------------- after a rollback


async def withdraw(ex: Execution, top: Scope | None = None) -> None:
    """End what was dispatched from a scope that has rolled back, and below, and has not started; the trace tells.

    Cancellation: the caller shields it.
    """
    assert ex.units is not None
    for scope in _below(ex.state.root if top is None else top):
        for node in scope.plan.nodes:
            if node.unit is None or node.independent or not _may_be_out(scope, node.index):
                continue
            path = scope.path_of(node.index)
            try:
                status = await ex.units.withdraw(path, node)
            except JournalFailed as error:
                ex.lose(error)
                return
            if status == "cancelled":
                ex.state.log("cancel", path, 1, "the unit had not started")
            elif status is not None:
                ex.state.log("settle", path, 1, f"the unit is {status}, and is left to itself")


def _may_be_out(scope: Scope, unit: int) -> bool:
    """Whether it may have been dispatched, perhaps just before a crash, and nobody knows its outcome."""
    if scope.status[unit] == NodeStatus.COMPLETED:
        return is_standing(scope, unit)
    return not scope.waiting[unit] and scope.status[unit] != NodeStatus.FAILED


def _below(top: Scope) -> Iterator[Scope]:
    stack = [top]
    while stack:
        scope = stack.pop()
        yield scope
        for inner in (scope.children or {}).values():
            stack.extend(inner.elements.values() if isinstance(inner, MapRun) else [inner])
