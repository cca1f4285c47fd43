"""``returns`` names the step whose value is the run's value; ``background`` says from where on a worker goes on."""

# mypy: disable-error-code="empty-body"

from typing import Any, Generic, TypeVar

import pytest
from msgspec import Struct

from aioreactor import (
    DefinitionError,
    Failure,
    Halt,
    Reactor,
    Skipped,
    after,
    async_reactor,
    async_step,
    before,
    compose,
    interrupt,
    result,
    step,
    timer,
)

T = TypeVar("T")


class User(Struct):
    id: int


def test_without_returns_the_value_is_the_mapping_of_all_results() -> None:
    class Mapping(Reactor):
        @step
        async def one(self) -> int: ...

    assert Mapping.plan.returns is None


@pytest.mark.parametrize("form", ["object", "text", "result"])
def test_returns_by_object_text_or_result(form: str) -> None:
    class Returns(Reactor[int]):
        @step
        async def one(self) -> str: ...

        @step
        async def two(self) -> int: ...

        returns = {"object": two, "text": "two", "result": result(two)}[form]

    assert Returns.plan.returns == 1


def test_returns_is_checked_against_the_class() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor[str]):
            @step
            async def one(self) -> int: ...

            returns = one

    assert caught.value.problems == (
        "returns = one: it gives int, but the class says Reactor[str]; change one of them",
    )


def test_signals_are_not_part_of_the_value() -> None:
    class Signals(Reactor[User]):
        @step
        async def one(self) -> User | Skipped[User] | Halt | Failure: ...

        returns = one

    assert Signals.plan["one"].result_type == User


def test_what_is_skipped_with_is_part_of_the_value() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Signals(Reactor[int]):
            @step
            async def one(self) -> int | Skipped[str]: ...

            returns = one

    assert caught.value.problems == (
        "returns = one: it gives Union[int, str], but the class says Reactor[int]; change one of them",
    )


def test_returns_names_no_step() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @step
            async def charge(self) -> int: ...

            returns = "chrge"

    assert caught.value.problems == ("returns = chrge: no such step; the closest is 'charge'",)


def test_returns_is_something_else() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @step
            async def charge(self) -> int: ...

            returns = 5

    assert caught.value.problems == ("returns = 5: no such step; there are: charge",)


@pytest.mark.parametrize("kind", ["async_step", "async_reactor"])
def test_returns_names_a_unit(kind: str) -> None:
    class Child(Reactor): ...

    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @async_step
            async def mail(self) -> int: ...

            child = async_reactor(Child)
            returns = mail if kind == "async_step" else child

    name = "mail" if kind == "async_step" else "child"
    assert caught.value.problems == (
        f"returns = {name}: a dispatched unit is not awaited by its run; return a step that reads it",
    )


def test_returns_may_name_an_interrupt_or_a_nested_reactor() -> None:
    class Child(Reactor[int]):
        @step
        async def one(self) -> int: ...

        returns = one

    class Waits(Reactor[User]):
        answer = interrupt(User)
        returns = answer

    class Nests(Reactor[int]):
        child = compose(Child)
        returns = child

    assert Waits.plan["answer"].result_type is User
    assert Nests.plan["child"].result_type is int


def test_returns_of_a_nested_reactor_and_a_timer_are_checked() -> None:
    class Child(Reactor[int]):
        @step
        async def one(self) -> int: ...

        returns = one

    with pytest.raises(DefinitionError) as nested:

        class Nests(Reactor[str]):
            child = compose(Child)
            returns = child

    with pytest.raises(DefinitionError) as waited:

        class Waits(Reactor[str]):
            pause = timer(hours=1)
            returns = pause

    assert nested.value.problems == (
        "returns = child: it gives int, but the class says Reactor[str]; change one of them",
    )
    assert len(waited.value.problems) == 1


async def test_returns_with_a_path_is_honoured_or_refused() -> None:
    try:

        class Part(Reactor):
            @step
            async def load(self) -> User:
                return User(7)

            returns = result(load, "id")

    except DefinitionError:
        return
    assert await Part.run_or_raise() == 7


def test_a_subclass_of_a_generic_reactor_fills_in_the_value_type() -> None:
    class Base(Reactor[T]): ...

    class Fine(Base[int]):
        @step
        async def one(self) -> int: ...

        returns = one

    with pytest.raises(DefinitionError) as caught:

        class Wrong(Base[str]):
            @step
            async def one(self) -> int: ...

            returns = one

    assert Fine.plan.returns == 0
    assert caught.value.problems == (
        "returns = one: it gives int, but the class says Reactor[str]; change one of them",
    )


def test_another_type_parameter_of_a_generic_reactor_is_not_the_value_type() -> None:
    class Base(Reactor[int], Generic[T]):
        @step
        async def one(self) -> int: ...

        returns = one

    class Named(Base[str]): ...

    assert Named.plan.returns == 0


def test_returns_is_inherited_and_checked_again() -> None:
    class Base(Reactor[int]):
        @step
        async def one(self) -> int: ...

        returns = one

    class Same(Base): ...

    with pytest.raises(DefinitionError) as caught:

        class Changed(Base):
            @step
            async def one(self) -> str: ...  # type: ignore[override]

    assert Same.plan.returns == 0
    assert caught.value.problems == (
        "returns = one: it gives str, but the class says Reactor[int]; change one of them",
    )


def test_background_after_before_and_all() -> None:
    class After(Reactor):
        @step
        async def one(self) -> int: ...

        @step
        async def two(self) -> int: ...

        background = after(two)

    class Before(After):
        background = before("two")

    class Everything(After):
        background = "all"  # type: ignore[assignment]

    assert After.plan.background == ("after", 1)
    assert Before.plan.background == ("before", 1)
    assert Everything.plan.background == "all"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (after("tow"), "background = after(tow): no such step; the closest is 'two'"),
        ("some", "background = 'some': use after(step), before(step) or 'all'"),
        (True, "background = True: use after(step), before(step) or 'all'"),
    ],
)
def test_a_background_that_makes_no_sense(given: Any, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @step
            async def two(self) -> int: ...

            background = given

    assert caught.value.problems == (problem,)
