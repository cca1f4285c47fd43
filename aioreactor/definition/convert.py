"""Validation of one value against one annotation, by msgspec where it can and by ``isinstance`` where it cannot."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec

Converter: TypeAlias = Callable[[Any], Any]
"""Gives the validated value, or raises `msgspec.ValidationError`."""

_EXACT = (int, str, float, bool, bytes)
_UNIONS = (Union, types.UnionType)


def _foreign(kind: Any, value: Any) -> Any:
    """What msgspec does not know: instances pass, pydantic-like models are built, the rest is refused by msgspec."""
    bare = get_origin(kind) or kind
    if not isinstance(bare, type) or isinstance(value, bare):
        return value
    build = getattr(bare, "model_validate", None)
    return build(value) if build is not None else value


def _by_msgspec(annotation: Any) -> Converter:
    checked = _without_unchecked(annotation)
    relaxed: list[Converter | None] = []

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, checked, dec_hook=_foreign)
        except msgspec.ValidationError:
            if not relaxed:
                relaxed.append(_with_subclasses(annotation))
            if relaxed[0] is None:
                raise
            try:
                return relaxed[0](value)
            except msgspec.ValidationError:
                pass
            raise

    return convert


def _without_unchecked(annotation: Any) -> Any:
    """The annotation with `Any` for protocols that cannot be checked."""
    if _is_unchecked_protocol(annotation):
        return Any
    args = get_args(annotation)
    if not any(_is_unchecked_protocol(part) or get_args(part) for part in args):
        return annotation
    return _rebuilt(annotation, tuple(_without_unchecked(part) for part in args))


def _rebuilt(annotation: Any, args: tuple[Any, ...]) -> Any:
    origin = get_origin(annotation)
    if args == get_args(annotation) or origin is None:
        return annotation
    if origin is Annotated:
        return Annotated[args]
    return Union[args] if origin in _UNIONS else origin[args]  # noqa: UP007 - built from a tuple


# ---------------------------------------------------------------------- instances of subclasses


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))


def _with_subclasses(annotation: Any) -> Converter | None:
    """A converter that takes instances of subclasses where a Struct or dataclass is declared; None if none is.

    msgspec takes only the very class. Asked when it refused a value, so what usually fits pays nothing for this.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if _is_record(origin or annotation):
        return _instance_or(origin or annotation, annotation)
    inner = [_with_subclasses(part) for part in args if part is not Ellipsis] if origin is not Annotated else []
    if not any(inner):
        return _with_subclasses(args[0]) if origin is Annotated and _is_record(args[0]) else None
    parts = [made or converter_for(part) for made, part in zip(inner, args, strict=False)]
    if origin in _UNIONS:
        return _first_that_fits(parts, str(annotation))
    return _each(origin, parts, fixed=origin is tuple and args[-1] is not Ellipsis)


def _instance_or(kind: type, annotation: Any) -> Converter:
    def convert(value: Any) -> Any:
        return value if isinstance(value, kind) else msgspec.convert(value, annotation, dec_hook=_foreign)

    return convert


def _each(origin: Any, parts: list[Converter], *, fixed: bool) -> Converter | None:
    """The items of a built-in container, one by one."""
    if origin is dict or origin is Mapping:
        return lambda value: {parts[0](key): parts[1](item) for key, item in _expect(value, Mapping).items()}
    if fixed:
        return lambda value: tuple(
            part(item) for part, item in zip(parts, _expect(value, (tuple, list), len(parts)), strict=True)
        )
    if origin in {list, tuple, set, frozenset}:
        return lambda value: origin(parts[0](item) for item in _expect(value, (list, tuple, set, frozenset)))
    return None


def _expect(value: Any, kinds: Any, length: int | None = None) -> Any:
    if not isinstance(value, kinds) or (length is not None and len(value) != length):
        raise msgspec.ValidationError(f"got `{type(value).__name__}`")
    return value


# ---------------------------------------------------------------------- the rest


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
    if annotation is msgspec.Struct:
        return _instance_of(annotation)
    if _is_supported(annotation):
        return _by_msgspec(annotation)
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(bare) in _UNIONS:
        return _first_that_fits([converter_for(member) for member in get_args(bare)], str(bare))
    kind = get_origin(bare) or bare
    if isinstance(kind, type) and not _is_unchecked_protocol(kind):
        return _instance_of(kind)
    return _anything


def is_type(given: Any) -> bool:
    """Whether it is an annotation rather than a function."""
    plain = isinstance(given, (type, types.UnionType, typing.NewType))
    return plain or get_origin(given) is not None or given is Any


def output_check(given: Any) -> Converter | None:
    """The check that ``output=`` asks for: a type's converter, or a callable that raises, as it is."""
    if given is None or not (is_type(given) or callable(given)):
        return None
    check: Converter = converter_for(given) if is_type(given) else given
    return check


def output_problem(where: str, given: Any) -> list[str]:
    """Whether an ``output=`` can check anything."""
    if given is None or is_type(given) or callable(given):
        return []
    return [f"{where}: output={given!r}: a type, or a callable that raises"]
