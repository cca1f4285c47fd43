"""Rolling back maps whose elements are elsewhere: stopped, waited for, and rolled back one by one in workers.

The run's worker is free meanwhile: what is to be waited for for long parks the run, as ``rolling_back``, and whoever
takes it up finds the map on its stack still, and goes on waiting. No step before the map is undone until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from aioreactor.engine.fanning import cut_of, fan_runs
from aioreactor.engine.leaving import Leaving
from aioreactor.engine.ports import FanGone, JournalFailed
from aioreactor.engine.scope import FanRun
from aioreactor.logs import note
from aioreactor.plan.units import may_owe
from aioreactor.results import RollbackFailure, Success

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.rollback")
Ask = Callable[[], Awaitable[Any]]


async def go_back(ex: Execution, run: FanRun, *, undo: bool, may_rest: bool) -> Sequence[RollbackFailure] | None:
    """Have a fan-out stop, and its elements be rolled back; gives what did not go well.

    None when the run was left in the middle of it, for a worker to go on with, or is not ours any more.

    Cancellation: the caller shields it.
    """
    assert ex.fans is not None
    try:
        left = await _stopped(ex, run, may_rest=may_rest)
        if left is None or not undo or run.node.undo_all is not None or not _undoes(run):
            return left
        found = await _waited(ex, run, lambda: _asked(ex, run), "are rolled back", may_rest=may_rest)
        return None if found is None else [*left, *found]
    except FanGone as error:
        return [RollbackFailure(run.path, "undo", "state_unavailable", str(error), None, run.path, None)]
    except JournalFailed as error:
        ex.lose(error)
        return None


def _undoes(run: FanRun) -> bool:
    assert run.node.fan is not None
    return may_owe(run.node.fan)


async def _asked(ex: Execution, run: FanRun) -> Sequence[RollbackFailure] | None:
    assert ex.fans is not None
    return await ex.fans.go_back(run.path, run.node)


async def _stopped(ex: Execution, run: FanRun, *, may_rest: bool) -> Sequence[RollbackFailure] | None:
    """Nothing of it is under way any more, or was waited for long enough: then the elements that are."""
    fans = ex.fans
    assert fans is not None
    await fans.stop(run.path, run.node, "stopped", cut_of(ex, run))

    async def settled() -> Sequence[RollbackFailure] | None:
        found = await fans.look(run.path, run.node)
        run.succeeded = found.summary.succeeded
        if found.over or not found.under_way:
            return []
        settle = ex.span(run.scope, "settle_timeout")
        waited = found.doomed_for or 0.0
        if waited < settle:
            return None
        await fans.stop(run.path, run.node, "stopped", "rollback")
        if waited < settle + fans.patience:
            return None
        return [_in_flight(run, index) for index in await fans.in_flight(run.path)]

    found: Sequence[RollbackFailure] | None = await _waited(ex, run, settled, "settle", may_rest=may_rest)
    return found


def _in_flight(run: FanRun, index: int) -> RollbackFailure:
    text = "it had not ended although it was told to, and was not rolled back"
    path = f"{run.path}[{index}]"
    return RollbackFailure(path, "undo", "element_in_flight", text, None, run.path, index)


async def _waited(ex: Execution, run: FanRun, ask: Ask, what: str, *, may_rest: bool) -> Any:
    """Ask until there is an answer; in place for as long as a run may wait there, then the run is left."""
    assert ex.fans is not None
    began = ex.clock.monotonic()
    longest = ex.park_after if ex.park_after is not None else 0.0
    while ex.may_go_back:
        found = await ask()
        if found is not None:
            return found
        left = longest - (ex.clock.monotonic() - began)
        if may_rest and left <= 0:
            ex.rest_back(_rest(ex, run, what))
            return None
        await ex.fans.changed(run.path, min(left if may_rest else ex.fans.look_each, ex.fans.look_each))
    return None


def _rest(ex: Execution, run: FanRun, what: str) -> Leaving:
    assert ex.fans is not None
    text = f"the elements of map {run.path!r}, which {what}"
    if ex.park_after is None:
        return Leaving("hand_off", run.path, None, text)
    return Leaving("park", run.path, ex.clock.now() + ex.fans.look_each, text)


async def stop_all(ex: Execution) -> None:
    """Nothing of any fan-out runs any more when this returns, unless it takes too long.

    Cancellation: the caller shields it.
    """
    if ex.fans is None or ex.lost is not None:
        return
    for run in fan_runs(ex):
        try:
            async with asyncio.timeout(ex.fans.patience):
                await _all_stopped(ex, run)
        except TimeoutError:
            text = "elements had not ended although they were told to"
            note(logger, logging.WARNING, "elements_in_flight", text, run_id=ex.state.run_id, path=run.path)
        except FanGone as error:
            note(logger, logging.WARNING, "fan_gone", str(error), run_id=ex.state.run_id, path=run.path)
        except JournalFailed as error:
            ex.lose(error)


async def _all_stopped(ex: Execution, run: FanRun) -> None:
    assert ex.fans is not None
    await ex.fans.stop(run.path, run.node, "stopped", cut_of(ex, run) or "stop")
    while (await ex.fans.look(run.path, run.node)).under_way:
        await ex.fans.changed(run.path, 1.0)


async def completed_results(ex: Execution, run: FanRun) -> AsyncIterator[Any]:
    """Values of the elements that succeeded, in index order, read chunk by chunk."""
    assert ex.fans is not None
    found = await ex.fans.look(run.path, run.node)
    results = ex.fans.results(run.path, run.node, found.summary, {})
    async for outcome in results.outcomes_later():
        if isinstance(outcome, Success):
            yield outcome.value
