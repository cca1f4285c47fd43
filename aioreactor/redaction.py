"""Secrets stay out of everything a person reads: failures, traces, events, logs, ``repr``.

`display` turns a value into what may be shown; `secrets_in` collects the texts that must not appear, and a
`Scrubber` takes them out of exception texts. Steps and the store always get the real values.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

REDACTED = "[redacted]"
_SCALARS = (str, bytes, bytearray, int, float, complex, bool, type(None))
_DEEPEST = 100


class Redact:
    """Marks a field as secret: ``card: Annotated[str, Redact]``."""

    def __repr__(self) -> str:
        return "Redact"


def is_redacted(annotation: Any) -> bool:
    """Whether an annotation carries the `Redact` mark (the class or an instance of it), at the top or inside.

    A text that could not be resolved counts when it names the mark: better hidden once too often.
    """
    if isinstance(annotation, (str, ForwardRef)):
        return "Redact" in (annotation if isinstance(annotation, str) else annotation.__forward_arg__)
    if isinstance(annotation, list):  # the parameters of a Callable
        return any(map(is_redacted, annotation))
    origin = get_origin(annotation)
    if origin is None or origin is Literal:
        return False
    if origin is not Annotated:
        return any(map(is_redacted, get_args(annotation)))
    inner, *marks = get_args(annotation)
    return any(mark is Redact or isinstance(mark, Redact) for mark in marks) or is_redacted(inner)


class _Holder:
    __slots__ = ("__annotations__",)


def _hints(cls: type) -> tuple[dict[str, Any], bool]:
    """Annotations of a class, each resolved where it can be, else as written; and whether all were resolved."""
    try:
        return get_type_hints(cls, include_extras=True), True
    except Exception:
        found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        names = {**getattr(sys.modules.get(owner.__module__), "__dict__", {}), **vars(owner)}
        for name, written in inspect.get_annotations(owner).items():
            holder = _Holder()
            holder.__annotations__ = {name: written}
            try:
                found[name] = get_type_hints(holder, names, names, include_extras=True)[name]
            except Exception:
                found[name] = written
    return found, False


def _is_importing(module: str) -> bool:
    """Whether names may still be added to a module: what cannot be resolved yet is tried again then."""
    return bool(getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False))


_KNOWN: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def secret_fields(cls: type) -> frozenset[str]:
    """Names of the fields of a Struct, dataclass, named tuple or model that are marked; empty for anything else."""
    if cls.__module__ == "builtins":
        return frozenset()
    known = _KNOWN.get(cls)
    if known is None:
        hints, complete = _hints(cls)
        known = frozenset(name for name, hint in hints.items() if is_redacted(hint))
        if complete or not _is_importing(cls.__module__):
            _KNOWN[cls] = known
    return known


def _field_names(value: Any) -> Iterator[str]:
    cls = type(value)
    names = getattr(cls, "__struct_fields__", None) or getattr(cls, "model_fields", None)
    if names is None and dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    if names is None and isinstance(value, tuple):
        names = getattr(cls, "_fields", None)
    return iter(names or ())


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(value, name)) for name in _field_names(value) if hasattr(value, name))


def _is_sequence(value: Any) -> bool:
    """Whether it is a plain collection of items; a named tuple has fields instead."""
    return isinstance(value, (list, tuple, set, frozenset)) and not hasattr(type(value), "_fields")


def _inside(value: Any) -> Iterable[Any]:
    """What a value that is no scalar holds."""
    if isinstance(value, Mapping):
        return value.values()
    return value if _is_sequence(value) else (item for _, item in _parts(value))


class _Seen(dict[int, Any]):
    """Values that were looked at; they are kept, so that no other can take their id meanwhile."""

    def again(self, value: Any) -> bool:
        if id(value) in self:
            return True
        self[id(value)] = value
        return False


def _has_secrets(value: Any, depth: int = _DEEPEST, seen: _Seen | None = None) -> bool:
    if isinstance(value, _SCALARS):
        return False
    if depth == 0:
        return True  # nobody knows: hidden rather than shown
    seen = _Seen() if seen is None else seen
    if seen.again(value):
        return False
    if not isinstance(value, Mapping) and not _is_sequence(value) and secret_fields(type(value)):
        return True
    return any(_has_secrets(item, depth - 1, seen) for item in _inside(value))


def display(value: Any, depth: int = 8) -> Any:
    """The value as it may be shown: itself where nothing in it is marked, else plain data with the marks hidden.

    What holds marks deeper down than ``depth`` is hidden as a whole.
    """
    if not _has_secrets(value):
        return value
    if depth == 0:
        return REDACTED
    if isinstance(value, Mapping):
        return {key: display(item, depth - 1) for key, item in value.items()}
    if _is_sequence(value):
        return [display(item, depth - 1) for item in value]
    hidden = secret_fields(type(value))
    return {name: REDACTED if name in hidden else display(item, depth - 1) for name, item in _parts(value)}


def display_fields(values: Mapping[str, Any], hidden: Iterable[str]) -> dict[str, Any]:
    """`display` for the named fields of a reactor or a step."""
    secret = frozenset(hidden)
    return {name: REDACTED if name in secret else display(item) for name, item in values.items()}


def _forms(text: str, shown: str) -> Iterator[str]:
    """A secret as it is, as ``repr`` shows it, and as JSON writes it."""
    yield from dict.fromkeys((text, shown, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]))


def _texts(value: Any, depth: int = _DEEPEST, seen: _Seen | None = None) -> Iterator[str]:
    """Every text form under which a secret value could turn up in a message."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, (bytes, bytearray)):
        yield from _forms(bytes(value).decode("utf-8", "replace"), repr(bytes(value))[2:-1])
    elif isinstance(value, str):
        yield from _forms(value, repr(value)[1:-1])
    elif isinstance(value, _SCALARS):
        yield str(value)
    else:
        seen = _Seen() if seen is None else seen
        if depth == 0 or seen.again(value):
            return
        found = False
        for item in _inside(value):
            found = True
            yield from _texts(item, depth - 1, seen)
        if not found and not isinstance(value, Mapping) and not _is_sequence(value):
            yield str(value)


