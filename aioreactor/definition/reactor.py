"""The reactor: a class that declares inputs and steps, and the calls that run it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    cast,
    dataclass_transform,
    overload,
)

from aioreactor.definition import ports
from aioreactor.definition.annotations import Namespace, caller_locals
from aioreactor.definition.fields import FieldSet, collect
from aioreactor.definition.nodes import REGISTERED, Handoff, MapNode, Node
from aioreactor.definition.policies import OPTION_NAMES, Durability, Options
from aioreactor.errors import DefinitionError
from aioreactor.redaction import display_fields
from aioreactor.results import Outcome

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from aioreactor.plan.model import Plan
else:
    from aioreactor._typing import TypeVar

T = TypeVar("T", default=Any)
RESERVED = ("run", "run_or_raise", "spawn", "enqueue", "with_options", "plan", "runs", "returns", "background")
_INSTRUCTIONS = ("returns", "background")
Run: TypeAlias = Callable[..., Coroutine[Any, Any, Outcome[T]]]
RunBound: TypeAlias = Callable[[], Coroutine[Any, Any, Outcome[T]]]
Raise: TypeAlias = Callable[..., Coroutine[Any, Any, T]]
RaiseBound: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
Start: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]


class Launch(Generic[T]):
    """The four ways to start a reactor, with options kept apart from inputs. Made by ``R.with_options(…)``."""

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

    async def run(self, **inputs: Any) -> Outcome[T]:
        """Run it here and give its outcome; a workflow that fails is a `Failure`, not an exception.

        Raises:
            StoreRequired: it declares something that needs a store, and none is configured. Nothing has run.
            DefinitionError: an annotation still cannot be resolved, or two resources are missing.

        Cancellation: what ``on_cancel`` says happens first (a shielded rollback by default), then the
        ``CancelledError`` goes on to the caller.
        """
        return cast("Outcome[T]", await ports.launcher().run(self._reactor, self._given(inputs), self._options))

    async def run_or_raise(self, **inputs: Any) -> T:
        """Run it here and give its value.

        Raises:
            ReactorFailed: it failed; ``error.failure`` is the outcome.
            NoValue: it halted, paused or was handed off (a `ReactorFailed` too).
            StoreRequired: as for `run`.

        Cancellation: as for `run`.
        """
        outcome = await self.run(**inputs)
        return outcome.unwrap()

    async def spawn(self, **inputs: Any) -> Any:
        """Start it as a task of the runtime and give a `RunHandle`; the caller's end does not end it.

        Raises:
            StoreRequired: as for `run`.

        Cancellation: nothing was started, or it goes on; never half.
        """
        return await ports.launcher().spawn(self._reactor, self._given(inputs), self._options)

    async def enqueue(self, **inputs: Any) -> Any:
        """Start it in a worker and give a `RunHandle`.

        Raises:
            StoreRequired: no store is configured.

        Cancellation: it was enqueued or not; never half.
        """
        return await ports.launcher().enqueue(self._reactor, self._given(inputs), self._options)


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
    ) -> Launch[T]:
        """The same four calls, with options that are not inputs. ``delay`` in seconds."""
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
        return _launch(self._instance, self._owner, {key: item for key, item in given.items() if item is not None})


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


class Declaration:
    """Everything one reactor class says, collected over its bases; what the compiler reads."""

    __slots__ = (
        "_attributes",
        "_owners",
        "background",
        "fields",
        "namespaces",
        "nodes",
        "options",
        "plan",
        "problems",
        "reactor",
        "returns",
    )

    def __init__(self, reactor: type[Reactor[Any]], options: Options, namespaces: dict[type, Namespace]) -> None:
        self.reactor = reactor
        self.options = options
        self.namespaces = namespaces
        self.fields = FieldSet(collect(reactor, namespaces))
        self.nodes: dict[str, Node[Any]] = {}
        self.returns: Any = None
        self.background: Any = None
        self.problems: list[str] = []
        self.plan: Any = None
        self._attributes: dict[str, str] = {}
        self._owners = _owners_of_functions(reactor, namespaces)

    def add(self, node: Node[Any]) -> None:
        """Take a node in; one that the class had under the same attribute makes way for it."""
        old = self._attributes.get(node.attribute)
        if old is not None and old != node.label:
            del self.nodes[old]
        self._attributes[node.attribute] = node.label
        self.nodes[node.label] = node

    @property
    def name(self) -> str:
        """The reactor's stored name: pinned, else ``module:qualname``."""
        return self.options.name or f"{self.reactor.__module__}:{self.reactor.__qualname__}"

    def refresh(self) -> None:
        """Look up again what could not be resolved before."""
        if self.fields.unresolved():
            self.fields = FieldSet(collect(self.reactor, self.namespaces))

    def namespace_of(self, fn: Any) -> Namespace:
        """Where the names in a function's annotations are looked up: the class that defined it."""
        return self.namespaces[self._owners.get(id(fn), self.reactor)]


