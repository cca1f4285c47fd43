"""Inputs: defaults, marks, validation of every kind of annotation, and messages for *all* faulty fields."""

# mypy: disable-error-code="empty-body"

import collections
import dataclasses
import datetime
import decimal
import enum
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NewType,
    Protocol,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

import msgspec
import pydantic
import pytest
from msgspec import Meta, Struct

from aioreactor import (
    DefinitionError,
    Failure,
    InputValidationError,
    Reactor,
    Redact,
    Resource,
    Runtime,
    Settings,
    step,
)
from aioreactor.definition.convert import converter_for

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"


class Item(Struct):
    n: int


class SpecialItem(Item):
    extra: int = 0


@dataclasses.dataclass
class Plain:
    x: int


class Pair(NamedTuple):
    a: int
    b: str


class Options(TypedDict):
    depth: int


class Model(pydantic.BaseModel):
    x: int


class Custom:
    pass


class MoreCustom(Custom):
    pass


class Speaks(Protocol):
    def speak(self) -> str: ...


@runtime_checkable
class Checked(Protocol):
    def speak(self) -> str: ...


class Dog:
    def speak(self) -> str:
        return "wuff"


class Stream:
    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> int:
        raise StopAsyncIteration


DOG, CUSTOM, MODEL, STREAM = Dog(), MoreCustom(), Model(x=1), Stream()


class TestDefaults:
    def test_required_and_optional(self) -> None:
        class Inputs(Reactor):
            a: int
            b: str = "x"
            c: int | None = None

        assert [(field.name, field.required) for field in Inputs.plan.fields.inputs] == [
            ("a", True),
            ("b", False),
            ("c", False),
        ]

    async def test_an_empty_container_is_fresh_for_every_run(self) -> None:
        class Inputs(Reactor[tuple[Any, ...]]):
            items: list[int] = []
            table: dict[str, int] = {}
            known: set[int] = set()

            @step
            async def read(self) -> tuple[Any, ...]:
                return self.items, self.table, self.known

            returns = read

        first: Any
        second: Any
        first, second = await Inputs.run_or_raise(), await Inputs.run_or_raise()
        assert first == second == ([], {}, set())
        assert [one is other for one, other in zip(first, second, strict=True)] == [False, False, False]

    @pytest.mark.parametrize("default", [[1], {"a": 1}, {1}])
    def test_a_mutable_default_that_is_not_empty(self, default: Any) -> None:
        with pytest.raises(DefinitionError) as caught:
            type("Bad", (Reactor,), {"__module__": __name__, "__annotations__": {"items": Any}, "items": default})
        assert caught.value.problems == (
            "field 'items': a mutable default that is not empty would be shared by all runs; leave it empty, use a "
            "tuple, or fill it in a step",
        )

    @pytest.mark.parametrize(
        "default",
        [bytearray(b"a"), collections.deque([1]), Plain(1), Item(1)],
        ids=["bytes", "deque", "dataclass", "struct"],
    )
    def test_any_other_mutable_default(self, default: Any) -> None:
        with pytest.raises(DefinitionError):
            type("Bad", (Reactor,), {"__module__": __name__, "__annotations__": {"it": Any}, "it": default})

    def test_defaults_that_do_not_fit(self) -> None:
        with pytest.raises(DefinitionError) as caught:

            class Bad(Reactor):
                a: int = "x"  # type: ignore[assignment]
                b: str = None  # type: ignore[assignment]
                c: Annotated[int, Meta(ge=1)] = 0

        fix = "change the default or the annotation"
        assert caught.value.problems == (
            f"field 'a': its default 'x' does not fit int (Expected `int`, got `str`); {fix}",
            f"field 'b': its default None does not fit str (Expected `str`, got `null`); {fix}",
            f"field 'c': its default 0 does not fit int (Expected `int` >= 1); {fix}",
        )

    async def test_a_default_arrives_as_what_its_annotation_says(self) -> None:
        class Inputs(Reactor[list[Any]]):
            when: datetime.date = "2020-01-02"  # type: ignore[assignment]
            price: decimal.Decimal = "1.5"  # type: ignore[assignment]
            rate: float = 1

            @step
            async def read(self) -> list[Any]:
                return [self.when, self.price, type(self.rate)]

            returns = read

        assert await Inputs.run_or_raise() == [datetime.date(2020, 1, 2), decimal.Decimal("1.5"), float]

    def test_class_variables_and_plain_attributes_are_no_inputs(self) -> None:
        class Inputs(Reactor):
            limit: ClassVar[int] = 3
            bare: ClassVar = 4
            plain = 5
            a: int

        assert [field.name for field in Inputs.plan.fields.inputs] == ["a"]

    def test_marks(self) -> None:
        class Inputs(Reactor):
            a: Annotated[str, Redact]
            b: Annotated[str, Meta(min_length=1), Redact()]
            c: Annotated[Custom, Resource]
            d: Annotated[Custom, "other", Resource()]
            e: str

        fields = Inputs.plan.fields
        assert fields.hidden == {"a", "b"}
        assert [field.name for field in fields.inputs] == ["a", "b", "e"]
        assert [field.name for field in fields.resources] == ["c", "d"]

    def test_an_empty_container_is_fresh_for_every_invocation(self) -> None:
        class Inputs(Reactor):
            items: list[int] = []

        assert Inputs().items is not Inputs().items


