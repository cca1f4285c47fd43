"""Random graphs, behaviours and schedules, small enough to be read when they fail."""

from __future__ import annotations

from itertools import count
from typing import Any, Literal

from hypothesis import strategies as st

from tests.properties.graphs import (
    BODY,
    ROLLBACK,
    Behaviour,
    ComposeSpec,
    Graph,
    MapSpec,
    StepSpec,
    any_bound,
    maps_with_undo_all,
    paths,
)

NAMES = "abcdefgh"


@st.composite
def graphs(draw: Any, depth: int = 3, bounds: bool = False) -> Graph:
    """A reactor, with children down to ``depth``; ``bounds``: with ``max_concurrency`` here and there."""
    return _graph(draw, depth, count(1), bounds, draw(st.sampled_from(["settle", "settle", "cancel"])), top=True)


def _graph(draw: Any, depth: int, delays: Any, bounds: bool, on_failure: str, *, top: bool = False) -> Graph:
    size = draw(st.integers(1, 6 if top else 3))
    nodes: list[Any] = []
    for position in range(size):
        name = NAMES[position]
        before = [node.name for node in nodes]
        after = sorted(draw(st.sets(st.sampled_from(before), max_size=2))) if before else []
        kind = draw(st.sampled_from(["step", "step", "step", "compose", "map", "map"])) if depth > 0 else "step"
        if kind == "step":
            nodes.append(_step(draw, name, after, delays))
        elif kind == "compose":
            child = _graph(draw, depth - 1, delays, bounds, draw(st.sampled_from(["settle", "cancel"])))
            alone = len(child.nodes) == 1 and isinstance(child.nodes[0], StepSpec)
            on_halt: Literal["halt", "skip"] = draw(st.sampled_from(["halt", "skip"])) if alone else "halt"
            nodes.append(ComposeSpec(name, child, after, on_halt))
        else:
            nodes.append(_map(draw, name, after, depth, delays, bounds))
    graph = Graph(nodes, on_failure)
    if bounds and draw(st.booleans()):
        graph.max_concurrency = draw(st.integers(1, 3))
    if top and not bounds and len(nodes) > 1 and isinstance(nodes[-1], StepSpec) and draw(st.integers(0, 5)) == 0:
        nodes[-1].after = [node.name for node in nodes[:-1]]
        nodes[-1].unresolved = True
    return graph


def _step(draw: Any, name: str, after: list[str], delays: Any) -> StepSpec:
    return StepSpec(
        name,
        after,
        attempts=draw(st.sampled_from([1, 1, 1, 2, 3])),
        undo=draw(st.integers(0, 7)) > 0,
        compensate=draw(st.integers(0, 7)) > 0,
        checked=draw(st.integers(0, 3)) == 0,
        delay=float(next(delays)) + 1000.0,
    )


def _map(draw: Any, name: str, after: list[str], depth: int, delays: Any, bounds: bool) -> MapSpec:
    single = draw(st.booleans())
    element: Any
    if single:
        element = _step(draw, name, [], delays)
    else:
        element = _graph(draw, depth - 1, delays, bounds, draw(st.sampled_from(["settle", "cancel"])))
    return MapSpec(
        name,
        element,
        size=draw(st.integers(0, 3)),
        concurrency=draw(st.sampled_from([1, 2, 16])),
        atomic=draw(st.booleans()),
        undo_all=single and draw(st.integers(0, 3)) == 0,
        after=after,
    )


@st.composite
def plays(draw: Any, depth: int = 3, bounds: bool = False) -> tuple[Graph, Behaviour]:
    """A graph, and what its steps do: most succeed."""
    graph = draw(graphs(depth, bounds))
    steps = paths(graph)
    behaviour = Behaviour()
    if steps:
        names = [path for path, _ in steps]
        specs = dict(steps)
        special = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
        for path in special:
            allowed = [what for what in BODY if what != "invalid" or specs[path].checked]
            behaviour.body[path] = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=3))
        actions = [f"{kind}:{path}" for path in names for kind in ("undo", "compensate")]
        actions += [f"undo_all:{path}" for path in maps_with_undo_all(graph)]
        for action in draw(st.lists(st.sampled_from(actions), max_size=3, unique=True)):
            behaviour.rollback[action] = draw(st.sampled_from(ROLLBACK))
    return graph, behaviour


schedules = st.lists(st.integers(0, 7), max_size=40)
hooks = st.sampled_from(["none", "none", "plain", "yielding"])

__all__ = ["any_bound", "graphs", "hooks", "plays", "schedules"]
