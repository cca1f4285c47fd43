"""The mutable records of a run in progress: scopes, maps, failures. No behaviour beyond looking things up."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from aioreactor.plan.model import Plan, PlanNode

if TYPE_CHECKING:
    from aioreactor.engine.guarding import Guard
    from aioreactor.engine.hooks import Hooks
    from aioreactor.engine.limiter import Limiter
    from aioreactor.engine.snoozing import Waker


class NodeStatus(IntEnum):
    """Where a node of a scope stands."""

    WAITING = 0
    RUNNING = 1
    COMPLETED = 2
    SKIPPED = 3
    HALTED = 4
    FAILED = 5
    CUT = 6
    """Cancelled in flight, or stopped half-way from outside."""
    READY = 7
    """What it depends on is there; its body was not entered yet."""
    UNDONE = 8
    COMPENSATED = 9


@dataclass(frozen=True, slots=True)
class Parked:
    """A step that was refused by its gates and comes back: how often so far, and its places in line.

    ``waker`` is there in the process that it was refused in. ``waits_for`` is what refused it, for people.
    """

    count: int
    tickets: dict[str, str]
    waker: Waker | None = None
    waits_for: str = ""


class Failed:
    """One failure: the error, where, and with what."""

    __slots__ = ("arguments", "attempts", "error", "index", "path", "retryable", "scope")

    def __init__(
        self,
        error: BaseException,
        scope: Scope,
        index: int | None,
        *,
        attempts: int = 0,
        retryable: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.error = error
        self.scope = scope
        self.index = index
        self.path = scope.path if index is None else scope.path_of(index)
        self.attempts = attempts
        self.retryable = retryable
        self.arguments = arguments or {}


class Opening:
    """A node that waits for somebody outside. ``refused``: payloads that did not fit, where those are counted."""

    __slots__ = ("correlation_id", "deadline", "refused")

    def __init__(self, deadline: float | None, correlation_id: str | None, refused: int = 0) -> None:
        self.deadline = deadline
        self.correlation_id = correlation_id
        self.refused = refused


class Scope:
    """One reactor at work: the root, a composed child, or a map's element.

    ``active`` counts its nodes in progress, ``left`` those that did not complete yet. ``completed`` is its undo
    stack, ``failed`` its compensation queue, both of node indexes. A step that is a map's element resolves its
    arguments in ``origin``, the scope of the map.
    """

    __slots__ = (
        "active",
        "arguments",
        "attempts",
        "blobs",
        "children",
        "completed",
        "deadline",
        "due",
        "element",
        "errors",
        "failed",
        "failure",
        "guard",
        "halt",
        "hooks",
        "index",
        "inputs",
        "item",
        "left",
        "limiters",
        "made",
        "opened",
        "order",
        "origin",
        "parent",
        "parks",
        "path",
        "plan",
        "results",
        "status",
        "stopped",
        "suspects",
        "view",
        "waiting",
    )

    def __init__(self, plan: Plan, parent: Scope | MapRun | None, index: int, path: str) -> None:
        size = len(plan.nodes)
        self.plan = plan
        self.parent = parent
        self.index = index
        self.path = path
        self.origin: Scope = self
        self.view: Any = None
        self.inputs: Mapping[str, Any] = {}
        self.results: list[Any] = [None] * size
        self.status = bytearray(size)
        self.waiting = list(plan.waiting)
        self.active = 0
        self.left = size
        self.completed: list[int] = []
        self.failed: deque[int] | None = None
        self.children: dict[int, Scope | MapRun] | None = None
        self.attempts: dict[int, int] | None = None
        self.arguments: dict[int, Mapping[str, Any]] | None = None
        self.errors: dict[int, BaseException] | None = None
        self.blobs: dict[int, bytes] | None = None
        self.order: dict[int, int] | None = None
        self.stopped = False
        self.suspects: set[int] | None = None
        """After a crash: steps whose body may have been entered before it."""
        self.failure: Failed | None = None
        self.halt: tuple[Any, str] | None = None
        self.element: int | None = None
        self.item: Any = None
        self.hooks: Hooks | None = None
        self.limiters: tuple[Limiter, ...] = ()
        self.guard: Guard | None = None
        """Of the nearest scope, this one or one around it, that holds something for all bodies inside."""
        self.parks: dict[int, Parked] | None = None
        self.deadline: float | None = None
        self.due: dict[int, float] | None = None
        """Seconds since the epoch at which the next attempt of a step may start."""
        self.opened: dict[int, Opening] | None = None
        """Nodes that wait for an answer or a decision."""
        self.made: dict[int, Mapping[str, Any]] | None = None
        """Of the arguments of a step's last attempt, those that another process could not make again."""

    def path_of(self, index: int) -> str:
        """The dotted path of one of its nodes."""
        name = self.plan.nodes[index].name
        if not self.path:
            return name
        return f"{self.path}.{name}" if name else self.path

    def attempt_of(self, index: int) -> int:
        """How many attempts of a node have ended in failure."""
        return self.attempts.get(index, 0) if self.attempts else 0

    @property
    def owner(self) -> Scope | None:
        """The scope around it; for an element, the scope of its map."""
        parent = self.parent
        return parent.scope if isinstance(parent, MapRun) else parent

    def enclosing_map(self) -> tuple[str, int] | None:
        """Path and element index of the nearest map around it."""
        scope: Scope | None = self
        while scope is not None:
            if isinstance(scope.parent, MapRun) and scope.element is not None:
                return scope.parent.path, scope.element
            scope = scope.owner
        return None

    def value(self) -> Any:
        """What it came to: the result of its ``returns``, else all results by name."""
        if self.plan.returns is not None:
            return self.results[self.plan.returns]
        return self.results_by_name()

    def results_by_name(self) -> dict[str, Any]:
        """Results of the nodes that completed or were skipped."""
        done = (NodeStatus.COMPLETED, NodeStatus.SKIPPED, NodeStatus.UNDONE)
        return {node.name: self.results[node.index] for node in self.plan.nodes if self.status[node.index] in done}


