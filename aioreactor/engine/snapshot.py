"""A run's state as flat images, one per node, and back again. Pure.

An image holds what a node cannot work out again: its status, attempts, value, place in the rollback's order; for a
step that waits when its next attempt is due; for a composed child its validated inputs and its deadline; for a map how
many elements were opened; for an element its item. For undos and compensates it holds the arguments that a
transformation or a default made; the others follow from inputs and results. Everything else
(who is ready, what is left, the stacks) follows from the plan and the images, so a checkpoint writes only the images of
nodes that changed.

In flight at a crash. Entering a body is not written, or every step would cost two writes; opening a child or an element
is. So after a crash each step whose turn had come may have been entered. A run that goes forward enters it again; if it
is stopped before, the step counts as started and is compensated. When a run begins to go back, the bodies in flight are
written with that: of those, and only those, it is known that they have started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aioreactor.engine.limiter import Ready
from aioreactor.engine.scope import Failed, FanRun, MapRun, NodeStatus, Opening, Parked, Scope
from aioreactor.engine.state import CRASHED, RunState
from aioreactor.engine.state_changes import WHOLE
from aioreactor.engine.state_effects import RollBack
from aioreactor.errors import StepCancelled
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.results import Skipped, Success

_DONE = (NodeStatus.COMPLETED, NodeStatus.SKIPPED, NodeStatus.UNDONE)
_WAITS = (NodeStatus.RUNNING, NodeStatus.READY)
_ENDED_BADLY = (NodeStatus.FAILED, NodeStatus.CUT, NodeStatus.COMPENSATED)


@dataclass(frozen=True, slots=True)
class Image:
    """One node (or element) as it is stored; ``value``, ``error``, ``inputs``, ``item`` and ``arguments`` are encoded.

    ``due``, in seconds since the epoch: when the next attempt of a step may start; the deadline of a composed child or
    of an open interrupt; the moment of a timer; when a unit was dispatched. ``opened``: of a map, its elements; of what
    waits for an answer, 1 and the payloads that did not fit.
    ``gates``, plain data: how often a node was refused by its gates, and its places in line; what a child holds.
    """

    path: str
    status: int
    attempts: int = 0
    order: int = 0
    value: bytes | None = None
    error: bytes | None = None
    inputs: bytes | None = None
    item: bytes | None = None
    opened: int = 0
    due: float = 0.0
    arguments: bytes | None = None
    correlation: str | None = None
    gates: Mapping[str, Any] | None = None


class Codec(Protocol):
    """Encodes and decodes what images hold, by the types that the plan knows."""

    def value(self, node: PlanNode, path: str, value: Any) -> bytes:
        """A node's result.

        Raises:
            SerializationError, PayloadTooLarge: it cannot be stored.
        """
        ...

    def value_back(self, node: PlanNode, data: bytes) -> Any:
        """A node's result, read again."""
        ...

    def inputs(self, plan: Plan, values: Mapping[str, Any]) -> bytes:
        """A reactor's inputs."""
        ...

    def inputs_back(self, plan: Plan, data: bytes) -> dict[str, Any]:
        """A reactor's inputs, read again."""
        ...

    def item(self, node: PlanNode, path: str, item: Any) -> bytes:
        """An element's item."""
        ...

    def item_back(self, node: PlanNode, data: bytes) -> Any:
        """An element's item, read again."""
        ...

    def arguments(self, node: PlanNode, values: Mapping[str, Any]) -> bytes | None:
        """Some arguments of a step; None when they cannot be stored."""
        ...

    def arguments_back(self, node: PlanNode, data: bytes) -> dict[str, Any]:
        """Some arguments of a step, read again."""
        ...

    def error(self, error: BaseException) -> bytes:
        """An error, as data."""
        ...

    def error_back(self, data: bytes) -> BaseException:
        """An error, made again from data."""
        ...


# ---------------------------------------------------------------------- to images


