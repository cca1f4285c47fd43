"""The things that can stand in a reactor's body: what each was given, nothing worked out yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from aioreactor.definition.policies import FanOut, Retry, alias_problem, as_tuple, retry_problem, timeout_problem
from aioreactor.definition.wiring import Wire

if TYPE_CHECKING:
    from aioreactor.definition.reactor import Reactor
    from aioreactor.definition.steps import Step

R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])
NodeRef: TypeAlias = "Node[Any] | str"

REGISTERED = "__aioreactor_registered__"
"""Set on a function registered as undo and the like, to find out when its name hides its own step."""


def refs(given: NodeRef | Sequence[NodeRef]) -> tuple[NodeRef, ...]:
    """One step or several, as ``after=`` takes them."""
    return as_tuple(given)


class Node(Generic[R_co]):
    """Base of all of them. ``R_co`` is what a reader of the node gets."""

    kind: ClassVar[str]
    pinnable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        after: NodeRef | Sequence[NodeRef] = (),
        name: str | None = None,
        aliases: Sequence[str] = (),
        description: str | None = None,
    ) -> None:
        self.attribute = ""
        self.owner = ""
        self.home: type | None = None
        self.sealed = False
        self.pinned = name if isinstance(name, str) else None
        self.after = refs(after)
        self.aliases = as_tuple(aliases)
        self.description = description
        self.problems: list[str] = []
        if name is not None and not isinstance(name, str):
            self.problems.append(f"{self.kind}: name={name!r}: a name, as text")
        if after is None:
            self.problems.append(f"{self.kind}: after=None: name a step, or leave after= out")

    def __set_name__(self, owner: type, attribute: str) -> None:
        if not self.attribute:
            self.attribute = attribute
            self.owner = owner.__qualname__
            self.home = owner
            self.problems += alias_problem(f"{self.kind} {self.label!r}", self.aliases)

    @property
    def label(self) -> str:
        """The node's name: as pinned, else as the class calls it."""
        return self.pinned or self.attribute or self._fallback()

    def _fallback(self) -> str:
        return "?"

    def _register(self, slot: str, fn: F) -> F:
        if self.sealed:
            raise TypeError(
                f"{self.owner}.{self.label} is finished: a subclass changes a step by defining it again under the "
                f"same name, together with its {slot}"
            )
        if getattr(self, f"{slot}_fn") is not None:
            self.problems.append(f"step {self.label!r} has two {slot} functions; keep one")
        setattr(self, f"{slot}_fn", fn)
        if hasattr(fn, "__dict__"):
            fn.__dict__.setdefault(REGISTERED, []).append((self, slot))
        return fn

    def __repr__(self) -> str:
        return f"<{self.kind} {self.label}>"


