"""From annotation to coder: msgspec's own where it can keep the type, else one of `codec_coders` put together."""

from __future__ import annotations

import collections
import collections.abc
import enum
import typing
from functools import lru_cache
from typing import Any, get_args, get_origin

from aioreactor.definition.annotations import text_of
from aioreactor.store.codec_coders import PLAIN, ByName, Coder, Entries, Items, Member, Native, One, Record, Row, Union
from aioreactor.store.codec_compare import Mode
from aioreactor.store.codec_facts import OUTCOMES, Facts, facts_of, has_fields, is_open, is_union, tags, unwrap
from aioreactor.store.codec_outcomes import OutcomeCoder
from aioreactor.store.codec_wire import Unencodable


def coder_for(annotation: Any) -> Coder:
    """The coder of an annotation.

    Raises:
        Unencodable: values of this annotation cannot be stored.
    """
    try:
        hash(annotation)
    except TypeError:
        return _make(annotation)
    return _cached(annotation)


@lru_cache(maxsize=2048)
def _cached(annotation: Any) -> Coder:
    return _make(annotation)


def mode_for(facts: Facts) -> Mode:
    """How close a value of an annotation has to come back."""
    return Mode.TOLERANT if facts.open or facts.abstract else Mode.EQUAL


def _make(annotation: Any) -> Coder:
    if is_open(annotation):
        return PLAIN
    reason = "msgspec does not know it"
    if not facts_of(annotation).own:
        try:
            return Native(annotation)
        except Exception as error:
            reason = str(error)
    try:
        made = _make_own(unwrap(annotation))
    except RecursionError:
        made = None
    if made is None:
        raise Unencodable(f"{text_of(annotation)} is no type that can be stored: {reason}")
    return made


def _make_own(annotation: Any) -> Coder | None:
    origin, args = get_origin(annotation) or annotation, get_args(annotation)
    if origin in OUTCOMES:
        return OutcomeCoder(origin, coder_for(args[0]) if args else PLAIN)
    if is_union(annotation):
        return _make_union(args)
    if origin is typing.Literal:
        return One(args)
    if not isinstance(origin, type):
        return None
    if issubclass(origin, enum.Enum):
        return ByName(origin)
    if has_fields(origin):
        return Record(annotation, coder_for)
    return _make_collection(origin, args)


def _make_union(members: tuple[Any, ...]) -> Union:
    named = zip(tags(members), members, strict=True)
    return Union([Member(tag, unwrap(one), coder_for(one), mode_for(facts_of(one))) for tag, one in named])


def _make_collection(origin: type, args: tuple[Any, ...]) -> Coder | None:
    if origin is tuple and args:
        return Items(tuple, coder_for(args[0])) if args[-1] is Ellipsis else Row([coder_for(arg) for arg in args])
    if len(args) == 2 and issubclass(origin, collections.abc.Mapping):
        return Entries(origin if issubclass(origin, dict) else dict, coder_for(args[0]), coder_for(args[1]))
    if len(args) != 1:
        return PLAIN if origin in _ABSTRACT else None
    if issubclass(origin, (list, set, frozenset, collections.deque)):
        return Items(origin, coder_for(args[0]))
    if issubclass(origin, collections.abc.Set):
        return Items(set, coder_for(args[0]))
    return Items(list, coder_for(args[0])) if issubclass(origin, _ABSTRACT) else None


_ABSTRACT = (collections.abc.Iterable, collections.abc.Container)
