"""Where the items of an inline map come from, and what happens when that goes wrong."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioreactor import (
    ArgumentError,
    Context,
    Failure,
    MapResults,
    Page,
    Reactor,
    Skipped,
    Success,
    from_input,
    map_each,
    step,
    value,
)


class Endless:
    """An async source that counts how many items it gave, and whether it was closed."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = 0

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> int:
        self.given += 1
        return self.given

    async def aclose(self) -> None:
        self.closed += 1


def mapping(over: Any, **options: Any) -> type[Reactor[Any]]:
    class Mapping(Reactor):
        @map_each(over=over, **options)
        async def double(self, n: int) -> int:
            return n * 2

    return Mapping


async def agen(self: Any) -> AsyncIterator[int]:
    for number in range(3):
        yield number


def gen(self: Any) -> Iterator[int]:
    yield from range(3)


async def coroutine(self: Any) -> list[int]:
    return [0, 1, 2]


def function(self: Any) -> list[int]:
    return [0, 1, 2]


def sync_pages(self: Any, cursor: int | None, limit: int) -> Page[int]:
    start = cursor or 0
    return Page([start], start + 1 if start < 2 else None)


@pytest.mark.parametrize("source", [agen, gen, coroutine, function, sync_pages], ids=lambda f: f.__name__)
async def test_any_kind_of_source_method(source: Any) -> None:
    class Mapping(Reactor):
        items = source

        @map_each(over=source)
        async def double(self, n: int) -> int:
            return n * 2

    outcome = await Mapping.run()
    assert isinstance(outcome, Success)
    assert outcome.value["double"].values() == [0, 2, 4]


@pytest.mark.parametrize("items", [[1, 2], (1, 2), {1: "a", 2: "b"}, range(1, 3)], ids=lambda item: type(item).__name__)
async def test_any_iterable_value(items: Any) -> None:
    outcome = await mapping(value(items)).run()
    assert isinstance(outcome, Success)
    assert outcome.value["double"].values() == [2, 4]


async def test_an_empty_source_succeeds_with_nothing() -> None:
    outcome = await mapping(value([])).run()
    assert isinstance(outcome, Success)
    assert len(outcome.value["double"]) == 0


async def test_an_endless_source_is_never_ahead_of_what_is_in_flight() -> None:
    source = Endless()

    class Bounded(Reactor):
        source: Any

        @map_each(over=from_input("source"), concurrency=4)
        async def check(self, n: int) -> None:
            assert source.given <= n + 4
            if n == 50:
                raise ValueError("enough")

    outcome = await Bounded.run(source=source)
    assert isinstance(outcome, Failure)
    assert outcome.step == "check[49]"
    assert source.given <= 54
    assert source.closed == 1


async def test_an_endless_sync_source_is_taken_lazily() -> None:
    taken = itertools.count()

    class Lazy(Reactor):
        source: Any

        @map_each(over=from_input("source"), concurrency=2)
        async def check(self, n: int) -> None:
            if n == 20:
                raise ValueError("enough")

    await Lazy.run(source=taken)
    assert next(taken) <= 24


@pytest.mark.parametrize("bad", [7, "text", b"bytes", None], ids=lambda item: type(item).__name__)
async def test_what_cannot_be_iterated_is_an_argument_error(bad: Any) -> None:
    class Mapping(Reactor):
        source: Any

        @map_each(over=from_input("source"))
        async def double(self, n: int) -> int:
            return n

    outcome = await Mapping.run(source=bad)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, ArgumentError)
    assert outcome.step == "double"


async def failing_source(self: Any) -> AsyncIterator[int]:
    yield 1
    raise RuntimeError("connection lost")


async def failing_call(self: Any) -> list[int]:
    raise RuntimeError("no connection")


async def not_a_page(self: Any, cursor: Any, limit: int) -> Any:
    return [1, 2]


@pytest.mark.parametrize(
    ("source", "text", "undone"),
    [
        (failing_source, "RuntimeError: connection lost", [1]),
        (failing_call, "RuntimeError: no connection", []),
        (not_a_page, "a page source returns Page(items, next_cursor), not list", []),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
async def test_a_source_that_fails_fails_the_map_and_what_was_done_is_undone(
    source: Any, text: str, undone: list[int]
) -> None:
    ledger: list[int] = []

    class Mapping(Reactor):
        items = source

        @map_each(over=source, concurrency=1)
        async def act(self, n: int) -> int:
            return n

        @act.undo
        async def revert(self, n: int, result: int) -> None:
            assert n == result
            ledger.append(n)

    outcome = await Mapping.run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, ArgumentError)
    assert text in str(outcome.error)
    assert ledger == undone


async def test_elements_may_be_skipped_and_keep_their_place() -> None:
    class Mapping(Reactor):
        @map_each(over=value([1, 2, 3]))
        async def half(self, n: int) -> int | Skipped[int]:
            return n // 2 if n != 2 else Skipped(0)

    outcome = await Mapping.run()
    assert isinstance(outcome, Success)
    results: MapResults[int] = outcome.value["half"]
    assert list(results) == [0, 0, 1]
    assert (results.succeeded, results.skipped, results.failed) == (2, 1, 0)


async def test_collect_as_a_function_of_its_own_and_as_a_method() -> None:
    async def total(results: MapResults[int]) -> int:
        return sum(results.values())

    class Mapping(Reactor):
        factor: int

        @map_each(over=value([1, 2, 3]))
        async def same(self, n: int) -> int:
            return n

        @same.collect
        async def summed(self, results: MapResults[int], factor: int) -> int:
            return factor * sum(results.values())

        @map_each(over=value([1, 2, 3]), collect=total)  # type: ignore[call-overload, untyped-decorator]
        async def other(self, n: int) -> int:
            return n

    outcome = await Mapping.run(factor=10)
    assert isinstance(outcome, Success)
    assert outcome.value == {"same": 60, "other": 6}


async def test_a_collect_that_raises_fails_the_map_and_rolls_its_elements_back() -> None:
    ledger: list[str] = []

    class Mapping(Reactor):
        @map_each(over=value([1, 2]), concurrency=1)
        async def act(self, n: int, ctx: Context) -> int:
            return n

        @act.undo
        async def revert(self, ctx: Context) -> None:
            ledger.append(ctx.path)

        @act.collect
        def broken(self, results: MapResults[int]) -> int:
            raise ValueError(len(results))

    outcome = await Mapping.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "act"
    assert ledger == ["act[1]", "act[0]"]


async def test_undo_all_gets_the_results_in_order_and_replaces_the_single_undos() -> None:
    ledger: list[Any] = []

    class Mapping(Reactor):
        @map_each(over=value([3, 1, 2]))
        async def act(self, n: int) -> int:
            return n * 10

        @act.undo_all
        async def revert(self, results: AsyncIterator[int]) -> None:
            ledger.append([item async for item in results])

        @step(after=[act])
        async def last(self) -> None:
            raise ValueError("no")

    outcome = await Mapping.run()
    assert ledger == [[30, 10, 20]]
    assert str(outcome.trace.only("undo", "undo_all", "compensate")) == "undo_all:act"