_FUNCTION_SLOTS = ("fn", "undo_fn", "compensate_fn", "over", "collect_fn", "undo_all_fn")


def _owners_of_functions(reactor: type, namespaces: Mapping[type, Namespace]) -> dict[int, type]:
    """Which class of the hierarchy each function stands in, by the function's identity; the nearest class counts."""
    owners: dict[int, type] = {}
    for owner in reactor.__mro__:
        for item in owner.__dict__.values() if owner in namespaces else ():
            for part in _functions_of(item):
                owners.setdefault(id(part), owner)
    return owners


def _functions_of(item: Any) -> Iterator[Any]:
    yield item
    holders = [item, item.element] if isinstance(item, MapNode) else [item] if isinstance(item, Node) else []
    for holder in holders:
        yield from (getattr(holder, slot, None) for slot in _FUNCTION_SLOTS)


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
    with_options = _Options()
    runs = _Runs()
    plan = _PlanOf()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        base: Declaration | None = getattr(cls, "__aioreactor__", None)
        unknown = [key for key in options if key not in OPTION_NAMES]
        inherited = base.options if base else Options()
        chosen = inherited.extended({key: item for key, item in options.items() if key not in unknown})
        spaces = {**_bases_namespaces(cls), cls: Namespace(cls.__module__, caller_locals())}
        declaration = Declaration(cls, chosen, spaces)
        declaration.problems += [f"class keyword {key!r} is not known; there are: {_OPTION_TEXT}" for key in unknown]
        declaration.problems += chosen.problems()
        _collect_body(cls, declaration)
        cls.__aioreactor__ = declaration
        declaration.plan = ports.seams.compile(declaration)

    def __init__(self, **inputs: Any) -> None:
        self.__dict__.update(inputs)

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


def _bases_namespaces(cls: type) -> dict[type, Namespace]:
    spaces: dict[type, Namespace] = {}
    for base in cls.__mro__[1:]:
        if "__aioreactor__" in base.__dict__:
            spaces.update(base.__dict__["__aioreactor__"].namespaces)
    return spaces


def _collect_body(cls: type[Reactor[Any]], declaration: Declaration) -> None:
    """Nodes, ``returns`` and ``background`` of the class and its bases; a subclass overrides a step by its name."""
    for owner in reversed(cls.__mro__):
        if owner is cls or "__aioreactor__" in owner.__dict__:
            _collect_class(owner, declaration, own=owner is cls)


def _collect_class(owner: type, declaration: Declaration, *, own: bool) -> None:
    seen: set[int] = set()
    for attribute, item in owner.__dict__.items():
        if attribute in _INSTRUCTIONS:
            setattr(declaration, attribute, item)
        elif isinstance(item, Node):
            _take_node(attribute, item, declaration, own=own, again=id(item) in seen)
            seen.add(id(item))
        else:
            _drop_overridden(attribute, item, declaration, own=own)
    if own:
        declaration.problems += [
            f"{name!r} is what {owner.__name__} has from Reactor; give the {what} another name"
            for name, what in _hiding(owner)
        ]


def _take_node(attribute: str, node: Node[Any], declaration: Declaration, *, own: bool, again: bool) -> None:
    if own:
        if again:
            declaration.problems.append(f"{attribute!r} is the same step as {node.label!r}; a step has one name")
            return
        node.sealed = True
        declaration.problems += node.problems
        clash = declaration.nodes.get(node.label)
        if clash is not None and clash.owner == node.owner:
            declaration.problems.append(f"two steps are named {node.label!r}; rename one (name= pins a name)")
    declaration.add(node)


def _drop_overridden(attribute: str, item: Any, declaration: Declaration, *, own: bool) -> None:
    if not own:
        return
    for node, slot in getattr(item, "__dict__", {}).get(REGISTERED, ()):
        if node.attribute == "" and node.label == attribute:
            declaration.problems.append(
                f"the {slot} function {attribute!r} hides its own step; give it another name, like {slot}_{attribute}"
            )


def _hiding(owner: type) -> list[tuple[str, str]]:
    found = []
    for name in RESERVED:
        if name in _INSTRUCTIONS:
            continue
        if name in owner.__dict__:
            found.append((name, "step" if isinstance(owner.__dict__[name], Node) else "attribute"))
        elif name in inspect.get_annotations(owner):
            found.append((name, "input"))
    found += [(name, "input") for name in _INSTRUCTIONS if name in inspect.get_annotations(owner)]
    found += [
        (name, "step")
        for name in _INSTRUCTIONS
        if isinstance(owner.__dict__.get(name), Node) and owner.__dict__[name].attribute == name
    ]
    return found


__all__ = ["Declaration", "DefinitionError", "Handoff", "Launch", "Reactor"]
