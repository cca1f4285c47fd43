"""What writes and reads the values of one annotation: msgspec, or a few small classes around it.

msgspec decides by the shape of the data, so it refuses unions whose members look alike on the wire (two untagged
Structs, ``datetime | str``, a pydantic model and anything). Those get a tag. A class or container that has such a part
somewhere inside is taken apart, and each part is encoded by its own coder; everything else is one call into C.
Which coder an annotation gets: `codec_compile`. Coders do not check that a value fits: `codec.ValueCodec` reads back
what they wrote.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, get_origin

import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from aioreactor.definition.annotations import text_of
from aioreactor.store.codec_compare import Mode, difference
from aioreactor.store.codec_facts import field_hints
from aioreactor.store.codec_wire import (
    Code,
    Undecodable,
    Unencodable,
    as_ext,
    dump,
    load,
    pack_plain,
    pack_wide,
    revive,
    unpack_plain,
)

_MAX_KINDS = 256
"""How many classes of values a union remembers; more are looked up each time."""


class Coder(Protocol):
    """Writes values of one annotation and reads them back."""

    def pack(self, value: Any, /) -> bytes:
        """One MessagePack item."""
        ...

    def unpack(self, data: bytes, /) -> Any:
        """The value again."""
        ...


class Native:
    """msgspec does all of it."""

    __slots__ = ("_annotation", "decode", "encode")

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self.encode = msgspec.msgpack.Encoder(enc_hook=dump).encode
        self.decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(annotation, dec_hook=load, ext_hook=revive).decode

    def pack(self, value: Any) -> bytes:
        """One MessagePack item; numbers beyond 64 bits take the slow way."""
        try:
            return self.encode(value)
        except OverflowError:
            return pack_wide(value)

    def unpack(self, data: bytes) -> Any:
        """The value again."""
        try:
            return self.decode(data)
        except msgspec.ValidationError:
            found = as_ext(data)
            if found is None or found.code not in {Code.WIDE, Code.MEMBER}:
                raise
            # A wide value; or the annotation was a union when this was written, and is one of its members now.
            return msgspec.convert(revive(found.code, memoryview(found.data)), self._annotation, dec_hook=load)


class Member(NamedTuple):
    """One member of a union: the name it is stored under, its annotation and coder, how exactly it comes back."""

    tag: str
    annotation: Any
    coder: Coder
    mode: Mode

    def distance(self, kind: type) -> int:
        """0 for a value of the member's own class, 1 for one of a subclass, 2 when only trying can tell."""
        origin = get_origin(self.annotation) or self.annotation
        if origin is kind:
            return 0
        return 1 if isinstance(origin, type) and not typing.is_typeddict(origin) and issubclass(kind, origin) else 2


