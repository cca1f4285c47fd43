"""Which resources a plan will ask for, so that a missing one is found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioreactor.plan.model import Arg, Call, Plan, PlanNode, Source


def resources_of(plan: Plan) -> Iterator[tuple[str, str, Any]]:
    """Where, name and annotation of each, nested reactors included."""
    where = plan.reactor.__qualname__
    for field in plan.fields.resources:
        yield where, field.name, field.annotation
    for node in plan.nodes:
        yield from _of_node(node)


def _of_node(node: PlanNode) -> Iterator[tuple[str, str, Any]]:
    where = f"step {node.name!r}"
    calls = (node.body, node.undo, node.compensate, node.over, node.collect, node.undo_all)
    for call in calls:
        for arg in call.args if isinstance(call, Call) else ():
            if _is_asked(arg):
                yield where, arg.name, arg.annotation
    if node.step_class is not None:
        for field in node.step_class.__aioreactor_fields__.resources:
            yield where, field.name, field.annotation
    inner = node.child if node.kind == "compose" else node.element
    if inner is not None and inner.element:
        for one in inner.nodes:
            yield from _of_node(one)
    elif inner is not None:
        yield from inner.resource_needs


def _is_asked(arg: Arg) -> bool:
    return arg.source is Source.RESOURCE
