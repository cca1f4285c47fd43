"""Whether one annotation can be given where another is expected.

Says no only where both are known and a type checker would say no too; everything unknown fits.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from aioreactor.definition.annotations import UNKNOWN, Unresolved, strip, text_of
from aioreactor.definition.markers import Page
from aioreactor.map_results import MapResults
from aioreactor.results import Failure, Halt, Skipped

_PROMOTED: dict[type, tuple[type, ...]] = {float: (int,), complex: (int, float), bytes: (bytearray, memoryview)}


def is_known(annotation: Any) -> bool:
    """Whether there is anything to compare."""
    if annotation is UNKNOWN or annotation is Any or isinstance(annotation, (Unresolved, typing.TypeVar, str)):
        return False
    return annotation is not object


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, none of them ``Annotated``; the type itself when it is none."""
    bare = strip(annotation)
    if get_origin(bare) not in {Union, types.UnionType}:
        return (bare,)
    return tuple(member for given in get_args(bare) for member in members(given))


def _values(annotation: Any) -> tuple[Any, ...] | None:
    """Each value of a type that has only so many, as a `Literal`; None when there is no end of them."""
    if get_origin(annotation) is Literal:
        return tuple(type(None) if item is None else Literal[item] for item in get_args(annotation))
    if annotation is bool:
        return Literal[True], Literal[False]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum) and not issubclass(annotation, enum.Flag):
        return tuple(Literal[member] for member in annotation)
    return None


def without_signals(annotation: Any) -> Any:
    """What a body's reader gets: the return annotation without `Skipped`, `Halt` and `Failure`."""
    if not is_known(annotation):
        return annotation
    kept: list[Any] = []
    for member in members(annotation):
        origin = get_origin(member) or member
        if origin is Skipped:
            kept += get_args(member) or (Any,)
        elif origin is not Halt and origin is not Failure:
            kept.append(member)
    if len(kept) == len(members(annotation)) and Skipped not in {get_origin(m) or m for m in members(annotation)}:
        return annotation
    return Union[tuple(kept)] if kept else UNKNOWN  # noqa: UP007 - built from a list


def fits(source: Any, target: Any) -> bool:
    """Whether a value of type ``source`` may be given to ``target``."""
    if not is_known(source) or not is_known(target):
        return True
    options = members(target)
    return all(_fits_any(member, options) for member in members(source))


def _fits_any(source: Any, options: tuple[Any, ...]) -> bool:
    if any(_fits_one(source, option) for option in options):
        return True
    values = _values(source)
    if not values or values == (source,):
        return False
    return all(any(_fits_one(value, option) for option in options) for value in values)


def _fits_one(source: Any, target: Any) -> bool:
    if not is_known(source) or not is_known(target) or source == target:
        return True
    source, target = _no_none(source), _no_none(target)
    if isinstance(source, typing.NewType):
        return fits(source.__supertype__, target)
    if isinstance(target, typing.NewType):
        return False
    if get_origin(target) is Literal:
        return get_origin(source) is Literal and _typed(source) <= _typed(target)
    if get_origin(source) is Literal:
        return all(_fits_one(type(item), target) for item in get_args(source))
    return _fits_class(source, target)


def _typed(literal: Any) -> set[tuple[type, Any]]:
    return {(type(item), item) for item in get_args(literal)}


def _no_none(annotation: Any) -> Any:
    return type(None) if annotation is None else annotation


def _fits_class(source: Any, target: Any) -> bool:
    left, right = get_origin(source) or source, get_origin(target) or target
    if not isinstance(left, type) or not isinstance(right, type):
        return True
    if getattr(right, "_is_protocol", False) or right in {collections.abc.Callable, type} or typing.is_typeddict(right):
        return True
    if typing.is_typeddict(left):
        return issubclass(dict, right)
    if right in _PROMOTED and issubclass(left, _PROMOTED[right]):
        return True
    try:
        related = issubclass(left, right)
    except TypeError:
        return True
    return related and _fits_arguments(left, right, get_args(source), get_args(target))


