"""The reactor: a class that declares inputs and steps, and the calls that run it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Never,
    NoReturn,
    TypeAlias,
    cast,
    dataclass_transform,
    overload,
)

from aioreactor.definition import ports
from aioreactor.definition.annotations import namespace_for
from aioreactor.definition.declaration import RESERVED, Declaration, bases_namespaces, collect_body
from aioreactor.definition.fields import closest_text
from aioreactor.definition.nodes import Handoff
from aioreactor.definition.policies import CHOICES, OPTION_NAMES, Durability, Options, choice_problem
from aioreactor.errors import DefinitionError
from aioreactor.redaction import display_fields
from aioreactor.results import Outcome

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from aioreactor.plan.model import Plan
else:
    from aioreactor._typing import TypeVar

T = TypeVar("T", default=Any)
Run: TypeAlias = Callable[..., Coroutine[Any, Any, Outcome[T]]]
RunBound: TypeAlias = Callable[[], Coroutine[Any, Any, Outcome[T]]]
Raise: TypeAlias = Callable[..., Coroutine[Any, Any, T]]
RaiseBound: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
Start: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
StartMany: TypeAlias = Callable[[Iterable[Mapping[str, Any]]], Coroutine[Any, Any, Any]]


class Launch(Generic[T]):
    """The five ways to start a reactor, with options kept apart from inputs. Made by ``R.with_options(…)``."""

    __slots__ = ("_inputs", "_options", "_reactor")

    def __init__(
        self, reactor: type[Reactor[T]], options: Mapping[str, Any], inputs: Mapping[str, Any] | None = None
    ) -> None:
        self._reactor = reactor
        self._options = options
        self._inputs = inputs

    def _given(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._inputs is None:
            return inputs
        if inputs:
            raise TypeError(f"{self._reactor.__name__}(…) has its inputs already; call this without arguments")
        return self._inputs

    async def run(self, /, **inputs: Any) -> Outcome[T]:
        """Run it here and give its outcome; a workflow that fails is a `Failure`, not an exception.

        Raises:
            StoreRequired: it declares something that needs a store, and none is configured. Nothing has run.
            DefinitionError: an annotation still cannot be resolved, or a resource is missing.

        Cancellation: what ``on_cancel`` says happens first (a shielded rollback by default), then the
        ``CancelledError`` goes on to the caller.
        """
        return cast("Outcome[T]", await ports.launcher().run(self._reactor, self._given(inputs), self._options))

    async def run_or_raise(self, /, **inputs: Any) -> T:
        """Run it here and give its value.

        Raises:
            ReactorFailed: it failed; ``error.failure`` is the outcome.
            NoValue: it halted, paused or was handed off (a `ReactorFailed` too).
            StoreRequired: as for `run`.

        Cancellation: as for `run`.
        """
        outcome = await self.run(**inputs)
        return outcome.unwrap()

    async def spawn(self, /, **inputs: Any) -> Any:
        """Start it as a task of the runtime and give a `RunHandle`; the caller's end does not end it.

        Raises:
            StoreRequired: as for `run`.

        Cancellation: nothing was started, or it goes on; never half.
        """
        return await ports.launcher().spawn(self._reactor, self._given(inputs), self._options)

    async def enqueue(self, /, **inputs: Any) -> Any:
        """Start it in a worker and give a `RunHandle`.

        Raises:
            StoreRequired: no store is configured.

        Cancellation: it was enqueued or not; never half.
        """
        return await ports.launcher().enqueue(self._reactor, self._given(inputs), self._options)

    async def enqueue_many(self, list_of_inputs: Iterable[Mapping[str, Any]], /) -> Any:
        """Start one for each of these inputs in workers and give a list of `RunHandle`, in their order.

        All inputs are validated before anything is stored. After that it costs a few round trips, whatever the number.

        Raises:
            InputValidationError: some are invalid, and none was enqueued; ``field_errors`` names each as
                ``"[index].field"``.
            SerializationError: some cannot be stored. None was enqueued.
            ValueError: ``run_id`` or ``idempotency_key`` is given, which are for one run.
            StoreRequired: no store is configured.

        Cancellation: some were enqueued, or all, or none.
        """
        if self._inputs is not None:
            raise TypeError(f"{self._reactor.__name__}(…) has its inputs already; call enqueue_many() on the class")
        return await ports.launcher().enqueue_many(self._reactor, list(list_of_inputs), self._options)


_NO_OPTIONS: Mapping[str, Any] = {}


def _launch(
    instance: Reactor[T] | None, owner: type[Reactor[T]], options: Mapping[str, Any] = _NO_OPTIONS
) -> Launch[T]:
    return Launch(owner, options, None if instance is None else dict(vars(instance)))


class _Run:
    """``R.run(**inputs)`` on the class, ``R(…).run()`` on an invocation."""

    @overload
    def __get__(self, instance: None, owner: type[Reactor[T]]) -> Run[T]: ...
    @overload
    def __get__(self, instance: Reactor[T], owner: type[Reactor[T]]) -> RunBound[T]: ...
    def __get__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> Run[T]:
        return _launch(instance, owner).run


class _RunOrRaise:
    @overload
    def __get__(self, instance: None, owner: type[Reactor[T]]) -> Raise[T]: ...
    @overload
    def __get__(self, instance: Reactor[T], owner: type[Reactor[T]]) -> RaiseBound[T]: ...
    def __get__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> Raise[T]:
        return _launch(instance, owner).run_or_raise


class _Spawn:
    def __get__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> Start:
        return _launch(instance, owner).spawn


class _Enqueue:
    def __get__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> Start:
        return _launch(instance, owner).enqueue


class _EnqueueMany:
    def __get__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> StartMany:
        return _launch(instance, owner).enqueue_many


class _WithOptions(Generic[T]):
    __slots__ = ("_instance", "_owner")

    def __init__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> None:
        self._instance = instance
        self._owner = owner

    def __call__(
        self,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        queue: str | None = None,
        durability: Durability | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        tags: Sequence[str] = (),
        on_conflict: Literal["attach", "reject", "replace"] | None = None,
        **unknown: Never,
    ) -> Launch[T]:
        """The same five calls, with options that are not inputs. ``delay`` in seconds.

        Raises:
            TypeError: an option is not known; the text names the closest.
            ValueError: a word is none of its choices.
        """
        given = {
            "run_id": run_id,
            "idempotency_key": idempotency_key,
            "queue": queue,
            "durability": durability,
            "delay": delay,
            "at": at,
            "tags": tuple(tags) or None,
            "on_conflict": on_conflict,
        }
        _check_options(given, unknown)
        return _launch(self._instance, self._owner, {key: item for key, item in given.items() if item is not None})


_OPTION_CHOICES = {"durability": CHOICES["durability"], "on_conflict": ("attach", "reject", "replace")}


def _check_options(given: Mapping[str, Any], unknown: Mapping[str, Any]) -> None:
    for name in unknown:
        hint = closest_text(name, given)
        raise TypeError(f"with_options() got an unexpected keyword argument {name!r}{hint} (inputs are for run)")
    for name, choices in _OPTION_CHOICES.items():
        problem = choice_problem(f"with_options: {name}", given[name], choices)
        if problem is not None:
            raise ValueError(problem)


class _Options:
    def __get__(self, instance: Reactor[T] | None, owner: type[Reactor[T]]) -> _WithOptions[T]:
        return _WithOptions(instance, owner)


class _Runs:
    def __get__(self, instance: Any, owner: type[Reactor[Any]]) -> Any:
        return ports.launcher().runs(owner)


class _PlanOf:
    """The compiled plan; tried again while annotations were not known when the class was created."""

    def __get__(self, instance: Any, owner: type[Reactor[Any]]) -> Plan:
        declaration = owner.__aioreactor__
        if declaration.plan is None or declaration.plan.unresolved:
            declaration.plan = ports.seams.compile(declaration)
        return cast("Plan", declaration.plan)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Reactor(Generic[T]):
    """A workflow. Annotated attributes are its inputs, ``@step`` methods and other nodes its steps.

    Policy stands in the class header: ``class Checkout(Reactor[str], retries=Retry(3), deadline=60)``. ``returns``
    names the step whose value is the run's value. ``def validate(self)`` may check inputs against each other: it
    raises, or returns field errors. In a step, ``self`` is a read-only view of the inputs.

    Raises:
        DefinitionError: when the class is created, with every mistake in it.
    """

    __aioreactor__: ClassVar[Declaration]

    run = _Run()
    run_or_raise = _RunOrRaise()
    spawn = _Spawn()
    enqueue = _Enqueue()
    enqueue_many = _EnqueueMany()
    with_options = _Options()
    runs = _Runs()
    plan = _PlanOf()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        base: Declaration | None = getattr(cls, "__aioreactor__", None)
        unknown = [key for key in options if key not in OPTION_NAMES]
        inherited = base.options if base else Options()
        chosen = inherited.extended({key: item for key, item in options.items() if key not in unknown})
        spaces = {**bases_namespaces(cls), cls: namespace_for(cls)}
        declaration = Declaration(cls, chosen, spaces)
        declaration.problems += [f"class keyword {key!r} is not known; there are: {_OPTION_TEXT}" for key in unknown]
        declaration.problems += chosen.problems()
        collect_body(cls, declaration)
        cls.__aioreactor__ = declaration
        declaration.plan = ports.seams.compile(declaration)
        for note in declaration.plan.warnings:
            warnings.warn(f"{cls.__qualname__}: {note}", UserWarning, stacklevel=2)

    def __init__(self, /, **inputs: Any) -> None:
        self.__dict__.update(self.__aioreactor__.fields.instance_defaults(inputs), **inputs)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"{type(self).__name__}.{name}: self is a read-only view of the run's inputs; return a value from the "
            f"step instead, or use ctx.state"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name}: self is a read-only view of the run's inputs")

    def __repr__(self) -> str:
        shown = display_fields(vars(self), self.__aioreactor__.fields.hidden)
        return f"{type(self).__name__}({', '.join(f'{name}={item!r}' for name, item in shown.items())})"


_OPTION_TEXT = ", ".join(sorted(OPTION_NAMES))


__all__ = ["RESERVED", "Declaration", "DefinitionError", "Handoff", "Launch", "Reactor"]
