"""From an argument's source to its value, and the checks on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from aioreactor.definition.fields import FieldSet
from aioreactor.definition.wiring import walk
from aioreactor.engine.context import Context
from aioreactor.errors import ArgumentError, DefinitionError, InputValidationError
from aioreactor.failures import describe, error_text
from aioreactor.plan.model import Arg, Call, Plan, Source

if TYPE_CHECKING:
    from aioreactor.engine.scope import Scope
    from aioreactor.engine.services import Services


FATAL = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is never taken for a failure of the user's small callables (transforms, checks, sources)."""

_OWN_ITEM: Any = object()


class Frame:
    """Where arguments are resolved: a node of a scope, in one attempt or one rollback action."""

    __slots__ = ("attempt", "error", "execution", "index", "item", "own_result", "scope")

    def __init__(
        self,
        execution: Services,
        scope: Scope,
        index: int,
        *,
        attempt: int = 1,
        error: BaseException | None = None,
        own_result: Any = None,
        item: Any = _OWN_ITEM,
    ) -> None:
        self.execution = execution
        self.scope = scope
        self.index = index
        self.attempt = attempt
        self.error = error
        self.own_result = own_result
        self.item = scope.item if item is _OWN_ITEM else item


def _argument(arg: Arg, frame: Frame) -> Any:
    recorded = frame.scope.arguments
    assert recorded is not None
    return recorded[frame.index][arg.name]


_SOURCES: dict[Source, Callable[[Arg, Frame], Any]] = {
    Source.INPUT: lambda arg, frame: frame.scope.origin.inputs[arg.name],
    Source.RESULT: lambda arg, frame: frame.scope.origin.results[arg.index],
    Source.VALUE: lambda arg, _: arg.value,
    Source.CONTEXT: lambda _, frame: Context(frame.execution, frame.scope, frame.index, frame.attempt),
    Source.RESOURCE: lambda arg, frame: frame.execution.resource(arg.name, arg.annotation),
    Source.ITEM: lambda _, frame: frame.item,
    Source.ARGUMENT: _argument,
    Source.OWN_RESULT: lambda _, frame: frame.own_result,
    Source.ERROR: lambda _, frame: frame.error,
}


def value_of(arg: Arg, frame: Frame) -> Any:
    """One argument's value, unchecked."""
    found = _SOURCES[arg.source](arg, frame)
    if arg.path:
        found = walk(found, arg.path)
    return found if arg.transform is None else arg.transform(found)


def resolve(args: tuple[Arg, ...], frame: Frame) -> dict[str, Any]:
    """All arguments by parameter.

    Raises:
        ArgumentError: a path or a transform raised.
        DefinitionError: a resource is not configured.
    """
    values = {}
    for arg in args:
        try:
            values[arg.parameter] = value_of(arg, frame)
        except (DefinitionError, *FATAL):
            raise
        except BaseException as error:
            raise ArgumentError(frame.scope.path_of(frame.index), arg.parameter, describe(error)) from error
    return values


def checked(args: tuple[Arg, ...], values: dict[str, Any], owner: str) -> dict[str, Any]:
    """The values, those with constraints validated.

    Raises:
        InputValidationError: with the messages of all faulty ones.
    """
    errors: dict[str, list[str]] = {}
    for arg in args:
        if arg.check is not None:
            try:
                values[arg.parameter] = arg.check(values[arg.parameter])
            except msgspec.ValidationError as error:
                errors[arg.parameter] = [str(error)]
    if errors:
        raise InputValidationError(owner, errors)
    return values


def validated(fields: FieldSet, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Values of declared fields, validated, defaults filled in.

    Raises:
        InputValidationError: with the messages of all faulty fields.
    """
    try:
        good, errors = fields.validate(values)
    except FATAL:
        raise
    except BaseException as error:  # a field's own type raised something that is no validation error
        raise InputValidationError(owner, {"*": [describe(error)]}) from error
    if errors:
        raise InputValidationError(owner, errors)
    return good


def cross_checked(view: Any, owner: str) -> None:
    """Call ``validate`` on a reactor's or step's instance, where it has one.

    Raises:
        InputValidationError: it raised, or returned field errors.
    """
    check = getattr(view, "validate", None)
    if check is None or not callable(check):
        return
    try:
        found = check()
    except InputValidationError as error:
        raise InputValidationError(owner, error.field_errors) from error
    except FATAL:
        raise
    except BaseException as error:
        raise InputValidationError(owner, {"*": [error_text(error) or type(error).__name__]}) from error
    if found:
        raise InputValidationError(owner, _as_field_errors(found))


def _as_field_errors(found: Any) -> dict[str, list[str]]:
    if isinstance(found, Mapping):
        return {
            str(name): [texts] if isinstance(texts, str) else [str(t) for t in texts] for name, texts in found.items()
        }
    return {"*": [found] if isinstance(found, str) else [str(text) for text in found]}


def view_of(plan: Plan, inputs: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Any:
    """The read-only view of the inputs that is ``self`` in the reactor's methods; ``given`` adds its resources."""
    view = object.__new__(plan.reactor)
    view.__dict__.update(inputs)
    if given:
        view.__dict__.update(given)
    return view


def split(call: Call, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for a call."""
    positional = [values[arg.parameter] for arg in call.args if not arg.keyword]
    return positional, {arg.parameter: values[arg.parameter] for arg in call.args if arg.keyword}
