"""Types are compared when the class is created, where both are known; what is not sure is let through."""

# mypy: disable-error-code="empty-body"

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from aioreactor import DefinitionError, Failure, Halt, Reactor, Skipped, from_input, result, step, value
from aioreactor.definition.annotations import UNKNOWN, Unresolved, text_of
from aioreactor.plan.types import NoSuchPart, fits, part_of, return_type, without_signals

T = TypeVar("T")
UserId = NewType("UserId", int)
AdminId = NewType("AdminId", UserId)


class Animal: ...


class Dog(Animal):
    def speak(self) -> str:
        return ""


class Speaks(Protocol):
    def speak(self) -> str: ...


class Options(TypedDict):
    depth: int


class Color(enum.Enum):
    RED = 1


class Box(Struct, Generic[T]):
    item: T


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass
class Point:
    x: int
    label: str = ""


class User(Struct):
    id: int
    point: Point
    tags: list[str]
    table: dict[str, float]

    @property
    def name(self) -> str:
        return ""

    @property
    def loose(self):  # type: ignore[no-untyped-def]
        return ""

    def method(self) -> int:
        return 1


FITS: list[tuple[Any, Any]] = [
    (int, int),
    (bool, int),
    (int, float),
    (float, complex),
    (bytearray, bytes),
    (Dog, Animal),
    (int, object),
    (int, Any),
    (Any, int),
    (UNKNOWN, int),
    (int, UNKNOWN),
    (Unresolved("X"), int),
    (int, T),
    (int, int | str),
    (int | str, str | int | None),
    (Optional[int], int | None),  # noqa: UP045
    (Union[int, str], int | str),  # noqa: UP007
    (None, Optional[int]),  # noqa: UP045
    (None, type(None)),
    (UserId, int),
    (AdminId, UserId),
    (AdminId, int),
    (UserId, UserId),
    (Literal["a"], str),
    (Literal["a"], Literal["a", "b"]),
    (Annotated[int, Meta(ge=1)], int),
    (int, Annotated[int, Meta(ge=1)]),
    (list[int], list),
    (list, list[int]),
    (list[int], list[int]),
    (list[int], Sequence[int]),
    (list[int], Iterable[float]),
    (list[int], MutableSequence[int]),
    (dict[str, int], Mapping[str, float]),
    (dict[str, int], Mapping),
    (str, Sequence[str]),
    (tuple[int, str], tuple[int, str]),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, str], tuple),
    (tuple[int, int], Sequence[int]),
    (Pair, tuple[int, str]),
    (Options, dict),
    (Options, Mapping),
    (dict[str, int], Options),
    (Dog, Speaks),
    (int, Speaks),
    (Dog, Callable[[], int]),
    (type[int], type[Any]),
    (Box[int], Box[int]),
    (Box, Box[int]),
    (Box[T], Box[int]),  # type: ignore[valid-type]
    (collections.OrderedDict[str, int], dict[str, int]),
    (Color, Color),
]
DOES_NOT_FIT: list[tuple[Any, Any]] = [
    (int, str),
    (float, int),
    (int, bool),
    (bytes, bytearray),
    (Animal, Dog),
    (None, int),
    (int, None),
    (int | None, int),
    (int | str, int),
    (int, UserId),
    (UserId, AdminId),
    (UserId, str),
    (str, Literal["a"]),
    (Literal["a", "c"], Literal["a", "b"]),
    (Literal[1], str),
    (Annotated[int, "x"], str),
    (list[int], list[str]),
    (list[int], Sequence[str]),
    (Sequence[int], list[int]),
    (dict[str, int], Mapping[str, str]),
    (dict[str, int], dict[int, int]),
    (tuple[int, str], tuple[int, int]),
    (tuple[int, str], tuple[int, ...]),
    (tuple[int, str], tuple[int]),
    (tuple[str, ...], tuple[int, int]),
    (tuple[int, str], Sequence[int]),
    (Options, list),
    (Box[int], Box[str]),
    (Color, int),
    (User, Point),
]


@pytest.mark.parametrize(("source", "target"), FITS, ids=str)
def test_what_fits(source: Any, target: Any) -> None:
    assert fits(source, target) is True