class StepNode(Node[R_co]):
    """A step: a method of the reactor, or the use of a step class."""

    kind = "step"

    def __init__(
        self,
        *,
        fn: Callable[..., Any] | None = None,
        step_class: type[Step[Any]] | None = None,
        wiring: Mapping[str, Wire] | None = None,
        retries: Retry | None = None,
        timeout: float | None = None,
        coordination: Sequence[Any] | None = None,
        output: Any = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.fn = fn
        self.step_class = step_class
        self.wiring = dict(wiring or {})
        self.retries = retries
        self.timeout = timeout
        self.coordination = None if coordination is None else as_tuple(coordination)
        self.output = output
        self.undo_fn: Callable[..., Any] | None = None
        self.compensate_fn: Callable[..., Any] | None = None

    def __set_name__(self, owner: type, attribute: str) -> None:
        super().__set_name__(owner, attribute)
        where = f"step {self.label!r}"
        self.problems += retry_problem(where, self.retries) + timeout_problem(where, self.timeout)

    def _fallback(self) -> str:
        target = self.fn if self.fn is not None else self.step_class
        return getattr(target, "__name__", "?")

    def undo(self, fn: F) -> F:
        """Register what reverses the step after it completed. Has to be idempotent: it may run again."""
        return self._register("undo", fn)

    def compensate(self, fn: F) -> F:
        """Register what cleans up after the step failed; runs once, after the last attempt."""
        return self._register("compensate", fn)


class AsyncStepNode(StepNode[R_co]):
    """A step that is dispatched to a worker and awaited only by who reads it."""

    kind = "async_step"
    _undone = False

    def __init__(self, *, independent: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.independent = independent

    def __set_name__(self, owner: type, attribute: str) -> None:
        super().__set_name__(owner, attribute)
        if self._undone:
            self.problems.append(
                f"async step {self.label!r}: undo would never run, since a parent's rollback does not touch it; "
                f"use compensate, or make it a @step"
            )

    def undo(self, fn: F) -> F:
        """Refused: a dispatched step is independent of its parent's rollback."""
        self._undone = True
        return fn


class ComposeNode(Node[R_co]):
    """Another reactor, run inside this run."""

    kind = "compose"

    def __init__(
        self,
        *,
        child: type[Reactor[Any]],
        wiring: Mapping[str, Wire] | None = None,
        on_halt: Literal["halt", "skip"] = "halt",
        coordination: Sequence[Any] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.child = child
        self.wiring = dict(wiring or {})
        self.on_halt = on_halt
        self.coordination = None if coordination is None else as_tuple(coordination)

    def _fallback(self) -> str:
        return getattr(self.child, "__name__", "?")


class SkippableNode(ComposeNode[R_co | None], Generic[R_co]):
    """Another reactor, run inside this run; a reader gets None when it halted, and was skipped."""


class AsyncReactorNode(ComposeNode[R_co]):
    """Another reactor, dispatched as a run of its own."""

    kind = "async_reactor"

    def __init__(self, *, independent: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.independent = independent


class MapNode(Node[R_co]):
    """One run of its element per item of a source."""

    kind = "map"

    def __init__(
        self,
        *,
        element: StepNode[Any] | ComposeNode[Any],
        over: Any,
        item: str | None = None,
        concurrency: int = 16,
        fan_out: FanOut | None = None,
        atomic: bool = True,
        collect: Callable[..., Any] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.element = element
        self.over = over
        self.item = item
        self.concurrency = concurrency
        self.fan_out = fan_out
        self.atomic = atomic
        self.collect_fn = collect
        self.undo_all_fn: Callable[..., Any] | None = None
        self._misplaced: list[tuple[str, str]] = []

    def __set_name__(self, owner: type, attribute: str) -> None:
        super().__set_name__(owner, attribute)
        if not self.element.attribute:
            self.element.__set_name__(owner, self.label)
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            self.problems.append(f"map {self.label!r}: concurrency={self.concurrency!r}: a whole number from 1")
        self.problems += [
            f"map {self.label!r}: define {slot} on the {kind} that it runs, not on the map"
            for slot, kind in self._misplaced
        ]

    def _fallback(self) -> str:
        return self.element.label

    def _element_step(self, slot: str) -> StepNode[Any]:
        if isinstance(self.element, StepNode) and self.element.fn is not None:
            return self.element
        kind = "step class" if isinstance(self.element, StepNode) else "reactor"
        self._misplaced.append((slot, kind))
        return StepNode()

    def undo(self, fn: F) -> F:
        """Register what reverses one completed element; runs per element, highest index first."""
        return self._element_step("undo")._register("undo", fn)

    def compensate(self, fn: F) -> F:
        """Register what cleans up after one failed element."""
        return self._element_step("compensate")._register("compensate", fn)

    def undo_all(self, fn: F) -> F:
        """Register one call that reverses all completed elements, instead of one undo each.

        Its ``results`` parameter is an async iterator over their results in index order.
        """
        return self._register("undo_all", fn)

    def collect(self, fn: F) -> F:
        """Register what turns the `MapResults` (its ``results`` parameter) into the map's value."""
        return self._register("collect", fn)


class InterruptNode(Node[R_co]):
    """A point where the run pauses until somebody answers."""

    kind = "interrupt"

    def __init__(
        self,
        *,
        payload: Any = Any,
        correlation_id: Callable[[Any], str] | None = None,
        timeout: float | None = None,
        on_timeout: Any = "fail",
        max_attempts: int | None = None,
        resume: Literal["inline", "background"] = "inline",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.payload = payload
        self.correlation_id = correlation_id
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.max_attempts = max_attempts
        self.resume = resume


class TimerNode(Node[None]):
    """A durable wait."""

    kind = "timer"

    def __init__(self, *, seconds: float | None = None, until: Any = None, **common: Any) -> None:
        super().__init__(**common)
        self.seconds = seconds
        self.until = until


class Handoff:
    """``background = after(step)`` or ``before(step)``: from where on a worker goes on."""

    __slots__ = ("side", "step")

    def __init__(self, side: Literal["after", "before"], step: NodeRef) -> None:
        self.side = side
        self.step = step

    def __repr__(self) -> str:
        return (
            f"{self.side}({self.step if isinstance(self.step, str) else getattr(self.step, 'label', repr(self.step))})"
        )
