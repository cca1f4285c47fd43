"""Whether a value came back as what it was, and where it did not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum, auto
from typing import Any, TypeAlias

from aioreactor.store.codec_facts import OUTCOMES
from aioreactor.store.codec_wire import is_model, pack_plain


class Mode(Enum):
    """How close a value and what came back have to be."""

    EQUAL = auto()
    """Equal; of the same type, or of a base of it that is equal (an int subclass where ``int`` is declared)."""
    TOLERANT = auto()
    """As `EQUAL`, but parts may be the plain form of what they were: they are not annotated."""
    EXACT = auto()
    """Of the very same type in every part."""


Part: TypeAlias = tuple[str, Any, Any]


def difference(value: Any, back: Any, mode: Mode = Mode.EQUAL, path: str = "") -> str | None:
    """Where ``back`` is not what ``value`` was: one line, or None when it is."""
    if value is back:
        return None
    if type(value) is not type(back):
        return None if _interchangeable(value, back, mode) else _changed(value, back, path)
    parts = _parts(value, back)
    if parts is None:
        return None if _equal(value, back) else _changed(value, back, path)
    for suffix, one, other in parts:
        found = difference(one, other, mode, path + suffix)
        if found is not None:
            return found
    return None


def _changed(value: Any, back: Any, path: str) -> str:
    where = f"at {path.lstrip('.')} " if path else ""
    was, now = name_of(value), name_of(back)
    return f"{where}is a {was} and comes back as {'a different ' if was == now else 'a '}{now}"


def name_of(value: Any) -> str:
    """The name of a value's type, as a person would write it."""
    return type(value).__qualname__.rpartition("<locals>.")[2]


def _interchangeable(value: Any, back: Any, mode: Mode) -> bool:
    if mode is Mode.EXACT:
        return False
    if _equal(value, back):
        return isinstance(value, (type(back), int, float, set, frozenset))
    if mode is not Mode.TOLERANT:
        return False
    # An untouched set iterates in one order, so the plain form of the same object gives the same bytes.
    try:
        return pack_plain(value) == pack_plain(back)
    except (TypeError, ValueError, OverflowError):
        return False


def _equal(value: Any, back: Any) -> bool:
    if isinstance(value, float):
        return value == back or (value != value and back != back)  # noqa: PLR0124 - that is how NaN is told
    if isinstance(value, Decimal) and isinstance(back, Decimal):
        return value.as_tuple() == back.as_tuple()  # signalling NaN refuses any other comparison
    if isinstance(value, (set, frozenset)) and isinstance(back, (set, frozenset)):
        return value == back or sorted(map(repr, value)) == sorted(map(repr, back))  # NaN inside
    if isinstance(value, BaseException):
        return True  # stored as data; how close it comes back is not the value's business
    return bool(value == back)


def _parts(value: Any, back: Any) -> Iterator[Part] | None:
    """What two values of one type are made of; None when they are compared whole."""
    if isinstance(value, (list, tuple)):
        return _items(value, back) if len(value) == len(back) else iter([("", len(value), None)])
    if isinstance(value, dict):
        return _entries(value, back) if len(value) == len(back) else iter([("", len(value), None)])
    names = _names(value)
    if names is None:
        return None
    return ((f".{name}", getattr(value, name, None), getattr(back, name, None)) for name in names)


def _items(value: Any, back: Any) -> Iterator[Part]:
    return ((f"[{index}]", one, other) for index, (one, other) in enumerate(zip(value, back, strict=True)))


def _entries(value: dict[Any, Any], back: dict[Any, Any]) -> Iterator[Part]:
    if value.keys() == back.keys():
        back = {key: back[key] for key in value}
    for (key, one), (other_key, other) in zip(value.items(), back.items(), strict=True):
        yield f"[{key!r:.40}] (key)", key, other_key
        yield f"[{key!r:.40}]", one, other


def _names(value: Any) -> list[str] | None:
    kind = type(value)
    if hasattr(kind, "__struct_fields__"):
        return list(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if is_model(kind):
        return [*kind.model_fields, "model_extra"]
    if isinstance(value, OUTCOMES):
        return ["_outcomes"] if not hasattr(kind, "__match_args__") else list(kind.__match_args__)
    return None
