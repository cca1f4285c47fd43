"""Order and cycles."""

from __future__ import annotations

from collections.abc import Sequence
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


class Reach:
    """Everything upstream of some nodes; worked out when somebody asks for more than the nodes themselves."""

    __slots__ = ("_all", "_deps", "_direct")

    def __init__(self, direct: Sequence[int], deps: Sequence[Sequence[int]]) -> None:
        self._direct = direct
        self._deps = deps
        self._all: set[int] | None = None

    def __contains__(self, index: object) -> bool:
        if index in self._direct:
            return True
        if self._all is None:
            self._all = upstream(self._direct, self._deps)
        return index in self._all
