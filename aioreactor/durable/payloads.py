"""Payloads of interrupts, checked by the type that they are declared with. Pure."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from aioreactor.definition.convert import converter_for
from aioreactor.errors import InputValidationError

_REFUSED = (msgspec.ValidationError, ValueError, TypeError)


def checked_payload(path: str, annotation: Any, payload: Any) -> Any:
    """The payload as what it is declared to be.

    Raises:
        InputValidationError: it is not; with the mistakes of all its fields.
    """
    owner = f"interrupt {path!r}"
    if isinstance(payload, Mapping):
        mistakes = _by_field(annotation, payload)
        if mistakes:
            raise InputValidationError(owner, mistakes)
    try:
        return converter_for(annotation)(payload)
    except _REFUSED as error:
        raise InputValidationError(owner, {"*": [str(error)]}) from error


def _by_field(annotation: Any, payload: Mapping[Any, Any]) -> dict[str, list[str]]:
    """The mistakes in the fields of a payload that is given as a mapping; none when the type has no fields."""
    found: dict[str, list[str]] = {}
    for name, kind, required in _fields(annotation):
        if name not in payload:
            if required:
                found[name] = ["is required"]
            continue
        try:
            converter_for(kind)(payload[name])
        except _REFUSED as error:
            found[name] = [str(error)]
    return found


def _fields(annotation: Any) -> list[tuple[str, Any, bool]]:
    """Name, type, and whether it is required, of each field."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        known = msgspec.structs.fields(annotation)
        return [(field.encode_name, field.type, field.required) for field in known]
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        types = typing.get_type_hints(annotation, include_extras=True)
        missing = dataclasses.MISSING
        return [
            (field.name, types[field.name], field.default is missing and field.default_factory is missing)
            for field in dataclasses.fields(annotation)
            if field.init
        ]
    return []
