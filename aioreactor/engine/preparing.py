"""What an attempt finds ready: what is worked out once per node, arguments that are kept, instances of step classes."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import CO_COROUTINE
from types import FunctionType
from typing import TYPE_CHECKING, Any

from aioreactor.engine.scope import Scope
from aioreactor.plan.model import Arg, PlanNode, Source

if TYPE_CHECKING:
    from aioreactor.engine.services import Services


class Prepared:
    """What can be worked out once per node. ``fast`` lists, per parameter, whether it is an input, and its key."""

    __slots__ = ("direct", "fast", "fn", "gated", "is_async", "made", "recorded", "scoped")

    def __init__(self, node: PlanNode) -> None:
        assert node.body is not None
        self.fn = node.body.fn
        self.is_async = node.body.is_async
        plain = all(_is_plain(arg) for arg in node.args) and node.step_class is None
        self.fast: tuple[tuple[bool, Any], ...] | None = (
            tuple(
                (arg.source is Source.INPUT, arg.name if arg.source is Source.INPUT else arg.index) for arg in node.args
            )
            if plain
            else None
        )
        calls = [call for call in (node.undo, node.compensate) if call is not None]
        asked = any(arg.source is Source.ARGUMENT for call in calls for arg in call.args)
        self.gated = bool(node.coordination)
        self.recorded = bool(calls) and (asked or node.step_class is not None or (self.gated and not plain))
        self.made = _made_in(node) if self.recorded else ()
        self.scoped = node.timeout is not None or self.gated
        native = isinstance(self.fn, FunctionType) and bool(self.fn.__code__.co_flags & CO_COROUTINE)
        self.direct = native and not self.scoped


def _is_plain(arg: Arg) -> bool:
    simple = arg.source in {Source.INPUT, Source.RESULT} and not arg.path and arg.transform is None
    return simple and arg.check is None and not arg.keyword


def _made_in(node: PlanNode) -> tuple[str, ...]:
    """Arguments that a transformation or a default makes; all others follow from inputs and results."""
    given = {arg.parameter for arg in node.args}
    fields = node.step_class.__aioreactor_fields__.inputs if node.step_class is not None else ()
    transformed = tuple(arg.parameter for arg in node.args if arg.transform is not None)
    return transformed + tuple(field.name for field in fields if field.name not in given)


def prepared_of(node: PlanNode) -> Prepared:
    """The prepared form of a step, made on first use."""
    if node.prepared is None:
        node.prepared = Prepared(node)
    made: Prepared = node.prepared
    return made


def remember(scope: Scope, index: int, prepared: Prepared, values: Mapping[str, Any]) -> None:
    """Keep what a body was given, for its undo and compensate."""
    scope.arguments = scope.arguments or {}
    scope.arguments[index] = values
    if prepared.made:
        scope.made = scope.made or {}
        scope.made[index] = {name: values[name] for name in prepared.made if name in values}


def instance_of(ex: Services, node: PlanNode, values: Mapping[str, Any]) -> Any:
    """A fresh instance of a step class: nothing is kept between its actions."""
    cls = node.step_class
    assert cls is not None
    instance = object.__new__(cls)
    instance.__dict__.update(values)
    for field in cls.__aioreactor_fields__.resources:
        instance.__dict__[field.name] = ex.resource(field.name, field.annotation)
    return instance