class MapRun:
    """One map at work. ``outcomes`` holds, per element index, what it came to."""

    __slots__ = (
        "elements",
        "exhausted",
        "failure",
        "in_flight",
        "index",
        "inputs",
        "node",
        "opened",
        "outcomes",
        "path",
        "reading",
        "scope",
        "stopped",
        "to_roll_back",
        "undone",
    )

    def __init__(self, scope: Scope, index: int) -> None:
        self.scope = scope
        self.index = index
        self.node: PlanNode = scope.plan.nodes[index]
        self.path = scope.path_of(index)
        self.elements: dict[int, Scope] = {}
        self.outcomes: dict[int, Any] = {}
        self.opened = 0
        self.in_flight = 0
        self.exhausted = False
        self.stopped = False
        self.failure: Failed | None = None
        self.to_roll_back: list[int] | None = None
        self.undone = False
        self.reading = False
        """Whether code of the source, or of ``collect``, is under way."""

    @property
    def plan(self) -> Plan:
        """The plan of one element."""
        assert self.node.element is not None
        return self.node.element

    @property
    def has_room(self) -> bool:
        """Whether another element may start."""
        return self.in_flight < self.node.concurrency

    @property
    def settled(self) -> bool:
        """Whether no element is in flight and no other will come."""
        return self.exhausted and self.in_flight == 0


class FanRun(MapRun):
    """One map whose elements are runs of their own, in workers: there are none here, only how far it has come.

    ``fed`` says how far its source was read, where this process knows; ``succeeded`` how many elements did, once they
    have settled. ``back`` is set when they have been rolled back, as far as that went.
    """

    __slots__ = ("back", "fed", "lingered", "succeeded")

    def __init__(self, scope: Scope, index: int) -> None:
        super().__init__(scope, index)
        self.fed: Any = None
        self.lingered = False
        self.succeeded = 0
        self.back = False
