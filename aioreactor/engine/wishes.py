"""What declared primitives come to for one body: their keys, the place that it takes them in, who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aioreactor.engine import events
from aioreactor.engine.arguments import FATAL
from aioreactor.engine.coordinating import Coordinator, Wish
from aioreactor.engine.scope import Scope
from aioreactor.errors import ArgumentError, ContentionError
from aioreactor.failures import describe
from aioreactor.plan.model import PlanNode

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Bound
    from aioreactor.engine.scheduler import Execution


def wishes_of(primitives: Iterable[Any], subject: Callable[[], Any], where: str) -> list[Wish]:
    """Declared primitives with their keys.

    Raises:
        ArgumentError: a key cannot be computed, or is none.
    """
    found = []
    for primitive in primitives:
        try:
            key = primitive.key_for(subject() if callable(primitive.key) else None)
        except FATAL:
            raise
        except BaseException as error:
            raise ArgumentError(where, "coordination", f"{primitive!r}: {describe(error)}") from error
        if not isinstance(key, str) or not key:
            raise ArgumentError(where, "coordination", f"{primitive!r}: its key is {key!r}, not a text")
        found.append(Wish(primitive, key))
    return found


def subject_of(node: PlanNode, bound: Bound) -> Any:
    """What a step's keys are computed from: the instance of its class, or an object with its arguments."""
    if node.step_class is not None:
        return bound.owner
    names = (arg.parameter for arg in node.args if not arg.keyword)
    return SimpleNamespace(**dict(zip(names, bound.positional, strict=True)), **bound.keywords)


def name_of(wishes: Sequence[Wish], error: ContentionError) -> str:
    """What it was that refused."""
    return next((wish.name for wish in wishes if wish.key == error.key), error.key)


def place_around(scope: Scope) -> Any:
    """The place of the nearest scope around that holds something."""
    return scope.guard.place if scope.guard is not None else None


def coordinator_of(ex: Execution) -> Coordinator:
    """What takes primitives; there is one wherever something declares them."""
    found = ex.coordinator
    assert found is not None
    return found


def hear(ex: Execution, scope: Scope, index: int | None, number: int, place: Any) -> None:
    """Have the hooks told of what happens to the holds of a place, without making anybody wait."""
    hooks = scope.hooks
    if hooks is None or not any(hooks.listening(name) for name in _HOOKS.values()):
        return

    def heard(fact: str, kind: str, key: str, waited: float) -> None:
        event, hook = _EVENTS[fact], _HOOKS[fact]
        fields: dict[str, Any] = {"waited": waited} if fact == "acquired" else {}
        ex._send(partial(ex.tell, scope, hook, event, index, number, kind=kind, key=key, scope=place.name, **fields))

    coordinator_of(ex).listen(place, heard)


_EVENTS: dict[str, Any] = {
    "acquired": events.HoldAcquired,
    "contended": events.HoldContended,
    "released": events.HoldReleased,
    "lost": events.HoldLost,
}
_HOOKS = {fact: f"on_hold_{fact}" for fact in _EVENTS}
