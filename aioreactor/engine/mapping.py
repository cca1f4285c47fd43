"""Inline maps: items taken lazily from a source, elements run concurrently within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.definition.markers import Page
from aioreactor.engine import guarding, guarding_nested, reporting
from aioreactor.engine.arguments import FATAL, Frame, resolve, split, value_of
from aioreactor.engine.attempt import Later, ended, keep
from aioreactor.engine.bodies import unawaited
from aioreactor.engine.drive import in_thread, run_in
from aioreactor.engine.nesting import REFUSALS, adopt, child_inputs
from aioreactor.engine.scope import Failed, MapRun, NodeStatus, Scope
from aioreactor.engine.state import Readies
from aioreactor.errors import AioreactorError, ArgumentError
from aioreactor.failures import describe
from aioreactor.map_results import MapResults
from aioreactor.plan.model import Arg, Call, PlanNode

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution


class _End(Exception):
    """The source has no more items."""


WINDOW = 1000
"""Elements of a map that fans out which may be under way, where it does not say: enough to keep workers busy."""

CUT: Any = object()
"""What `cuttable` gives for work that the engine cancelled."""

Take = Callable[[], Awaitable[Any]]


async def run_map(ex: Execution, scope: Scope, index: int) -> Readies | Later:
    """Run the elements of a map; called again when all have ended, to make its value.

    Cancellation: noted with the execution; elements in flight settle by themselves.
    """
    inner = scope.children.get(index) if scope.children else None
    if isinstance(inner, MapRun) and inner.settled:
        return await _complete(ex, inner)
    if isinstance(inner, MapRun):
        inner.reading, scope.status[index] = True, NodeStatus.RUNNING
    try:
        source = await cuttable(ex, scope, open_source(ex, scope, index))
    except asyncio.CancelledError as error:
        if ex.note_if_cancelled(error):
            return ex.state.drop(scope, index)
        return await ended(ex, scope, index, 1, error, started=False, retry=False)
    except REFUSALS as error:
        return await ended(ex, scope, index, 1, error, started=False, retry=False)
    if scope.stopped or source is CUT:
        return ex.state.drop(scope, index)
    run = inner if isinstance(inner, MapRun) else ex.state.open_map(scope, index)
    if ex.state.recording:
        await ex.save()
    return await _feed(ex, run, source)


async def cuttable(ex: Execution, scope: Scope, work: Awaitable[Any]) -> Any:
    """Await a source or a ``collect`` such that the engine can cancel it, like a body."""
    limit = CancelScope()
    ex.bodies[limit] = scope
    value: Any = CUT
    try:
        with limit:
            value = await work
    finally:
        del ex.bodies[limit]
        ex.cutting.pop(limit, None)
    return value


# ---------------------------------------------------------------------- sources


async def open_source(ex: Execution, scope: Scope, index: int) -> Any:
    """The iterable behind ``over``.

    Raises:
        ArgumentError: it could not be made, or it is nothing that can be iterated.
    """
    node = scope.plan.nodes[index]
    frame = Frame(ex, scope, index)
    try:
        found = value_of(node.over, frame) if isinstance(node.over, Arg) else await _call_source(ex, node.over, frame)
    except (*REFUSALS, asyncio.CancelledError, *FATAL):
        raise
    except BaseException as error:
        raise ArgumentError(scope.path_of(index), "over", describe(error)) from error
    iterable = hasattr(found, "__aiter__") or hasattr(found, "__iter__")
    if not iterable or isinstance(found, (str, bytes)):
        raise ArgumentError(scope.path_of(index), "over", f"{type(found).__name__} is not a source of items")
    return found


async def _call_source(ex: Execution, call: Call | None, frame: Frame) -> Any:
    assert call is not None
    node = frame.scope.plan.nodes[frame.index]
    bound = partial(call.fn, frame.scope.view, **resolve(call.args, frame))
    if node.paged:
        return _pages(ex, bound, node.concurrency, frame.scope.path_of(frame.index))
    if isgeneratorfunction(call.fn) or isasyncgenfunction(call.fn):
        return bound()
    return await _awaited(ex, bound, frame.scope.path_of(frame.index), is_async=call.is_async)


async def _awaited(ex: Execution, bound: Callable[..., Any], name: str, *, is_async: bool) -> Any:
    if is_async:
        return await run_in(ex.base.copy(), bound())
    body = in_thread(bound, limiter=ex.environment.limiter(), grace=0.0, name=name)
    return await run_in(ex.base.copy(), body)


def window_of(node: PlanNode) -> int:
    """How many elements of a map that fans out may be under way."""
    size = node.fan_out.batch_size if node.fan_out is not None else None
    return size if size is not None else WINDOW


async def one_page(ex: Execution, frame: Frame, cursor: Any, limit: int) -> Any:
    """What a page source gives for a cursor."""
    call = frame.scope.plan.nodes[frame.index].over
    assert isinstance(call, Call)
    bound = partial(call.fn, frame.scope.view, **resolve(call.args, frame), cursor=cursor, limit=limit)
    return await _awaited(ex, bound, frame.scope.path_of(frame.index), is_async=call.is_async)


async def _pages(ex: Execution, source: Callable[..., Any], limit: int, name: str) -> AsyncIterator[Any]:
    """The items of a page source; the next page is read when the last one is used up."""
    is_async = asyncio.iscoroutinefunction(source.func) if isinstance(source, partial) else True
    cursor: Any = None
    while True:
        page = await _awaited(ex, partial(source, cursor=cursor, limit=limit), name, is_async=is_async)
        if not isinstance(page, Page):
            raise TypeError(f"a page source returns Page(items, next_cursor), not {type(page).__name__}")
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if cursor is None:
            return


def _taker(source: Any) -> tuple[Take, Callable[[], Awaitable[None]]]:
    """How to take the next item, and how to close the source."""
    if hasattr(source, "__aiter__"):
        later: AsyncIterator[Any] = aiter(source)

        async def take_later() -> Any:
            try:
                return await anext(later)
            except StopAsyncIteration:
                raise _End from None

        async def close_later() -> None:
            close = getattr(later, "aclose", None)
            if close is not None:
                await close()

        return take_later, close_later
    now: Iterator[Any] = iter(source)

    async def take_now() -> Any:
        try:
            return next(now)
        except StopIteration:
            raise _End from None

    async def close_now() -> None:
        close = getattr(now, "close", None)
        if close is not None:
            close()

    return take_now, close_now


# ---------------------------------------------------------------------- elements


async def _feed(ex: Execution, run: MapRun, source: Any) -> Readies:
    """Take items as long as there is room and no reason to stop, one element each."""
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    try:
        take, close = _taker(source)
        await cuttable(ex, run.scope, _take_all(ex, run, take))
    except _End:
        run.exhausted = True
    except asyncio.CancelledError as error:
        if not ex.note_if_cancelled(error):
            return _source_failed(ex, run, error)
    except (KeyboardInterrupt, SystemExit) as error:
        ex.interrupt(error)
    except GeneratorExit:
        raise
    except BaseException as error:
        return _source_failed(ex, run, error)
    finally:
        await _close_source(ex, run, close)
        run.reading = False
    if ex.leaving is not None and not run.stopped and not run.exhausted:
        ex.hold(run.scope, partial(ex.state.source_ended, run))
        return ()
    return ex.state.source_ended(run)


async def _take_all(ex: Execution, run: MapRun, take: Take) -> None:
    waker = ex.waker(run)
    for _ in range(run.opened):  # a run that goes on after a crash has had these
        await take()
    while await _has_room(ex, run, waker):
        run.reading = True
        item = await take()
        if run.stopped or ex.leaving is not None:
            return  # the item is taken again by who goes on with the run
        if ex.coordinator is None or not guarding_nested.declared_by(run.scope, run.index):
            await _start_element(ex, run, item)
        elif not await _start_guarded(ex, run, item):
            return  # as above


async def _nothing_to_close() -> None:
    return None


async def _has_room(ex: Execution, run: MapRun, waker: asyncio.Event) -> bool:
    run.reading = False
    while not run.has_room and not run.stopped and ex.leaving is None:
        waker.clear()
        if ex.open_nodes:
            ex.consider_leaving()
        await waker.wait()
    return not run.stopped and ex.leaving is None


async def _close_source(ex: Execution, run: MapRun, close: Callable[[], Awaitable[None]]) -> None:
    try:
        await close()
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)
    except FATAL:
        raise
    except BaseException as error:
        reporting.log_source_close(ex, run, error)


def _source_failed(ex: Execution, run: MapRun, error: BaseException) -> Readies:
    raised = ArgumentError(run.path, "over", describe(error))
    raised.__cause__ = error
    ex.state.log("failure", run.path, 1, ex.scrub(describe(raised)))
    return ex.state.source_failed(run, Failed(raised, run.scope, run.index))


async def _start_guarded(ex: Execution, run: MapRun, item: Any) -> bool:
    """Pass the gates of an element, then start it; False if it is not to start any more.

    One after the other: who waits at the gates holds up those after it.
    """
    owner = f"{run.plan.reactor.__qualname__} in '{run.path}[{run.opened}]'"
    try:
        view, _ = child_inputs(ex, Frame(ex, run.scope, run.index, item=item), run.node.args, run.plan, owner)
    except REFUSALS:
        await _start_element(ex, run, item)  # which is refused, for the same reason
        return True
    try:
        guard = await guarding_nested.element_passed(ex, run, view)
    except (AioreactorError, ValueError) as error:
        _refuse_element(ex, ex.state.open_element(run, item), error)
        return True
    if guard is not None:
        await _start_element(ex, run, item, guard)
    return guard is not None


def _refuse_element(ex: Execution, element: Scope, error: BaseException) -> None:
    ex.state.log("failure", element.path, 1, ex.scrub(describe(error)))
    ex.start_all(ex.state.element_refused(element, Failed(error, element, None)))


async def _start_element(ex: Execution, run: MapRun, item: Any, guard: guarding.Guard | None = None) -> None:
    element = ex.state.open_element(run, item)
    if run.plan.element:
        await _begin_element(ex, element)
        return
    owner = f"{run.plan.reactor.__qualname__} in {element.path!r}"
    frame = Frame(ex, run.scope, run.index, item=item)
    try:
        element.view, element.inputs = child_inputs(ex, frame, run.node.args, run.plan, owner)
    except REFUSALS as error:
        _refuse_element(ex, element, error)
        return
    if guard is not None:
        guard.enter(ex, element, ex.base.copy())
    adopt(ex, element, run.plan)
    await _begin_element(ex, element)


async def _begin_element(ex: Execution, element: Scope) -> None:
    ready = ex.state.begin_element(element)
    try:
        if ex.state.recording:
            await ex.save()  # as for a composed child
    finally:
        ex.start_all(ready)


# ---------------------------------------------------------------------- the value


async def _complete(ex: Execution, run: MapRun) -> Readies | Later:
    """All elements have ended well: make the map's value."""
    results: MapResults[Any] = MapResults([reporting.element_outcome(ex, run, i) for i in range(run.opened)])
    if run.node.collect is None:
        return ex.state.complete(run.scope, run.index, results)
    return await collected(ex, run, results)


