"""Coordination of composed children, and of elements that are reactors: taken before they begin, kept in images."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aioreactor.engine import attempt, marks
from aioreactor.engine.coordinating import Asking, Ending
from aioreactor.engine.drive import shielded
from aioreactor.engine.gating import Barred, passed, released, taken
from aioreactor.engine.guarding import Guard
from aioreactor.engine.scope import MapRun, Scope
from aioreactor.engine.wishes import coordinator_of, hear, place_around, wishes_of
from aioreactor.errors import ArgumentError, LeaseLost
from aioreactor.logs import note

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")


def declared_by(scope: Scope, index: int) -> tuple[Any, ...]:
    """What a composed child or the elements of a map take: what stands at the use of the class, else in its header.

    Turns of ordered locks belong to whole runs.
    """
    node = scope.plan.nodes[index]
    plan = node.child if node.kind == "compose" else node.element
    if plan is None or plan.element:
        return ()
    use: Any = node.node if node.kind == "compose" else getattr(node.node, "element", None)
    given = getattr(use, "coordination", None)
    chosen = given if given is not None else plan.options.coordination
    return tuple(each for each in chosen if each.kind != "ordered_lock")


async def child_passed(ex: Execution, scope: Scope, index: int, view: Any) -> Guard | Barred | None:
    """Pass the gates of a composed child; None if it has none.

    Cancellation: noted with the execution.
    """
    primitives = declared_by(scope, index)
    if not primitives:
        return None
    path = scope.path_of(index)
    try:
        wishes = wishes_of(primitives, lambda: view, path)
    except ArgumentError as error:
        return Barred(await attempt.ended(ex, scope, index, 1, error, started=False, retry=False))
    guard = Guard(coordinator_of(ex).place(place_around(scope), f"{ex.state.run_id}:{path}"), wishes)
    found = await passed(ex, scope, index, 1, wishes, guard)
    if isinstance(found, Barred):
        return found
    guard.got(found, wishes)
    return guard


async def element_passed(ex: Execution, run: MapRun, view: Any) -> Guard | None:
    """Pass the gates of the next element; None if it has none, or is not to begin any more.

    In a worker it waits for as long as a step would come back: an element has no place in line of its own.

    Raises:
        ArgumentError: a key cannot be computed.
        ContentionError, PeriodTaken, AioreactorError: it is refused.

    Cancellation: nothing is held.
    """
    primitives, path = declared_by(run.scope, run.index), f"{run.path}[{run.opened}]"
    wishes = wishes_of(primitives, lambda: view, path)
    guard = Guard(coordinator_of(ex).place(place_around(run.scope), f"{ex.state.run_id}:{path}"), wishes)
    hear(ex, run.scope, run.index, 1, guard.place)
    wait = ex.environment.snooze_delay * ex.environment.snooze_max if ex.may_park else None
    asking = Asking(guard.place, guard.place.name, guard.lose, wait=wait, outer=ex.outer_holds)
    found = await taken(ex, run.scope, wishes, asking)
    if found is None or run.stopped or ex.leaving is not None:
        await released(ex, guard.place, found, None)
        return None
    guard.got(found, wishes)
    return guard


async def free(ex: Execution) -> None:
    """Nested scopes have ended, and that is kept: give back what they held.

    Cancellation: noted with the execution.
    """
    if ex.lost is not None:
        return  # their end was not kept: whoever goes on needs what they hold
    freed, ex.state.freed = ex.state.freed, []
    for scope in freed:
        assert scope.guard is not None
        ending: Ending = "failure" if scope.failure is not None else "halt" if scope.halt is not None else "success"
        for holding in scope.guard.forget():
            await released(ex, scope.guard.place, holding, ending)


async def readmit_nested(ex: Execution) -> None:
    """Take up again what nested scopes held in the process before; those that have ended hold nothing.

    What that process owed for steps is marked.

    Cancellation: noted with the execution.
    """
    if ex.lost is None:
        await marks.catch_up(ex)
    stored, ex.state.unadopted = dict(ex.state.unadopted), []
    for scope in list(ex.state.scopes()):
        around = scope.owner
        if around is not None and (primitives := declared_by(around, scope.index)):
            await _readmit(ex, around, scope, primitives, stored.get(scope))


async def _readmit(
    ex: Execution, around: Scope, scope: Scope, primitives: tuple[Any, ...], data: Mapping[str, Any] | None
) -> None:
    try:
        wishes = wishes_of(primitives, lambda: scope.view, scope.path)
    except ArgumentError as error:
        note(logger, logging.WARNING, "hold_not_adopted", str(error), run_id=ex.state.run_id, path=scope.path)
        return
    guard = Guard(coordinator_of(ex).place(place_around(around), f"{ex.state.run_id}:{scope.path}"), wishes)
    goes_on = data is not None and scope.left > 0 and scope.failure is None
    if data is not None:
        await _adopted(ex, guard, data, back=scope.stopped or not goes_on)
    if not goes_on:
        for holding in guard.forget():  # its end was kept by a process that came no further
            await released(ex, guard.place, holding, "success" if scope.left == 0 else "failure")
    outer = scope.guard
    below = [each for each in ex.state.scopes() if each is not scope and _is_inside(each, scope)]
    guard.enter(ex, scope, ex.base.copy())
    for each in below:
        if each.guard is outer:
            each.guard = guard
    if goes_on and not scope.stopped and (missing := guard.missing()):
        guard.lose(LeaseLost(missing[0].key, "nobody kept it while the run was between two processes"))


async def _adopted(ex: Execution, guard: Guard, data: Mapping[str, Any], *, back: bool) -> None:
    """Take up what is still there, and compete anew for what is not."""
    try:
        holding, kept = await shielded(coordinator_of(ex).adopt(data, guard.asking()))
        guard.got(holding, [wish for wish in guard.wishes if wish.name in kept])
        missing = [] if back else guard.missing()
        if missing:
            asking = guard.asking(admitted=True, undoing=True)
            found = await taken(ex, ex.state.root, missing, asking)
            if found is not None:
                guard.got(found, missing)
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)
    except Exception as error:
        note(logger, logging.WARNING, "hold_not_adopted", str(error), run_id=ex.state.run_id, place=guard.place.name)


def _is_inside(scope: Scope, top: Scope) -> bool:
    current: Scope | None = scope
    while current is not None and current is not top:
        current = current.owner
    return current is top
