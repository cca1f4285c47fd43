"""The codec's promises beyond single types: refusals, warnings, bounds, changes of the code."""

from __future__ import annotations

import collections
import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import msgspec
import pytest
from msgspec import Struct

from aioreactor import PayloadTooLarge, SerializationError
from aioreactor.definition.annotations import UNKNOWN
from aioreactor.store.codec import codec_for, decode, encode, plain_data_warning
from tests.unit.store.types_kit import (
    Box,
    Card,
    Color,
    Dog,
    Level,
    Line,
    Money,
    Node,
    NoEq,
    Odd,
    Pet,
    Point,
    Shape,
    Tagged1,
    Tagged2,
    Text,
)


class Base(Struct):
    a: int


class Derived(Base):
    b: int = 0


@dataclass
class Point3(Point):
    z: int = 0


class NoData:
    pass


@pytest.mark.parametrize(
    ("value", "annotation", "told"),
    [
        (NoData(), UNKNOWN, "NoData cannot be stored"),
        ({"a": [NoData()]}, dict[str, Any], "NoData cannot be stored"),
        (NoData(), NoData, "NoData cannot be stored"),
        (lambda: 1, UNKNOWN, "function"),
        (iter([1]), UNKNOWN, "list_iterator"),
        ("\ud800", str, "surrogates"),
        ("\ud800", UNKNOWN, "surrogates"),
        ("1", int, "Expected `int`, got `str`"),
        (True, int, "Expected `int`, got `bool`"),
        (Point(cast("Any", "x")), Point, "Expected `int`, got `str`"),
        (None, Point, "Expected `object`, got"),
        ((1, 2), list[int], "is a tuple and comes back as a list"),
        ([1, 2], tuple[int, ...], "is a list and comes back as a tuple"),
        (Box((1,)), Box[list[int]], "at value is a tuple and comes back as a list"),
        (Derived(1, 2), Base, "is a Derived and comes back as a Base"),
        ([Point3(1)], list[Point], "at [0] is a Point3 and comes back as a Point"),
        (Dog(name="d"), Pet, "is a Dog and comes back as a Pet"),
        ("2024-01-01", dt.date, "is a str and comes back as a date"),
        ({"a": "2024-01-01"}, dict[str, dt.date], "at ['a'] is a str and comes back as a date"),
        (Point(1), Money | Card, "Point fits no member of Money | Card"),
        (Point3(1), Point | Line, "fits no member"),
        (5, list[Money | Card], "not iterable"),
        ([Point(1)], Sequence[int], "Expected `int`"),
        ("x", Color, "Invalid enum value"),
        (NoData(), Odd, "cannot be stored"),
    ],
)
def test_what_could_not_be_read_back_is_refused_when_it_is_encoded(value: Any, annotation: Any, told: str) -> None:
    with pytest.raises(SerializationError) as caught:
        codec_for(annotation).encode(value, "step 'a'")
    assert told in str(caught.value)
    assert caught.value.where == "step 'a'"


def test_an_annotation_that_names_nothing_storable_is_refused_at_once() -> None:
    class Local(Struct):
        other: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SerializationError, match=r"of .*Local names something that is not defined"):
        codec_for(Local)


def test_cycles_and_bottomless_nesting_are_told_apart_from_nothing_else() -> None:
    loop: list[Any] = []
    loop.append(loop)
    node = Node("a")
    node.children.append(node)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for value, annotation in [(loop, UNKNOWN), (loop, list[Any]), (node, Node), (deep, UNKNOWN), (2**70, int)]:
        if annotation is int:
            assert decode(encode(value, int), int) == value
            continue
        with pytest.raises(SerializationError, match="nested too deeply, or contains itself"):
            encode(value, annotation)
    while isinstance(deep, list):  # taken apart by hand: its own destructor would recurse
        deep = deep.pop()


def test_reasonable_nesting_is_fine() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"a": [deep]}
    assert decode(encode(deep)) == deep
    node = Node("x", Money(Decimal(1), "E"))
    for _ in range(40):
        node = Node("x", Card("1", dt.date(2024, 1, 1)), [node])
    assert decode(encode(node, Node), Node) == node


@pytest.mark.parametrize("value", [float("nan"), [float("nan")], {"a": float("nan")}, {1: [2.0, float("inf")]}])
def test_nan_is_kept(value: Any) -> None:
    assert repr(decode(encode(value))) == repr(value)


def test_minus_zero_is_kept() -> None:
    assert str(decode(encode(-0.0, float), float)) == "-0.0"


