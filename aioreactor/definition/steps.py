"""Steps as methods (``@step``) and as classes (`Step`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    overload,
)

from aioreactor.definition import ports
from aioreactor.definition.annotations import Namespace, namespace_for
from aioreactor.definition.convert import output_problem
from aioreactor.definition.fields import FieldSet, closest_text, collect
from aioreactor.definition.nodes import AsyncStepNode, NodeRef, StepNode
from aioreactor.definition.policies import Retry, alias_problem, as_tuple, retry_problem, timeout_problem
from aioreactor.definition.primitives import coordination_problem
from aioreactor.definition.wiring import as_wires
from aioreactor.errors import DefinitionError
from aioreactor.redaction import display_fields
from aioreactor.results import Failure, Halt, Skipped

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar
else:
    from aioreactor._typing import TypeVar as DefaultTypeVar

R = TypeVar("R")
T = DefaultTypeVar("T", default=Any)
Signal: TypeAlias = Skipped[Any] | Halt | Failure


class StepDecorator(Protocol):
    """What ``@step(…)`` with options gives."""

    @overload
    def __call__(self, fn: Callable[..., Coroutine[Any, Any, R | Signal]], /) -> StepNode[R]: ...
    @overload
    def __call__(self, fn: Callable[..., R | Signal], /) -> StepNode[R]: ...


class AsyncStepDecorator(Protocol):
    """What ``@async_step(…)`` with options gives."""

    @overload
    def __call__(self, fn: Callable[..., Coroutine[Any, Any, R | Signal]], /) -> AsyncStepNode[R | Failure]: ...
    @overload
    def __call__(self, fn: Callable[..., R | Signal], /) -> AsyncStepNode[R | Failure]: ...


@overload
def step(fn: Callable[..., Coroutine[Any, Any, R | Signal]], /) -> StepNode[R]: ...
@overload
def step(fn: Callable[..., R | Signal], /) -> StepNode[R]: ...
@overload
def step(
    *,
    after: NodeRef | Sequence[NodeRef] = (),
    retries: Retry | None = None,
    timeout: float | None = None,
    coordination: Sequence[Any] | None = None,
    output: Any = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
) -> StepDecorator: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a method a step of its reactor: ``@step`` or ``@step(retries=…, timeout=…)``.

    Args:
        fn: the body, ``async def`` or ``def`` (which runs in a worker thread).
        **options: ``after`` orders it behind other steps without passing data. ``retries`` is a `Retry`.
            ``timeout`` bounds one attempt, in seconds. ``coordination`` lists primitives that an attempt takes.
            ``output`` is a type or a callable that checks the result. ``name`` pins the stored name, ``aliases``
            are older names. ``description`` is for people; the docstring when left out.
    """
    return StepNode(fn=fn) if fn is not None else lambda body: _method_node(StepNode, body, options)


