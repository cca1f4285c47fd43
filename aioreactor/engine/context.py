"""The context that a body may ask for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aioreactor.definition.markers import ContextMark

if TYPE_CHECKING:
    from aioreactor.engine.scope import Scope
    from aioreactor.engine.services import Services


class Context(ContextMark):
    """What a step can know about the run it is part of; asked for by annotating a parameter ``ctx: Context``."""

    __slots__ = ("_execution", "_index", "_scope", "attempt")

    def __init__(self, execution: Services, scope: Scope, index: int, attempt: int) -> None:
        self._execution = execution
        self._scope = scope
        self._index = index
        self.attempt = attempt
        """Which attempt of the step this is, from 1."""

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._execution.state.run_id

    @property
    def reactor(self) -> str:
        """Name of the reactor whose step this is (the child's, in a composed child)."""
        return self._scope.plan.name

    @property
    def step(self) -> str:
        """Name of the step."""
        name = self._scope.plan.nodes[self._index].name
        return name or self._scope.path.rpartition(".")[2]

    @property
    def path(self) -> str:
        """Dotted path of the step from the root: ``trip.hotel``, ``charges[3]``."""
        return self._scope.path_of(self._index)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The reactor's inputs, read-only."""
        return MappingProxyType({name: item for name, item in self._scope.inputs.items() if name[0] != "@"})

    @property
    def results(self) -> Mapping[str, Any]:
        """Results of the steps that completed so far, by name, read-only. In a dispatched step: those of its parent."""
        outer = self._execution.outer_results
        if outer is not None:
            return MappingProxyType(dict(outer))
        return MappingProxyType(self._scope.origin.results_by_name())

    @property
    def deadline(self) -> float | None:
        """When the run has to be over, in seconds since the epoch; None without a deadline."""
        return self._execution.state.root.deadline

    @property
    def idempotency_key(self) -> str:
        """Stable per run and step, the same on every attempt and redelivery: made for payment APIs."""
        return f"{self.run_id}:{self.path}"

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry ``run_id``, ``reactor``, ``path`` and ``attempt``."""
        fields = {"run_id": self.run_id, "reactor": self.reactor, "path": self.path, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger("aioreactor.step"), fields)

    @property
    def state(self) -> MutableMapping[str, Any]:
        """A small mapping shared by the steps of the run and saved with it."""
        return self._execution.state.notes

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far the body is; may be called from a blocking body's thread too."""
        self._execution.report_progress(self._scope, self._index, self.attempt, done, total, message)

    def __repr__(self) -> str:
        return f"<Context {self.path} attempt {self.attempt} of run {self.run_id}>"