@pytest.mark.parametrize(("source", "target"), DOES_NOT_FIT, ids=str)
def test_what_does_not_fit(source: Any, target: Any) -> None:
    assert fits(source, target) is False


@pytest.mark.parametrize(("source", "target"), [(bool, Literal[True, False]), (Color, Literal[Color.RED])], ids=str)
def test_a_closed_type_fits_the_literal_of_all_its_values(source: Any, target: Any) -> None:
    assert fits(source, target) is True


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (int, Annotated[int, Meta(ge=1)] | None),  # pyright: ignore[reportOperatorIssue]
        (Annotated[int, Meta(ge=1)] | None, int | None),  # pyright: ignore[reportOperatorIssue]
        (Annotated[int, "x"], Annotated[int, "x"] | str),
        (Literal["a", 1], str | int),
        (Literal["a", None], str | None),
    ],
    ids=str,
)
def test_members_of_unions_are_compared_one_by_one(source: Any, target: Any) -> None:
    assert fits(source, target) is True


KNOWN = st.recursive(
    st.sampled_from([int, str, bytes, bool, None, Animal, Dog, UserId, Literal["a"], Point, User, Color]),
    lambda inner: st.one_of(
        st.builds(lambda a: list[a], inner),  # type: ignore[valid-type]
        st.builds(lambda a, b: dict[a, b], inner, inner),  # type: ignore[valid-type]
        st.builds(lambda a, b: Union[a, b], inner, inner),  # noqa: UP007
        st.builds(lambda a, b: tuple[a, b], inner, inner),  # type: ignore[valid-type]
    ),
    max_leaves=6,
)


@given(KNOWN)
def test_every_type_fits_itself_and_unknowns_and_the_union_with_anything(annotation: Any) -> None:
    assert fits(annotation, annotation)
    assert fits(annotation, Any)
    assert fits(Any, annotation)
    assert fits(annotation, Union[annotation, bytes])  # noqa: UP007


@given(KNOWN, KNOWN)
def test_a_union_fits_exactly_when_both_members_do(left: Any, right: Any) -> None:
    for target in (int | str, Animal | None, list[int] | int):
        assert fits(Union[left, right], target) == (fits(left, target) and fits(right, target))  # noqa: UP007


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (int, int),
        (int | Halt, int),
        (int | Halt | Failure, int),
        (int | Skipped[int] | Halt | Failure, int),
        (int | Skipped[str], int | str),
        (Skipped[int], int),
        (int | None | Failure, int | None),
        (Halt | Failure, UNKNOWN),
        (UNKNOWN, UNKNOWN),
        (Any, Any),
        (list[int], list[int]),
        (Annotated[int, "x"], Annotated[int, "x"]),
    ],
    ids=str,
)
def test_what_a_reader_gets_is_without_signals(written: Any, read: Any) -> None:
    assert without_signals(written) == read


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("id",), int),
        (("point", "x"), int),
        (("tags",), list[str]),
        (("tags", 0), str),
        (("table", "any key"), float),
        (("name",), str),
        (("loose",), UNKNOWN),
        (("method",), UNKNOWN),
        (("id", "anything"), UNKNOWN),
        (("id", 0), UNKNOWN),
        (("table", "k", "deep"), UNKNOWN),
    ],
)
def test_the_type_at_the_end_of_a_path(path: tuple[str | int, ...], found: Any) -> None:
    assert part_of(User, path) == found


def test_the_type_at_the_end_of_a_path_through_other_types() -> None:
    assert part_of(Annotated[User, "x"], ("id",)) is int
    assert part_of(Options, ("depth",)) is int
    assert part_of(Pair, ("b",)) is str
    assert part_of(Sequence[User], (0, "id")) is int
    assert part_of(Mapping[str, User], ("k", "id")) is int
    assert part_of(User | None, ("id",)) is UNKNOWN
    assert part_of(Any, ("id",)) is UNKNOWN
    assert part_of(Dog, ("anything",)) is UNKNOWN