@pytest.mark.parametrize(
    "annotation", [list[Annotated[int, Meta(ge=1)]], dict[str, Annotated[int, Meta(ge=1)]]], ids=str
)
async def test_constraints_inside_a_parameters_annotation_are_checked(annotation: Any) -> None:
    given = [0] if annotation.__origin__ is list else {"a": 0}

    class Checks(Reactor):
        numbers: Any

        @step
        async def use(self, numbers: annotation) -> int:  # pyright: ignore[reportInvalidTypeForm]
            return 1

    assert (await Checks.run(numbers=given)).ok is False


GOOD: list[tuple[Any, Any, Any]] = [
    (int, 0, 0),
    (str, "", ""),
    (bool, False, False),
    (float, 3, 3.0),
    (Color, "red", Color.RED),
    (Color, Color.RED, Color.RED),
    (Item, {"n": 1}, Item(1)),
    (Item, Item(1), Item(1)),
    (list[Item], [{"n": 1}], [Item(1)]),
    (Plain, {"x": 1}, Plain(1)),
    (Plain, Plain(1), Plain(1)),
    (Pair, Pair(1, "b"), Pair(1, "b")),
    (Options, {"depth": 1}, {"depth": 1}),
    (Model, {"x": "1"}, Model(x=1)),
    (Model, MODEL, MODEL),
    (list[Model], [{"x": 1}, MODEL], [MODEL, MODEL]),
    (Model | None, None, None),
    (Model | int, 3, 3),
    (Model | Custom, {"x": 1}, MODEL),
    (Custom, CUSTOM, CUSTOM),
    (Custom | int, CUSTOM, CUSTOM),
    (Custom | int, 3, 3),
    (dict[str, Custom], {"a": CUSTOM}, {"a": CUSTOM}),
    (Annotated[Custom, Redact], CUSTOM, CUSTOM),
    (Speaks, DOG, DOG),
    (Checked, DOG, DOG),
    (list[Checked], [DOG], [DOG]),
    (UserId, 3, 3),
    (Literal["a", 1], "a", "a"),
    (tuple[int, str], (1, "a"), (1, "a")),
    (tuple[int, ...], (1, 2), (1, 2)),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (set[int], {1}, {1}),
    (datetime.date, "2020-01-02", datetime.date(2020, 1, 2)),
    (decimal.Decimal, "1.5", decimal.Decimal("1.5")),
    (Any, CUSTOM, CUSTOM),
    (object, CUSTOM, CUSTOM),
    (T, CUSTOM, CUSTOM),
    (type, int, int),
    (None, None, None),
]
BAD: list[tuple[Any, Any, str]] = [
    (int, None, "Expected `int`, got `null`"),
    (int, True, "Expected `int`, got `bool`"),
    (int, "1", "Expected `int`, got `str`"),
    (str, 1, "Expected `str`, got `int`"),
    (Annotated[int, Meta(ge=1)], 0, "Expected `int` >= 1"),
    (Annotated[str, Meta(pattern=r".+@.+")], "x", "Expected `str` matching regex '.+@.+'"),
    (Item, {"n": "x"}, "Expected `int`, got `str` - at `$.n`"),
    (Item, {}, "Object missing required field `n`"),
    (list[Item], [{"n": 1}, {"n": "x"}], "Expected `int`, got `str` - at `$[1].n`"),
    (Options, {"depth": "x"}, "Expected `int`, got `str` - at `$.depth`"),
    (Custom, 3, "Expected `Custom`, got `int`"),
    (list[Custom], [3], "Expected `Custom`, got `int` - at `$[0]`"),
    (Checked, 3, "Expected `Checked`, got `int`"),
    (Literal["a"], "b", "Invalid enum value 'b'"),
    (UserId, "x", "Expected `int`, got `str`"),
    (int | None, "x", "Expected `int | null`, got `str`"),
    (None, 3, "Expected `null`, got `int`"),
]


