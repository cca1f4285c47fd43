"""What an annotation says about storing its values, found out once per annotation."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from aioreactor.definition.annotations import UNKNOWN, text_of
from aioreactor.map_results import MapResults
from aioreactor.redaction import is_redacted
from aioreactor.results import Dispatched, Failure, Halt, Paused, Skipped, Success

OUTCOMES: tuple[type, ...] = (Success, Skipped, Halt, Failure, Dispatched, Paused, MapResults)
_BARE = (list, dict, set, frozenset, tuple, collections.deque, collections.OrderedDict, collections.Counter)
_ABSTRACT = (
    collections.abc.Collection,
    collections.abc.Iterable,
    collections.abc.MutableSequence,
    collections.abc.Sequence,
)


_OWN = (*OUTCOMES, collections.abc.Iterable, collections.abc.Container, collections.abc.Reversible)


@dataclasses.dataclass(slots=True)
class Facts:
    """What there is to know.

    ``open``: parts of it are not annotated and come back as plain data. ``abstract``: it names a kind of collection,
    not a class (``Sequence``). ``secret``: something in it is marked `Redact`. ``own``: types are in it that need our
    coders: outcomes, and ``Iterable``, which msgspec does not look into.
    """

    open: bool = False
    abstract: bool = False
    secret: bool = False
    own: bool = False


def facts_of(annotation: Any) -> Facts:
    """Look through an annotation, into the fields of its classes."""
    found = Facts()
    _visit(annotation, found, set())
    return found


def is_open(annotation: Any) -> bool:
    """Whether an annotation says nothing."""
    return annotation in (UNKNOWN, Any, object) or isinstance(annotation, typing.TypeVar)


def unwrap(annotation: Any) -> Any:
    """The annotation without ``Annotated``, ``NewType``, ``Required`` and the names of type aliases."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated or origin in {typing.Required, typing.NotRequired, typing.Final}:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _visit(annotation: Any, found: Facts, seen: set[int]) -> None:
    found.secret = found.secret or is_redacted(annotation)
    bare = unwrap(annotation)
    origin, args = get_origin(bare) or bare, get_args(bare)
    if is_open(bare) or (origin in _BARE and not args):
        found.open = True
        return
    if origin is typing.Literal or id(bare) in seen:
        return
    seen.add(id(bare))
    found.abstract = found.abstract or origin in _ABSTRACT
    found.own = found.own or origin in _OWN
    for arg in args:
        if arg is not Ellipsis:
            _visit(arg, found, seen)
    if isinstance(origin, type) and origin not in OUTCOMES:
        for hint in field_hints(bare).values():
            _visit(hint, found, seen)


def has_fields(kind: Any) -> bool:
    """Whether a class is a Struct, dataclass, NamedTuple, TypedDict or model."""
    return (
        any(hasattr(kind, mark) for mark in ("__struct_fields__", "_fields", "model_fields", "__attrs_attrs__"))
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
    )


def field_hints(annotation: Any) -> dict[str, Any]:
    """Annotations of a class's fields, with the type arguments of a generic one filled in; empty when it has none."""
    kind = get_origin(annotation) or annotation
    if not has_fields(kind):
        return {}
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:
        return {}
    given = dict(zip(getattr(kind, "__parameters__", ()), get_args(annotation), strict=False))
    return {name: _fill(hint, given) for name, hint in hints.items() if get_origin(hint) is not typing.ClassVar}


def _fill(hint: Any, given: dict[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(name, name) for name in parameters)] if parameters and given else hint


def is_union(annotation: Any) -> bool:
    """Whether it is ``A | B``."""
    return get_origin(annotation) in {Union, types.UnionType}


def tags(members: tuple[Any, ...]) -> list[str]:
    """A name for each member of a union: its class's, so that stored values survive new and reordered members.

    Type arguments and the place count only where members would share a name (``list[int] | list[str]``).
    """
    bare = [unwrap(member) for member in members]
    short = [text_of(get_origin(member) or member) for member in bare]
    names = [name if short.count(name) == 1 else text_of(member) for name, member in zip(short, bare, strict=True)]
    return [name if names.count(name) == 1 else f"{name}#{names[:at].count(name)}" for at, name in enumerate(names)]