def _fits_arguments(left: type, right: type, given: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    if not given or not wanted:
        return True
    if left is tuple:
        return _fits_tuple(given, right, wanted)
    if len(given) != len(wanted) or not _comparable(left, right):
        return True
    return all(fits(one, other) for one, other in zip(given, wanted, strict=True))


def _comparable(left: type, right: type) -> bool:
    """Whether the type arguments of two related generics mean the same: not so for arbitrary subclasses."""
    builtin = (list, dict, set, frozenset, tuple)
    return left is right or (left in builtin and right.__module__ == "collections.abc")


def _fits_tuple(given: tuple[Any, ...], right: type, wanted: tuple[Any, ...]) -> bool:
    items = given[:1] if given[-1] is Ellipsis else given
    if right is not tuple:
        return len(wanted) != 1 or all(fits(item, wanted[0]) for item in items)
    if wanted[-1] is Ellipsis:
        return all(fits(item, wanted[0]) for item in items)
    if given[-1] is Ellipsis:
        return all(fits(given[0], item) for item in wanted)
    return len(given) == len(wanted) and all(fits(one, other) for one, other in zip(given, wanted, strict=True))


class NoSuchPart(Exception):
    """A path leads to something that the type does not have."""


def part_of(annotation: Any, path: tuple[str | int, ...]) -> Any:
    """The type at the end of a path; unknown where it cannot be told.

    Raises:
        NoSuchPart: a known class with declared fields has no such field.
    """
    for part in path:
        if not is_known(annotation) or len(members(annotation)) != 1:
            return UNKNOWN
        annotation = _step_into(members(annotation)[0], part)
    return annotation


def _step_into(annotation: Any, part: str | int) -> Any:
    kind, args = get_origin(annotation) or annotation, get_args(annotation)
    if not isinstance(kind, type):
        return UNKNOWN
    if isinstance(part, int):
        return args[0] if kind in {list, collections.abc.Sequence} and args else UNKNOWN
    if issubclass(kind, collections.abc.Mapping) and not typing.is_typeddict(kind):
        return args[1] if len(args) == 2 else UNKNOWN
    return _field_type(kind, part)


def _field_type(kind: type, part: str) -> Any:
    declared = (
        hasattr(kind, "__struct_fields__")
        or dataclasses.is_dataclass(kind)
        or hasattr(kind, "_fields")
        or typing.is_typeddict(kind)
    )
    try:
        hints = get_type_hints(kind)
    except Exception:
        return UNKNOWN
    if part in hints:
        return hints[part]
    found = inspect.getattr_static(kind, part, None)
    if found is None and declared:
        raise NoSuchPart(f"{text_of(kind)} has no {part!r}; it has: {', '.join(hints)}")
    getter = found.fget if isinstance(found, property) else None
    return _return_of(getter) if getter is not None else UNKNOWN


def _return_of(fn: Any) -> Any:
    try:
        return get_type_hints(fn).get("return", UNKNOWN)
    except Exception:
        return UNKNOWN


def return_type(transform: Any) -> Any:
    """What a ``transform=`` gives, when that can be told."""
    if isinstance(transform, type):
        return transform
    return _return_of(transform) if inspect.isfunction(transform) else UNKNOWN


def declared_argument(cls: type, root: type) -> Any:
    """``str`` of a class whose bases lead to ``root[str]``, type variables on the way filled in."""
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin, given = get_origin(base) or base, get_args(base)
        if origin is root:
            return given[0] if given else UNKNOWN
        if isinstance(origin, type) and issubclass(origin, root):
            return _filled(declared_argument(origin, root), dict(zip(_variables(origin), given, strict=False)))
    return UNKNOWN


def _variables(generic: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(generic, "__parameters__", ())
    return found


def _filled(annotation: Any, known: dict[Any, Any]) -> Any:
    if isinstance(annotation, typing.TypeVar):
        return known.get(annotation, annotation)
    open_ones = _variables(annotation)
    return annotation[tuple(known.get(one, one) for one in open_ones)] if open_ones else annotation


_DEALT = (list, tuple, collections.abc.Sequence, Page, MapResults)
_NEVER_DEALT = (collections.abc.Set, collections.abc.Mapping, collections.abc.Iterator, collections.abc.AsyncIterable)


def source_problem(given: Any, *, fan_out: bool) -> str | None:
    """Why a map cannot take its items from a value of this type; None where it can, or where it cannot be told."""
    bare = strip(given)
    kind = get_origin(bare) or bare
    if not is_known(bare) or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return None
    if issubclass(kind, (str, bytes)) or not (hasattr(kind, "__iter__") or hasattr(kind, "__aiter__")):
        return (
            f"{text_of(bare)} is no source of items; give a list, result(…), from_input(…) or a method that gives one"
        )
    if fan_out and not issubclass(kind, _DEALT) and issubclass(kind, _NEVER_DEALT):
        return f"fan_out deals from a list, a tuple or a page source, not from {text_of(bare)}; make it a list"
    return None
