"""Order and cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter


def find_cycle(names: list[str], deps: Sequence[Sequence[int]]) -> list[str] | None:
    """The names along one cycle, first and last the same; None when there is none."""
    try:
        TopologicalSorter({index: list(before) for index, before in enumerate(deps)}).prepare()
    except CycleError as error:
        return [names[index] for index in reversed(error.args[1])]
    return None


def dependants_of(deps: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each node who waits for it, in definition order."""
    found: list[list[int]] = [[] for _ in deps]
    for index, before in enumerate(deps):
        for dep in before:
            found[dep].append(index)
    return found


def upstream(start: Sequence[int], deps: Sequence[Sequence[int]]) -> set[int]:
    """Everything that has completed when these have."""
    seen: set[int] = set()
    stack = list(start)
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            stack.extend(deps[index])
    return seen


def levels(deps: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Nodes by the length of the longest path to them; only for graphs without a cycle."""
    sorter = TopologicalSorter({index: list(before) for index, before in enumerate(deps)})
    sorter.prepare()
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        yield ready
        sorter.done(*ready)
