"""Periods of steps: marked when the completion is kept, and owed until then.

A marker that came first would have a step skipped, without its value, that nobody has completed. One that comes after
may be lost with its process. So what is to be marked is kept together with the completion, and struck out with the next
checkpoint after it was marked; who goes on with the run, or ends it, marks what is left. To mark twice does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aioreactor.engine.coordinating import Asking, Holding
from aioreactor.engine.drive import shielded
from aioreactor.engine.scope import NodeStatus, Scope
from aioreactor.errors import LeaseLost
from aioreactor.logs import note

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")
OWED = "owed"


def expect(ex: Execution, scope: Scope, index: int, name: str, holds: Holding | None) -> None:
    """An attempt of a step begins; ``name`` is that of its place, by which a marker names it."""
    if holds is None or not any(each.kind == "period" for each in scope.plan.nodes[index].coordination):
        return
    claims = holds.to_data()["claims"]
    if claims:
        ex.unmarked[scope, index] = (name, claims)


def owe(ex: Execution) -> None:
    """A checkpoint is made: what it says has completed is to be marked."""
    for ready, (name, claims) in list(ex.unmarked.items()):
        scope, index = ready
        if scope.status[index] == NodeStatus.COMPLETED:
            del ex.unmarked[ready]
            _note(ex, {**owed(ex.state.gates), name: claims})


def settled(ex: Execution, scope: Scope, index: int, name: str, *, marked: bool) -> None:
    """An attempt has given back what it held; ``marked``: its periods, too."""
    ex.unmarked.pop((scope, index), None)
    if marked:
        _strike(ex, name)


def owed(gates: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is to be marked, by the name of the place whose success it was."""
    return dict((gates or {}).get(OWED, {}))


def beside(ex: Execution, gates: Mapping[str, Any]) -> dict[str, Any]:
    """How far the run is with its own gates, from now on; what is owed for steps stays owed."""
    left = owed(ex.state.gates)
    return {**gates, OWED: left} if left else dict(gates)


async def catch_up(ex: Execution) -> None:
    """Mark what is owed; what cannot be marked now stays owed.

    Cancellation: noted with the execution.
    """
    for name, claims in owed(ex.state.gates).items():
        try:
            await shielded(_mark(ex, name, claims))
        except asyncio.CancelledError as error:
            ex.note_if_cancelled(error)
        except Exception as error:
            text = "a period of a step is not marked, and another run may succeed in it"
            note(logger, logging.WARNING, "hold_not_released", text, run_id=ex.state.run_id, error=error)
        else:
            _strike(ex, name)


async def _mark(ex: Execution, name: str, claims: Any) -> None:
    coordinator = ex.coordinator
    assert coordinator is not None
    place = coordinator.place(None, name)
    data = {"leases": [], "turns": [], "claims": claims}
    holding, _ = await coordinator.adopt(data, Asking(place, name, _nothing))
    await holding.mark()


def _strike(ex: Execution, name: str) -> None:
    left = owed(ex.state.gates)
    if left.pop(name, None) is not None:
        _note(ex, left)


def _note(ex: Execution, left: Mapping[str, Any]) -> None:
    # A journal writes what is another object than before.
    ex.state.gates = {**(ex.state.gates or {}), OWED: dict(left)}


def _nothing(error: LeaseLost) -> None:
    """Nothing is held."""
