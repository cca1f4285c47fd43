"""Values without an annotation that keep their builtin types all the same: what exceptions carry.

An exception's attributes have no annotation, and `RateLimited` with a tuple turned list would not be what it was. So
tuples, sets, times, decimals and the like are written with the name of their type. Names lead into one closed table.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any

from msgspec.msgpack import Ext

from aioreactor.store.codec_wire import Code, Undecodable, pack_plain, reads, unpack_plain

_SCALARS = (type(None), bool, float, str, bytes)
_TEXTS: dict[type, tuple[str, Callable[[Any], str]]] = {
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.date: ("date", dt.date.isoformat),
    dt.time: ("time", dt.time.isoformat),
    Decimal: ("decimal", str),
    uuid.UUID: ("uuid", str),
}
_BUILD: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def portable(value: Any) -> Any:
    """What MessagePack takes in place of a value; `codec_wire.unpack_plain` gives the value back.

    Objects of other classes (Structs, models) are left as they are and come back as plain data.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else _typed("int", hex(value))
    if kind is list:
        return [portable(item) for item in value]
    if kind is dict:
        return {_key(key): portable(item) for key, item in value.items()}
    if kind in {tuple, set, frozenset}:
        return _typed(kind.__name__, [portable(item) for item in value])
    if kind in _TEXTS:
        name, text = _TEXTS[kind]
        return _typed(name, text(value))
    if kind is dt.timedelta:
        return _typed("timedelta", [value.days, value.seconds, value.microseconds])
    return _others(value)


def _others(value: Any) -> Any:
    if isinstance(value, Enum):
        return portable(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, PurePath):
        return str(value)
    return value


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, bytes, tuple)) else str(key)


def _typed(name: str, content: Any) -> Ext:
    return Ext(Code.TYPED, pack_plain((name, content)))


@reads(Code.TYPED)
def _load(data: bytes) -> Any:
    found = unpack_plain(data)
    if not (isinstance(found, list) and len(found) == 2 and isinstance(found[0], str)):
        raise Undecodable("a typed value without a type")
    name, content = found
    if name == "int":
        return int(content, 16)
    build = _BUILD.get(name)
    if build is None:
        raise Undecodable(f"no builtin type {name!r}")
    return build(content)