@pytest.mark.parametrize(("annotation", "given", "wanted"), GOOD, ids=map(str, range(len(GOOD))))
def test_values_that_fit(annotation: Any, given: Any, wanted: Any) -> None:
    got = converter_for(annotation)(given)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(("annotation", "given", "text"), BAD, ids=map(str, range(len(BAD))))
def test_values_that_do_not_fit(annotation: Any, given: Any, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        converter_for(annotation)(given)
    assert str(caught.value) == text


def test_a_union_with_a_custom_type_names_what_it_expects() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"^Expected `.*Custom \| int`, got `str`$"):
        converter_for(Custom | int)("x")


def test_the_errors_of_a_pydantic_model_are_passed_on() -> None:
    with pytest.raises(msgspec.ValidationError, match="Input should be a valid integer"):
        converter_for(Model)({"x": "zz"})


@pytest.mark.parametrize("annotation", [Item, list[Item], Item | None, Struct], ids=str)
def test_an_instance_of_a_subclass_of_a_struct_fits(annotation: Any) -> None:
    given = [SpecialItem(1)] if annotation == list[Item] else SpecialItem(1)
    assert converter_for(annotation)(given) == given


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (Callable[[int], int], len),
        (type[Custom], MoreCustom),
        (Iterable[int], (1, 2)),
        (AsyncIterator[int], STREAM),
        (collections.deque[int], collections.deque([1])),
        (Callable[[int], int] | None, len),
    ],
    ids=["callable", "type", "iterable", "async iterator", "deque", "union"],
)
def test_parametrised_classes_are_checked_by_their_class(annotation: Any, given: Any) -> None:
    assert converter_for(annotation)(given) is given


def test_protocols_inside_containers_are_not_checked() -> None:
    assert converter_for(list[Speaks])([DOG]) == [DOG]


class Checkout(Reactor[str]):
    order_id: int
    email: Annotated[str, Meta(pattern=r".+@.+")]
    items: list[Item]
    note: str = ""
    db: Annotated[Custom, Resource]

    @step
    async def one(self) -> str:
        raise AssertionError("nothing may run")

    returns = one


async def test_messages_for_all_faulty_fields_at_once_and_nothing_has_run() -> None:
    given = {"email": "nobody", "items": [{"n": 1}, {"n": "x"}], "note": None, "ordr_id": 333, "zzz": 444, "db": CUSTOM}
    async with Runtime(Settings(resources={"db": CUSTOM})):
        outcome = await Checkout.run(**given)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, InputValidationError)
    assert outcome.field_errors == {
        "order_id": ["is required"],
        "email": ["Expected `str` matching regex '.+@.+'"],
        "items": ["Expected `int`, got `str` - at `$[1].n`"],
        "note": ["Expected `str`, got `null`"],
        "ordr_id": ["is not an input; the closest is 'order_id'"],
        "zzz": ["is not an input; there are: order_id, email, items, note"],
        "db": ["is a resource: it is supplied by the runtime (configure(resources=…)), never by a start call"],
    }
    assert outcome.step is None
    assert outcome.trace == ()


@pytest.mark.parametrize(
    ("answer", "errors"),
    [
        (None, None),
        ({"end": "is before start"}, {"end": ["is before start"]}),
        ({"end": ["a", "b"]}, {"end": ["a", "b"]}),
        ("wrong", {"*": ["wrong"]}),
        (["a", "b"], {"*": ["a", "b"]}),
        (ValueError("bad pair"), {"*": ["bad pair"]}),
        (ValueError(), {"*": ["ValueError"]}),
        (InputValidationError("x", {"start": ["no"]}), {"start": ["no"]}),
    ],
    ids=repr,
)
async def test_cross_field_rules(answer: Any, errors: dict[str, list[str]] | None) -> None:
    class Span(Reactor[int]):
        start: int
        end: int

        def validate(self) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        @step
        async def length(self, start: int, end: int) -> int:
            return end - start

        returns = length

    outcome = await Span.run(start=1, end=3)
    assert getattr(outcome, "field_errors", None) == errors
    assert outcome.ok is (errors is None)


def test_an_async_validate() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Bad(Reactor):
            async def validate(self) -> None: ...

    assert caught.value.problems == ("validate is async; it only compares inputs, so make it def (do I/O in a step)",)


