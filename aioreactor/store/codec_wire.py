"""The bytes: MessagePack, the extension codes this library adds, and the types msgspec does not know by itself.

Every byte string made here is one MessagePack item, so encoded parts nest in others as `msgspec.Raw`. What plain
MessagePack cannot say travels as an extension (`Code`). Reading one builds values of types that are listed *here*
(or registered by a module of this package): no name found in stored bytes is ever imported or called.
"""

from __future__ import annotations

import datetime as dt
import functools
import ipaddress
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec.msgpack import Ext


class Code:
    """MessagePack extension types in use. A number is never given a second meaning."""

    BIG_INT: Final = 1
    """A whole number beyond 64 bits: its signed big-endian bytes."""
    WIDE: Final = 2
    """A value that has such numbers somewhere inside: its plain form, to be converted after decoding."""
    PAIRS: Final = 3
    """A mapping whose keys are not encodable as map keys: a list of pairs."""
    MEMBER: Final = 4
    """A member of a union: ``[tag, value]``."""
    OUTCOME: Final = 5
    """An outcome or a `MapResults` (`codec_outcomes`)."""
    TYPED: Final = 6
    """A builtin value with the name of its type (`codec_portable`)."""
    SEALED: Final = 7
    """An encrypted value (`codec_records`)."""


class Unencodable(TypeError):
    """A value, or an annotation, that cannot be stored; the text says why."""


class Undecodable(ValueError):
    """Stored bytes that do not say what they should; the text says why."""


