"""Validation of one value against one annotation, by msgspec where it can and by ``isinstance`` where it cannot."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec

Converter: TypeAlias = Callable[[Any], Any]
"""Gives the validated value, or raises `msgspec.ValidationError`."""

_EXACT = (int, str, float, bool, bytes)


def _foreign(kind: type, value: Any) -> Any:
    """What msgspec does not know: instances pass, pydantic-like models are built, the rest is refused by msgspec."""
    if isinstance(value, kind):
        return value
    build = getattr(kind, "model_validate", None)
    return build(value) if build is not None else value


def _by_msgspec(annotation: Any) -> Converter:
    def convert(value: Any) -> Any:
        return msgspec.convert(value, annotation, dec_hook=_foreign)

    return convert


def _exactly(kind: type) -> Converter:
    slow = _by_msgspec(kind)

    def convert(value: Any) -> Any:
        return value if type(value) is kind else slow(value)

    return convert


def _first_that_fits(members: list[Converter], text: str) -> Converter:
    def convert(value: Any) -> Any:
        for member in members:
            try:
                return member(value)
            except msgspec.ValidationError:
                continue
        raise msgspec.ValidationError(f"Expected `{text}`, got `{type(value).__name__}`")

    return convert


def _instance_of(kind: type) -> Converter:
    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise msgspec.ValidationError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")

    return convert


def _anything(value: Any) -> Any:
    return value


def _is_supported(annotation: Any) -> bool:
    try:
        msgspec.json.Decoder(annotation)
    except Exception:
        return False
    return not _is_unchecked_protocol(annotation)


def _is_unchecked_protocol(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    return bool(getattr(kind, "_is_protocol", False)) and not getattr(kind, "_is_runtime_protocol", False)


def converter_for(annotation: Any) -> Converter:
    """The check for one annotation; built once, when the class is created."""
    if annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar):
        return _anything
    if annotation in _EXACT:
        return _exactly(annotation)
    if _is_supported(annotation):
        return _by_msgspec(annotation)
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(bare) in {Union, types.UnionType}:
        return _first_that_fits([converter_for(member) for member in get_args(bare)], str(bare))
    kind = get_origin(bare) or bare
    if isinstance(kind, type) and not _is_unchecked_protocol(kind):
        return _instance_of(kind)
    return _anything
