"""Positions of runs in the lines of ordered locks: handed out when a run is created, kept alive for as long as it is.

An entry beside the runs says when a run in lines needs a sign of life. It is written before the run is, so that whoever
looks either finds the run, or knows that there is none, and lets the lines go on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from aioreactor.engine.arguments import view_of
from aioreactor.engine.coordinating import Asking, Coordinator, Wish
from aioreactor.engine.wishes import wishes_of
from aioreactor.errors import ArgumentError, LeaseLost
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.store.errors import StoreError
from aioreactor.store.lined import LinedRuns
from aioreactor.store.store import RunStore
from aioreactor.trace import Status

logger = logging.getLogger("aioreactor.runs")
LINED = 200
"""Runs in lines that are looked at in one go."""

MISSED_MS = 60_000
"""For how long a run may be about to be created."""

_ROUNDS = 50
_FAILED: frozenset[Status] = frozenset(("failed", "cancelled", "aborted"))


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


async def assigned(
    coordinator: Coordinator, lined: LinedRuns, runs: Sequence[tuple[str, Sequence[Wish]]]
) -> list[dict[str, Any] | None]:
    """Positions for runs that are about to be created, in this order, as their records have them.

    From now on somebody gives signs of life for them, or gives them up when there are no such runs.

    Raises:
        StoreError: the store is away.

    Cancellation: some may have been handed out; they are passed over later.
    """
    wanted = [(wish, run_id) for run_id, wishes in runs for wish in wishes]
    if not wanted:
        return [None] * len(runs)
    given = iter(await coordinator.assign_all(wanted))
    found = [{wish.key: next(given) for wish in wishes} for _, wishes in runs]
    entries = [Lined(run_id, places) for (run_id, _), places in zip(runs, found, strict=True) if places]
    await lined.put([(each.pack(), each.beat_ms) for each in entries])
    return [{"positions": places} if places else None for places in found]


async def resigned(coordinator: Coordinator, gates: Mapping[str, Any] | None, run_id: str) -> None:
    """There is no such run, or it ended without having been executed: the line goes on without it.

    Cancellation: some are passed over later.
    """
    places = positions_in(gates)
    if places:
        await coordinator.resign([], Asking(coordinator.place(None, run_id), run_id, _nothing, positions=places))


def positions_in(gates: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """All positions that a record has, by key: those that wait, and those whose turn it is."""
    if gates is None:
        return {}
    turns = {place["key"]: place for place in gates.get("holds", {}).get("turns", ())}
    return {**gates.get("positions", {}), **turns}


def _nothing(error: LeaseLost) -> None:
    """Nothing is held."""


# ---------------------------------------------------------------------- signs of life


class Lined(NamedTuple):
    """A run in lines. ``missed``: it was not there when somebody looked; it may have been about to be created."""

    run_id: str
    positions: Mapping[str, Mapping[str, Any]]
    missed: bool = False

    @property
    def beat_ms(self) -> int:
        """How often it needs a sign of life."""
        return max(int(min(place["poison_after"] for place in self.positions.values()) * 1000 / 3), 1)

    def pack(self) -> str:
        """As it is stored."""
        return f"{int(self.missed)}{json.dumps([self.run_id, dict(self.positions)])}"


def unpacked(text: str) -> Lined:
    """The opposite of `Lined.pack`."""
    run_id, positions = json.loads(text[1:])
    return Lined(run_id, positions, text[0] == "1")


class Beats(Protocol):
    """See `durable.gatekeeper.Gatekeeper`."""

    async def beat(self, positions: Mapping[str, Mapping[str, Any]]) -> bool:
        """Give signs of life of positions; whether one of them is there still."""
        ...

    async def finish(self, positions: Mapping[str, Mapping[str, Any]], *, failed: bool) -> None:
        """Positions are done."""
        ...


class LineWatch:
    """Gives signs of life for runs in lines, whatever they do: they live.

    Those that are queued, parked, paused or due later cannot do it themselves.
    """

    def __init__(self, store: RunStore, beats: Beats, lined: LinedRuns) -> None:
        self._store = store
        self._beats = beats
        self._lined = lined

    async def look(self, again_ms: int) -> None:
        """Look after all that are due; a sweeper that takes one up and dies leaves it to the next after ``again_ms``.

        Cancellation: some positions may have no sign of life.
        """
        for _ in range(_ROUNDS):
            entries = await self._lined.claim(LINED, again_ms)
            await asyncio.gather(*map(self._look, entries))
            if len(entries) < LINED:
                break

    async def _look(self, entry: str) -> None:
        each = unpacked(entry)
        try:
            row = await self._store.peek(each.run_id)
            if row is None:
                await self._missing(each)
            elif row.ended:
                # Whoever ended it did not come to say so, or does it at this moment.
                await self._beats.finish(each.positions, failed=row.status in _FAILED and row.fence > 0)
                await self._lined.drop([entry])
            elif await self._beats.beat(each.positions):
                await self._lined.postpone([(entry, each.beat_ms)])
            else:
                await self._lined.drop([entry])
        except StoreError as error:
            note(logger, logging.WARNING, "position_not_beaten", str(error), run_id=each.run_id)

    async def _missing(self, each: Lined) -> None:
        """It was deleted, or never created; once, whoever is to create it may be slow."""
        if each.missed:
            await self._beats.finish(each.positions, failed=False)
        else:
            await self._beats.beat(each.positions)
            await self._lined.put([(each._replace(missed=True).pack(), MISSED_MS)])
        await self._lined.drop([each.pack()])
