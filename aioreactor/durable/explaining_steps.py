"""A stored run as its next owner would find it, to be looked at: nothing of it is executed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from aioreactor.durable.fits import Opened
from aioreactor.engine.arguments import Frame, resolve, view_of
from aioreactor.engine.coordinating import Wish
from aioreactor.engine.limiter import Ready
from aioreactor.engine.nesting import child_inputs
from aioreactor.engine.ports import Environment
from aioreactor.engine.preparing import instance_of
from aioreactor.engine.recovery import fill_values, furnish
from aioreactor.engine.rollback_order import Action, next_action
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.scope import Parked, Scope
from aioreactor.engine.snapshot import Codec, Restorer
from aioreactor.engine.units import is_standing
from aioreactor.engine.wishes import wishes_of
from aioreactor.explanations import Reason
from aioreactor.plan.model import PlanNode
from aioreactor.store.keys import run_id_for_unit
from aioreactor.store.records import RunRow


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that a step waits for. ``since`` is when it was dispatched."""

    path: str
    run_id: str
    since: float


class Restored:
    """A run with its steps, from its record. ``ready`` are the nodes whose turn has come.

    ``mistakes`` are the payloads that did not fit, by interrupt, and that nobody has counted in the record yet.
    """

    def __init__(
        self, environment: Environment, opened: Opened, codec: Codec, row: RunRow, mistakes: Mapping[str, int]
    ) -> None:
        self.opened = opened
        self.row = row
        self._mistakes = mistakes
        self.goes_back = opened.fate is not None or row.status == "rolling_back"
        self._execution = ex = Execution(environment, opened.plan, row.run_id)
        ex.state.root.inputs = opened.inputs
        found = Restorer(ex.state, opened.images, codec, failing=self.goes_back, quiet=True).restore()
        self.ready: Sequence[Ready] = () if self.goes_back else found
        fill_values(ex, ex.state.root)
        for scope in ex.state.scopes():
            with contextlib.suppress(Exception):  # a resource may be missing here: then keys stay unknown that need it
                furnish(ex, scope, watch=False)

    @property
    def next_action(self) -> Action | None:
        """The undo or compensate that is next, of a run that goes back."""
        halted = self.opened.fate is not None and self.opened.fate.kind == "halted"
        return next_action(self._execution.state.root, undo=not halted)

    def entry(self, kind: str, path: str) -> float | None:
        """When the trace last tells this of a step."""
        times = (entry[0] for entry in reversed(self.opened.entries) if (entry[1], entry[2]) == (kind, path))
        return next(times, None)

    def parked_since(self, path: str) -> float | None:
        """When a step, or the run, was first refused, of those times that nothing came between."""
        found = None
        for entry in reversed(self.opened.entries):
            if entry[2] == path and entry[1] != "park":
                break
            if entry[2] == path:
                found = entry[0]
        return found

    # ------------------------------------------------------------------ what a node waits for

    def by_itself(self, ready: Ready) -> Reason | None:
        """The reason of a node that waits for an answer, or for a moment."""
        scope, index = ready
        node, path = scope.plan.nodes[index], scope.path_of(index)
        due = self.due(ready)
        if scope.opened and index in scope.opened:
            return self._opened(scope, index)
        if due is None or due * 1000 <= self.row.now_ms:
            return None  # its time has come: whoever has the run is at it
        if node.kind == "timer":
            return Reason("timer", "waits", path, until=due)
        if node.kind == "step" and self.parked(ready) is None:
            text = f"waits for attempt {scope.attempt_of(index) + 1}"
            return Reason("retry", text, path, self.entry("retry", path), due)
        return None

    def _opened(self, scope: Scope, index: int) -> Reason:
        assert scope.opened is not None
        opening, path = scope.opened[index], scope.path_of(index)
        since = self.entry("interrupt", path)
        if scope.plan.nodes[index].kind != "interrupt":
            text = f"waits for a decision after {scope.attempt_of(index)} attempts (runs.decide)"
            return Reason("decision", text, path, since)
        known = f" with the correlation id {opening.correlation_id!r}" if opening.correlation_id else ""
        mistakes = opening.refused + self._mistakes.get(path, 0)
        refused = f"; {mistakes} payloads did not fit" if mistakes else ""
        return Reason("interrupt", f"waits for an answer{known} (runs.resume){refused}", path, since, opening.deadline)

    def parked(self, ready: Ready) -> Parked | None:
        """How a node was refused by its gates; None if it was not."""
        scope, index = ready
        return scope.parks.get(index) if scope.parks else None

    def due(self, ready: Ready) -> float | None:
        """When it is tried again at the latest."""
        scope, index = ready
        return scope.due.get(index) if scope.due else None

    def units(self, ready: Ready) -> list[Unit]:
        """The units that a node reads and that have not ended, as far as the run knows."""
        scope, index = ready
        return [
            Unit(scope.path_of(unit), self._unit_id(scope, unit), scope.due.get(unit, 0.0) if scope.due else 0.0)
            for unit in scope.plan.nodes[index].units
            if is_standing(scope, unit)
        ]

    def _unit_id(self, scope: Scope, unit: int) -> str:
        independent, path = scope.plan.nodes[unit].independent, self.opened.stored_path(scope.path_of(unit))
        return run_id_for_unit(self.row.run_id, self.row.created_ms, path, independent=independent)

    # ------------------------------------------------------------------ keys

    def own_wishes(self) -> list[Wish]:
        """What the run is to hold as a whole."""
        plan = self.opened.plan
        return _computed(plan.options.coordination, lambda: view_of(plan, self.opened.inputs))

    def wishes(self, scope: Scope, index: int) -> list[Wish]:
        """What a node is to hold, as far as its keys can be computed here."""
        node = scope.plan.nodes[index]
        frame = Frame(self._execution, scope, index, attempt=scope.attempt_of(index) + 1)
        if node.kind == "compose" and node.child is not None:
            plan, owner = node.child, scope.path_of(index)
            return _computed(
                plan.options.coordination,
                lambda: child_inputs(self._execution, frame, node.args, plan, owner)[0],
            )
        return _computed(node.coordination, lambda: self._subject(node, frame))

    def _subject(self, node: PlanNode, frame: Frame) -> Any:
        values = resolve(node.args, frame)
        return instance_of(self._execution, node, values) if node.step_class is not None else SimpleNamespace(**values)


def _computed(primitives: Sequence[Any], subject: Any) -> list[Wish]:
    """Those whose keys can be computed: what they need may not be here."""
    found: list[Wish] = []
    for primitive in primitives:
        with contextlib.suppress(Exception):
            found += wishes_of([primitive], subject, "")
    return found