_IP_TYPES: tuple[type, ...] = (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
_FROM_TEXT: tuple[Any, ...] = (PurePath, *_IP_TYPES)
_COLLECTIONS: dict[type, type] = {deque: list, OrderedDict: dict, Counter: dict}


# ------------------------------------------------------------------ writing


@functools.singledispatch
def dump(value: Any) -> Any:
    """What msgspec encodes in place of a value of a type that it does not know.

    Raises:
        Unencodable: nobody knows how to store this type.
    """
    if is_model(type(value)):
        return _dump_model(value)
    if type(value).__module__.partition(".")[0] in {"pydantic", "pydantic_core"}:
        return value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
    raise Unencodable(f"{type(value).__module__}.{type(value).__qualname__} cannot be stored")


def _as_text(value: Any) -> str:
    return str(value)


def _as_list(value: Any) -> list[Any]:
    return list(value)


def _as_datetime(value: dt.datetime) -> dt.datetime:
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return dt.datetime(*parts, tzinfo=value.tzinfo, fold=value.fold)


def _dump_as(kind: Any) -> None:
    def dumped(value: Any) -> Any:
        return kind(value)

    dump.register(kind, dumped)


# msgspec refuses subclasses of these; they are stored as what they are subclasses of.
for _kind in (str, bytes, int, float):
    _dump_as(_kind)
dump.register(dt.datetime, _as_datetime)
for _kind in _FROM_TEXT:
    dump.register(_kind, _as_text)
dump.register(deque, _as_list)


@dump.register
def _(value: Fraction) -> list[int]:
    # Not as text: reading "1e999999999" would be a way to keep a process busy.
    return [value.numerator, value.denominator]


@dump.register
def _(value: complex) -> list[float]:
    return [value.real, value.imag]


def is_model(kind: Any) -> bool:
    """Whether a class is a pydantic model (version 2); pydantic is never imported to find out."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


@functools.cache
def _model_options() -> tuple[dict[str, Any], dict[str, Any]]:
    """How models are dumped and validated: by field name where pydantic can (2.11), else by alias."""
    import inspect

    import pydantic

    if "by_name" in inspect.signature(pydantic.BaseModel.model_validate).parameters:
        return {"by_alias": False}, {"by_alias": False, "by_name": True}
    return {"by_alias": True}, {}


def _dump_model(value: Any) -> Any:
    # A subclass in a field of its base loses fields here, which the check after encoding finds: no warning needed.
    return value.model_dump(mode="python", round_trip=True, warnings=False, **_model_options()[0])


# ------------------------------------------------------------------ reading


def load(kind: Any, found: Any) -> Any:
    """The value of a type msgspec does not know, from what `dump` made of it.

    Raises:
        Undecodable: nobody knows this type, or the data does not fit it.
    """
    origin = get_origin(kind) or kind
    if isinstance(origin, type):
        if isinstance(found, origin):
            return found
        if issubclass(origin, _FROM_TEXT) and isinstance(found, str):
            build: Any = origin
            return build(found)
        if is_model(origin):
            # Not strict: what was a set or a datetime is a list or a text now, whatever the model asks of callers.
            return kind.model_validate(found, strict=False, **_model_options()[1])
        if origin is Fraction and isinstance(found, list):
            return Fraction(*found)
        if origin is complex and isinstance(found, list):
            return complex(*found)
        if origin in _COLLECTIONS:
            return _load_collection(kind, origin, found)
    raise Undecodable(f"a {type(found).__name__} is not a {getattr(origin, '__qualname__', origin)}")


def _load_collection(kind: Any, origin: type, found: Any) -> Any:
    args = get_args(kind)
    if origin is Counter and args:
        args = (*args, int)
    plain = _COLLECTIONS[origin]
    return origin(msgspec.convert(found, plain[args] if args else plain, dec_hook=load))  # type: ignore[index]


Reader = Callable[[bytes], Any]
_readers: dict[int, Reader] = {}


def reads(code: int) -> Callable[[Reader], Reader]:
    """Register what rebuilds an extension wherever no annotation says what to expect."""

    def register(reader: Reader) -> Reader:
        _readers[code] = reader
        return reader

    return register


def revive(code: int, data: memoryview) -> Any:
    """The value of an extension, where no annotation says what to expect.

    Raises:
        Undecodable: no reader for this code.
    """
    reader = _readers.get(code)
    if reader is None:
        raise Undecodable(f"extension type {code} is not known here (written by a newer version?)")
    return reader(bytes(data))


_plain_encoder = msgspec.msgpack.Encoder(enc_hook=dump)
_plain_decoder = msgspec.msgpack.Decoder(ext_hook=revive)
_ext_decoder = msgspec.msgpack.Decoder(Ext)
pack_plain = _plain_encoder.encode
unpack_plain = _plain_decoder.decode


def as_ext(data: bytes) -> Ext | None:
    """The extension that these bytes are, or None when they are something else."""
    if data and (0xC7 <= data[0] <= 0xC9 or 0xD4 <= data[0] <= 0xD8):
        return _ext_decoder.decode(data)
    return None


# ------------------------------------------------------------------ numbers beyond 64 bits

_BUILTINS: tuple[type, ...] = (bytes, bytearray, memoryview)
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1


def pack_wide(value: Any) -> bytes:
    """Encode a value that msgspec refused for the size of a number in it."""
    plain = msgspec.to_builtins(value, builtin_types=_BUILTINS, enc_hook=dump)
    return pack_plain(Ext(Code.WIDE, pack_plain(_narrow(plain))))


def _narrow(value: Any) -> Any:
    if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
        return Ext(Code.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_narrow(item) for item in value]
    if isinstance(value, dict):
        pairs = [[_narrow(key), _narrow(item)] for key, item in value.items()]
        if any(key is not pair[0] for key, pair in zip(value, pairs, strict=True)):
            return Ext(Code.PAIRS, pack_plain(pairs))
        return dict(pairs)
    return value


@reads(Code.BIG_INT)
def _big_int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


@reads(Code.PAIRS)
def _pairs(data: bytes) -> dict[Any, Any]:
    return {_hashable(key): item for key, item in unpack_plain(data)}


def _hashable(key: Any) -> Any:
    return tuple(_hashable(item) for item in key) if isinstance(key, list) else key


@reads(Code.WIDE)
def _wide(data: bytes) -> Any:
    return unpack_plain(data)


@reads(Code.MEMBER)
def _member(data: bytes) -> Any:
    _, value = unpack_plain(data)
    return value
