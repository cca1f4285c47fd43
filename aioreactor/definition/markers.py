"""Small words of the language: marks on annotations, and plain values with a meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from aioreactor.definition.annotations import marks

T = TypeVar("T")


class Resource:
    """Marks a parameter or field as supplied by the runtime: ``db: Annotated[Database, Resource]``.

    Resources are found by name, then by type, among ``configure(resources={…})``; they are never part of a start
    call and never stored.
    """

    def __repr__(self) -> str:
        return "Resource"


def is_resource(annotation: Any) -> bool:
    """Whether an annotation carries the `Resource` mark (the class or an instance of it)."""
    return any(mark is Resource or isinstance(mark, Resource) for mark in marks(annotation))


class Page(Generic[T]):
    """One page of a page source: its ``items``, and the cursor of the next page (None after the last)."""

    __slots__ = ("items", "next_cursor")

    def __init__(self, items: Sequence[T], next_cursor: Any = None) -> None:
        self.items = items
        self.next_cursor = next_cursor

    def __repr__(self) -> str:
        return f"Page({len(self.items)} items, next_cursor={self.next_cursor!r})"


class Default:
    """``interrupt(on_timeout=Default(value))``: go on with this value when the time is up."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Default({self.value!r})"


class Value:
    """``runs.decide(run_id, step, Value(x))``: take this value as the step's result."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Value({self.value!r})"


class ContextMark:
    """Base of `Context`, by which a definition recognises a parameter that asks for it."""

    __slots__ = ()
