"""The calls that start a reactor, without a store, and the small values that a definition is written with."""

from typing import Any

import pytest

from aioreactor import (
    Default,
    FanOut,
    OrderedLock,
    Page,
    Period,
    Reactor,
    Resource,
    StoreRequired,
    Success,
    Value,
    step,
)


class Adds(Reactor[int]):
    a: int
    b: int = 2

    @step
    async def add(self, a: int, b: int) -> int:
        return a + b

    returns = add


async def test_enqueue_needs_a_store_on_the_class_and_on_an_invocation() -> None:
    starts: tuple[Any, ...] = (Adds.enqueue, Adds(a=1).enqueue, Adds.with_options(tags=["t"]).enqueue)
    for start in starts:
        with pytest.raises(StoreRequired):
            await (start() if start.__self__._inputs else start(a=1))


async def test_spawn_gives_a_handle_whose_result_is_the_outcome() -> None:
    handles = [await Adds.spawn(a=1), await Adds(a=1).spawn(), await Adds(a=1).with_options(run_id="r-spawned").spawn()]
    assert [await handle.result() for handle in handles] == [Success(3), Success(3), Success(3)]
    assert handles[2].run_id == "r-spawned"


def test_with_options_takes_only_options() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'a'"):
        Adds.with_options(a=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Adds(1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"idempotency": "k"},
            TypeError,
            "unexpected keyword argument 'idempotency'; the closest is 'idempotency_key'",
        ),
        ({"durability": "quick"}, ValueError, "durability='quick': use one of 'step', 'batched', 'exit', 'none'"),
        ({"on_conflict": "x"}, ValueError, "on_conflict='x': use one of 'attach', 'reject', 'replace'"),
    ],
)
def test_options_that_make_no_sense_name_what_does(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        Adds.with_options(**options)


def test_small_values_read_well() -> None:
    assert repr(Default([1])) == "Default([1])"
    assert repr(Value(3)) == "Value(3)"
    assert repr(Page([1, 2], "next")) == "Page(2 items, next_cursor='next')"
    assert (Page([1]).items, Page([1]).next_cursor) == ([1], None)
    assert repr(Resource()) == "Resource"
    assert (FanOut(), FanOut(5)) == (FanOut(batch_size=None, chunk="auto", queue=None), FanOut(batch_size=5))
    assert repr(Period("a")) == "Period('a')"
    assert repr(OrderedLock(lambda i: "k")) == "OrderedLock(…)"
