"""Positions of runs in the lines of ordered locks: handed out when a run is created, kept alive while it is queued."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aioreactor.engine.arguments import view_of
from aioreactor.engine.gating import wishes_of
from aioreactor.engine.ports import Asking, Coordinator, Wish
from aioreactor.errors import ArgumentError, LeaseLost
from aioreactor.plan.model import Plan

logger = logging.getLogger("aioreactor.runs")


def lines_of(plan: Plan, inputs: Mapping[str, Any]) -> list[Wish]:
    """The ordered locks of a run; none when a key cannot be computed, which fails the run when it begins."""
    ordered = [each for each in plan.options.coordination if each.kind == "ordered_lock"]
    if not ordered:
        return []
    view = view_of(plan, inputs)
    try:
        return wishes_of(ordered, lambda: view, plan.reactor.__qualname__)
    except ArgumentError:
        return []


async def assigned(coordinator: Coordinator, lines: Sequence[Wish], run_id: str) -> dict[str, Any]:
    """Positions for a run that is about to be created, as its record has them.

    Raises:
        StoreError: the store is away.

    Cancellation: some may have been handed out; they are passed over later.
    """
    return {"positions": {wish.key: await coordinator.assign(wish, run_id) for wish in lines}}


async def resigned(coordinator: Coordinator, gates: Mapping[str, Any], run_id: str) -> None:
    """The run was not created after all.

    Cancellation: some are passed over later.
    """
    asking = Asking(coordinator.place(None, run_id), run_id, _nothing, positions=gates["positions"])
    await coordinator.resign([], asking)


def _nothing(error: LeaseLost) -> None:
    """Nothing is held."""


class Beats(Protocol):
    """See `durable.gatekeeper.Gatekeeper`."""

    async def beat(self, positions: Mapping[str, Mapping[str, Any]]) -> None:
        """Give signs of life of positions."""
        ...
