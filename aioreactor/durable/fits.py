"""A run's record, decoded, and whether the code that is here has a place for all that it holds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioreactor.engine.ports import Fate
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.snapshot import Codec, Image
from aioreactor.errors import PlanChanged
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.plan.paths import node_at
from aioreactor.results import RollbackFailure
from aioreactor.trace import RawEntry

_PART = re.compile(r"([^.\[]+)(\[\d+\])?")
_NEVER_OPENED = (NodeStatus.WAITING, NodeStatus.READY, NodeStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Opened:
    """A run's record, decoded."""

    plan: Plan
    inputs: dict[str, Any]
    images: dict[str, Image]
    entries: list[RawEntry]
    fate: Fate | None
    notes: dict[str, Any]
    gates: dict[str, Any] | None
    left: list[RollbackFailure]
    former: Mapping[str, str] = field(default_factory=dict)
    """Of steps that were renamed: by their paths now, those under which they were stored first."""

    def stored_path(self, path: str) -> str:
        """The path under which a step became known to others, such as those who answered it."""
        return self.former.get(path, path)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the run has been executed: it came no further than its gates."""
        admitted = self.gates is not None and "holds" in self.gates
        return bool(self.plan.options.coordination) and not admitted and not self.images and self.fate is None


def check_fits(plan: Plan, run_id: str, images: Mapping[str, Image]) -> None:
    """Whether every stored step, at every depth, still exists, and is what it was.

    Raises:
        PlanChanged: some do not.
    """
    missing = sorted(path for path, image in images.items() if not _has_place(plan, path, image))
    if missing:
        raise PlanChanged(run_id, missing)


def check_fans(plan: Plan, run_id: str, former: Mapping[str, str]) -> None:
    """Whether maps that fanned out have their names still: what is kept of their elements stands under these.

    Raises:
        PlanChanged: some have others, or stand in something that was renamed.
    """
    moved = [stored for now, stored in former.items() if (node := node_at(plan, now)) is not None and node.fan]
    if moved:
        raise PlanChanged(run_id, sorted(moved))


def check_inputs(plan: Plan, run_id: str, inputs: Mapping[str, Any], images: Mapping[str, Image], codec: Codec) -> None:
    """Whether the inputs of the run, and of composed children under way, are all there.

    Raises:
        PlanChanged: the code requires some that did not exist when they were given.
    """
    missing = _lacking(plan, inputs, "")
    for path, image in images.items():
        child = _child_at(plan, path) if image.inputs is not None and image.status == NodeStatus.RUNNING else None
        if child is not None:
            missing += _lacking(child, codec.inputs_back(child, image.inputs or b""), f"{path}.")
    if missing:
        raise PlanChanged(run_id, (), sorted(missing))


def _lacking(plan: Plan, inputs: Mapping[str, Any], before: str) -> list[str]:
    return [f"{before}{field.name}" for field in plan.fields.inputs if field.name not in inputs]


def _child_at(plan: Plan, path: str) -> Plan | None:
    node = node_at(plan, path)
    if node is None or node.kind != "compose":
        return None
    return node.child


def _has_place(plan: Plan, path: str, image: Image) -> bool:
    current: Plan | None = plan
    inside: PlanNode | None = None
    for name, element in _PART.findall(path):
        if current is None or name not in current.by_name:
            return False
        inside = current[name]
        current = inside.child
        if element:
            current = inside.element
            if current is None:
                return False
            inside = current.nodes[0] if current.element else None
            current = None if current.element else current
    if inside is None:
        return True
    if image.status == NodeStatus.COMPLETED and inside.kind in ("step", "async_step", "async_reactor"):
        # When a unit was dispatched is kept with it; a step that completed waits for nothing.
        return bool(image.due) == (inside.unit is not None)
    is_child = image.inputs is not None
    return is_child == (inside.kind == "compose") or (inside.kind == "compose" and image.status in _NEVER_OPENED)
