"""Secrets stay out of everything a person reads: failures, traces, events, logs, ``repr``.

`display` turns a value into what may be shown; `secrets_in` collects the texts that must not appear, and a
`Scrubber` takes them out of exception texts. Steps and the store always get the real values.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

REDACTED = "[redacted]"
_SCALARS = (str, bytes, bytearray, int, float, complex, bool, type(None))


class Redact:
    """Marks a field as secret: ``card: Annotated[str, Redact]``."""

    def __repr__(self) -> str:
        return "Redact"


def is_redacted(annotation: Any) -> bool:
    """Whether an annotation carries the `Redact` mark (the class or an instance of it)."""
    if get_origin(annotation) is not Annotated:
        return False
    return any(mark is Redact or isinstance(mark, Redact) for mark in get_args(annotation)[1:])


@functools.lru_cache(maxsize=2048)
def _secret_fields(cls: Any) -> frozenset[str]:
    if cls.__module__ == "builtins":
        return frozenset()
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception:
        return frozenset()
    return frozenset(name for name, hint in hints.items() if is_redacted(hint))


def secret_fields(cls: type) -> frozenset[str]:
    """Names of the fields of a Struct, dataclass or model that are marked; empty for anything else."""
    found: frozenset[str] = _secret_fields(cls)
    return found


def _field_names(value: Any) -> Iterator[str]:
    cls = type(value)
    names = getattr(cls, "__struct_fields__", None) or getattr(cls, "model_fields", None)
    if names is None and dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    return iter(names or ())


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(value, name)) for name in _field_names(value) if hasattr(value, name))


def _has_secrets(value: Any, depth: int) -> bool:
    if isinstance(value, _SCALARS) or depth == 0:
        return False
    if isinstance(value, Mapping):
        return any(_has_secrets(item, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_secrets(item, depth - 1) for item in value)
    return bool(secret_fields(type(value))) or any(_has_secrets(item, depth - 1) for _, item in _parts(value))


def display(value: Any, depth: int = 8) -> Any:
    """The value as it may be shown: itself where nothing in it is marked, else plain data with the marks hidden."""
    if not _has_secrets(value, depth):
        return value
    if isinstance(value, Mapping):
        return {key: display(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [display(item, depth - 1) for item in value]
    hidden = secret_fields(type(value))
    return {name: REDACTED if name in hidden else display(item, depth - 1) for name, item in _parts(value)}


def display_fields(values: Mapping[str, Any], hidden: Iterable[str]) -> dict[str, Any]:
    """`display` for the named fields of a reactor or a step."""
    secret = frozenset(hidden)
    return {name: REDACTED if name in secret else display(item) for name, item in values.items()}


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Every text form under which a secret value could turn up in a message."""
    if depth == 0 or value is None or isinstance(value, bool):
        return
    if isinstance(value, (bytes, bytearray)):
        yield bytes(value).decode("utf-8", "replace")
    elif isinstance(value, _SCALARS):
        yield str(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item, depth - 1)
    else:
        parts = list(_parts(value))
        for _, item in parts:
            yield from _texts(item, depth - 1)
        if not parts:
            yield str(value)


def secrets_in(value: Any, depth: int = 8) -> Iterator[str]:
    """Texts of everything marked inside a value that is not itself marked."""
    if depth == 0 or isinstance(value, _SCALARS):
        return
    if isinstance(value, Mapping):
        for item in value.values():
            yield from secrets_in(item, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from secrets_in(item, depth - 1)
    else:
        hidden = secret_fields(type(value))
        for name, item in _parts(value):
            yield from _texts(item, depth - 1) if name in hidden else secrets_in(item, depth - 1)


def secrets_of_fields(values: Mapping[str, Any], hidden: Iterable[str]) -> Iterator[str]:
    """Texts of the marked fields of a reactor or a step, and of marks nested in the others."""
    secret = frozenset(hidden)
    for name, item in values.items():
        yield from _texts(item, 8) if name in secret else secrets_in(item)


class Scrubber:
    """Replaces secret texts. Short ones (under four characters) only as whole words, or they would eat the rest."""

    __slots__ = ("_pattern",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = sorted({text for text in secrets if text.strip()}, key=len, reverse=True)
        parts = [re.escape(text) if len(text) > 3 else rf"(?<!\w){re.escape(text)}(?!\w)" for text in found]
        self._pattern = re.compile("|".join(parts)) if parts else None

    def __call__(self, text: str) -> str:
        """The text without the secrets."""
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)


NOTHING_TO_SCRUB = Scrubber()
