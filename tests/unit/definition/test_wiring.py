"""Where a parameter's value comes from: explicit marker, input, step, its own default; the context; a resource."""

# mypy: disable-error-code="empty-body"

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from aioreactor import Context, DefinitionError, Reactor, Resource, from_input, result, step, value
from aioreactor.plan.model import Arg, Source


class User(Struct):
    id: int
    name: str


class Db:
    pass


def source_of(reactor: type[Reactor[Any]], step_name: str, parameter: str) -> tuple[Source, str]:
    (arg,) = (arg for arg in reactor.plan[step_name].args if arg.parameter == parameter)
    return arg.source, arg.name


def parameters_of(reactor: type[Reactor[Any]], step_name: str) -> list[str]:
    return [arg.parameter for arg in reactor.plan[step_name].args]


def test_a_parameter_takes_the_input_of_its_name() -> None:
    class Named(Reactor):
        order_id: int

        @step
        async def load(self, order_id: int) -> None: ...

    assert source_of(Named, "load", "order_id") == (Source.INPUT, "order_id")


def test_a_parameter_takes_the_result_of_the_step_of_its_name() -> None:
    class Named(Reactor):
        @step
        async def load(self) -> int: ...

        @step
        async def use(self, load: int) -> None: ...

    assert source_of(Named, "use", "load") == (Source.RESULT, "load")
    assert Named.plan["use"].deps == (0,)


def test_an_explicit_marker_wins_over_an_input_of_the_same_name() -> None:
    class Named(Reactor):
        number: int
        other: int

        @step
        async def load(self) -> int: ...

        @step
        async def by_result(self, number: int = result(load)) -> None: ...

        @step
        async def by_input(self, number: int = from_input("other")) -> None: ...

        @step
        async def by_value(self, number: int = value(3)) -> None: ...

    assert source_of(Named, "by_result", "number") == (Source.RESULT, "load")
    assert source_of(Named, "by_input", "number") == (Source.INPUT, "other")
    assert Named.plan["by_value"].args == (Arg("number", Source.VALUE, value=3, annotation=int),)


def test_an_input_and_a_step_win_over_the_own_default() -> None:
    class Named(Reactor):
        number: int

        @step
        async def load(self) -> int: ...

        @step
        async def use(self, number: int = 7, load: int = 8) -> None: ...

    assert source_of(Named, "use", "number") == (Source.INPUT, "number")
    assert source_of(Named, "use", "load") == (Source.RESULT, "load")


async def test_the_own_default_counts_when_nothing_has_its_name() -> None:
    class Named(Reactor[int]):
        @step
        async def use(self, free: int = 7) -> int:
            return free

        returns = use

    assert await Named.run_or_raise() == 7


async def test_an_own_default_keeps_its_place_before_a_wired_parameter() -> None:
    class Shifted(Reactor[tuple[int, int]]):
        order_id: int

        @step
        async def use(self, free: int = 1, order_id: int = 2) -> tuple[int, int]:
            return free, order_id

        returns = use

    assert await Shifted.run_or_raise(order_id=9) == (1, 9)


async def test_an_own_default_keeps_its_place_in_an_undo() -> None:
    seen = []

    class Shifted(Reactor):
        order_id: int

        @step
        async def use(self) -> int:
            return 5

        @use.undo
        async def unuse(self, free: int = 1, result: int = 2) -> None:
            seen.append((free, result))

        @step
        async def fail(self, use: int) -> None:
            raise ValueError

    await Shifted.run(order_id=9)
    assert seen == [(1, 5)]


async def test_keyword_only_parameters_are_passed_by_keyword() -> None:
    class Keyword(Reactor[tuple[int, int]]):
        order_id: int

        @step
        async def use(self, *, free: int = 1, order_id: int) -> tuple[int, int]:
            return free, order_id

        returns = use

    assert await Keyword.run_or_raise(order_id=9) == (1, 9)


async def test_positional_only_parameters_are_wired_too() -> None:
    class Positional(Reactor[int]):
        order_id: int

        @step
        async def use(self, order_id: int, /) -> int:
            return order_id

        returns = use

    assert await Positional.run_or_raise(order_id=9) == 9


def test_a_parameter_annotated_context_receives_it_whatever_its_name() -> None:
    class Asks(Reactor):
        ctx: int

        @step
        async def use(self, anything: Context) -> None: ...

        @step
        async def named_like_an_input(self, ctx: Context) -> None: ...

    assert source_of(Asks, "use", "anything")[0] is Source.CONTEXT
    assert source_of(Asks, "named_like_an_input", "ctx")[0] is Source.CONTEXT


