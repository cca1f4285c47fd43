"""Maps whose elements are runs of their own, in workers: begun, fed, waited for, and what they come to.

Overview. Elements are dealt to workers by the store (`fans.Fans`); what runs here only feeds the source to it and waits
until the last one has settled. In the caller's process a map that fans out hands the run to a worker. There its run
waits like one that waits for a unit: in place for a moment, then it is parked, and taken up again when the source is to
be read on, or when all is over. So a map of a million elements holds up nobody, and is never in anybody's memory.

A list is read in one go, a page source page by page, as the window asks for it; how far it was read is kept with the
items, so that none comes twice, whoever goes on after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.definition.markers import Page
from aioreactor.engine import mapping
from aioreactor.engine.arguments import FATAL, Frame, resolve
from aioreactor.engine.attempt import Later, dropped, ended
from aioreactor.engine.fans import FanState, Source
from aioreactor.engine.leaving import Leaving
from aioreactor.engine.nesting import REFUSALS
from aioreactor.engine.ports import FanGone, JournalFailed
from aioreactor.engine.reporting import shown_inputs
from aioreactor.engine.scope import Failed, FanRun, NodeStatus, Scope
from aioreactor.engine.state import Readies
from aioreactor.engine.unit_keys import refuse_fan, refuse_items
from aioreactor.errors import ArgumentError, ContentionError, PayloadTooLarge, SerializationError
from aioreactor.failures import describe
from aioreactor.logs import note
from aioreactor.map_results import FanResults, FanSummary, MapResults
from aioreactor.results import Failure, Halt

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")
IN_MEMORY = 10_000
"""Results of so many elements are loaded before a step gets them; more are read from the store when asked for."""
PAUSE = 1.0
"""Seconds after which is looked again when nothing can be heard."""

_UNKEPT = (SerializationError, PayloadTooLarge)


async def run_fan(ex: Execution, scope: Scope, index: int) -> Readies | Later:
    """Begin a fan-out, feed it, or take what it came to; else wait.

    Cancellation: noted with the execution.
    """
    path = scope.path_of(index)
    if ex.park_after is None:
        ex.hold(scope, partial(ex.state.drop, scope, index))
        ex.leave(Leaving("hand_off", path, None, f"a worker, for the elements of map {path!r}"))
        return ()
    inner = scope.children.get(index) if scope.children else None
    run = inner if isinstance(inner, FanRun) else FanRun(scope, index)
    scope.status[index] = NodeStatus.RUNNING
    try:
        if run is not inner:
            await _begin(ex, run)
        if scope.stopped or ex.lost is not None:
            return ex.state.drop(scope, index)
        found = await _advanced(ex, run)
    except FanGone as error:
        return _source_failed(ex, run, error)
    except (JournalFailed, asyncio.CancelledError) as error:
        return dropped(ex, scope, index, error)
    except (*REFUSALS, *_UNKEPT, ContentionError) as error:
        if run.fed is None:
            return await ended(ex, scope, index, 1, error, started=False, retry=False)
        return _source_failed(ex, run, error)
    if scope.stopped:
        return ex.state.drop(scope, index)
    return await _settled(ex, run, found) if found.over else _wait(ex, run)


async def _begin(ex: Execution, run: FanRun) -> None:
    """Open it, and have its run know of it, before any element may begin.

    In this order: a run that knows of a fan-out can count on the store to have it. If the process dies in between, or
    the run is stopped, what is open has no elements, and who comes next finds it. What its arguments are made of is
    kept before.

    Raises:
        JournalFailed: the store is away.
        ContentionError, SerializationError, PayloadTooLarge: its elements cannot be begun.
    """
    await ex.save(firm=ex.journal.behind)
    run.fed = await _open(ex, run)
    if not run.scope.stopped and ex.lost is None:
        ex.state.open_fan(run)
        await ex.save(firm=True)


async def _open(ex: Execution, run: FanRun) -> Source:
    assert ex.fans is not None
    refuse_fan(ex, run)
    given = resolve(run.node.passed, Frame(ex, run.scope, run.index))
    return await ex.fans.open(run.path, run.node, given, run.scope.inputs)


def _wait(ex: Execution, run: FanRun) -> Later:
    """In place for a moment, since most elements are quick; then the run may be parked."""
    assert ex.fans is not None
    assert ex.park_after is not None
    span = ex.fans.look_each if run.lingered else min(ex.park_after, ex.fans.look_each)
    run.lingered = True
    return Later(run.scope, run.index, span, f"the elements of map {run.path!r}", unit=run.path)


async def watch(ex: Execution, later: Later, limit: CancelScope, ring: Callable[[], None]) -> None:
    """Ring when there may be something to do for a fan-out.

    Cancellation: nobody waits any more.
    """
    assert ex.fans is not None
    inner = (later.scope.children or {}).get(later.index)
    heard = True
    with limit:
        try:
            heard = await ex.fans.changed(later.unit, later.delay)
        except Exception as error:  # what is wrong is met again, and reported, by who looks
            note(logger, logging.WARNING, "unit_not_heard", repr(error), run_id=ex.state.run_id, path=later.unit)
            await asyncio.sleep(PAUSE)
        if heard and isinstance(inner, FanRun):
            inner.lingered = False  # after a silence the run is parked, whichever of the two timers comes first
        ring()


# ---------------------------------------------------------------------- the source


async def _advanced(ex: Execution, run: FanRun) -> FanState:
    """Where it stands, once it has as many items as it can use.

    Raises:
        ArgumentError, SerializationError, PayloadTooLarge: the source, or something from it, cannot be used.
        ContentionError: its elements want what is held around it.
        FanGone: the store has lost it.
    """
    fans = ex.fans
    assert fans is not None
    found: FanState | None = None
    if run.fed is None:  # it was begun in another process, and is not begun anew if the store has lost it
        found = await fans.look(run.path, run.node)
        run.fed = await _open(ex, run)
    if not run.fed.ended and not run.node.paged:
        run.fed = await _feed_list(ex, run)
        found = None
    found = found or await fans.look(run.path, run.node)
    while found.hungry and not run.scope.stopped and ex.leaving is None:
        run.fed = await _feed_page(ex, run)
        found = await fans.look(run.path, run.node)
    return found


async def _feed_list(ex: Execution, run: FanRun) -> Source:
    assert ex.fans is not None
    items = await mapping.cuttable(ex, run.scope, mapping.open_source(ex, run.scope, run.index))
    if items is mapping.CUT:
        raise asyncio.CancelledError
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
        text = f"fan_out deals from a list, a tuple or a page source, not from {type(items).__name__}; make it a list"
        raise ArgumentError(run.path, "over", text)
    before: Source = run.fed
    rest = (
        items[before.fed :] if isinstance(items, (list, tuple)) else [items[i] for i in range(before.fed, len(items))]
    )
    await refuse_items(ex, run, rest, before.fed)
    return await ex.fans.feed(run.path, run.node, before, rest, cursor=None, ended=True)


async def _feed_page(ex: Execution, run: FanRun) -> Source:
    assert ex.fans is not None
    before: Source = run.fed
    page = await mapping.cuttable(ex, run.scope, _read_page(ex, run, before.cursor))
    if page is mapping.CUT:
        raise asyncio.CancelledError
    items = list(page.items)
    await refuse_items(ex, run, items, before.fed)
    return await ex.fans.feed(
        run.path, run.node, before, items, cursor=page.next_cursor, ended=page.next_cursor is None
    )


def _source_failed(ex: Execution, run: FanRun, error: Exception) -> Readies:
    """What can be used no further: the map fails as an atomic one does."""
    ex.state.log("failure", run.path, 1, ex.scrub(describe(error)))
    return ex.state.source_failed(run, Failed(error, run.scope, run.index))


async def _read_page(ex: Execution, run: FanRun, cursor: Any) -> Page[Any]:
    frame = Frame(ex, run.scope, run.index)
    try:
        page = await mapping.one_page(ex, frame, cursor, mapping.window_of(run.node))
    except (*REFUSALS, asyncio.CancelledError, *FATAL):
        raise
    except BaseException as error:
        raise ArgumentError(run.path, "over", describe(error)) from error
    if not isinstance(page, Page):
        text = f"a page source returns Page(items, next_cursor), not {type(page).__name__}"
        raise ArgumentError(run.path, "over", text)
    return page


# ---------------------------------------------------------------------- what it comes to


async def _settled(ex: Execution, run: FanRun, found: FanState) -> Readies | Later:
    assert ex.fans is not None
    scope, index = run.scope, run.index
    run.succeeded = found.summary.succeeded
    run.exhausted = True
    ex.state.log("settle", run.path, 1, _text(found.summary))
    await _take_over(ex, run, [each for each in found.owed if each not in found.failures])
    if found.halt is not None:
        halt = await ex.fans.failure(run.path, run.node, found.halt)
        reason = halt.reason if isinstance(halt, Halt) else None
        path = halt.step if isinstance(halt, Halt) else None
        ready: Readies = ex.state.halted(scope, index, reason, path=path)
    elif found.failures:
        failures = [await _failed(ex, run, each) for each in found.failures]
        ready = [*ex.state.fan_failed(run, failures), *ex.apply_effects()]
    else:
        return await _complete(ex, run, found.summary)
    await ex.save()
    return ready


async def _take_over(ex: Execution, run: FanRun, owed: Sequence[int]) -> None:
    """What did not complete when elements that failed rolled themselves back is not tried again by this run."""
    assert ex.fans is not None
    for index in owed:
        failure = await ex.fans.failure(run.path, run.node, index)
        ex.state.rollback_failures += failure.rollback_failures


async def _failed(ex: Execution, run: FanRun, element: int) -> Failed:
    assert ex.fans is not None
    failure = await ex.fans.failure(run.path, run.node, element)
    assert isinstance(failure, Failure)
    failed = Failed(failure.error, run.scope, run.index, attempts=failure.attempts, retryable=failure.retryable)
    failed.path = failure.step or f"{run.path}[{element}]"
    failed.arguments = failure.arguments
    ex.state.rollback_failures += failure.rollback_failures
    ex.state.log("failure", failed.path, max(1, failure.attempts), ex.scrub(describe(failure.error)))
    return failed


async def _complete(ex: Execution, run: FanRun, summary: FanSummary) -> Readies | Later:
    assert ex.fans is not None
    results = ex.fans.results(run.path, run.node, summary, shown_inputs(ex.plan, ex.state.root.inputs))
    try:
        await load(results)
    except JournalFailed as error:
        return dropped(ex, run.scope, run.index, error)
    except _UNKEPT as error:
        return await ended(ex, run.scope, run.index, 1, error, started=True, retry=False)
    if run.node.collect is not None:
        return await mapping.collected(ex, run, results)
    ready = ex.state.complete(run.scope, run.index, results)
    await ex.save()
    return ready


def _text(summary: FanSummary) -> str:
    return f"{summary.succeeded} succeeded, {summary.failed} failed, {summary.skipped} skipped"


async def load(results: FanResults[Any]) -> None:
    """Read results into memory, if they are few enough."""
    if len(results) <= IN_MEMORY:
        await results.load()


# ---------------------------------------------------------------------- gone on with elsewhere


def bind(ex: Execution) -> list[FanResults[Any]]:
    """Give what stands for results in restored scopes a way to the store; gives all of them."""
    found = []
    inputs = shown_inputs(ex.plan, ex.state.root.inputs)
    for scope in ex.state.scopes():
        for index, value in enumerate(scope.results):
            if isinstance(value, FanSummary) and ex.fans is not None:
                results = ex.fans.results(scope.path_of(index), scope.plan.nodes[index], value, inputs)
                scope.results[index] = results
                found.append(results)
                inner = (scope.children or {}).get(index)
                if isinstance(inner, FanRun):
                    inner.succeeded = value.succeeded
    if found:
        _refill(ex.state.root)
    return found


def _refill(scope: Scope) -> None:
    """What completed around them, made of their values, innermost first."""
    for index, inner in (scope.children or {}).items():
        if isinstance(inner, Scope):
            _refill(inner)
            if scope.status[index] in (NodeStatus.COMPLETED, NodeStatus.UNDONE):
                scope.results[index] = inner.value()


async def reload(ex: Execution) -> None:
    """Load the results of fan-outs that completed in another process, as they were there.

    Cancellation: callers shield it.
    """
    try:
        for results in bind(ex):
            await load(results)
    except JournalFailed as error:
        ex.lose(error)


def summary_of(value: MapResults[Any]) -> FanSummary:
    """What is kept of the results of a fan-out with its run."""
    return value.summary if isinstance(value, FanResults) else FanSummary(len(value), value.succeeded, value.failed)


async def call_off(ex: Execution, scope: Scope, index: int) -> None:
    """Its scope was stopped: nothing new starts, from now on.

    Cancellation: noted with the execution.
    """
    run = (scope.children or {}).get(index)
    assert isinstance(run, FanRun)
    assert ex.fans is not None
    try:
        await ex.fans.stop(run.path, run.node, "stopped", cut_of(ex, run))
    except JournalFailed as error:
        ex.lose(error)
    except asyncio.CancelledError as error:
        if not ex.note_if_cancelled(error):
            raise


def cut_of(ex: Execution, run: FanRun) -> str:
    """Whether what is under way is to be cancelled, and how."""
    if ex.ordered is not None:
        return ex.ordered.mode
    if ex.state.cancelled or ex.is_cut:
        return "rollback"
    return "rollback" if ex.policy(run.scope, "on_failure") == "cancel" and ex.state.halt is None else ""


def fan_runs(ex: Execution) -> list[FanRun]:
    """All fan-outs that were begun."""
    return [
        inner for scope in ex.state.scopes() for inner in (scope.children or {}).values() if isinstance(inner, FanRun)
    ]
