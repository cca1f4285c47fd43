"""What the engine asks of its surroundings: protocols, and the implementation for runs without a store.

The engine calls a journal at every transition that a crash must not lose. The volatile one keeps nothing, and says
so (``durable``), so that nothing is collected for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from anyio import CapacityLimiter

from aioreactor.clock import SYSTEM_CLOCK, Clock
from aioreactor.definition.policies import OnCancel, OnFailure
from aioreactor.engine.coordinating import Coordinator
from aioreactor.engine.limiter import Ready
from aioreactor.errors import AioreactorError
from aioreactor.plan.model import PlanNode
from aioreactor.results import Outcome, RollbackFailure
from aioreactor.trace import RawEntry, Status


@dataclass(frozen=True, slots=True)
class Fate:
    """Why a run no longer goes forward: its first failure, a cancellation, or a halt.

    ``left``: what of its rollback did not complete, so far. ``others``: errors of steps that failed after the first, or
    after it had halted. ``arguments`` are those of the step that failed first, as they may be shown.
    """

    kind: Literal["failed", "cancelled", "halted"]
    path: str = ""
    error: BaseException | None = None
    attempts: int = 0
    reason: Any = None
    left: Sequence[RollbackFailure] = ()
    others: Sequence[BaseException] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What changed since the last one: nodes and trace entries; and the run's status, fate and shared state.

    ``firm``: who saves it goes on only when it is kept, and all that was saved before, whatever the journal's pace.
    ``served``: how many requests of others have had their effects, these included.
    ``left``: what of rollbacks inside did not complete while the run goes on; of one that goes back the fate has it.
    """

    nodes: Sequence[Ready]
    entries: Sequence[RawEntry]
    status: Status
    fate: Fate | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    firm: bool = False
    served: int = 0
    gates: Mapping[str, Any] | None = None
    """How far the run is with its own gates, and what it holds; None before it came to them."""
    reported: Mapping[str, Any] | None = None
    """How far bodies say they are, by path."""
    left: Sequence[RollbackFailure] = ()


class JournalFailed(AioreactorError):
    """The store could not keep what happened, for as long as retrying was allowed; the cause says why.

    Raised by ``run``: the execution stopped where it was, without a rollback. The run is still in the store as it was
    at its last checkpoint, and goes on from there, or goes back, when somebody takes it up.
    """

    retryable = False


class FanGone(JournalFailed):
    """The store does not know a fan-out of which its run does, and with which elements may have begun."""


class Detached(AioreactorError):
    """The caller was cancelled under ``on_cancel="detach"``: the execution stopped here, for a worker to go on with."""


class Journal(Protocol):
    """Keeps a run. A dependant starts after `save` of what it depends on has returned.

    One that writes ``behind`` returns from `save` before anything is kept, unless the checkpoint is ``firm``. What is
    kept is then always the whole run as of some earlier `save`.
    """

    durable: bool
    behind: bool

    @property
    def trusted(self) -> bool:
        """Whether nobody else can have taken the run yet. While not, `save` finds out before anything begins."""
        ...

    def prepare(self, node: PlanNode, path: str, value: Any) -> bytes:
        """A step's value as it will be kept; before anything depends on it.

        Raises:
            SerializationError, PayloadTooLarge: it cannot be kept, which fails the step.
        """
        ...

    def check_state(self, notes: Mapping[str, Any]) -> None:
        """Whether the run's shared state (``ctx.state``) can be kept.

        Raises:
            SerializationError: it cannot, which fails the step that completed just now.
        """
        ...

    async def save(self, checkpoint: Checkpoint) -> None:
        """Write what changed, at once or behind.

        Raises:
            OwnershipLost: another execution owns the run now.
            JournalFailed: the store is away.
            SerializationError, PayloadTooLarge: a part of it cannot be kept; the rest is.
        """
        ...

    async def close(self, checkpoint: Checkpoint, outcome: Any) -> None:
        """Write all that is pending and the outcome, and let the run go.

        Raises:
            OwnershipLost, JournalFailed: as for `save`; the run has not ended for anybody else.
        """
        ...

    async def part(self, checkpoint: Checkpoint, delay: float, waits_for: str) -> str:
        """Write the last changes, let the run go unfinished, and have a worker take it; gives the job's id.

        ``delay`` in seconds, 0 is at once; a paused run with none is taken by nobody until it gets a request, and has
        no job. Nothing of the run is in flight.

        Raises:
            OwnershipLost: another execution owns the run now.
            JournalFailed: the store is away.
        """
        ...

    def rouse(self) -> None:
        """What the run was parked for is there: have a worker take it at once, behind the caller's back."""
        ...


