"""Paths of nodes from the root of a plan, also those that hold names which nodes had before. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from aioreactor.plan.model import Plan, PlanNode

R = TypeVar("R")
_PART = re.compile(r"([^.\[]+)(\[\d+\])?")


def named(plan: Plan, name: str) -> PlanNode | None:
    """The node of this name, or of one that had it before (``aliases=``)."""
    if name in plan.by_name:
        return plan[name]
    return next((node for node in plan.nodes if name in node.node.aliases), None)


def node_at(plan: Plan, path: str) -> PlanNode | None:
    """The node at a dotted path from the root."""
    return _walked(plan, path)[1]


def present_path(plan: Plan, path: str) -> str:
    """The path that a step has now, from one that may hold older names; what is not known stays as it is."""
    return _walked(plan, path)[0]


def _walked(plan: Plan, path: str) -> tuple[str, PlanNode | None]:
    current: Plan | None = plan
    inside: PlanNode | None = None
    names: list[str] = []
    for name, element in _PART.findall(path):
        inside = named(current, name) if current is not None else None
        if inside is None:
            return path, None
        names.append(f"{inside.name}{element}")
        current = inside.child
        if element and inside.element is not None:
            single = inside.element.element
            current, inside = (None, inside.element.nodes[0]) if single else (inside.element, inside)
    return ".".join(names), inside


def present_records(plan: Plan, stored: Mapping[str, R]) -> tuple[dict[str, R], dict[str, str]]:
    """Records by the paths that their steps have now; and, of steps that were renamed, the paths that they had.

    Of a step with records of both names the one of its present name counts, which is newer.
    """
    found: dict[str, R] = {}
    former: dict[str, str] = {}
    for path, record in stored.items():
        now = present_path(plan, path)
        if now == path or now not in stored:
            found[now] = record
        if now != path:
            former[now] = path
    return found, former
