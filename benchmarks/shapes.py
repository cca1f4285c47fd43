"""The workflows that are measured, made through the public API, and the same shapes by hand for the floors.

Every body is a coroutine function that adds one: whatever is measured beyond it is the engine's, or the floor's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from types import new_class
from typing import Any, TypeAlias

from anyio import create_task_group

from aioreactor import Reactor, compose, map_each, result, step

Body: TypeAlias = Callable[[int], Coroutine[Any, Any, int]]
Steps: TypeAlias = dict[str, Any]


async def plus_one(given: int) -> int:
    """The trivial body."""
    return given + 1


def reactor(name: str, steps: Steps, returns: Any) -> type[Reactor[Any]]:
    """A reactor with one input, ``start``, and these steps."""
    namespace = {"__annotations__": {"start": int}, "__module__": __name__, **steps, "returns": returns}
    return new_class(name, (Reactor,), exec_body=lambda body: body.update(namespace))


def first(body: Body = plus_one) -> Any:
    """A step that reads the input."""

    async def run(self: Any, start: int) -> int:
        return await body(start)

    return step(run)


def following(before: Any, body: Body = plus_one) -> Any:
    """A step that reads another one's result."""

    async def run(self: Any, given: int = result(before)) -> int:
        return await body(given)

    return step(run)


def joining(before: Sequence[Any]) -> Any:
    """A step that reads the results of many others and adds them up."""

    async def run(self: Any, *given: int) -> int:
        return sum(given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wired = [inspect.Parameter(f"p{i}", kind, default=result(node)) for i, node in enumerate(before)]
    run.__signature__ = inspect.Signature([inspect.Parameter("self", kind), *wired])  # type: ignore[attr-defined]
    return step(run)


def chain(length: int, body: Body = plus_one) -> type[Reactor[Any]]:
    """Steps one after the other, each with the result of the one before."""
    steps: Steps = {"s0": first(body)}
    last = steps["s0"]
    for number in range(1, length):
        last = steps[f"s{number}"] = following(last, body)
    return reactor(f"Chain{length}", steps, last)


def spread(width: int, body: Body = plus_one) -> type[Reactor[Any]]:
    """One step, then ``width`` that read it, then one that reads them all. A width of two is the diamond."""
    source = first(body)
    middle = [following(source, body) for _ in range(width)]
    sink = joining(middle)
    steps = {"source": source, **{f"m{number}": node for number, node in enumerate(middle)}, "sink": sink}
    return reactor(f"Spread{width}", steps, sink)


def nested(depth: int) -> type[Reactor[Any]]:
    """A reactor of one step inside ``depth`` reactors, each with nothing but the next."""
    only = first()
    made = reactor("Depth0", {"only": only}, only)
    for level in range(1, depth + 1):
        inner = compose(made)
        made = reactor(f"Depth{level}", {"inner": inner}, inner)
    return made


def mapping(items: int, concurrency: int) -> type[Reactor[Any]]:
    """A map over a range of items, of a no-op method."""

    async def nothing(self: Any, item: int) -> None:
        return None

    each = map_each(over=range(items), item="item", concurrency=concurrency)(nothing)
    return reactor(f"Map{items}", {"each": each}, each)


# ---------------------------------------------------------------------- floors


async def bare_chain(length: int, body: Body = plus_one) -> int:
    """Plain awaits: no tasks, no group."""
    value = 0
    for _ in range(length):
        value = await body(value)
    return value


async def _into(results: list[int], place: int, body: Body, given: int) -> None:
    results[place] = await body(given)


async def bare_spread(width: int, body: Body = plus_one) -> int:
    """One task group for the middle; source and sink are awaited where they stand."""
    given = await body(0)
    results = [0] * width
    async with create_task_group() as group:
        for place in range(width):
            group.start_soon(_into, results, place, body, given)
    return sum(results)


async def task_chain(length: int, body: Body = plus_one) -> int:
    """One task group, a task per step; each starts the next."""
    results = [0] * length
    async with create_task_group() as group:

        async def run(place: int, given: int) -> None:
            results[place] = await body(given)
            if place + 1 < length:
                group.start_soon(run, place + 1, results[place])

        group.start_soon(run, 0, 0)
    return results[-1]


async def task_spread(width: int, body: Body = plus_one) -> int:
    """One task group, a task per step; the last of the middle starts the sink."""
    results: list[int] = []
    total: list[int] = []
    async with create_task_group() as group:

        async def source() -> None:
            given = await body(0)
            for _ in range(width):
                group.start_soon(middle, given)

        async def middle(given: int) -> None:
            results.append(await body(given))
            if len(results) == width:
                group.start_soon(sink)

        async def sink() -> None:
            total.append(sum(results))

        group.start_soon(source)
    return total[0]