def image_of(ready: Ready, codec: Codec) -> Image:
    """The image of one node as it stands."""
    scope, index = ready
    if index == WHOLE:
        return _image_of_element(scope, codec)
    node, path = scope.plan.nodes[index], scope.path_of(index)
    status = NodeStatus(scope.status[index])
    error = scope.errors.get(index) if scope.errors else None
    inner = scope.children.get(index) if scope.children else None
    opening = scope.opened.get(index) if scope.opened and status is NodeStatus.READY else None
    return Image(
        path,
        status,
        attempts=scope.attempt_of(index),
        order=scope.order.get(index, 0) if scope.order else 0,
        value=_value_of(scope, index, node, codec) if status in _DONE and _is_kept(node, inner) else None,
        error=codec.error(error) if error is not None else None,
        inputs=codec.inputs(inner.plan, inner.inputs) if isinstance(inner, Scope) else None,
        item=codec.item(node, path, scope.item) if scope.plan.element else None,
        opened=_opened_in(inner) if isinstance(inner, MapRun) else 1 + opening.refused if opening is not None else 0,
        due=_due_of(scope, index, status, inner) if opening is None else opening.deadline or 0.0,
        arguments=codec.arguments(node, scope.made[index]) if scope.made and index in scope.made else None,
        correlation=opening.correlation_id if opening is not None else None,
        gates=_gates_of(scope, index, inner),
    )


FANNED = -1
"""Stands for the number of elements of a map whose elements are elsewhere."""


def _opened_in(run: MapRun) -> int:
    return FANNED if isinstance(run, FanRun) else run.opened


def _gates_of(scope: Scope, index: int, inner: Any) -> dict[str, Any] | None:
    parked = scope.parks.get(index) if scope.parks else None
    if parked is not None:
        return {"parks": parked.count, "tickets": parked.tickets, "for": parked.waits_for}
    return _held_by(inner) if isinstance(inner, Scope) else None


def _held_by(scope: Scope) -> dict[str, Any] | None:
    """What a child holds itself, while it holds it."""
    guard = scope.guard
    if guard is None or guard.scope is not scope or not guard.holdings:
        return None
    return {"holds": guard.to_data()}


def _due_of(scope: Scope, index: int, status: NodeStatus, inner: Any) -> float:
    if isinstance(inner, Scope):
        return inner.deadline or 0.0
    if scope.plan.nodes[index].unit is not None:
        return scope.due.get(index, 0.0) if scope.due else 0.0
    return scope.due.get(index, 0.0) if scope.due and status in _WAITS else 0.0


def _is_kept(node: PlanNode, inner: Scope | MapRun | None) -> bool:
    """Whether a node's value is stored: a composed child's and a map's follow from what is inside them."""
    return (
        isinstance(inner, FanRun)
        or node.kind in {"step", "interrupt"}
        or node.collect is not None
        or node.unit is not None
    )


def _value_of(scope: Scope, index: int, node: PlanNode, codec: Codec) -> bytes:
    ready = scope.blobs.get(index) if scope.blobs else None
    return ready if ready is not None else codec.value(node, scope.path_of(index), scope.results[index])


def _image_of_element(element: Scope, codec: Codec) -> Image:
    run = element.parent
    assert isinstance(run, MapRun)
    refused = element.failure
    if refused is not None and refused.scope is element and refused.index is None and not element.inputs:
        item = codec.item(run.node, element.path, element.item)
        return Image(element.path, NodeStatus.FAILED, error=codec.error(refused.error), item=item)
    return Image(
        element.path,
        NodeStatus.RUNNING,
        inputs=codec.inputs(element.plan, element.inputs),
        item=codec.item(run.node, element.path, element.item),
        due=element.deadline or 0.0,
        gates=_held_by(element),
    )


# ---------------------------------------------------------------------- and back


