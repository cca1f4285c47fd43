"""What becomes of the guards of a run when it ends, is left, pauses, or is somebody else's."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aioreactor.engine import marks
from aioreactor.engine.coordinating import Asking, Ending
from aioreactor.engine.drive import shielded
from aioreactor.engine.gating import released
from aioreactor.engine.guarding import GAP, Guard, resigned, stretched
from aioreactor.engine.snoozing import withdraw_all
from aioreactor.engine.wishes import coordinator_of
from aioreactor.logs import note
from aioreactor.results import Failure, Halt, Outcome, Success

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")


async def finish(ex: Execution, outcome: Outcome[Any]) -> None:
    """The run has ended, and that is kept: give back what it held, from the inside out, and its places in line.

    Cancellation: noted with the execution.
    """
    await _leave_lines(ex)
    ending: Ending = "success" if isinstance(outcome, Success) else "halt" if isinstance(outcome, Halt) else "failure"
    await _give_all_back(ex, ending if not isinstance(outcome, Failure) else "failure")
    await withdraw_all(ex)
    if ex.unadmitted is not None:  # called off while it waited for what it is to hold
        await resigned(ex, ex.unadmitted.wishes, ex.unadmitted.asking())


async def _leave_lines(ex: Execution) -> None:
    """What waited when the run was stopped, perhaps in another process, waits no more: nothing is to be kept for it.

    Cancellation: noted with the execution.
    """
    if ex.coordinator is None:
        return
    await withdraw_all(ex)
    guard = ex.unadmitted or ex.state.root.guard
    if guard is None or "holds" in (ex.state.gates or {}):
        return
    if guard.tickets or guard.positions:
        places = Asking(guard.place, guard.place.name, guard.lose, tickets=guard.tickets, positions=guard.positions)
        try:
            await shielded(coordinator_of(ex).resign([], places))
        except asyncio.CancelledError as error:
            ex.note_if_cancelled(error)


async def _give_all_back(ex: Execution, ending: Ending) -> None:
    for guard in reversed(_guards(ex)):
        for holding in guard.forget():
            await released(ex, guard.place, holding, ending)


def _guards(ex: Execution) -> list[Guard]:
    """All guards of the run, outer ones first."""
    return [scope.guard for scope in ex.state.scopes() if scope.guard is not None and scope.guard.scope is scope]


async def mark(ex: Execution, outcome: Outcome[Any]) -> None:
    """The run has succeeded: its periods are marked before that is kept, so that no crash lets a second one succeed.

    So are those of steps that could not be marked before.

    Cancellation: noted with the execution.
    """
    if ex.lost is None:
        await marks.catch_up(ex)
    guard = ex.state.root.guard if ex.lost is None else None
    for holding in guard.holdings if guard is not None and isinstance(outcome, Success) else ():
        try:
            await shielded(holding.mark())
        except asyncio.CancelledError as error:
            ex.note_if_cancelled(error)
        except Exception as error:
            text = "a period is not marked, and another run may succeed in it"
            note(logger, logging.WARNING, "hold_not_released", text, run_id=ex.state.run_id, error=error)


async def leave(ex: Execution, delay: float) -> None:
    """Keep everything for whoever goes on with the run, ``delay`` seconds from now.

    Cancellation: noted with the execution.
    """
    for guard in _guards(ex):
        for holding in guard.forget():
            await stretched(ex, guard, holding, delay + GAP)


async def pause(ex: Execution) -> None:
    """Give back what the run holds until somebody answers: what it has spent stays spent, its turn stays its own.

    Cancellation: noted with the execution.
    """
    for guard in reversed(_guards(ex)):
        claims = guard.to_data().get("claims", [])
        for holding in guard.forget():
            await released(ex, guard.place, holding, "paused")
        if guard.scope is ex.state.root:
            held = {"leases": [], "turns": [], "claims": claims}
            ex.state.gates = marks.beside(ex, {"holds": held, "positions": guard.positions})


def abandon(ex: Execution) -> None:
    """Somebody else has the run, and its holds with it."""
    for guard in _guards(ex):
        coordinator_of(ex).listen(guard.place, None)
        for holding in guard.forget():
            holding.abandon()
