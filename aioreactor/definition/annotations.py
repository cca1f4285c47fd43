"""Annotations as written, resolved as far as they can be at the time."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any, get_args, get_origin


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An annotation that names something not defined yet; tried again on first use."""

    text: str

    def __repr__(self) -> str:
        return self.text


UNKNOWN = inspect.Parameter.empty
"""The annotation of what has none."""


class _Holder:
    __slots__ = ("__annotations__",)


class Namespace:
    """Where the names in one class's annotations are looked up: itself, the function that defined it, its module."""

    __slots__ = ("_globals", "_locals")

    def __init__(self, module: str, local_names: Mapping[str, Any] | None = None) -> None:
        self._globals = sys.modules[module].__dict__ if module in sys.modules else {}
        self._locals = dict(local_names) if local_names else {}

    def resolve(self, annotation: Any, global_names: Mapping[str, Any] | None = None) -> Any:
        """The annotation with every name looked up, or `Unresolved`."""
        holder = _Holder()
        holder.__annotations__ = {"it": annotation}
        names = dict(global_names) if global_names is not None else self._globals
        try:
            return typing.get_type_hints(holder, names, self._locals, include_extras=True)["it"]
        except Exception:
            return Unresolved(annotation if isinstance(annotation, str) else repr(annotation))


def namespace_for(cls: type) -> Namespace:
    """The namespace of a class that is being created; called from its ``__init_subclass__``."""
    names = dict(caller_locals())
    if cls.__qualname__.rpartition("<locals>.")[2] == cls.__name__:
        names[cls.__name__] = cls
    inputs = inspect.get_annotations(cls)
    nested = {name: item for name, item in vars(cls).items() if _is_type(item) and name not in inputs}
    return Namespace(cls.__module__, {**names, **nested})


def _is_type(item: Any) -> bool:
    return isinstance(item, (type, typing.NewType, typing.TypeVar)) or get_origin(item) is not None


def caller_locals() -> Mapping[str, Any]:
    """Local names of the function whose body holds the class statement; empty at module level.

    Lets annotations under ``from __future__ import annotations`` name classes that are local to a function.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in {"__init_subclass__", "caller_locals", "namespace_for"}:
        frame = frame.f_back
    if frame is None or frame.f_locals is frame.f_globals:
        return {}
    return dict(frame.f_locals)


def strip(annotation: Any) -> Any:
    """The type without ``Annotated``."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def marks(annotation: Any) -> tuple[Any, ...]:
    """What ``Annotated`` adds."""
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def text_of(annotation: Any) -> str:
    """The annotation as a person would write it."""
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return str(annotation).replace("typing.", "")