@overload
def async_step(fn: Callable[..., Coroutine[Any, Any, R | Signal]], /) -> AsyncStepNode[R | Failure]: ...
@overload
def async_step(fn: Callable[..., R | Signal], /) -> AsyncStepNode[R | Failure]: ...
@overload
def async_step(
    *,
    after: NodeRef | Sequence[NodeRef] = (),
    retries: Retry | None = None,
    timeout: float | None = None,
    coordination: Sequence[Any] | None = None,
    output: Any = None,
    independent: bool = False,
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
) -> AsyncStepDecorator: ...
def async_step(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a method a step that a worker runs; the run goes on without it. Options as for `step`. Needs a store.

    Who reads its result gets the value, or the `Failure`. One that no worker has taken yet when its run has rolled back
    is cancelled, unless it is ``independent``.
    """
    return AsyncStepNode(fn=fn) if fn is not None else lambda body: _method_node(AsyncStepNode, body, options)


_METHOD_OPTIONS = ("after", "retries", "timeout", "coordination", "output", "name", "aliases", "description")


def _method_node(kind: type[StepNode[Any]], body: Callable[..., Any], options: Mapping[str, Any]) -> StepNode[Any]:
    known = (*_METHOD_OPTIONS, "independent") if kind is AsyncStepNode else _METHOD_OPTIONS
    node = kind(fn=body, **{key: item for key, item in options.items() if key in known})
    node.problems += [
        f"step {node.label!r}: there is no option {key!r}{closest_text(key, known)}"
        for key in options
        if key not in known
    ]
    return node


_CLASS_POLICY = ("retries", "timeout", "coordination", "output", "name", "aliases", "description")
_TAKEN = ("run", "undo", "compensate", "validate", "step", "async_step", "once")


@dataclass_transform(kw_only_default=True)
class Step(Generic[T]):
    """A reusable step: fields are its input contract, ``run`` its body, ``undo`` and ``compensate`` its clean-up.

    Class keywords: ``retries``, ``timeout``, ``coordination``, ``output``, ``name``, ``aliases``, ``description``,
    as for `step`; a use may override them (``Charge.step(timeout=5)``). An instance is made for each action.

    ``Charge(account_id="a", amount=1).run()`` is the bare body, for unit tests.
    """

    __aioreactor_fields__: ClassVar[FieldSet]
    __aioreactor_policy__: ClassVar[Mapping[str, Any]] = {}
    __aioreactor_namespaces__: ClassVar[dict[type, Namespace]] = {}

    if TYPE_CHECKING:

        def run(self, *args: Any, **kwargs: Any) -> Awaitable[T | Signal] | T | Signal:
            """The body; defined by the subclass, without parameters or with a ``ctx: Context``."""
            ...

    def __init_subclass__(cls, **policy: Any) -> None:
        super().__init_subclass__()
        cls.__aioreactor_policy__ = {**_inherited(cls.__aioreactor_policy__), **policy}
        cls.__aioreactor_namespaces__ = {**_bases_namespaces(cls), cls: namespace_for(cls)}
        cls.__aioreactor_fields__ = FieldSet(collect(cls, cls.__aioreactor_namespaces__))
        problems = _class_problems(cls, policy)
        if problems:
            raise DefinitionError(f"step class {cls.__qualname__}", problems)

    def __init__(self, /, **fields: Any) -> None:
        declared = self.__aioreactor_fields__
        for name in fields:
            if name not in declared.by_name:
                raise TypeError(f"{type(self).__name__} has no field {name!r}{closest_text(name, declared.by_name)}")
        missing = [field.name for field in declared.inputs if field.required and field.name not in fields]
        if missing:
            raise TypeError(f"{type(self).__name__} needs {', '.join(map(repr, missing))}")
        defaults = {field.name: field.make_default() for field in declared.inputs if field.name not in fields}
        self.__dict__.update(defaults, **fields)

    def __getattr__(self, name: str) -> Any:
        field = type(self).__aioreactor_fields__.by_name.get(name)
        if field is not None and field.resource:
            raise AttributeError(f"resource {name!r} was not given: {type(self).__name__}(…, {name}=…)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        declared = self.__aioreactor_fields__
        shown = display_fields({f.name: getattr(self, f.name) for f in declared.inputs}, declared.hidden)
        return f"{type(self).__name__}({', '.join(f'{name}={item!r}' for name, item in shown.items())})"

    @classmethod
    def step(
        cls,
        /,
        *,
        after: NodeRef | Sequence[NodeRef] = (),
        retries: Retry | None = None,
        timeout: float | None = None,
        coordination: Sequence[Any] | None = None,
        output: Any = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        description: str | None = None,
        wire: Mapping[str, Any] | None = None,
        **wiring: Any,
    ) -> StepNode[T]:
        """Use this class as a step. Keywords that are not policy wire fields; ``wire={…}`` for the rest.

        A field that is not wired takes the input of the same name, then its default; never another step's result.
        """
        return cast("StepNode[T]", _use(cls, StepNode, locals()))

    @classmethod
    def async_step(
        cls,
        /,
        *,
        after: NodeRef | Sequence[NodeRef] = (),
        retries: Retry | None = None,
        timeout: float | None = None,
        coordination: Sequence[Any] | None = None,
        output: Any = None,
        independent: bool = False,
        name: str | None = None,
        aliases: Sequence[str] = (),
        description: str | None = None,
        wire: Mapping[str, Any] | None = None,
        **wiring: Any,
    ) -> AsyncStepNode[T | Failure]:
        """Use this class as a step that a worker runs; wiring as in `step`, ``independent`` as in `async_step`.

        Needs a store.
        """
        return cast("AsyncStepNode[T | Failure]", _use(cls, AsyncStepNode, locals()))

    @classmethod
    async def once(cls, /, **fields: Any) -> T:
        """Run one attempt outside any reactor: contract, timeout and coordination apply, retries do not.

        Raises:
            InputValidationError: a field does not fit.
            StoreRequired: it declares coordination and no store is configured.
            Exception: whatever the body raises.

        Cancellation: cancels the body; nothing is compensated.
        """
        known_fields(cls)
        return cast("T", await ports.launcher().once(cls, fields))


def known_fields(cls: type[Step[Any]]) -> FieldSet:
    """The fields of a step class; those that could not be resolved when it was created are looked up again."""
    if cls.__aioreactor_fields__.unresolved():
        cls.__aioreactor_fields__ = FieldSet(collect(cls, cls.__aioreactor_namespaces__))
    return cls.__aioreactor_fields__


def _bases_namespaces(cls: type[Step[Any]]) -> dict[type, Namespace]:
    spaces: dict[type, Namespace] = {}
    for base in cls.__mro__[1:]:
        spaces.update(base.__dict__.get("__aioreactor_namespaces__", {}))
    return spaces


def _inherited(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in policy.items() if key not in {"name", "aliases", "description"}}


def _use(cls: type[Step[Any]], kind: type[StepNode[Any]], given: dict[str, Any]) -> StepNode[Any]:
    """Make the node for one use; a policy word that is not given is the class's own."""
    policy = cls.__aioreactor_policy__
    chosen = {
        key: given[key] if given[key] is not None else policy.get(key) for key in ("retries", "timeout", "output")
    }
    if "independent" in given:
        chosen["independent"] = given["independent"]
    return kind(
        step_class=cls,
        wiring=as_wires(given["wiring"], given["wire"]),
        coordination=as_tuple(
            given["coordination"] if given["coordination"] is not None else policy.get("coordination")
        ),
        after=given["after"],
        name=given["name"],
        aliases=given["aliases"],
        description=given["description"] or policy.get("description") or cls.__doc__,
        **chosen,
    )


def _class_problems(cls: type[Step[Any]], policy: Mapping[str, Any]) -> list[str]:
    fields = cls.__aioreactor_fields__
    problems = [
        f"keyword {key!r} is not one of {', '.join(_CLASS_POLICY)}" for key in policy if key not in _CLASS_POLICY
    ]
    problems += retry_problem("class header", policy.get("retries")) + timeout_problem(
        "class header", policy.get("timeout")
    )
    problems += coordination_problem("class header", as_tuple(policy.get("coordination")))
    problems += output_problem("class header", policy.get("output"))
    problems += alias_problem("class header", as_tuple(policy.get("aliases")))
    problems += [f"field {name!r} hides Step.{name}; give it another name" for name in fields.by_name if name in _TAKEN]
    problems += [text for field in fields.by_name.values() if (text := field.problem())]
    return problems