async def collected(ex: Execution, run: MapRun, results: MapResults[Any]) -> Readies | Later:
    """The value that ``collect`` makes of the results is the map's.

    Cancellation: noted with the execution.
    """
    assert run.node.collect is not None
    try:
        value = await cuttable(ex, run.scope, _collect(ex, run, run.node.collect, results))
    except asyncio.CancelledError as error:
        if ex.note_if_cancelled(error):
            return ex.state.drop(run.scope, run.index)
        return await _collect_failed(ex, run, error)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            ex.interrupt(error)
            return ex.state.drop(run.scope, run.index)
        return await _collect_failed(ex, run, error)
    if value is CUT:
        return ex.state.drop(run.scope, run.index)
    if not ex.state.recording:
        return ex.state.complete(run.scope, run.index, value)
    unkept = keep(ex, run.scope, run.index, value)
    if unkept is not None:
        return await _collect_failed(ex, run, unkept)
    ready = ex.state.complete(run.scope, run.index, value)
    await ex.save()
    return ready


async def _collect_failed(ex: Execution, run: MapRun, error: BaseException) -> Readies | Later:
    return await ended(ex, run.scope, run.index, 1, error, started=True, retry=False)


async def _collect(ex: Execution, run: MapRun, call: Call, results: MapResults[Any]) -> Any:
    frame = Frame(ex, run.scope, run.index, own_result=results)
    positional, keywords = split(call, resolve(call.args, frame))
    is_method = any(item is call.fn for owner in type(run.scope.view).__mro__ for item in vars(owner).values())
    bound = partial(call.fn, run.scope.view, *positional, **keywords) if is_method else partial(call.fn, results)
    value = await _awaited(ex, bound, f"{run.path} (collect)", is_async=call.is_async)
    if hasattr(value, "send") and hasattr(value, "throw"):
        raise unawaited(value)
    return value
