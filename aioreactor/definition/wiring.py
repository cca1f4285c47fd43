"""Where a parameter's value comes from, written as its default: ``booked: Reservation = result(reserve)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from aioreactor.definition.nodes import Node

R = TypeVar("R")
V = TypeVar("V")


class Wire:
    """Base of the three sources. ``path`` walks into the value, ``transform`` maps what it finds."""

    __slots__ = ("path", "transform")

    def __init__(self, path: tuple[str | int, ...] = (), transform: Callable[[Any], Any] | None = None) -> None:
        self.path = path
        self.transform = transform

    @property
    def plain(self) -> bool:
        """Whether the source's value is taken as it is."""
        return not self.path and self.transform is None


class ResultWire(Wire):
    """The result of a step, given by the step itself or by its name."""

    __slots__ = ("source",)

    def __init__(
        self, source: Node[Any] | str, path: tuple[str | int, ...] = (), transform: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(path, transform)
        self.source = source

    def __repr__(self) -> str:
        name = self.source if isinstance(self.source, str) else self.source.label
        return f"result({', '.join([name, *map(repr, self.path)])})"


class InputWire(Wire):
    """An input of the reactor."""

    __slots__ = ("name",)

    def __init__(
        self, name: str, path: tuple[str | int, ...] = (), transform: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(path, transform)
        self.name = name

    def __repr__(self) -> str:
        return f"from_input({', '.join(map(repr, (self.name, *self.path)))})"


class ValueWire(Wire):
    """A fixed value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def __repr__(self) -> str:
        return f"value({self.value!r})"


@overload
def result(step: Node[R], /) -> R: ...
@overload
def result(step: Node[R], /, *, transform: Callable[[R], V]) -> V: ...
@overload
def result(step: str, /, *path: str | int) -> Any: ...
@overload
def result(step: str, /, *path: str | int, transform: Callable[[Any], V]) -> V: ...
@overload
def result(step: Node[Any], first: str | int, /, *path: str | int) -> Any: ...
@overload
def result(step: Node[Any], first: str | int, /, *path: str | int, transform: Callable[[Any], V]) -> V: ...
def result(step: Node[Any] | str, /, *path: str | int, transform: Callable[[Any], Any] | None = None) -> Any:
    """Wire a parameter to a step's result, or to a part of it: ``result(load, "user", "id")``.

    A text in ``path`` is a key of a mapping or an attribute, a number an index. ``transform`` maps the value.
    Typed as what the step returns, so a wrong wiring is an error in the editor.
    """
    return ResultWire(step, path, transform)


def from_input(name: str, /, *path: str | int, transform: Callable[[Any], Any] | None = None) -> Any:
    """Wire a parameter to an input, or to a part of it: ``from_input("user", "id")``."""
    return InputWire(name, path, transform)


def value(fixed: R, /) -> R:
    """Wire a parameter to a fixed value."""
    return ValueWire(fixed)  # type: ignore[return-value]


def as_wire(given: Any) -> Wire:
    """What a keyword of ``Charge.step(…)`` or ``compose(…)`` means: a wire as it is, a step's result, or a value."""
    from aioreactor.definition.nodes import Node

    if isinstance(given, Wire):
        return given
    return ResultWire(given) if isinstance(given, Node) else ValueWire(given)


def as_wires(wiring: Mapping[str, Any], explicit: Mapping[str, Any] | None) -> dict[str, Wire]:
    """Keyword wiring, with ``wire={…}`` for names that are policy words."""
    return {name: as_wire(given) for name, given in {**wiring, **(explicit or {})}.items()}


def walk(value: Any, path: tuple[str | int, ...]) -> Any:
    """Follow a path: mapping keys or attributes by text, items by number.

    Raises:
        LookupError, AttributeError, TypeError: the value has no such part.
    """
    for part in path:
        value = getattr(value, part) if isinstance(part, str) and not isinstance(value, Mapping) else value[part]
    return value