def secrets_in(value: Any, depth: int = _DEEPEST, seen: _Seen | None = None) -> Iterator[str]:
    """Texts of everything marked inside a value that is not itself marked."""
    if isinstance(value, _SCALARS) or depth == 0:
        return
    seen = _Seen() if seen is None else seen
    if seen.again(value):
        return
    if isinstance(value, Mapping) or _is_sequence(value):
        for item in _inside(value):
            if not isinstance(item, _SCALARS):
                yield from secrets_in(item, depth - 1, seen)
        return
    hidden = secret_fields(type(value))
    for name, item in _parts(value):
        yield from _texts(item) if name in hidden else secrets_in(item, depth - 1, seen)


def secrets_of_fields(values: Mapping[str, Any], hidden: Iterable[str]) -> Iterator[str]:
    """Texts of the marked fields of a reactor or a step, and of marks nested in the others."""
    secret = frozenset(hidden)
    for name, item in values.items():
        if name in secret:
            yield from _texts(item)
        elif not isinstance(item, _SCALARS):
            yield from secrets_in(item)


_PATH = r"\$(?:\.\w+|\[(?:\d+|\.\.\.)\])+"
"""Where in a value a validation message points to: ``$[1].n``."""


class Scrubber:
    """Replaces secret texts.

    Those under four characters are replaced only as whole words, and not in the paths of validation messages, or
    they would eat the rest; a single character is no secret.
    """

    __slots__ = ("_long", "_short")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = sorted({text for text in secrets if len(text.strip()) > 1}, key=len, reverse=True)
        long = "|".join(re.escape(text) for text in found if len(text) > 3)
        short = "|".join(re.escape(text) for text in found if len(text) <= 3)
        self._long = re.compile(long) if long else None
        self._short = re.compile(rf"({_PATH})|(?<!\w)(?:{short})(?!\w)") if short else None

    def __call__(self, text: str) -> str:
        """The text without the secrets."""
        if self._long is not None:
            text = self._long.sub(REDACTED, text)
        return text if self._short is None else self._short.sub(lambda found: found[1] or REDACTED, text)


NOTHING_TO_SCRUB = Scrubber()