def test_a_parameter_marked_resource_is_not_looked_for_among_inputs_and_steps() -> None:
    class Asks(Reactor):
        @step
        async def use(self, db: Annotated[Db, Resource], other: Annotated[Db, Resource()]) -> None: ...

    assert source_of(Asks, "use", "db") == (Source.RESOURCE, "db")
    assert source_of(Asks, "use", "other") == (Source.RESOURCE, "other")
    assert Asks.plan["use"].deps == ()


def test_a_resource_field_provides_the_parameter_of_its_name_and_is_no_input() -> None:
    class Holds(Reactor):
        db: Annotated[Db, Resource]

        @step
        async def use(self, db: Db) -> None: ...

    assert source_of(Holds, "use", "db") == (Source.RESOURCE, "db")
    assert [field.name for field in Holds.plan.fields.inputs] == []
    assert [field.name for field in Holds.plan.fields.resources] == ["db"]


async def test_paths_walk_into_keys_attributes_and_items() -> None:
    class Paths(Reactor[list[object]]):
        payload: dict[str, list[User]]

        @step
        async def load(self) -> dict[str, list[User]]:
            return {"users": [User(1, "ann"), User(2, "bob")]}

        @step
        async def use(
            self,
            name: str = result(load, "users", 1, "name"),
            number: int = from_input("payload", "all", 0, "id"),
            last: str = result(load, "users", -1, "name"),
        ) -> list[object]:
            return [name, number, last]

        returns = use

    assert await Paths.run_or_raise(payload={"all": [User(7, "x")]}) == ["bob", 7, "bob"]


async def test_transform_maps_what_the_path_found() -> None:
    class Mapped(Reactor[tuple[str, str, int]]):
        user: User

        @step
        async def load(self) -> User:
            return User(1, "ann")

        @step
        async def use(
            self,
            whole: str = result(load, transform=lambda user: f"{user.id}:{user.name}"),
            part: str = result(load, "name", transform=str.upper),
            given: int = from_input("user", "name", transform=len),
        ) -> tuple[str, str, int]:
            return whole, part, given

        returns = use

    assert await Mapped.run_or_raise(user=User(3, "four")) == ("1:ann", "ANN", 4)


async def test_a_step_may_be_named_by_text_before_it_is_defined() -> None:
    class Early(Reactor[int]):
        @step
        async def use(self, number: int = result("load")) -> int:
            return number + 1

        @step
        async def load(self) -> int:
            return 1

        returns = "use"

    assert Early.plan["use"].deps == (1,)
    assert await Early.run_or_raise() == 2


def test_after_orders_without_passing_data() -> None:
    class Ordered(Reactor):
        @step
        async def one(self) -> None: ...

        @step
        async def two(self) -> None: ...

        @step(after=[two, "one"])
        async def three(self) -> None: ...

        @step(after=three)
        async def four(self, one: None) -> None: ...

        @step(after="three")
        async def five(self) -> None: ...

    assert Ordered.plan["three"].deps == (0, 1)
    assert Ordered.plan["three"].order_only == (1, 0)
    assert Ordered.plan["four"].deps == (0, 2)
    assert Ordered.plan["four"].order_only == (2,)
    assert Ordered.plan["five"].deps == (2,)
    assert [arg.parameter for arg in Ordered.plan["three"].args] == []


def test_the_wrong_order_of_steps_in_the_class_is_not_the_order_of_the_run() -> None:
    class Backwards(Reactor):
        @step
        async def last(self, middle: int) -> None: ...

        @step
        async def middle(self, first: int) -> int: ...

        @step
        async def first(self) -> int: ...

    assert [node.deps for node in Backwards.plan] == [(1,), (2,), ()]
    assert Backwards.plan.roots == (2,)


def test_constraints_of_a_parameter_are_checked_and_plain_annotations_are_not() -> None:
    class Checked(Reactor):
        amount: int

        @step
        async def use(self, amount: Annotated[int, Meta(ge=1)]) -> None: ...

        @step
        async def free(self, amount: int) -> None: ...

    assert Checked.plan["use"].args[0].check is not None
    assert Checked.plan["free"].args[0].check is None


def test_nothing_provides_a_parameter() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Lost(Reactor):
            order_id: int

            @step
            async def reserve(self, ordr_id: int) -> None: ...

    assert caught.value.owner.endswith("Lost")
    assert caught.value.problems == (
        "step 'reserve', parameter 'ordr_id': nothing provides it; the closest is 'order_id'. Rename it to an input "
        "or a step, or wire it: ordr_id = from_input('order_id') or value(…)",
    )
    assert "Lost has 1 problem:" in str(caught.value)


def test_nothing_provides_a_parameter_and_nothing_is_close() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Lost(Reactor):
            order_id: int

            @step
            async def reserve(self, zzz: int) -> None: ...

    (problem,) = caught.value.problems
    assert problem.startswith("step 'reserve', parameter 'zzz': nothing provides it; there are: order_id, reserve.")


