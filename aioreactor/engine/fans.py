"""What the engine asks of who deals the elements of a map to workers: the protocol, and what goes through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from aioreactor.engine.scope import FanRun
from aioreactor.map_results import FanResults, FanSummary
from aioreactor.plan.model import PlanNode
from aioreactor.results import Failure, Halt, RollbackFailure


class Source(NamedTuple):
    """How far a source was read: how many items, where it goes on, and whether there are more."""

    fed: int = 0
    cursor: Any = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class FanState:
    """A fan-out as of one moment.

    Attributes:
        over: Nothing is under way, and nothing more will be.
        under_way: Elements that have begun and have not settled.
        hungry: The source is to be read on.
        summary: How many came to what, so far.
        failures: Elements that failed, in the order in which they did; of an atomic map.
        owed: Elements that failed, and whose own rollback did not complete.
        halt: The element that halted the run.
        doomed_for: Seconds since nothing new starts any more; None while it does.
    """

    over: bool
    under_way: int
    hungry: bool
    summary: FanSummary
    failures: Sequence[int] = ()
    owed: Sequence[int] = ()
    halt: int | None = None
    doomed_for: float | None = None


class Fans(Protocol):
    """The fan-outs of one run. Every coroutine may raise `JournalFailed`: the store is away."""

    look_each: float
    """Seconds after which a fan-out is looked at although nothing was heard of it."""
    patience: float
    """Seconds for which elements that were told to stop are waited for."""

    async def open(self, path: str, node: PlanNode, given: Mapping[str, Any], around: Mapping[str, Any]) -> Source:
        """Begin a fan-out whose elements have ``given`` in common, in a reactor with the inputs ``around``; or find it.

        Raises:
            SerializationError, PayloadTooLarge: what they have in common cannot be stored; nothing was begun.
        """
        ...

    async def feed(
        self, path: str, node: PlanNode, before: Source, items: Sequence[Any], *, cursor: Any, ended: bool
    ) -> Source:
        """More items, and where the source goes on; tells workers.

        Raises:
            SerializationError, PayloadTooLarge: an item cannot be stored.
        """
        ...

    async def look(self, path: str, node: PlanNode) -> FanState:
        """How far it has come; mends what was lost on the way, and tells workers if nobody executes what could be."""
        ...

    async def changed(self, path: str, timeout: float) -> None:
        """Wait until something of importance may have happened, ``timeout`` seconds at most.

        Cancellation: only the wait ends.
        """
        ...

    async def stop(self, path: str, node: PlanNode, why: str, cut: str = "") -> None:
        """Nothing new starts. ``cut`` ("stop" or "rollback"): what is under way is cancelled, in that way."""
        ...

    async def failure(self, path: str, node: PlanNode, index: int) -> Failure | Halt:
        """Why an element ended; its paths are those of the map."""
        ...

    async def go_back(self, path: str, node: PlanNode) -> Sequence[RollbackFailure] | None:
        """Have the elements rolled back; None while that goes on, then what did not go well."""
        ...

    async def in_flight(self, path: str) -> Sequence[int]:
        """Elements that have begun and have not settled."""
        ...

    def results(self, path: str, node: PlanNode, summary: FanSummary, inputs: Mapping[str, Any]) -> FanResults[Any]:
        """What a reader of the map gets. ``inputs`` are those of the run, as failures show them."""
        ...

    async def parted(self) -> None:
        """The run was parked: have it taken up at once if something happened at that very moment."""
        ...


def is_fan(inner: Any) -> bool:
    """Whether what is inside a node is a map whose elements are elsewhere."""
    return isinstance(inner, FanRun)
