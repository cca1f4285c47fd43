"""Steps that wait for each other, and bodies that are generators."""

# mypy: disable-error-code="empty-body"

from typing import Any

import pytest

from aioreactor import DefinitionError, Failure, Reactor, async_step, from_input, map_each, result, step


def problems(**body: Any) -> tuple[str, ...]:
    with pytest.raises(DefinitionError) as caught:
        type("Wrong", (Reactor,), {"__module__": __name__, **body})
    return caught.value.problems


def cycle(*names: str) -> str:
    return f"steps wait for each other: {' → '.join(names)}; take one of these wirings (or after=) away"


def test_a_step_that_waits_for_itself() -> None:
    async def one(self: Any, one: int) -> int: ...

    async def two(self: Any) -> None: ...

    assert problems(one=step(one)) == (cycle("one", "one"),)
    assert problems(two=step(after=["two"])(two)) == (cycle("two", "two"),)


def test_two_steps_that_wait_for_each_other() -> None:
    async def one(self: Any, two: int) -> int: ...

    async def two(self: Any, one: int) -> int: ...

    (problem,) = problems(one=step(one), two=step(two))
    assert problem in {cycle("one", "two", "one"), cycle("two", "one", "two")}


def test_a_long_cycle_is_shown_with_each_step_before_what_it_waits_for() -> None:
    names = [f"s{number}" for number in range(6)]

    def body(before: str) -> Any:
        async def run(self: Any, it: int = result(before)) -> int: ...

        return step(run)

    (problem,) = problems(**{name: body(names[index - 1]) for index, name in enumerate(names)})
    shown = problem.removeprefix("steps wait for each other: ").partition(";")[0].split(" → ")
    assert sorted(shown[:-1]) == names
    assert shown[0] == shown[-1]
    assert [(int(one[1:]) - 1) % 6 for one in shown[:-1]] == [int(one[1:]) for one in shown[1:]]


def test_a_cycle_through_after_results_and_a_map() -> None:
    async def load(self: Any) -> list[int]: ...

    async def each(self: Any, n: int) -> int: ...

    loaded = step(after=["last"])(load)
    mapped = map_each(over=loaded)(each)  # type: ignore[call-overload]

    async def last(self: Any, each: Any) -> None: ...

    (problem,) = problems(load=loaded, each=mapped, last=step(last))
    shown = problem.removeprefix("steps wait for each other: ").partition(";")[0].split(" → ")
    assert sorted(shown[:-1]) == ["each", "last", "load"]


def test_a_cycle_made_by_an_override() -> None:
    class Base(Reactor):
        @step
        async def one(self) -> int: ...

        @step
        async def two(self, one: int) -> int: ...

    with pytest.raises(DefinitionError) as caught:

        class Wrong(Base):
            @step(after=["two"])
            async def one(self) -> int: ...

    assert len(caught.value.problems) == 1


def test_a_diamond_is_no_cycle() -> None:
    class Diamond(Reactor):
        @step
        async def top(self) -> int: ...

        @step
        async def left(self, top: int) -> int: ...

        @step
        async def right(self, top: int) -> int: ...

        @step
        async def bottom(self, left: int, right: int, top: int) -> int: ...

    plan = Diamond.plan
    assert [node.deps for node in plan] == [(), (0,), (0,), (0, 1, 2)]
    assert [node.dependants for node in plan] == [(1, 2, 3), (3,), (3,), ()]
    assert plan.waiting == (0, 1, 1, 3)
    assert plan.roots == (0,)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_generator_is_no_step(kind: str) -> None:
    if kind == "sync":

        def generates(self: Any) -> Any:
            yield 1

        one: Any = generates

    else:

        async def streams(self: Any) -> Any:
            yield 1

        one = streams

    text = "step 'one' is a generator function; use return instead of yield (a map_each source may yield)"
    assert problems(one=step(one)) == (text,)
    assert problems(one=async_step(one)) == (text,)


def test_a_generator_is_no_element_of_a_map_but_its_source() -> None:
    def each(self: Any, n: int) -> Any:
        yield n

    async def source(self: Any) -> Any:
        yield 1

    (problem,) = problems(source=source, each=map_each(over=source)(each))
    assert problem.startswith("step 'each' is a generator function; ")


async def test_a_body_that_gives_a_coroutine_or_a_generator_has_failed() -> None:
    async def inner() -> int:
        return 1

    class Forgets(Reactor):
        which: int

        @step
        async def body(self, which: int = from_input("which")) -> Any:
            return inner() if which == 0 else (n for n in (1, 2))

    for which in (0, 1):
        outcome = await Forgets.run(which=which)
        assert isinstance(outcome, Failure)
        assert (outcome.ok, outcome.step, type(outcome.error)) == (False, "body", TypeError)
