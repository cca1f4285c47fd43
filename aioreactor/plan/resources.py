"""Which resources a plan will ask for, so that a missing one is found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aioreactor.definition.annotations import UNKNOWN, strip
from aioreactor.plan.model import Call, Plan, PlanNode, Source

_OTHER = object()


def resources_of(plan: Plan) -> Iterator[tuple[str, str, Any]]:
    """Where, name and annotation of each, nested reactors included."""
    where = plan.reactor.__qualname__
    for field in plan.fields.resources:
        yield where, field.name, field.annotation
    known = {field.name: strip(field.annotation) for field in plan.fields.resources}
    for node in plan.nodes:
        yield from _of_node(node, known)


def _of_node(node: PlanNode, known: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    if node.unit is not None:
        return  # a worker runs it
    where = f"step {node.name!r}"
    calls = (node.body, node.undo, node.compensate, node.over, node.collect, node.undo_all)
    for call in calls:
        for arg in call.args if isinstance(call, Call) else ():
            if arg.source is Source.RESOURCE and strip(arg.annotation) not in (UNKNOWN, known.get(arg.name, _OTHER)):
                yield where, arg.name, arg.annotation
    if node.step_class is not None:
        for field in node.step_class.__aioreactor_fields__.resources:
            yield where, field.name, field.annotation
    inner = node.child if node.kind == "compose" else node.element
    if inner is not None and inner.element:
        for one in inner.nodes:
            yield from _of_node(one, known)
    elif inner is not None:
        yield from inner.resource_needs
