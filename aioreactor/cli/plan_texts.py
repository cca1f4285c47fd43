"""What a plan's actions say about themselves: the first docstring line of each undo and compensate."""

from __future__ import annotations

import inspect
import re

from aioreactor.plan.model import Plan, PlanNode

_INDEX = re.compile(r"\[\d+\]")


def action_text(plan: Plan, kind: str, path: str) -> str:
    """The first line of the docstring of the action at a path; empty when it has none."""
    node = _node_at(plan, _INDEX.sub("", path).split("."), of_element=kind != "undo_all")
    call = getattr(node, kind, None)
    return (inspect.getdoc(call.fn) or "").partition("\n")[0] if call is not None else ""


def _node_at(plan: Plan, names: list[str], *, of_element: bool) -> PlanNode | None:
    node: PlanNode | None = None
    inside: Plan | None = plan
    for name in names:
        if inside is None or name not in inside.by_name:
            return None
        node = inside[name]
        inside = node.child or node.element
        if of_element and inside is not None and inside.element:
            node = inside.nodes[0]
    return node
