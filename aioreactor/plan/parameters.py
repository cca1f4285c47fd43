"""The parameters of the user's callables, read once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec

from aioreactor.definition.annotations import UNKNOWN, Namespace, Unresolved, marks
from aioreactor.definition.convert import Converter, converter_for
from aioreactor.definition.markers import ContextMark, is_resource

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a callable."""

    name: str
    annotation: Any
    default: Any
    keyword: bool

    @property
    def wants_context(self) -> bool:
        """Whether it is annotated `Context`."""
        if isinstance(self.annotation, Unresolved):
            return self.annotation.text.rpartition(".")[2] == "Context"
        return isinstance(self.annotation, type) and issubclass(self.annotation, ContextMark)

    @property
    def wants_resource(self) -> bool:
        """Whether it is annotated ``Annotated[…, Resource]``."""
        return is_resource(self.annotation)

    @property
    def constraint(self) -> Converter | None:
        """Its check, when the annotation carries constraints (``Meta``)."""
        return converter_for(self.annotation) if _is_constrained(self.annotation) else None


def _is_constrained(annotation: Any) -> bool:
    if isinstance(annotation, list):  # the parameters of a Callable
        return False
    inside = any(map(_is_constrained, get_args(annotation))) if get_origin(annotation) is not Literal else False
    return inside or any(isinstance(mark, msgspec.Meta) for mark in marks(annotation))


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def is_generator(fn: Callable[..., Any]) -> bool:
    """Whether its body contains ``yield``."""
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def _globals_of(fn: Callable[..., Any]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = getattr(inspect.unwrap(fn), "__globals__", None)
    return found


def parameters(fn: Callable[..., Any], space: Namespace, *, method: bool = True) -> tuple[list[Param], list[str]]:
    """Its parameters without ``self``, and what is wrong with them."""
    try:
        given = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return [], [f"{fn!r} has no signature that can be read; wrap it in a function"]
    problems = []
    if method and (not given or given[0].kind not in {given[0].POSITIONAL_ONLY, given[0].POSITIONAL_OR_KEYWORD}):
        problems.append("the first parameter of a method is self; add it")
    found = []
    for parameter in given[1:] if method else given:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            problems.append(f"{parameter} cannot be wired; name each parameter")
            continue
        annotation = parameter.annotation
        if annotation is not UNKNOWN:
            annotation = space.resolve(annotation, _globals_of(fn))
        found.append(Param(parameter.name, annotation, parameter.default, parameter.kind is parameter.KEYWORD_ONLY))
    return found, problems


def returns(fn: Callable[..., Any], space: Namespace) -> Any:
    """Its return annotation."""
    written = getattr(inspect.unwrap(fn), "__annotations__", {}).get("return", UNKNOWN)
    return written if written is UNKNOWN else space.resolve(written, _globals_of(fn))
