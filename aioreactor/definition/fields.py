"""The annotated fields of a reactor (its inputs) and of a step class (its contract)."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, get_origin

import msgspec

from aioreactor.definition.annotations import Namespace, Unresolved, strip, text_of
from aioreactor.definition.convert import Converter, converter_for
from aioreactor.definition.markers import is_resource
from aioreactor.redaction import is_redacted

REQUIRED: Final = inspect.Parameter.empty
_FRESH_WHEN_EMPTY = (list, dict, set)


class Field:
    """One declared field: its annotation, default and marks; ``convert`` validates a value for it."""

    __slots__ = ("_convert", "annotation", "default", "name", "redacted", "resource")

    def __init__(self, name: str, annotation: Any, default: Any = REQUIRED) -> None:
        self.name = name
        self.annotation = annotation
        self.default = default
        self.redacted = is_redacted(annotation)
        self.resource = is_resource(annotation)
        self._convert: Converter | None = None

    @property
    def required(self) -> bool:
        """Whether a value has to be given."""
        return self.default is REQUIRED and not self.resource

    def make_default(self) -> Any:
        """The default; a fresh one each time when it is an empty container."""
        return type(self.default)() if isinstance(self.default, _FRESH_WHEN_EMPTY) else self.default

    def convert(self, value: Any) -> Any:
        """The validated value.

        Raises:
            msgspec.ValidationError: it does not fit.
        """
        if self._convert is None:
            self._convert = converter_for(self.annotation)
        return self._convert(value)

    def problem(self) -> str | None:
        """What is wrong with the declaration itself, with its fix."""
        if isinstance(self.default, _FRESH_WHEN_EMPTY) and self.default:
            return (
                f"field {self.name!r}: a mutable default that is not empty would be shared by all runs; "
                f"leave it empty, use a tuple, or fill it in a step"
            )
        if self.default is REQUIRED or isinstance(self.annotation, Unresolved) or self.resource:
            return None
        try:
            self.convert(self.make_default())
        except msgspec.ValidationError as error:
            return (
                f"field {self.name!r}: its default {self.default!r} does not fit {text_of(strip(self.annotation))} "
                f"({error}); change the default or the annotation"
            )
        return None

    def __repr__(self) -> str:
        return f"Field({self.name}: {text_of(self.annotation)})"


class FieldSet:
    """All fields of one class, in definition order."""

    __slots__ = ("by_name", "hidden", "inputs", "resources")

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.by_name = dict(fields)
        self.inputs = tuple(field for field in self.by_name.values() if not field.resource)
        self.resources = tuple(field for field in self.by_name.values() if field.resource)
        self.hidden = frozenset(field.name for field in self.by_name.values() if field.redacted)

    def unresolved(self) -> list[Field]:
        """Fields whose annotation is not known yet."""
        return [field for field in self.by_name.values() if isinstance(field.annotation, Unresolved)]

    def validate(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """Values by field, and the messages of *all* faulty ones."""
        values: dict[str, Any] = {}
        errors: dict[str, list[str]] = {}
        for field in self.inputs:
            name = field.name
            if name not in given:
                if field.default is REQUIRED:
                    errors[name] = ["is required"]
                else:
                    values[name] = field.make_default()
                continue
            try:
                values[name] = field.convert(given[name])
            except msgspec.ValidationError as error:
                errors[name] = [str(error)]
        if len(given) > len(values) + len(errors) or any(name not in values and name not in errors for name in given):
            errors.update((name, [self._unknown(name)]) for name in given if name not in values and name not in errors)
        return values, errors

    def _unknown(self, name: str) -> str:
        field = self.by_name.get(name)
        if field is not None and field.resource:
            return "is a resource: it is supplied by the runtime (configure(resources=…)), never by a start call"
        return f"is not an input{closest_text(name, (field.name for field in self.inputs))}"


def closest_text(name: str, names: Iterable[str]) -> str:
    """``; the closest is 'x'`` when something is close, else the names there are."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=2)
    if close:
        return f"; the closest is {', '.join(map(repr, close))}"
    return f"; there are: {', '.join(known)}" if known else ""


def _own_annotations(cls: type) -> Mapping[str, Any]:
    return inspect.get_annotations(cls)


def _is_class_variable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.startswith(("ClassVar", "typing.ClassVar"))
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def collect(cls: type, namespaces: Mapping[type, Namespace]) -> dict[str, Field]:
    """Fields of a class and of its bases, base first; an override keeps the place of what it overrides."""
    fields: dict[str, Field] = {}
    for owner in reversed(cls.__mro__):
        space = namespaces.get(owner)
        if space is None:
            continue
        for name, written in _own_annotations(owner).items():
            if not _is_class_variable(written):
                fields[name] = Field(name, space.resolve(written), owner.__dict__.get(name, REQUIRED))
    return fields
