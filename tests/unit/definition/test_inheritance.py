"""Subclasses inherit inputs, steps and policy; they override a step by its name and replace policy by keyword."""

# mypy: disable-error-code="empty-body"

from typing import Annotated, Any

import pytest
from msgspec import Meta

from aioreactor import DefinitionError, Lock, Reactor, Redact, Retry, Step, map_each, result, step


class Base(
    Reactor[int],
    name="base",
    aliases=["old"],
    version=3,
    retries=Retry(2),
    deadline=60,
    max_concurrency=4,
):
    number: int
    secret: Annotated[str, Redact] = ""

    @step
    async def first(self, number: int) -> int:
        return number

    @step
    async def second(self, first: int) -> int:
        return first + 1

    @step
    async def third(self, second: int = result(second)) -> int:
        return second + 1

    returns = third


def names(reactor: type[Reactor[Any]]) -> list[str]:
    return [node.name for node in reactor.plan]


async def test_inputs_steps_and_returns_are_inherited() -> None:
    class Same(Base): ...

    assert names(Same) == ["first", "second", "third"]
    assert [field.name for field in Same.plan.fields.inputs] == ["number", "secret"]
    assert Same.plan.fields.hidden == {"secret"}
    assert await Same.run_or_raise(number=1) == 3


async def test_a_step_is_overridden_by_name_and_keeps_its_place() -> None:
    class Other(Base):
        @step
        async def second(self, first: int) -> int:
            return first + 10

    assert names(Other) == ["first", "second", "third"]
    assert await Other.run_or_raise(number=1) == 12
    assert await Base.run_or_raise(number=1) == 3


async def test_a_step_is_overridden_by_its_pinned_name() -> None:
    class Pinned(Reactor):
        @step(name="stored")
        async def one(self) -> int:
            return 1

    class Other(Pinned):
        @step(name="stored")
        async def anything(self) -> int:
            return 2

    assert names(Other) == ["stored"]
    assert await Other.run_or_raise() == {"stored": 2}


async def test_an_override_that_pins_another_name_replaces_the_step_of_its_attribute() -> None:
    class Plain(Reactor):
        @step
        async def one(self) -> int:
            return 1

    class Other(Plain):
        @step(name="stored")
        async def one(self) -> int:
            return 2

    assert await Other.run_or_raise() == {"stored": 2}


def test_an_override_brings_its_own_undo() -> None:
    class WithUndo(Reactor):
        @step
        async def one(self) -> int: ...

        @one.undo
        async def unone(self, result: int) -> None: ...

    class Without(WithUndo):
        @step
        async def one(self) -> int: ...

    class Inherits(WithUndo): ...

    assert Without.plan["one"].undo is None
    undo = Inherits.plan["one"].undo
    assert undo is not None
    assert undo.fn is WithUndo.unone


def test_steps_of_the_base_are_wired_and_added_behind() -> None:
    class More(Base):
        extra: str

        @step
        async def fourth(self, third: int, extra: str, again: int = result(Base.first)) -> int: ...

    assert names(More) == ["first", "second", "third", "fourth"]
    assert More.plan["fourth"].deps == (0, 2)
    assert More.plan.returns == 2


def test_an_overriding_input_keeps_its_place_and_takes_the_new_annotation() -> None:
    class Stricter(Base):
        number: Annotated[int, Meta(ge=1)] = 5

    first, second = Stricter.plan.fields.inputs
    assert (first.name, first.default, second.name) == ("number", 5, "secret")
    assert Base.plan.fields.by_name["number"].required


def test_policy_is_inherited_but_name_and_aliases_are_not() -> None:
    class Locked(Base, coordination=[Lock("a")], name="locked"): ...

    class Same(Locked): ...

    options = Same.plan.options
    assert (options.name, options.aliases) == (None, ())
    assert (options.version, options.deadline, options.max_concurrency) == (3, 60, 4)
    assert options.retries == Retry(2)
    assert [entry.key for entry in options.coordination] == ["a"]


def test_a_keyword_of_the_own_header_replaces_the_inherited_one() -> None:
    class Locked(Base, coordination=[Lock("a")]): ...

    class Other(Locked, coordination=[], retries=Retry(5), version=4, name="other"): ...

    options = Other.plan.options
    assert options.coordination == ()
    assert (options.retries, options.version, options.name, options.deadline) == (Retry(5), 4, "other", 60)
    assert Base.plan.options.retries == Retry(2)


def test_the_reactors_retries_are_for_steps_that_have_none() -> None:
    class Tries(Base):
        @step(retries=Retry(7))
        async def own(self) -> None: ...

    assert Tries.plan["own"].retry == Retry(7)
    assert Tries.plan["first"].retry == Retry(2)


async def test_maps_are_inherited() -> None:
    class Maps(Reactor):
        @map_each(over=[1, 2])
        async def each(self, number: int) -> int:
            return number + 1

    class Same(Maps): ...

    assert (await Same.run_or_raise())["each"].values() == [2, 3]


async def test_two_reactors_can_be_bases_of_one() -> None:
    class Left(Reactor):
        a: int

        @step
        async def left(self, a: int) -> int:
            return a

    class Right(Reactor):
        b: int

        @step
        async def right(self, b: int) -> int:
            return b

    class Both(Left, Right): ...

    assert names(Both) == ["right", "left"]
    assert await Both.run_or_raise(a=1, b=2) == {"left": 1, "right": 2}


def test_an_override_that_breaks_what_reads_it_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Base):
            @step
            async def first(self, number: int) -> str: ...  # type: ignore[override]

    assert caught.value.problems == (
        "step 'second', parameter 'first': expects int, but the result of 'first' is str; change the annotation, or "
        "map it with transform=",
    )


@pytest.mark.parametrize("override", [None, lambda self: 2])
def test_an_override_that_is_no_step_is_refused(override: object) -> None:
    with pytest.raises(DefinitionError):
        type("Wrong", (Base,), {"__module__": __name__, "second": override})


def test_step_classes_inherit_fields_and_policy() -> None:
    class Charge(Step[int], retries=Retry(3), timeout=5, description="Charges."):
        account: str
        amount: Annotated[int, Meta(ge=1)]

        async def run(self) -> int: ...

    class ChargeTwice(Charge, timeout=9):
        times: int = 2

    class Billing(Reactor):
        account: str
        amount: int
        charge = ChargeTwice.step()

    node = Billing.plan["charge"]
    assert [arg.parameter for arg in node.args] == ["account", "amount"]
    assert [field.name for field in ChargeTwice.__aioreactor_fields__.inputs] == ["account", "amount", "times"]
    assert (node.retry, node.timeout) == (Retry(3), 9)
    assert node.description == ""
    assert node.body is not None
    assert node.body.fn is Charge.run