def test_two_close_names_are_both_given() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Lost(Reactor):
            amount: int
            amounts: int

            @step
            async def use(self, amoun: int) -> None: ...

    (problem,) = caught.value.problems
    assert "the closest is 'amount', 'amounts'." in problem


def test_an_explicit_source_that_leads_nowhere() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Lost(Reactor):
            user: int

            @step
            async def load(self) -> int: ...

            @step
            async def use(self, a: int = result("laod"), b: int = from_input("usr", "id")) -> None: ...

    assert caught.value.problems == (
        "step 'use', parameter 'a': result(laod): this reactor has no step 'laod'; the closest is 'load'",
        "step 'use', parameter 'b': from_input('usr', 'id'): there is no input 'usr'; the closest is 'user'",
    )


def test_a_step_as_default_without_result() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Forgot(Reactor):
            @step
            async def load(self) -> int: ...

            @step
            async def use(self, number: int = load) -> None: ...  # type: ignore[assignment]

    assert caught.value.problems == ("step 'use', parameter 'number': the default is a step; write result(load)",)


def test_after_names_a_step_that_is_not_there() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Lost(Reactor):
            @step
            async def load(self) -> int: ...

            @step(after=["laod"])
            async def use(self) -> None: ...

    assert caught.value.problems == ("step 'use': after='laod': no such step; the closest is 'load'",)


def test_star_parameters_and_a_missing_self() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Stars(Reactor):
            @step
            async def stars(self, *args: int, **kwargs: int) -> None: ...

            @step
            async def no_self() -> None: ...

    assert caught.value.problems == (
        "step 'stars': *args: int cannot be wired; name each parameter",
        "step 'stars': **kwargs: int cannot be wired; name each parameter",
        "step 'no_self': the first parameter of a method is self; add it",
    )


def test_a_step_object_that_the_class_does_not_have_any_more() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Replaced(Reactor):
            @step
            async def load(self) -> int: ...  # pyright: ignore[reportRedeclaration]

            old = result(load)

            @step  # type: ignore[no-redef]
            async def load(self) -> int: ...

            @step
            async def use(self, number: int = old) -> None: ...

    assert caught.value.problems == (
        "step 'use', parameter 'number': result(load): this reactor has no step 'load'; the closest is 'load'",
    )


def test_the_step_of_an_unrelated_reactor_is_refused_although_the_name_exists_here() -> None:
    class Other(Reactor):
        @step
        async def load(self) -> int: ...

    with pytest.raises(DefinitionError) as caught:

        class Mine(Reactor):
            @step
            async def load(self) -> int: ...

            @step(after=[Other.load])
            async def use(self, number: int = result(Other.load)) -> None: ...

    assert len(caught.value.problems) == 2


def test_the_step_of_an_unrelated_reactor_is_refused() -> None:
    class Other(Reactor):
        @step
        async def load(self) -> int: ...

    with pytest.raises(DefinitionError) as caught:

        class Mine(Reactor):
            @step
            async def use(self, number: int = result(Other.load)) -> None: ...

    assert caught.value.problems == (
        "step 'use', parameter 'number': result(load): this reactor has no step 'load'; there are: use",
    )


def test_a_transform_that_cannot_be_called() -> None:
    with pytest.raises(DefinitionError):

        class Bad(Reactor):
            @step
            async def load(self) -> int: ...

            @step
            async def use(self, number: int = result(load, transform=3)) -> None: ...  # type: ignore[call-overload]


def test_wires_read_as_they_were_written() -> None:
    class Named(Reactor):
        @step(name="stored")
        async def load(self) -> int: ...

    assert repr(result(Named.load, "a", 0)) == "result(stored, 'a', 0)"
    assert repr(result("load")) == "result(load)"
    assert repr(from_input("user", "id")) == "from_input('user', 'id')"
    assert repr(value([1])) == "value([1])"


def test_a_resource_of_the_reactor_that_a_parameter_asks_for_is_one_need() -> None:
    class Uses(Reactor):
        db: Annotated[Db, Resource]

        @step
        async def read(self, db: Db) -> None: ...

        @step
        async def write(self, db: Annotated[Db, Resource], other: Annotated[Db, Resource]) -> None: ...

    assert [(where.rpartition(".")[2], name) for where, name, _ in Uses.plan.resource_needs] == [
        ("Uses", "db"),
        ("step 'write'", "other"),
    ]


def test_an_own_default_behind_all_others_is_left_to_the_function() -> None:
    class Keeps(Reactor):
        number: int

        @step
        async def use(self, number: int, free: int = 1, *, free_too: int = 2) -> None: ...

        @step
        async def mixed(self, free: int = 1, *, number: int) -> None: ...

    assert parameters_of(Keeps, "use") == ["number"]
    assert parameters_of(Keeps, "mixed") == ["number"]
