"""How scopes of a run begin: the root, composed children, maps and their elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aioreactor.engine.limiter import Limiter
from aioreactor.engine.scope import FanRun, MapRun, NodeStatus, Scope
from aioreactor.engine.state_changes import WHOLE, Changes

if TYPE_CHECKING:
    from aioreactor.engine.state import Readies


class OpeningState(Changes, ABC):
    """The part of a `RunState` that opens scopes."""

    __slots__ = ()

    @abstractmethod
    def _close(self, scope: Scope) -> Readies:
        """Everything in a scope completed: so did its node in the parent."""

    def open_root(self, view: Any, inputs: Mapping[str, Any]) -> Readies:
        """Begin the run with validated inputs."""
        self.root.view, self.root.inputs = view, inputs
        return self._begin(self.root)

    def open_child(self, scope: Scope, index: int, view: Any, inputs: Mapping[str, Any]) -> Readies:
        """Begin a composed child with validated inputs."""
        child = self.adopt_child(scope, index)
        child.view, child.inputs = view, inputs
        scope.status[index] = NodeStatus.RUNNING
        self.touch(scope, index)
        return self._begin(child)

    def adopt_child(self, scope: Scope, index: int) -> Scope:
        """The scope of a composed child, empty."""
        plan = scope.plan.nodes[index].child
        assert plan is not None
        child = Scope(plan, scope, index, scope.path_of(index))
        self._adopt(child, scope)
        scope.children = scope.children or {}
        scope.children[index] = child
        return child

    def open_map(self, scope: Scope, index: int) -> MapRun:
        """Begin a map; its elements come by `open_element`."""
        run = self.adopt_map(scope, index)
        scope.status[index] = NodeStatus.RUNNING
        self.touch(scope, index)
        return run

    def adopt_map(self, scope: Scope, index: int) -> MapRun:
        """The record of a map, without elements."""
        run = MapRun(scope, index)
        scope.children = scope.children or {}
        scope.children[index] = run
        return run

    def open_fan(self, run: FanRun) -> None:
        """Begin a map whose elements are elsewhere, or go on with it."""
        scope, index = run.scope, run.index
        scope.children = scope.children or {}
        scope.children[index] = run
        scope.status[index] = NodeStatus.RUNNING
        self.touch(scope, index)

    def open_element(self, run: MapRun, item: Any) -> Scope:
        """Make the next element; `begin_element` starts it, once its inputs are known."""
        element = Scope(run.plan, run, run.index, f"{run.path}[{run.opened}]")
        element.element, element.item = run.opened, item
        self._adopt(element, run.scope)
        if run.plan.element:
            element.origin, element.view, element.inputs = run.scope.origin, run.scope.view, run.scope.inputs
        run.elements[run.opened] = element
        run.opened += 1
        run.in_flight += 1
        self.touch(run.scope, run.index)
        return element

    def begin_element(self, element: Scope) -> Readies:
        """Start an element."""
        self.touch(element, 0 if element.plan.element else WHOLE)
        return self._begin(element)

    def _adopt(self, child: Scope, around: Scope) -> None:
        child.hooks, child.limiters, child.guard = around.hooks, around.limiters, around.guard
        limit = child.plan.options.max_concurrency
        if limit is not None:
            child.limiters = (*around.limiters, Limiter(limit))

    def _begin(self, scope: Scope) -> Readies:
        roots = scope.plan.roots
        if not roots:
            return self._close(scope)
        scope.active = len(roots)
        for index in roots:
            scope.status[index] = NodeStatus.READY
        return [(scope, index) for index in roots]