@pytest.mark.parametrize("value", [Level.HIGH, Text("a"), 1, True, collections.OrderedDict(a=1)])
def test_a_subclass_of_a_builtin_comes_back_as_the_builtin(value: Any) -> None:
    base = next(cls for cls in (bool, int, str, dict) if isinstance(value, cls))
    back = decode(encode(value, base), base)
    assert back == value
    assert type(back) is base


def test_an_aware_datetime_keeps_its_instant_and_comes_back_in_utc() -> None:
    value = dt.datetime(2024, 1, 2, 0, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    back = decode(encode(value, dt.datetime), dt.datetime)
    assert back == value
    assert back.utcoffset() == dt.timedelta(0)


def test_a_sequence_comes_back_as_a_list() -> None:
    assert decode(encode((1, 2), Sequence[int]), Sequence[int]) == [1, 2]


# ------------------------------------------------------------------ without an annotation


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (Point(1), {"x": 1, "y": 0.0}),
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (Money(Decimal("1.5"), "E"), {"amount": "1.5", "currency": "E"}),
        (dt.datetime(2024, 1, 1), "2024-01-01T00:00:00"),
        (Color.RED, "red"),
        ([1, {"a": None}], [1, {"a": None}]),
        ({(1, 2): 3}, {(1, 2): 3}),
        ({2**80: 1, "a": 2**80}, {2**80: 1, "a": 2**80}),
        (Pet(name="a").name, "a"),
    ],
)
def test_without_an_annotation_plain_data_comes_back(value: Any, back: Any) -> None:
    assert decode(encode(value)) == back


@pytest.mark.parametrize("value", [1, "a", None, [1, {"a": [1.5, b"x", True]}], {}, 2**70, {1: {"a": float("nan")}}])
def test_plain_data_does_not_warn(value: Any) -> None:
    assert plain_data_warning(value) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Point(1), "the value is a Point and comes back as a dict"),
        ([1, (2, 3)], "the value at [1] is a tuple and comes back as a list"),
        ({"a": {"b": Decimal(1)}}, "the value at ['a']['b'] is a Decimal and comes back as a str"),
        (Level.LOW, "is a Level and comes back as a int"),
        ([Text("x")], "at [0] is a Text and comes back as a str"),
        ({Color.RED: 1}, "is a Color and comes back as a str"),
    ],
)
def test_what_is_lost_without_an_annotation_is_told_with_the_fix(value: Any, told: str) -> None:
    text = plain_data_warning(value)
    assert text is not None
    assert told in text
    assert "annotate the step's return type" in text


def test_only_open_annotations_warn() -> None:
    assert not codec_for(Point).open
    assert codec_for(Point).warning(Point(1)) is None
    assert codec_for(dict[str, Any]).open
    warning = codec_for(dict[str, Any]).warning({"a": Point(1)})
    assert warning is not None
    assert "Point" in warning
    assert codec_for(Box[Any]).warning(Box(1)) is None
    assert codec_for(list).open
    assert codec_for(Box).open
    assert not codec_for(Box[int]).open


def test_parts_without_annotation_come_back_plain_inside_typed_ones() -> None:
    codec = codec_for(Box[Any])
    assert codec.decode(codec.encode(Box(Point(1)))) == Box({"x": 1, "y": 0.0})


# ------------------------------------------------------------------ bounds


def test_a_large_value_is_refused_with_step_size_and_limit() -> None:
    codec = codec_for(bytes)
    with pytest.raises(PayloadTooLarge) as caught:
        codec.store(b"x" * 100, step="load", limit=50)
    assert (caught.value.step, caught.value.limit) == ("load", 50)
    assert caught.value.size > 100
    assert codec.restore(codec.store(b"x" * 40, step="load", limit=50), step="load") == b"x" * 40


def test_the_default_limit_is_one_mebibyte() -> None:
    codec_for(bytes).store(b"x" * (1024 * 1024 - 10), step="a")
    with pytest.raises(PayloadTooLarge):
        codec_for(bytes).store(b"x" * (1024 * 1024 + 1), step="a")


# ------------------------------------------------------------------ the code changes


def test_an_annotation_that_became_a_union_reads_what_was_stored_before() -> None:
    before = codec_for(Money).encode(Money(Decimal(1), "E"))
    assert decode(before, Money | Card) == Money(Decimal(1), "E")


