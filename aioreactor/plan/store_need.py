"""What in a plan needs a store, as texts for `StoreRequired`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioreactor.plan.model import Plan, PlanNode

_UNITS = {"async_step": "is an async_step", "async_reactor": "is an async_reactor"}
_WAITS = {"interrupt": "is an interrupt", "timer": "is a timer"}


def reasons(plan: Plan) -> tuple[str, ...]:
    """One text per thing that only works with a store, nested reactors and elements included."""
    found = []
    if plan.options.coordination:
        found.append(f"{plan.reactor.__qualname__} declares coordination")
    found += [text for node in plan.nodes for text in _coordinated(node, f"step {node.name!r}")]
    found += [text for node in plan.nodes for inner in _plans_in(node) for text in inner.store_reasons]
    return tuple(dict.fromkeys([*found, *of_record(plan)]))


def of_record(plan: Plan) -> tuple[str, ...]:
    """Those of them that need the run itself to be stored."""
    found = []
    if plan.background is not None:
        found.append(f"{plan.reactor.__qualname__} goes on in the background")
    if plan.options.on_cancel == "detach":
        found.append(f'{plan.reactor.__qualname__} has on_cancel="detach"')
    for node in plan.nodes:
        found += [f"step {node.name!r} {_UNITS[node.kind]}"] if node.kind in _UNITS else []
        found += [f"map {node.name!r} fans out"] if node.fan_out is not None else []
        found += [text for inner in _plans_in(node) for text in inner.record_reasons]
        found += _waits_in(node)
    return tuple(dict.fromkeys(found))


def _waits_in(node: PlanNode) -> list[str]:
    where = f"step {node.name!r}"
    if node.kind in {"interrupt", "timer"}:
        return [f"{where} {_WAITS[node.kind]}"]
    found = [f'{where} has on_exhausted="pause"'] if node.retry.on_exhausted == "pause" else []
    if node.element is not None and node.element.element:
        found += [
            text.replace("step ''", f"map {node.name!r}") for one in node.element.nodes for text in _waits_in(one)
        ]
    return found


def _coordinated(node: PlanNode, where: str) -> list[str]:
    if node.coordination:
        return [f"{where} declares coordination"]
    inner = node.element.nodes if node.element is not None and node.element.element else ()
    return [text for one in inner for text in _coordinated(one, f"map {node.name!r}")]


def _plans_in(node: PlanNode) -> list[Plan]:
    """The reactors in a node that bring reasons of their own."""
    inner = node.child if node.kind == "compose" else node.element
    return [inner] if inner is not None and not inner.element else []