async def test_output_takes_a_type_or_a_callable() -> None:
    def positive(found: int) -> None:
        if found < 1:
            raise ValueError("not positive")

    class Outputs(Reactor):
        given: int

        @step(output=Annotated[int, Meta(ge=1)])
        async def typed(self, given: int) -> int:
            return given

        @step(output=positive)
        async def called(self, typed: int, given: int) -> int:
            return given

        @step(output=int | None)
        async def union(self, called: int) -> int:
            return called

        @step(output=list[int])
        async def generic(self, union: int) -> list[int]:
            return [union]

    good, bad = await Outputs.run(given=3), await Outputs.run(given=0)
    assert good.results == {"typed": 3, "called": 3, "union": 3, "generic": [3]}
    assert isinstance(bad, Failure)
    assert (bad.step, bad.field_errors) == ("typed", {"*": ["Expected `int` >= 1"]})


async def test_output_takes_a_new_type() -> None:
    class Outputs(Reactor):
        @step(output=UserId)
        async def one(self) -> Any:
            return "x"

    assert (await Outputs.run()).ok is False


def test_output_that_is_neither() -> None:
    with pytest.raises(DefinitionError):

        class Outputs(Reactor):
            @step(output=3)
            async def one(self) -> int: ...


class TestInvocation:
    def test_self_is_read_only(self) -> None:
        invocation = Checkout(order_id=1)  # type: ignore[call-arg]
        with pytest.raises(AttributeError, match=r"^Checkout.order_id: self is a read-only view of the run's inputs; "):
            invocation.order_id = 2  # type: ignore[misc]
        with pytest.raises(AttributeError, match=r"^Checkout.order_id: self is a read-only view of the run's inputs$"):
            del invocation.order_id  # pyright: ignore[reportAttributeAccessIssue]
        assert invocation.order_id == 1

    def test_its_repr_hides_secrets(self) -> None:
        class Pays(Reactor):
            card: Annotated[str, Redact]
            n: int

        assert repr(Pays(card="4111", n=1)) == "Pays(card='[redacted]', n=1)"

    async def test_it_runs_with_its_inputs_and_takes_no_others(self) -> None:
        class Adds(Reactor[int]):
            a: int
            b: int = 2

            @step
            async def add(self, a: int, b: int) -> int:
                return a + b

            returns = add

        assert await Adds(a=1).run_or_raise() == 3
        assert (await Adds(a=1).with_options(run_id="r-1").run()).run_id == "r-1"
        with pytest.raises(TypeError, match=r"Adds\(…\) has its inputs already"):
            await Adds(a=1).run(b=3)  # type: ignore[call-arg]

    async def test_wrong_values_are_found_by_the_run(self) -> None:
        async with Runtime(Settings(resources={"db": CUSTOM})):
            outcome = await Checkout(order_id="x", email="a@b", items=[]).run()  # type: ignore[arg-type, call-arg]
        assert isinstance(outcome, Failure)
        assert outcome.field_errors == {"order_id": ["Expected `int`, got `str`"]}


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (dict[str, Item], {"a": SpecialItem(1)}),
        (tuple[Item, int], (SpecialItem(1), 2)),
        (tuple[Item, ...], (SpecialItem(1), Item(2))),
        (list[Item | None], [SpecialItem(1), None]),
        (Annotated[Item, "mark"], SpecialItem(1)),
    ],
    ids=str,
)
def test_instances_of_subclasses_fit_inside_containers(annotation: Any, given: Any) -> None:
    assert converter_for(annotation)(given) == given


def test_the_message_is_that_of_the_first_try() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$\[0\].n`"):
        converter_for(list[Item])([{"n": "x"}])


def test_an_empty_defaultdict_keeps_its_factory() -> None:
    class Inputs(Reactor):
        found: dict[str, list[int]] = collections.defaultdict(list)

    one, two = Inputs().found, Inputs().found
    assert one is not two
    assert one["a"] == []


def test_a_default_that_becomes_mutable_is_made_each_time() -> None:
    class Inputs(Reactor):
        numbers: list[int] = (1, 2)  # type: ignore[assignment]

    one, two = Inputs().numbers, Inputs().numbers
    assert (one, two) == ([1, 2], [1, 2])
    assert one is not two


@pytest.mark.parametrize("default", [collections.deque(), bytearray()], ids=["deque", "bytes"])
def test_any_empty_container_is_fresh(default: Any) -> None:
    made: Any = type("Fine", (Reactor,), {"__module__": __name__, "__annotations__": {"it": Any}, "it": default})
    assert made().it == default
    assert made().it is not default
