"""What exceptions carry keeps its builtin types without any annotation."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from aioreactor import SerializationError
from aioreactor.store.codec import decode
from aioreactor.store.codec_compare import Mode, difference
from aioreactor.store.codec_portable import portable
from aioreactor.store.codec_wire import Code, pack_plain, unpack_plain
from tests.unit.store.types_kit import Color, Level, Money, Text


@pytest.mark.parametrize(
    "value",
    [
        None,
        2**100,
        -(2**100),
        (1, (2, [3, {4}])),
        {"a": frozenset({(1, 2)})},
        {(1, "a"): Decimal("1.50")},
        dt.datetime(2024, 1, 2, 3, 4, 5, 6),
        dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        dt.date(2024, 1, 2),
        dt.time(1, 2),
        dt.timedelta(days=-1, microseconds=5),
        uuid.UUID(int=5),
        [float("inf"), b"\xff", True],
    ],
)
def test_builtin_types_are_kept(value: Any) -> None:
    assert difference(value, unpack_plain(pack_plain(portable(value))), Mode.EXACT) is None


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (Color.RED, "red"),
        (Level.LOW, 1),
        (Text("a"), "a"),
        (Path("/x"), "/x"),
        (Money(Decimal(1), "E"), {"amount": "1", "currency": "E"}),
        ({None: 1, 2.5: 2}, {"None": 1, "2.5": 2}),
    ],
)
def test_other_types_come_back_plain(value: Any, back: Any) -> None:
    assert unpack_plain(pack_plain(portable(value))) == back


@pytest.mark.parametrize(
    "content", [("object", 1), ("tuple",), 5, (1, 2), ("eval", "1"), ("int", "x"), ("timedelta", 5)]
)
def test_only_listed_types_are_built(content: Any) -> None:
    import msgspec

    with pytest.raises(SerializationError):
        decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(Code.TYPED, msgspec.msgpack.encode(content))))