class Restorer:
    """Builds the tree of scopes again. ``failing``: the run was already going back when it was saved.

    ``quiet``: nothing was in flight when it was let go, so no step is suspected of having been entered.
    """

    def __init__(
        self, state: RunState, images: Mapping[str, Image], codec: Codec, *, failing: bool, quiet: bool = False
    ) -> None:
        self.state = state
        self.images = images
        self.codec = codec
        self.failing = failing
        self.quiet = quiet

    def restore(self) -> list[Ready]:
        """Fill the root scope and everything below; give what may start now."""
        root = self.state.root
        self._scope(root)
        self.state.resume_sequence(max((image.order for image in self.images.values()), default=0))
        return [] if self.failing else self._ready(root)

    # ------------------------------------------------------------------ records into scopes

    def _scope(self, scope: Scope) -> None:
        completed: list[tuple[int, int]] = []
        owed: list[tuple[int, int]] = []
        for node in scope.plan.nodes:
            image = self.images.get(scope.path_of(node.index))
            if image is not None:
                self._node(scope, node, image, completed, owed)
        scope.completed = [index for _, index in sorted(completed)]
        if owed:
            scope.failed = deque(index for _, index in sorted(owed))

    def _node(
        self,
        scope: Scope,
        node: PlanNode,
        image: Image,
        completed: list[tuple[int, int]],
        owed: list[tuple[int, int]],
    ) -> None:
        index, status = node.index, NodeStatus(image.status)
        self._common(scope, node, image)
        if status in _DONE:
            scope.results[index] = self.codec.value_back(node, image.value) if image.value is not None else None
            scope.left -= 1
            for dependant in node.dependants:
                scope.waiting[dependant] -= 1
            tracked = node.undo is not None or (node.kind != "step" and node.unit is None)
            if status is NodeStatus.COMPLETED and tracked:
                completed.append((image.order, index))
        elif status in _ENDED_BADLY:
            if status is not NodeStatus.COMPENSATED and image.order:
                owed.append((image.order, index))
        elif self.failing and status is NodeStatus.RUNNING:
            self._cut(scope, index, owed)
        self._inside(scope, node, image)

    def _common(self, scope: Scope, node: PlanNode, image: Image) -> None:
        index = node.index
        scope.status[index] = image.status
        if image.order:
            scope.order = scope.order or {}
            scope.order[index] = image.order
        if image.attempts:
            scope.attempts = scope.attempts or {}
            scope.attempts[index] = image.attempts
        if image.gates and "tickets" in image.gates:
            scope.parks = scope.parks or {}
            name = str(image.gates.get("for", ""))
            scope.parks[index] = Parked(int(image.gates["parks"]), dict(image.gates["tickets"]), waits_for=name)
        if image.opened and node.kind in {"step", "interrupt"}:
            scope.opened = scope.opened or {}
            scope.opened[index] = Opening(image.due or None, image.correlation, image.opened - 1)
        elif image.due and (node.kind in {"step", "timer"} or image.inputs is None):
            scope.due = scope.due or {}
            scope.due[index] = image.due
        if image.arguments is not None:
            scope.made = scope.made or {}
            scope.made[index] = self.codec.arguments_back(node, image.arguments)
        if image.error is not None:
            scope.errors = scope.errors or {}
            scope.errors[index] = self.codec.error_back(image.error)
        if image.item is not None and scope.plan.element:
            scope.item = self.codec.item_back(node, image.item)

    def _cut(self, scope: Scope, index: int, owed: list[tuple[int, int]]) -> None:
        """In flight while the run was already failing: it has started, and it will not be entered again."""
        scope.status[index] = NodeStatus.CUT
        scope.errors = scope.errors or {}
        scope.errors[index] = StepCancelled(scope.path_of(index), CRASHED)
        owed.append((1 << 62, index))

    def _inside(self, scope: Scope, node: PlanNode, image: Image) -> None:
        if node.kind == "compose" and image.inputs is not None and node.child is not None:
            child = self.state.adopt_child(scope, node.index)
            child.inputs = self.codec.inputs_back(node.child, image.inputs)
            child.deadline = image.due or None
            self._holds(child, image)
            self._scope(child)
        elif node.kind == "map" and image.opened == FANNED:
            status = scope.status[node.index]
            self.state.open_fan(FanRun(scope, node.index))
            scope.status[node.index] = status
        elif node.kind == "map" and image.status != NodeStatus.READY:
            self._map(self.state.adopt_map(scope, node.index), image.opened)

    def _map(self, run: MapRun, opened: int) -> None:
        for index in range(opened):
            element = self.state.open_element(run, None)
            image = self.images.get(element.path)
            if image is not None and not run.plan.element:
                element.item = self.codec.item_back(run.node, image.item) if image.item is not None else None
                element.inputs = self.codec.inputs_back(run.plan, image.inputs) if image.inputs is not None else {}
                element.deadline = image.due or None
                self._holds(element, image)
                if image.error is not None:
                    run.outcomes[index] = Failed(self.codec.error_back(image.error), element, None)
                    run.in_flight -= 1
                    continue
            self._scope(element)
            self._element_outcome(run, element)

    def _holds(self, child: Scope, image: Image) -> None:
        if image.gates and "holds" in image.gates:
            self.state.unadopted.append((child, image.gates["holds"]))

    def _element_outcome(self, run: MapRun, element: Scope) -> None:
        """What an element came to, if it has ended: one that failed has, once its map completed all the same."""
        assert element.element is not None
        outcome: Any = None
        if element.left == 0:
            skipped = run.plan.element and element.status[0] == NodeStatus.SKIPPED
            outcome = Skipped(element.value()) if skipped else Success(element.value())
        elif run.scope.status[run.index] in _DONE:
            outcome = _failure_in(element)
        if outcome is not None:
            run.outcomes[element.element] = outcome
            run.in_flight -= 1

    # ------------------------------------------------------------------ what may start now

    def _ready(self, scope: Scope) -> list[Ready]:
        found: list[Ready] = []
        for node in scope.plan.nodes:
            status = scope.status[node.index]
            if status in _DONE or status in _ENDED_BADLY or scope.waiting[node.index]:
                continue
            scope.active += 1
            found += self._ready_node(scope, node)
        return found

    def _ready_node(self, scope: Scope, node: PlanNode) -> list[Ready]:
        inner = scope.children.get(node.index) if scope.children else None
        if isinstance(inner, Scope):
            return self._ready(inner)
        scope.status[node.index] = NodeStatus.READY
        if node.kind == "step" and not self.quiet:
            scope.suspects = scope.suspects or set()
            scope.suspects.add(node.index)
        found: list[Ready] = [(scope, node.index)]
        if isinstance(inner, FanRun):
            scope.status[node.index] = NodeStatus.RUNNING
        elif isinstance(inner, MapRun):
            for index, element in inner.elements.items():
                if index not in inner.outcomes:
                    found += self._ready_element(element)
        return found

    def _ready_element(self, element: Scope) -> list[Ready]:
        """An element that had failed, in a map that collects, goes on being rolled back; any other one goes on."""
        failed = _failure_in(element)
        if failed is None:
            return self._ready(element)
        self._doom(element)
        element.failure = failed
        self.state.effects.append(RollBack(element))
        return []

    def _doom(self, scope: Scope) -> None:
        """Nothing starts any more in an element that failed; what was half-way in it has to be rolled back."""
        scope.stopped = True
        cut = [i for i, status in enumerate(scope.status) if status == NodeStatus.RUNNING]
        for index in cut:
            scope.status[index] = NodeStatus.CUT
            if scope.plan.nodes[index].kind == "step":
                scope.errors = scope.errors or {}
                scope.errors[index] = StepCancelled(scope.path_of(index), CRASHED)
        if cut:
            scope.failed = deque((*(scope.failed or ()), *cut))
        for inner in (scope.children or {}).values():
            for below in [inner] if isinstance(inner, Scope) else inner.elements.values():
                self._doom(below)


def _failure_in(scope: Scope) -> Failed | None:
    """The first failure that doomed a scope, from what is stored of its steps."""
    found: list[tuple[int, Failed]] = []
    for index, status in enumerate(scope.status):
        inner = scope.children.get(index) if scope.children else None
        if isinstance(inner, Scope):
            below = _failure_in(inner)
        elif isinstance(inner, MapRun) and inner.node.atomic:
            below = next(filter(None, map(_failure_in, inner.elements.values())), None)
        else:
            below = None
        if below is None and status in _ENDED_BADLY:
            error = (scope.errors or {}).get(index) or StepCancelled(scope.path_of(index), CRASHED)
            below = Failed(error, scope, index, attempts=scope.attempt_of(index) + 1)
        if below is not None and below.index is not None:
            found.append(((below.scope.order or {}).get(below.index, 0), below))
    return min(found, key=lambda each: each[0])[1] if found else None