@pytest.mark.parametrize(
    ("annotation", "path", "text"),
    [
        (User, ("nme",), "User has no 'nme'; it has: id, point, tags, table"),
        (User, ("point", "y"), "Point has no 'y'; it has: x, label"),
        (Options, ("width",), "Options has no 'width'; it has: depth"),
        (Pair, ("c",), "Pair has no 'c'; it has: a, b"),
    ],
)
def test_a_path_that_a_known_class_does_not_have(annotation: Any, path: tuple[str, ...], text: str) -> None:
    with pytest.raises(NoSuchPart) as caught:
        part_of(annotation, path)
    assert str(caught.value) == text


def test_what_a_transform_gives() -> None:
    def typed(found: int) -> str:
        return ""

    assert return_type(typed) is str
    assert return_type(float) is float
    assert return_type(lambda found: found) is UNKNOWN
    assert return_type(len) is UNKNOWN


def test_annotations_are_shown_as_a_person_writes_them() -> None:
    class Local: ...

    shown = [text_of(one) for one in (int, Local, list[int], Optional[int], int | None, Any)]  # noqa: UP045
    assert shown == ["int", "Local", "list[int]", "Optional[int]", "int | None", "Any"]
    assert repr(Unresolved("Later")) == "Later"


MEND = "change the annotation, or map it with transform="


def test_every_kind_of_wiring_is_compared() -> None:
    def to_text(user: User) -> str:
        return ""

    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            user: User
            number: int

            @step
            async def load(self) -> User: ...

            @step
            async def use(
                self,
                number: str,
                load: int,
                whole: int = result(load),  # type: ignore[assignment]
                part: str = result(load, "point", "x"),
                given: str = from_input("number"),
                deep: bytes = from_input("user", "tags", 0),
                mapped: int = result(load, transform=to_text),  # type: ignore[assignment]
                fixed: int = value("x"),  # type: ignore[assignment]
            ) -> None: ...

    assert caught.value.problems == (
        f"step 'use', parameter 'number': expects str, but input 'number' is int; {MEND}",
        f"step 'use', parameter 'load': expects int, but the result of 'load' is User; {MEND}",
        f"step 'use', parameter 'whole': expects int, but the result of 'load' is User; {MEND}",
        f"step 'use', parameter 'part': expects str, but the result of 'load' is int; {MEND}",
        f"step 'use', parameter 'given': expects str, but input 'number' is int; {MEND}",
        f"step 'use', parameter 'deep': expects bytes, but input 'user' is str; {MEND}",
        f"step 'use', parameter 'mapped': expects int, but the result of 'load' is str; {MEND}",
        f"step 'use', parameter 'fixed': expects int, but the value is str; {MEND}",
    )


def test_what_fits_is_let_through() -> None:
    class Fine(Reactor):
        user: User
        number: int

        @step
        async def load(self) -> User | Skipped[User] | Halt: ...

        @step
        async def untyped(self): ...  # type: ignore[no-untyped-def]

        @step
        async def use(  # type: ignore[no-untyped-def]
            self,
            number: float,
            untyped: int,
            load: User | None,
            part: float = result(load, "point", "x"),
            mapped: int = result(load, transform=lambda user: user.id),
            fixed: float = value(3),
            nothing: int | None = value(None),
            listed: list[int] = value([1]),
            free=result(load),
        ) -> None: ...

    assert Fine.plan["use"].deps == (0, 1)


def test_a_path_that_is_not_there_is_reported_with_what_is() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            user: User

            @step
            async def load(self) -> User: ...

            @step
            async def use(self, a: int = result(load, "idd"), b: int = from_input("user", "point", "y")) -> None: ...

    assert caught.value.problems == (
        "step 'use', parameter 'a': User has no 'idd'; it has: id, point, tags, table",
        "step 'use', parameter 'b': Point has no 'y'; it has: x, label",
    )


def test_a_path_that_is_not_there_is_reported_before_a_transform_too() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            user: User

            @step
            async def use(self, a: int = from_input("user", "idd", transform=int)) -> None: ...

    assert caught.value.problems == ("step 'use', parameter 'a': User has no 'idd'; it has: id, point, tags, table",)