class Union:
    """A value with the name of the member that it belongs to."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._by_tag = {member.tag: member.coder for member in members}
        self._prefix = {member.tag: b"\x92" + pack_plain(member.tag) for member in members}
        self._none = any(member.annotation in (None, type(None)) for member in members)
        self._by_kind: dict[type, list[Member]] = {}
        self._pair = msgspec.msgpack.Decoder(tuple[str, Raw]).decode

    def pack(self, value: Any) -> bytes:
        """Tag and value; the first member that can read the value back is taken."""
        if value is None and self._none:
            return pack_plain(None)
        members = self._by_kind.get(type(value)) or self._sorted(type(value))
        if len(members) == 1:  # whoever asked for the encoding reads it back once, as a whole
            return self._tagged(members[0], members[0].coder.pack(value))
        reason = ""
        for member in members:
            try:
                data = member.coder.pack(value)
                reason = difference(value, member.coder.unpack(data), member.mode) or ""
            except Exception as error:
                reason = str(error)
                continue
            if not reason:
                return self._tagged(member, data)
        raise Unencodable(f"{type(value).__qualname__} fits no member of {self._names()}: {reason}")

    def _sorted(self, kind: type) -> list[Member]:
        """Members to try for a class of values; only the one of that very class, where there is one."""
        own = [member for member in self._members if member.distance(kind) == 0]
        found = own if len(own) == 1 else sorted(self._members, key=lambda member: member.distance(kind))
        if len(self._by_kind) < _MAX_KINDS:
            self._by_kind[kind] = found
        return found

    def _tagged(self, member: Member, data: bytes) -> bytes:
        return pack_plain(Ext(Code.MEMBER, self._prefix[member.tag] + data))

    def unpack(self, data: bytes) -> Any:
        """The value by its tag; without one (written before this was such a union), the first member that fits."""
        found = as_ext(data)
        if found is None or found.code != Code.MEMBER:
            return self._by_trial(data)
        tag, raw = self._pair(found.data)
        coder = self._by_tag.get(tag)
        if coder is None:
            raise Undecodable(f"{tag!r} is no member of {self._names()}")
        return coder.unpack(bytes(raw))

    def _by_trial(self, data: bytes) -> Any:
        for member in self._members:
            try:
                return member.coder.unpack(data)
            except Exception:  # noqa: S112 - as above; which one does not fit is no news
                continue
        raise Undecodable(f"the data fits no member of {self._names()}")

    def _names(self) -> str:
        return " | ".join(self._by_tag)


class Items:
    """A collection whose items have a coder of their own."""

    def __init__(self, build: Callable[[list[Any]], Any], item: Coder) -> None:
        self._build = build
        self._coder = item
        self._decode = msgspec.msgpack.Decoder(list[Raw]).decode

    def pack(self, value: Any) -> bytes:
        """An array."""
        pack = self._coder.pack
        return pack_plain([Raw(pack(item)) for item in value])

    def unpack(self, data: bytes) -> Any:
        """The collection again."""
        unpack = self._coder.unpack
        return self._build([unpack(bytes(raw)) for raw in self._decode(data)])


class Row:
    """A tuple with one coder per place."""

    def __init__(self, places: list[Coder]) -> None:
        self._coders = places
        self._decode = msgspec.msgpack.Decoder(list[Raw]).decode

    def pack(self, value: Any) -> bytes:
        """An array."""
        return pack_plain([Raw(coder.pack(item)) for coder, item in zip(self._coders, value, strict=True)])

    def unpack(self, data: bytes) -> tuple[Any, ...]:
        """The tuple again."""
        rows = self._decode(data)
        return tuple(coder.unpack(bytes(raw)) for coder, raw in zip(self._coders, rows, strict=True))


class Entries:
    """A mapping whose keys or values have a coder of their own."""

    def __init__(self, build: Callable[[Any], Any], key: Coder, item: Coder) -> None:
        self._build = build
        self._key, self._item = key, item
        self._decode = msgspec.msgpack.Decoder(list[tuple[Raw, Raw]]).decode

    def pack(self, value: Any) -> bytes:
        """An array of pairs."""
        key, item = self._key.pack, self._item.pack
        return pack_plain([(Raw(key(one)), Raw(item(other))) for one, other in value.items()])

    def unpack(self, data: bytes) -> Any:
        """The mapping again."""
        key, item = self._key.unpack, self._item.unpack
        return self._build((key(bytes(one)), item(bytes(other))) for one, other in self._decode(data))


class Record:
    """A class with fields, taken apart.

    Coders of fields are asked of ``find`` when they are needed, and not before: a class may refer to itself.
    """

    def __init__(self, annotation: Any, find: Callable[[Any], Coder]) -> None:
        self._coder_for = find
        self._kind: Any = get_origin(annotation) or annotation
        self._hints = field_hints(annotation)
        self._names = _wire_names(self._kind)
        if not self._names.keys() <= self._hints.keys():
            raise Unencodable(f"an annotation of {text_of(self._kind)} names something that is not defined")
        self._mapping = typing.is_typeddict(self._kind)
        self._decode = msgspec.msgpack.Decoder(dict[str, Raw]).decode

    def pack(self, value: Any) -> bytes:
        """A map of the fields that are set."""
        found = value if self._mapping else {name: getattr(value, name) for name in self._names}
        return pack_plain({self._names[name]: Raw(self._coder(name).pack(item)) for name, item in found.items()})

    def unpack(self, data: bytes) -> Any:
        """The object again; absent fields take their defaults."""
        rows = self._decode(data)
        return self._kind(
            **{name: self._coder(name).unpack(bytes(rows[wire])) for name, wire in self._names.items() if wire in rows}
        )

    def _coder(self, name: str) -> Coder:
        return self._coder_for(self._hints[name])


def _wire_names(kind: Any) -> dict[str, str]:
    """Field names and what they are called in the data; a Struct keeps its ``rename``, as msgspec does."""
    if hasattr(kind, "__struct_fields__"):
        return dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    if dataclasses.is_dataclass(kind):
        return {field.name: field.name for field in dataclasses.fields(kind) if field.init}
    return {name: name for name in getattr(kind, "_fields", kind.__annotations__)}


class ByName:
    """A member of an enumeration, by its name: its values are not all texts or all whole numbers."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        self._kind = kind

    def pack(self, value: Any) -> bytes:
        """The name."""
        return pack_plain(value.name)

    def unpack(self, data: bytes) -> Any:
        """The member again."""
        return self._kind[unpack_plain(data)]


class One:
    """One of a few constants, by its place among them."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = values

    def pack(self, value: Any) -> bytes:
        """The text of the constant: places change when constants are added."""
        if value not in self._values:
            raise Unencodable(f"{value!r:.80} is none of {self._values}")
        return pack_plain(repr(value))

    def unpack(self, data: bytes) -> Any:
        """The constant again."""
        text = unpack_plain(data)
        for value in self._values:
            if repr(value) == text:
                return value
        raise Undecodable(f"{text!r:.80} is none of {self._values}")


PLAIN = Native(Any)
"""The coder of what has no annotation."""
