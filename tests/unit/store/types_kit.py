"""Types and sample values shared by the codec tests and by the process that decodes for them."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar

import pydantic
from msgspec import Meta, Struct
from msgspec import field as struct_field

from aioreactor import Halt, MapResults, Redact, Skipped, Success

T = TypeVar("T")


class Money(Struct, frozen=True):
    amount: Decimal
    currency: str


class Card(Struct, frozen=True):
    number: str
    expires: dt.date


class Renamed(Struct, rename="camel"):
    first_name: str
    pay_with: Money | Card


class Box(Struct, Generic[T]):
    value: T


class Node(Struct):
    name: str
    pay: Money | Card | None = None
    children: list[Node] = struct_field(default_factory=list)


class Tagged1(Struct, tag=True):
    a: int


class Tagged2(Struct, tag=True):
    a: int


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass
class Line:
    x: int
    y: float = 0.0


@dataclass(eq=False)
class NoEq:
    x: int
    nan: float = float("nan")


@dataclass
class Shape:
    parts: list[Point | Line] = field(default_factory=list)


@dataclass(frozen=True)
class Key:
    a: int
    b: str


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Perm(enum.Flag):
    READ = 1
    WRITE = 2


class IPerm(enum.IntFlag):
    READ = 1
    WRITE = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    REAL = 1.5
    TEXT = "t"


class Pair(NamedTuple):
    left: int
    right: str = "r"


class UnionPair(NamedTuple):
    left: Money | Card


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class UnionMovie(TypedDict):
    pay: Money | Card
    note: NotRequired[str]


class Pet(pydantic.BaseModel):
    name: str
    tags: set[str] = set()
    at: dt.datetime | None = None
    raw: bytes = b""
    price: Decimal = Decimal(0)
    by_id: dict[uuid.UUID, int] = {}


class Dog(Pet):
    breed: str = ""


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: dt.datetime
    ids: frozenset[int]
    secret: pydantic.SecretStr = pydantic.SecretStr("s")
    alias: int = pydantic.Field(1, alias="theAlias")
    url: pydantic.AnyUrl = pydantic.AnyUrl("https://example.org/x")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.alias * 2


class Ids(pydantic.RootModel[list[uuid.UUID]]):
    pass


class Envelope(pydantic.BaseModel, Generic[T]):
    item: T


class Secretive(Struct):
    user: str
    token: Annotated[str, Redact]


class Text(str):
    pass


UserId = NewType("UserId", int)
UTC = dt.UTC
U = uuid.UUID("12345678-1234-5678-1234-567812345678")
PLUS2 = dt.timezone(dt.timedelta(hours=2))

SAMPLES: list[tuple[str, Any, Any]] = [
    ("int", int, 5),
    ("big", int, 2**200),
    ("big negative", int, -(2**64)),
    ("int edges", list[int], [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    ("bool in union", list[bool | int], [True, 1, False, 0]),
    ("int or float", list[int | float], [1, 1.0, -0.0, 2.5]),
    ("none", None, None),
    ("str", str, "snöw ☃ \x00 𝄞"),
    ("bytes", bytes, b"\xff\x00"),
    ("bytearray", bytearray, bytearray(b"x")),
    ("bytes or str", list[bytes | str], [b"a", "a"]),
    ("float", list[float], [float("inf"), float("-inf"), -0.0, 1e-310]),
    ("struct", Money, Money(Decimal("1.50"), "EUR")),
    ("struct union", list[Money | Card], [Money(Decimal(1), "EUR"), Card("4", dt.date(2030, 1, 1))]),
    ("struct union optional", Money | Card | None, None),
    ("tagged structs", list[Tagged1 | Tagged2], [Tagged1(1), Tagged2(1)]),
    ("renamed", Renamed, Renamed("Ann", Card("4", dt.date(2030, 1, 1)))),
    ("generic", Box[int], Box(1)),
    ("generic of union", Box[Money | Card], Box(Money(Decimal(1), "EUR"))),
    ("generic nested", dict[str, list[Box[dict[uuid.UUID, Money]]]], {"a": [Box({U: Money(Decimal(2), "X")})]}),
    ("recursive", Node, Node("a", Money(Decimal(1), "E"), [Node("b", None, [Node("c", Card("1", dt.date.max))])])),
    ("dataclass", Point, Point(1, 2.0)),
    ("dataclass union", list[Point | Line], [Point(1), Line(1)]),
    ("dataclass inside", Shape, Shape([Line(1), Point(2)])),
    ("dataclass no eq", NoEq, NoEq(3)),
    ("datetime naive", dt.datetime, dt.datetime(2024, 1, 2, 3, 4, 5, 6)),
    ("datetime fold", dt.datetime, dt.datetime(2024, 10, 27, 1, 30, fold=1)),
    ("datetime aware", dt.datetime, dt.datetime(2024, 1, 2, tzinfo=UTC)),
    ("datetime offset", dt.datetime, dt.datetime(2024, 1, 2, tzinfo=PLUS2)),
    ("datetime or str", list[dt.datetime | str], [dt.datetime(2024, 1, 2), "2024-01-02T00:00:00"]),
    ("date", dt.date, dt.date(1, 1, 1)),
    ("time", list[dt.time], [dt.time(1, 2, 3, 4), dt.time(1, tzinfo=UTC)]),
    ("timedelta", list[dt.timedelta], [dt.timedelta.min, dt.timedelta.max, dt.timedelta(microseconds=-1)]),
    ("decimal", list[Decimal], [Decimal("1.50"), Decimal("NaN"), Decimal("-Infinity"), Decimal("1E+1000")]),
    ("decimal snan", Decimal, Decimal("sNaN")),
    ("decimal or float", list[Decimal | float | int], [Decimal("1.5"), 1.5, 1]),
    ("uuid", uuid.UUID, U),
    ("enum", list[Color], [Color.RED, Color.GREEN]),
    ("int enum", Level, Level.HIGH),
    ("enum or str", list[Color | str], [Color.RED, "red"]),
    ("flag", Perm, Perm.READ | Perm.WRITE),
    ("int flag", IPerm, IPerm.READ | IPerm.WRITE),
    ("odd enum", list[Odd], [Odd.PAIR, Odd.REAL, Odd.TEXT]),
    ("set", set[int], {1, 2}),
    ("set of unions", set[Money | Card], {Money(Decimal(1), "E"), Card("1", dt.date(2020, 1, 1))}),
    ("frozenset", frozenset[Key], frozenset({Key(1, "a")})),
    ("set or list", list[set[int] | list[int]], [{1}, [1]]),
    ("lists", list[list[int] | list[str]], [[1], ["a"], []]),
    ("tuple", tuple[int, str, Decimal], (1, "a", Decimal(2))),
    ("tuple variadic", tuple[int, ...], (1, 2, 3)),
    ("tuple empty", tuple[()], ()),
    ("tuple of union", tuple[Money | Card, int], (Money(Decimal(1), "E"), 2)),
    ("dict uuid", dict[uuid.UUID, Decimal], {U: Decimal("1.5")}),
    ("dict int", dict[int, str], {1: "a", 2**70: "b"}),
    ("dict tuple", dict[tuple[int, str], int], {(1, "a"): 1}),
    ("dict enum", dict[Color, dict[dt.date, bytes]], {Color.RED: {dt.date(2024, 1, 1): b"\x00"}}),
    ("dict frozen key", dict[Key, int], {Key(1, "a"): 2}),
    ("dict union key", dict[Key | str, int], {Key(1, "a"): 2, "x": 3}),
    ("named tuple", Pair, Pair(1, "z")),
    ("named tuple union", UnionPair, UnionPair(Money(Decimal(1), "E"))),
    ("typed dict", Movie, {"title": "x"}),
    ("typed dict union", UnionMovie, {"pay": Card("1", dt.date(2020, 1, 1))}),
    ("newtype", UserId, UserId(4)),
    ("newtypes", dict[UserId, list[UserId]], {UserId(4): [UserId(5)]}),
    ("literal", Literal["a", 1, None], 1),
    ("literal enum", Literal[Color.RED, "x"], Color.RED),
    ("optional", Optional[Point], None),  # noqa: UP045
    ("annotated", Annotated[int, Meta(ge=0)], 4),
    ("annotated union", Annotated[Money | Card, "doc"], Money(Decimal(1), "E")),
    ("pydantic", Pet, Pet(name="a", tags={"x"}, at=dt.datetime(2024, 1, 1), raw=b"\xff", by_id={U: 2**70})),
    ("pydantic list", list[Pet], [Pet(name="a"), Pet(name="b")]),
    ("pydantic union", list[Pet | Dog | Money], [Dog(name="d", breed="p"), Pet(name="d"), Money(Decimal(1), "E")]),
    ("pydantic optional", Pet | None, None),
    ("pydantic strict", Strict, Strict(at=dt.datetime(2024, 1, 1), ids=frozenset({1}), theAlias=3)),
    ("pydantic root", Ids, Ids([U])),
    ("pydantic generic", Envelope[Pet], Envelope[Pet](item=Pet(name="p"))),
    ("pydantic in struct", Box[Pet], Box(Pet(name="x"))),
    ("complex", complex, 1 + 2j),
    ("path", list[Path], [Path("/tmp/x")]),
    ("path or str", list[PurePosixPath | str], [PurePosixPath("a"), "a"]),
    ("fraction", Fraction, Fraction(1, 3)),
    ("ip", ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    ("deque", collections.deque[int], collections.deque([1, 2])),
    ("ordered dict", collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)),
    ("counter", collections.Counter[str], collections.Counter("aab")),
    ("sequence", Sequence[int], [1, 2]),
    ("iterable", Iterable[Money | Card], [Money(Decimal(1), "E")]),
    ("mapping", Mapping[str, Money | int], {"a": Money(Decimal(1), "E"), "b": 2}),
    ("success", Success[Money | Card], Success(Card("1", dt.date(2020, 1, 1)))),
    ("skipped", Skipped[set[int]], Skipped({1})),
    ("halt", Halt, Halt(("stop", 1), "a.b")),
    ("value or signal", Money | Halt, Halt("x")),
    ("map results", MapResults[Money], MapResults([Success(Money(Decimal(1), "E")), Skipped(Money(Decimal(2), "E"))])),
    ("secret", Secretive, Secretive("u", "t")),
]


def annotation_of(name: str) -> Any:
    return next(annotation for found, annotation, _ in SAMPLES if found == name)
