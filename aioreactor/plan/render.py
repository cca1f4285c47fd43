"""Static pictures of a plan: plain data, Mermaid, DOT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioreactor.definition.annotations import UNKNOWN, text_of
from aioreactor.plan.model import Plan, PlanNode

_MERMAID = {
    "step": ('["', '"]'),
    "async_step": ('>"', '"]'),
    "async_reactor": ('[["', '"]]'),
    "map": ('[/"', '"/]'),
    "interrupt": ('{{"', '"}}'),
    "timer": ('(("', '"))'),
    "compose": ('["', '"]'),
}
_MERMAID_CODES = {'"': "#quot;", "#": "#35;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": " "}
_DOT = {
    "step": "box",
    "async_step": "cds",
    "async_reactor": "component",
    "map": "parallelogram",
    "interrupt": "hexagon",
    "timer": "circle",
    "compose": "box",
}


def to_dict(plan: Plan) -> dict[str, Any]:
    """Names, inputs, steps and edges as plain data."""
    return {
        "name": plan.name,
        "version": plan.options.version,
        "fingerprint": plan.fingerprint,
        "inputs": [
            {"name": f.name, "type": text_of(f.annotation), "required": f.required, "redacted": f.redacted}
            for f in plan.fields.inputs
        ],
        "resources": [field.name for field in plan.fields.resources],
        "steps": [_step_dict(plan, node) for node in plan.nodes],
        "returns": None if plan.returns is None else plan.nodes[plan.returns].name,
        "needs_store": list(plan.store_reasons),
    }


def _step_dict(plan: Plan, node: PlanNode) -> dict[str, Any]:
    inner = node.child or node.element
    return {
        "name": node.name,
        "kind": node.kind,
        "after": [plan.nodes[index].name for index in node.deps],
        "order_only": [plan.nodes[index].name for index in node.order_only],
        "type": None if node.result_type is UNKNOWN else text_of(node.result_type),
        "undo": node.undo is not None,
        "compensate": node.compensate is not None,
        "attempts": node.retry.max_attempts,
        "timeout": node.timeout,
        "description": node.description,
        "inner": to_dict(inner) if inner is not None and not inner.element else None,
    }


def _ids(plan: Plan, prefix: str = "") -> dict[int, str]:
    return {node.index: f"{prefix}n{node.index}" for node in plan.nodes}


def _mermaid_lines(plan: Plan, prefix: str, indent: str) -> Iterator[str]:
    ids = _ids(plan, prefix)
    for node in plan.nodes:
        inner = node.child or node.element
        if inner is not None and not inner.element:
            yield f'{indent}subgraph {ids[node.index]}["{_mermaid_text(_label(node))}"]'
            yield from _mermaid_lines(inner, f"{ids[node.index]}_", indent + "    ")
            yield f"{indent}end"
        else:
            opening, closing = _MERMAID[node.kind]
            yield f"{indent}{ids[node.index]}{opening}{_mermaid_text(_label(node))}{closing}"
    for node in plan.nodes:
        for dep in node.deps:
            arrow = "-.->" if dep in node.order_only else "-->"
            yield f"{indent}{ids[dep]} {arrow} {ids[node.index]}"


def _label(node: PlanNode) -> str:
    return f"{node.name} [each]" if node.kind == "map" else node.name


def _mermaid_text(text: str) -> str:
    return "".join(_MERMAID_CODES.get(character, character) for character in text)


def to_mermaid(plan: Plan) -> str:
    """A Mermaid flowchart: dashed arrows order without passing data, frames are nested reactors."""
    return "\n".join(["flowchart TD", *_mermaid_lines(plan, "", "    ")]) + "\n"


def _dot_lines(plan: Plan, prefix: str, indent: str) -> Iterator[str]:
    ids = _ids(plan, prefix)
    for node in plan.nodes:
        yield f'{indent}{ids[node.index]} [label="{_dot_text(_label(node))}", shape={_DOT[node.kind]}];'
        inner = node.child or node.element
        if inner is not None and not inner.element:
            yield f'{indent}subgraph "cluster_{ids[node.index]}" {{'
            yield f'{indent}    label="{_dot_text(node.name)}";'
            yield from _dot_lines(inner, f"{ids[node.index]}_", indent + "    ")
            yield f"{indent}}}"
    for node in plan.nodes:
        for dep in node.deps:
            style = " [style=dashed]" if dep in node.order_only else ""
            yield f"{indent}{ids[dep]} -> {ids[node.index]}{style};"


def _dot_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def to_dot(plan: Plan) -> str:
    """The same in DOT: ``dot -Tsvg``."""
    lines = [f'digraph "{_dot_text(plan.name)}" {{', "    rankdir=TB;", *_dot_lines(plan, "", "    "), "}"]
    return "\n".join(lines) + "\n"