def test_an_annotation_that_was_a_union_reads_what_was_stored_before() -> None:
    before = codec_for(Money | Card).encode(Money(Decimal(1), "E"))
    assert decode(before, Money) == Money(Decimal(1), "E")
    assert decode(before) == {"amount": "1", "currency": "E"}


def test_members_of_a_union_may_be_added_and_reordered() -> None:
    before = codec_for(Point | Line).encode(Line(1))
    assert decode(before, Money | Line | Card | Point) == Line(1)


def test_a_member_that_is_gone_is_told() -> None:
    before = codec_for(Point | Line).encode(Line(1))
    with pytest.raises(SerializationError, match=r"'Line' is no member of Point \| Money"):
        decode(before, Point | Money)


def test_a_new_field_takes_its_default() -> None:
    class Old(Struct):
        a: int

    class New(Struct):
        a: int
        pay: Money | Card | None = None

    assert decode(encode(Old(1), Old), New) == New(1)
    assert decode(encode(New(1, None), New), Old) == Old(1)


def test_the_tag_of_structs_is_left_to_msgspec() -> None:
    assert msgspec.msgpack.decode(encode(Tagged1(1), Tagged1 | Tagged2)) == {"type": "Tagged1", "a": 1}


def test_codecs_are_made_once() -> None:
    assert codec_for(list[Money | Card]) is codec_for(list[Money | Card])
    assert "Money" in repr(codec_for(list[Money]))


def test_nothing_that_executes_stored_bytes_is_imported() -> None:
    code = (
        "import sys; before = set(sys.modules); import aioreactor.store.codec as c; "
        "import pathlib; folder = pathlib.Path(c.__file__).parent; "
        "names = [p for p in folder.glob('*.py') if p.name.startswith(('codec', 'failures'))]; "
        "texts = [p.read_text() for p in names]; "
        "assert len(texts) > 8; "
        "bad = ('import pickle', 'from pickle', 'import marshal', 'import shelve', 'eval(', 'exec(', 'import_module', "
        "'__import__'); "
        "assert not [b for b in bad for t in texts if b in t]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pydantic_is_not_imported_by_the_codec() -> None:
    code = (
        "import sys; from aioreactor.store.codec import encode, decode; decode(encode({'a': [1, 2**70]})); "
        "assert 'pydantic' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_objects_compared_by_identity_are_compared_by_their_fields() -> None:
    assert decode(encode(NoEq(3), NoEq), NoEq).x == 3


def test_a_part_of_a_class_taken_apart_is_refused_with_its_place() -> None:
    with pytest.raises(SerializationError, match=r"fits no member of Point \| Line"):
        encode(Shape(cast("Any", [5])), Shape)


def test_a_union_with_an_open_member_keeps_that_member_plain() -> None:
    codec = codec_for(dict[str, Any] | Money)
    assert codec.decode(codec.encode({"a": (1, 2)})) == {"a": [1, 2]}
    assert codec.open
    assert codec.decode(codec.encode(Money(Decimal(1), "E"))) == Money(Decimal(1), "E")


def test_subclasses_of_datetime_come_back_as_datetime() -> None:
    class Moment(dt.datetime):
        pass

    value = Moment(2024, 1, 2, 3, tzinfo=dt.UTC)
    back = decode(encode(value, dt.datetime), dt.datetime)
    assert back == value
    assert type(back) is dt.datetime


def test_an_annotation_that_cannot_be_hashed_works() -> None:
    from typing import Annotated

    assert codec_for(Annotated[int, []]).decode(codec_for(Annotated[int, []]).encode(5)) == 5


def test_classes_named_alike_in_a_union_are_told_apart() -> None:
    def make() -> Any:
        class Same(Struct):
            a: int

        Same.__qualname__ = "Same"
        return Same

    one, two = make(), make()
    codec = codec_for(list[one | two])  # type: ignore[valid-type]
    assert [type(item) for item in codec.decode(codec.encode([one(1), two(1), one(2)]))] == [one, two, one]


def test_a_literal_of_constants_is_checked() -> None:
    from typing import Literal

    with pytest.raises(SerializationError, match="is none of"):
        encode(Color.GREEN, Literal[Color.RED, "x"])
    with pytest.raises(SerializationError, match="is none of"):
        decode(encode("nope"), Literal[Color.RED, "x"])


def test_a_class_that_refers_to_itself_through_an_alias_without_end_is_refused() -> None:
    from typing import Union

    class Odd(Struct):
        a: "Union[Money, Card, list[Odd]]"  # noqa: UP007, UP037

    with pytest.raises(SerializationError):
        codec_for(Odd)
