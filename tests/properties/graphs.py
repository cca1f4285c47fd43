"""What a random run consists of: a tree of graphs, and what every body and every undo does.

Nothing here knows the engine. ``Graph`` is a reactor; its nodes are steps, composed children and maps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

BODY = ("ok", "skip", "halt", "raise", "fail", "final", "invalid", "leak", "base", "group", "returned")
"""How an attempt ends: with a value, with one of the signals, or with one of the ways to fail."""
RETRYABLE = frozenset({"raise", "fail", "group", "returned"})
FAILING = frozenset({"raise", "fail", "final", "invalid", "leak", "base", "group", "returned", "unresolved"})
ROLLBACK = ("ok", "skip", "raise", "returned", "halt", "base", "leak")
ROLLBACK_REASON = {
    "raise": "raised",
    "base": "raised",
    "leak": "raised",
    "returned": "returned_failure",
    "halt": "returned_failure",
}


@dataclass
class StepSpec:
    name: str
    after: list[str] = field(default_factory=list)
    attempts: int = 1
    undo: bool = True
    compensate: bool = True
    checked: bool = False
    """Has an ``output=`` check, which refuses the value of ``invalid``."""
    unresolved: bool = False
    """Its argument's transform raises, so it never starts."""
    delay: float = 1.0
    """Unique per step, so that a timer tells whose it is."""


@dataclass
class ComposeSpec:
    name: str
    child: Graph
    after: list[str] = field(default_factory=list)
    on_halt: Literal["halt", "skip"] = "halt"


@dataclass
class MapSpec:
    name: str
    element: Graph | StepSpec
    size: int = 2
    concurrency: int = 16
    atomic: bool = True
    undo_all: bool = False
    after: list[str] = field(default_factory=list)


Spec = StepSpec | ComposeSpec | MapSpec


@dataclass
class Graph:
    nodes: list[Spec]
    on_failure: str = "settle"
    max_concurrency: int | None = None

    def by_name(self, name: str) -> Spec:
        return next(node for node in self.nodes if node.name == name)


@dataclass
class Behaviour:
    """By full path: what attempts do (the last one goes for all further ones), and what rollback actions do."""

    body: dict[str, list[str]] = field(default_factory=dict)
    rollback: dict[str, str] = field(default_factory=dict)

    def attempt(self, path: str, number: int) -> str:
        plan = self.body.get(path, ["ok"])
        return plan[min(number, len(plan)) - 1]

    def action(self, path: str, kind: str) -> str:
        return self.rollback.get(f"{kind}:{path}", "ok")


@dataclass(frozen=True)
class Item:
    """Something in flight that the schedule can end: a body, a rollback action, or the wait before an attempt."""

    kind: str
    path: str
    attempt: int = 1

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}#{self.attempt}"


def paths(graph: Graph, prefix: str = "") -> list[tuple[str, StepSpec]]:
    """Every step that a run of this graph could reach, by path."""
    found: list[tuple[str, StepSpec]] = []
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        if isinstance(node, StepSpec):
            found.append((path, node))
        elif isinstance(node, ComposeSpec):
            found += paths(node.child, f"{path}.")
        else:
            for index in range(node.size):
                if isinstance(node.element, StepSpec):
                    found.append((f"{path}[{index}]", node.element))
                else:
                    found += paths(node.element, f"{path}[{index}].")
    return found


def maps_with_undo_all(graph: Graph, prefix: str = "") -> list[str]:
    found: list[str] = []
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        if isinstance(node, ComposeSpec):
            found += maps_with_undo_all(node.child, f"{path}.")
        elif isinstance(node, MapSpec):
            found += [path] if node.undo_all else []
            if isinstance(node.element, Graph):
                for index in range(node.size):
                    found += maps_with_undo_all(node.element, f"{path}[{index}].")
    return found


def any_bound(graph: Graph) -> bool:
    """Whether ``max_concurrency`` is set somewhere."""
    if graph.max_concurrency is not None:
        return True
    for node in graph.nodes:
        inner: Any = node.child if isinstance(node, ComposeSpec) else getattr(node, "element", None)
        if isinstance(inner, Graph) and any_bound(inner):
            return True
    return False
