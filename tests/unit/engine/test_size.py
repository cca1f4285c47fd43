"""Large plans: nothing recurses over steps, and nothing gives way at depth."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from aioreactor import Failure, Reactor, Success, compose, step


def chain(length: int, broken: int | None = None) -> type[Reactor[Any]]:
    undone: list[int] = []

    def made(index: int) -> Any:
        async def body(self: Any) -> int:
            if index == broken:
                raise ValueError(index)
            return index

        async def undo(self: Any, result: int) -> None:
            undone.append(result)

        node = step(after=[f"s{index - 1}"] if index else [])(body)
        node.undo(undo)
        return node

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update({f"s{index}": made(index) for index in range(length)})
        namespace["undone"] = staticmethod(lambda: undone)

    return types.new_class("Long", (Reactor,), {}, fill)


def nested(depth: int, broken: bool = False) -> type[Reactor[Any]]:
    class Innermost(Reactor[int]):
        @step
        async def base(self) -> int:
            return 0

        @base.undo
        async def undo_base(self) -> None: ...

        returns = base

    current: type[Reactor[Any]] = Innermost
    for level in range(depth):

        def fill(namespace: dict[str, Any], child: type[Reactor[Any]] = current, level: int = level) -> None:
            async def add(self: Any, inner: int) -> int:
                if broken and level == depth - 1:
                    raise ValueError("top")
                return inner + 1

            async def undo(self: Any) -> None: ...

            namespace["inner"] = compose(child)
            namespace["add"] = step(add)
            namespace["add"].undo(undo)
            namespace["returns"] = namespace["add"]

        current = types.new_class(f"Level{level}", (Reactor,), {}, fill)
    return current


async def test_ten_thousand_steps_in_a_row() -> None:
    outcome = await chain(10_000).run()
    assert isinstance(outcome, Success)
    assert len(outcome.trace) == 20_000
    assert outcome.results["s9999"] == 9999


async def test_ten_thousand_steps_are_rolled_back_in_reverse() -> None:
    reactor: Any = chain(10_000, broken=9_999)
    outcome = await reactor.run()
    assert isinstance(outcome, Failure)
    assert reactor.undone() == list(range(9_998, -1, -1))


@pytest.mark.parametrize("depth", [50, 150])
async def test_reactors_nested_deeply(depth: int) -> None:
    assert depth < sys.getrecursionlimit()
    outcome = await nested(depth).run()
    assert isinstance(outcome, Success)
    assert outcome.value == depth


async def test_reactors_nested_deeply_are_rolled_back_from_the_top() -> None:
    outcome = await nested(50, broken=True).run()
    assert isinstance(outcome, Failure)
    undone = [entry.path for entry in outcome.trace.only("undo")]
    assert len(undone) == 50
    assert undone == sorted(undone, key=lambda path: path.count("."))
