"""What the engine asks of its surroundings: protocols, and the implementation for runs without a store.

The engine calls a journal at every transition that a crash must not lose. The volatile one keeps nothing, and says
so (``durable``), so that nothing is collected for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from anyio import CapacityLimiter

from aioreactor.clock import SYSTEM_CLOCK, Clock
from aioreactor.definition.policies import OnCancel, OnFailure
from aioreactor.definition.primitives import Primitive
from aioreactor.engine.limiter import Ready
from aioreactor.errors import AioreactorError, LeaseLost
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


class JournalFailed(AioreactorError):
    """The store could not keep what happened, for as long as retrying was allowed; the cause says why.

    Raised by ``run``: the execution stopped where it was, without a rollback. The run is still in the store as it was
    at its last checkpoint, and goes on from there, or goes back, when somebody takes it up.
    """

    retryable = False


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


Ending: TypeAlias = Literal["success", "halt", "failure", "paused"]
"""How what was protected ended. ``paused`` is no end: it comes back, and keeps its positions."""


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


class PeriodTaken(AioreactorError):
    """A run succeeded in this calendar bucket already."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A declared primitive, with its key."""

    primitive: Primitive
    key: str

    @property
    def name(self) -> str:
        """Kind and key, for people: ``lock order:7``."""
        return f"{self.primitive.kind} {self.key}"


OuterHolds: TypeAlias = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for what is wished for, and on what terms.

    Attributes:
        place: Of the body, made by `Coordinator.place`.
        token: The same whenever the same body asks again, in whatever process; finds positions of ordered locks.
        on_lost: Called once for each hold that is lost.
        wake: Called when what was refused is there; then the asker goes away when it is refused, and has a place in
            line for ``alive`` seconds. None waits in place.
        tickets: Places in line; changed by asking.
        positions: Of ordered locks, by key, that were assigned before; others are assigned now.
        admitted: It passed those that spend something before.
        undoing: For an undo or a compensate, which waits for ``rollback_wait``.
        wait: Seconds, instead of each primitive's own.
        bound: What the places around hold is not given back before this body has ended.
        outer: Tokens of what other runs hold until this one has ended, where there are any.
    """

    place: Any
    token: str
    on_lost: Callable[[LeaseLost], None]
    wake: Callable[[], None] | None = None
    alive: float = 60.0
    tickets: dict[str, str] = field(default_factory=dict)
    positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    admitted: bool = False
    undoing: bool = False
    wait: float | None = None
    bound: bool = True
    outer: OuterHolds | None = None


class Holding(Protocol):
    """What one body has taken. Given back once."""

    @property
    def trusted_until(self) -> float:
        """`time.monotonic` until which nobody else can have any of it."""
        ...

    async def check(self) -> None:
        """Return if all of it is surely held.

        Raises:
            LeaseLost: One is not.
        """
        ...

    async def mark(self) -> None:
        """Mark its periods, since it has succeeded; the rest stays held.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def release(self, ending: Ending) -> None:
        """Give all of it back; a success marks its periods, if they are not marked yet.

        Cancellation: all of it is done all the same, then it is raised.
        """
        ...

    async def give_back(self) -> None:
        """Give all of it back as if it had never been asked for.

        Cancellation: all of it is done all the same, then it is raised.
        """
        ...

    def to_data(self) -> dict[str, Any]:
        """What another process needs to go on with it."""
        ...

    async def park(self, seconds: float) -> dict[str, Any]:
        """Keep all of it for so long without this process; see `to_data`."""
        ...

    def abandon(self) -> None:
        """Forget it here; somebody else goes on with it."""
        ...


Heard: TypeAlias = Callable[[Literal["acquired", "contended", "released", "lost"], str, str, float], None]
"""Is told what happened to a hold: which fact, the kind and key of the primitive, seconds that it waited."""


class Coordinator(Protocol):
    """Takes and gives back what reactors and steps declare."""

    def place(self, around: Any, name: str) -> Any:
        """A place for a body inside another one's (None: inside nobody's): what those around it hold, it may enter."""
        ...

    def here(self) -> Any:
        """The place of the code that runs now; None is nobody's."""
        ...

    def holder(self, place: Any, wish: Wish) -> str:
        """Who, of those around a place, holds what is wished for, and nobody beside it can; empty if nobody does."""
        ...

    def settle(self, context: Context, place: Any) -> None:
        """What runs in this context is in that place from now on."""
        ...

    def listen(self, place: Any, heard: Heard | None) -> None:
        """Tell ``heard`` what happens to the holds of a place; None ends it."""
        ...

    async def acquire(self, wishes: Sequence[Wish], asking: Asking) -> Holding:
        """Pass all gates; what refuses has everything before it given back.

        Raises:
            ContentionError: one refused.
            PeriodTaken: a period did.
            UnknownRateLimit: a limit is not configured.
            AioreactorError: the store is away.

        Cancellation: nothing is held.
        """
        ...

    async def adopt(self, data: Mapping[str, Any], asking: Asking) -> tuple[Holding, frozenset[str]]:
        """Go on with what another process held; and the names (see `Wish.name`) of what of it is held still.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def assign(self, wish: Wish, token: str) -> dict[str, Any]:
        """The next position in the line of an ordered lock, as data; a token that has one keeps it.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def assign_all(self, wanted: Sequence[tuple[Wish, str]]) -> list[dict[str, Any]]:
        """The next positions for many, each an ordered lock and a token, in this order; see `assign`.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def resign(self, wishes: Sequence[Wish], asking: Asking) -> None:
        """Give up places in line and positions of a body that will not come. What cannot be, ends by itself."""
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