class VolatileJournal:
    """For runs that live and die with their process."""

    durable = False
    trusted = True
    behind = False

    def prepare(self, node: PlanNode, path: str, value: Any) -> bytes:
        """Nothing is kept."""
        return b""

    def check_state(self, notes: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Nothing is kept."""

    async def close(self, checkpoint: Checkpoint, outcome: Any) -> None:
        """Nothing is kept."""

    def rouse(self) -> None:
        """It is never parked."""

    async def part(self, checkpoint: Checkpoint, delay: float, waits_for: str) -> str:
        """Nothing is kept, so nobody can take it: a volatile run is never left."""
        raise AssertionError("a volatile run was left")


@dataclass(frozen=True, slots=True)
class Sent:
    """A unit that was dispatched: its run, the job that tells a worker of it, and when, in seconds since the epoch.

    No job when nobody could be told; then the sweeper does it.
    """

    run_id: str
    job_id: str
    at: float


class Units(Protocol):
    """Dispatches parts of one run as runs of their own. ``path`` is that of the unit's node.

    ``longest_wait``, ``longest_park``: for how many seconds a reader waits in the caller, from when it begins to wait;
    and in a worker, from when the unit was dispatched.

    Every coroutine may raise `JournalFailed`: the store is away.
    """

    longest_wait: float
    longest_park: float

    async def dispatch(self, path: str, node: PlanNode, inputs: Mapping[str, Any]) -> Sent:
        """Create the run of a unit, then tell workers; one that was created before is told of again.

        Raises:
            SerializationError, PayloadTooLarge: the inputs cannot be stored; nothing was created.
        """
        ...

    async def outcome(self, path: str, node: PlanNode) -> Outcome[Any] | None:
        """What a unit came to; None as long as it has not ended.

        Raises:
            RunNotFound: its record is gone.
            SerializationError, UnknownReactor: it cannot be read.
        """
        ...

    async def ended(self, path: str, node: PlanNode) -> None:
        """Wait until a unit has ended, or may have.

        Cancellation: only the wait ends.
        """
        ...

    async def withdraw(self, path: str, node: PlanNode) -> Status | None:
        """End a unit that nobody has taken yet; gives the status that it has then, None when there is none."""
        ...

    async def parted(self) -> None:
        """The run was parked: have it taken up at once if a unit ended at that very moment."""
        ...


def _no_resource(name: str, annotation: Any) -> Any:
    raise LookupError(f"{name}: {annotation}")


@dataclass(frozen=True, slots=True)
class Environment:
    """What one runtime gives to all its runs: ports, and the policy for what a class header leaves open.

    Spans in seconds. ``cancel_rollback_timeout`` bounds a rollback that a cancellation waits for, where the reactor
    sets no ``rollback_timeout``.
    """

    clock: Clock = SYSTEM_CLOCK
    resource: Callable[[str, Any], Any] = _no_resource
    limiter: Callable[[], CapacityLimiter | None] = lambda: None
    coordinator: Callable[[], Coordinator | None] = lambda: None
    journal: Callable[[], Journal] = VolatileJournal
    """For runs that nobody gives a journal of their own."""
    middlewares: Sequence[Any] = field(default_factory=tuple)
    on_failure: OnFailure = "settle"
    on_cancel: OnCancel = "rollback"
    settle_timeout: float = 30.0
    undo_timeout: float = 60.0
    rollback_timeout: float | None = None
    cancel_rollback_timeout: float = 30.0
    deadline: float | None = None
    max_concurrency: int | None = None
    snooze_delay: float = 5.0
    snooze_max: int = 20
