"""The compiled plan: nodes with their dependencies as indexes, and every argument with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aioreactor.definition import ports
from aioreactor.definition.annotations import UNKNOWN
from aioreactor.definition.convert import Converter
from aioreactor.definition.policies import NO_RETRY, FanOut, Options, Retry
from aioreactor.errors import DefinitionError

if TYPE_CHECKING:
    from aioreactor.definition.fields import FieldSet
    from aioreactor.definition.nodes import Node
    from aioreactor.definition.reactor import Declaration, Reactor
    from aioreactor.definition.steps import Step


class Source(Enum):
    """Where an argument's value comes from."""

    INPUT = "input"
    RESULT = "result"
    VALUE = "value"
    CONTEXT = "context"
    RESOURCE = "resource"
    ITEM = "item"
    ARGUMENT = "argument"
    OWN_RESULT = "own_result"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Arg:
    """One parameter (or field) and its source.

    ``name`` is the input, resource or forward parameter; ``index`` the node of a result. ``check`` validates the
    value where the parameter's annotation carries constraints.
    """

    parameter: str
    source: Source
    name: str = ""
    index: int = -1
    value: Any = None
    path: tuple[str | int, ...] = ()
    transform: Callable[[Any], Any] | None = None
    annotation: Any = UNKNOWN
    keyword: bool = False
    check: Converter | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A callable of the user's with its arguments.

    ``kept`` are parameters that keep their own default and need not be passed, since none after them is.
    """

    fn: Callable[..., Any]
    args: tuple[Arg, ...] = ()
    is_async: bool = True
    kept: tuple[Arg, ...] = ()


@dataclass(slots=True)
class PlanNode:
    """One node. Steps have ``body``; compose has ``child``; map has ``element`` and ``over``."""

    index: int
    name: str
    kind: str
    node: Node[Any]
    deps: tuple[int, ...] = ()
    order_only: tuple[int, ...] = ()
    dependants: tuple[int, ...] = ()
    args: tuple[Arg, ...] = ()
    result_type: Any = UNKNOWN
    body: Call | None = None
    step_class: type[Step[Any]] | None = None
    undo: Call | None = None
    compensate: Call | None = None
    retry: Retry = NO_RETRY
    timeout: float | None = None
    coordination: tuple[Any, ...] = ()
    output: Callable[[Any], Any] | None = None
    child: Plan | None = None
    on_halt: str = "halt"
    element: Plan | None = None
    over: Arg | Call | None = None
    paged: bool = False
    concurrency: int = 16
    atomic: bool = True
    fan_out: FanOut | None = None
    dealt: bool = False
    """Whether a map fans out from its result, item by item."""
    fan: Plan | None = None
    """Of a map that fans out: what its elements are as runs of their own. ``passed`` is what they have in common."""
    collect: Call | None = None
    undo_all: Call | None = None
    unit: Plan | None = None
    """What it is dispatched as: a run of this plan. Only of an ``async_step`` or an ``async_reactor``."""
    passed: tuple[Arg, ...] = ()
    """Inputs of that run, resolved when it is dispatched."""
    kept_as: Any = UNKNOWN
    """What the store keeps of it: that it was dispatched, or its outcome."""
    independent: bool = False
    units: tuple[int, ...] = ()
    """Those of ``deps`` that are dispatched: it waits for their outcomes."""
    prepared: Any = field(default=None, repr=False, compare=False)
    """What the engine works out once per node; nothing here reads it."""

    @property
    def description(self) -> str:
        """The first line of what the node says about itself."""
        text = self.node.description or (self.body.fn.__doc__ if self.body else None) or ""
        return text.strip().partition("\n")[0]


@dataclass(slots=True, eq=False)
class Plan:
    """A reactor, compiled: made when its class is created, shared by all its runs."""

    declaration: Declaration
    name: str
    options: Options
    fields: FieldSet
    nodes: tuple[PlanNode, ...]
    by_name: dict[str, int]
    roots: tuple[int, ...] = ()
    returns: int | None = None
    background: Any = None
    unresolved: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is worth knowing and no mistake; the warnings are among them."""
    fingerprint: str = ""
    store_reasons: tuple[str, ...] = ()
    record_reasons: tuple[str, ...] = ()
    """Those of them that need the run itself to be stored."""
    element: bool = False
    """A map's element that is a single step: its path is the element's own."""
    waiting: tuple[int, ...] = ()
    resource_needs: tuple[tuple[str, str, Any], ...] = ()
    """Where, name and annotation of every resource that a run will ask for."""
    has_bounds: bool = False
    """Whether it, or something nested in it, declares ``max_concurrency``."""
    has_fans: bool = False
    """Whether it, or a reactor composed into it, has a map that fans out."""
    has_units: bool = False
    """Whether it, or something nested in it, dispatches units."""
    unit_of: str = ""
    """The plan is of one step of the reactor, this one, which was dispatched by itself."""

    @property
    def reactor(self) -> type[Reactor[Any]]:
        """The class it was compiled from."""
        return self.declaration.reactor

    def __getitem__(self, name: str) -> PlanNode:
        return self.nodes[self.by_name[name]]

    def __iter__(self) -> Iterator[PlanNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def check(self) -> None:
        """Check everything, what had to be left open when the class was created included.

        Raises:
            DefinitionError: every mistake, and every annotation that still cannot be resolved.
        """
        plan: Plan = self.declaration.plan
        if plan.unresolved:
            plan = self.declaration.plan = ports.seams.compile(self.declaration)
        if plan.unresolved:
            raise DefinitionError(self.name, [unresolved_text(text) for text in plan.unresolved])

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        from aioreactor.plan.render import to_dict

        return to_dict(self)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        from aioreactor.plan.render import to_mermaid

        return to_mermaid(self)

    def to_dot(self) -> str:
        """The graph in Graphviz's DOT language."""
        from aioreactor.plan.render import to_dot

        return to_dot(self)

    def __repr__(self) -> str:
        return f"<Plan {self.name}: {', '.join(node.name for node in self.nodes)}>"


def unresolved_text(what: str) -> str:
    """The problem text of an annotation that names something unknown."""
    return f"{what} cannot be resolved; import or define the name before the first run"
