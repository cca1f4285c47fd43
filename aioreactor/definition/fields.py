"""The annotated fields of a reactor (its inputs) and of a step class (its contract)."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, get_origin

import msgspec

from aioreactor.definition.annotations import Namespace, Unresolved, strip, text_of
from aioreactor.definition.convert import Converter, converter_for
from aioreactor.definition.markers import is_resource
from aioreactor.redaction import is_redacted

REQUIRED: Final = inspect.Parameter.empty
_CONTAINERS = (list, dict, set, bytearray, deque)
_UNMADE: Final = object()


class Field:
    """One declared field: its annotation, default and marks; ``convert`` validates a value for it."""

    __slots__ = ("_convert", "_made", "_remake", "annotation", "default", "name", "redacted", "resource")

    def __init__(self, name: str, annotation: Any, default: Any = REQUIRED) -> None:
        self.name = name
        self.annotation = annotation
        self.default = default
        self.redacted = is_redacted(annotation.text if isinstance(annotation, Unresolved) else annotation)
        self.resource = is_resource(annotation)
        self._convert: Converter | None = None
        self._made: Any = _UNMADE
        self._remake: Callable[[], Any] | None = None

    @property
    def required(self) -> bool:
        """Whether a value has to be given."""
        return self.default is REQUIRED and not self.resource

    def make_default(self) -> Any:
        """The default as its annotation says; a fresh one each time when it is an empty container.

        Raises:
            msgspec.ValidationError: it does not fit (found when the class is created).
        """
        if self._made is _UNMADE:
            made = self.convert(self.default)
            same_kind = isinstance(self.default, _CONTAINERS) and isinstance(self.default, type(made))
            self._made = self.default if same_kind else made  # a defaultdict keeps its factory
            self._remake = self._fresh(self._made)
        return self._made if self._remake is None else self._remake()

    def _fresh(self, made: Any) -> Callable[[], Any] | None:
        """How to make the default again, when one for all would be shared and can be changed."""
        if not is_mutable(made):
            return None
        return made.copy if isinstance(made, _CONTAINERS) and not made else partial(self.convert, self.default)

    @property
    def differs(self) -> bool:
        """Whether an instance has a default of its own, other than what the class's body says."""
        return self.default is not REQUIRED and not self.resource and self.make_default() is not self.default

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
        if self.default is REQUIRED or self.resource:
            return None
        if is_mutable(self.default):
            problem = self._shared_default()
            if problem is not None:
                return problem
        if isinstance(self.annotation, Unresolved):
            return None
        try:
            self.make_default()
        except msgspec.ValidationError as error:
            return (
                f"field {self.name!r}: its default {self.default!r} does not fit {text_of(strip(self.annotation))} "
                f"({error}); change the default or the annotation"
            )
        return None

    def _shared_default(self) -> str | None:
        if not isinstance(self.default, _CONTAINERS):
            return (
                f"field {self.name!r}: its default, a {type(self.default).__name__} that can be changed, would be "
                f"shared by all runs; make the class frozen, or make the object in a step"
            )
        if not self.default:
            return None
        return (
            f"field {self.name!r}: a mutable default that is not empty would be shared by all runs; "
            f"leave it empty, use a tuple, or fill it in a step"
        )

    def __repr__(self) -> str:
        return f"Field({self.name}: {text_of(self.annotation)})"


class FieldSet:
    """All fields of one class, in definition order."""

    __slots__ = ("_differing", "by_name", "hidden", "inputs", "resources")

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.by_name = dict(fields)
        self.inputs = tuple(field for field in self.by_name.values() if not field.resource)
        self.resources = tuple(field for field in self.by_name.values() if field.resource)
        self.hidden = frozenset(field.name for field in self.by_name.values() if field.redacted)
        self._differing: tuple[Field, ...] | None = None

    def instance_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults that an instance cannot read from its class: converted ones, fresh containers."""
        if self._differing is None:
            self._differing = tuple(field for field in self.inputs if field.differs)
        return {field.name: field.make_default() for field in self._differing if field.name not in given}

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


def is_mutable(value: Any) -> bool:
    """Whether it can be changed in place: a container, a Struct, dataclass or model that is not frozen."""
    kind: Any = type(value)
    if isinstance(value, _CONTAINERS):
        return True
    if isinstance(value, msgspec.Struct):
        return bool(value.__struct_fields__) and not value.__struct_config__.frozen
    if dataclasses.is_dataclass(kind):
        return bool(dataclasses.fields(kind)) and not getattr(kind, "__dataclass_params__").frozen  # noqa: B009
    return bool(getattr(kind, "model_fields", None)) and not kind.model_config.get("frozen", False)


def closest_text(name: str, names: Iterable[str]) -> str:
    """``; the closest is 'x'`` when something is close, else the names there are."""
    known = list(dict.fromkeys(names))
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
