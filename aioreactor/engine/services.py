"""What the stages of a run ask of its execution: policy, resources, secrets, hooks, checkpoints."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from anyio import CancelScope
from anyio.abc import TaskGroup

from aioreactor.engine import events, marks, reporting
from aioreactor.engine.coordinating import OuterHolds, Spender
from aioreactor.engine.drive import shielded
from aioreactor.engine.fans import Fans
from aioreactor.engine.hooks import Hooks, hooks_for, tell
from aioreactor.engine.limiter import Ready
from aioreactor.engine.ports import Checkpoint, Environment, Fate, Journal, JournalFailed, Units
from aioreactor.engine.scope import Scope
from aioreactor.engine.state import RunState
from aioreactor.errors import AioreactorError, OwnershipLost, PayloadTooLarge, SerializationError
from aioreactor.plan.model import Plan
from aioreactor.redaction import Scrubber, secrets_of_fields
from aioreactor.results import Outcome
from aioreactor.trace import RawEntry, Status

if TYPE_CHECKING:
    from aioreactor.engine.orders import Cancel
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")
_OF_THE_ROOT = frozenset({"deadline", "max_concurrency"})


class Services(ABC):
    """The part of an `Execution` that schedules nothing."""

    __slots__ = (
        "_host",
        "_scrubber",
        "_secrets",
        "_sending",
        "base",
        "clock",
        "common",
        "coordinator",
        "environment",
        "fans",
        "journal",
        "lost",
        "ordered",
        "outcome",
        "outer_holds",
        "outer_results",
        "parted",
        "plan",
        "spender",
        "state",
        "tasks",
        "unit_waits",
        "units",
        "unmarked",
    )

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        self.environment = environment
        self.plan = plan
        self.clock = environment.clock
        self.journal: Journal = environment.journal() if journal is None else journal
        self.state = RunState(plan, run_id, self.clock.now, recording=self.journal.durable)
        self.base = copy_context()
        self.coordinator = environment.coordinator()
        if self.coordinator is not None:
            self.coordinator.settle(self.base, None)  # a run is another owner than who starts it
        self.tasks: TaskGroup
        self.outcome: Outcome[Any] | None = None
        self.lost: AioreactorError | None = None
        self.parted = False
        """Whether the run was let go unfinished: whoever takes it goes on with it."""
        self.ordered: Cancel | None = None
        """Somebody else's request to cancel the run, if that is what ends it."""
        self.fans: Fans | None = None
        """Who deals the elements of maps to workers; only of a run that is kept, and is no element itself."""
        self.units: Units | None = None
        """Who dispatches; only of a run that is kept."""
        self.unit_waits: dict[Ready, float] = {}
        """Since when nodes wait for units, by the monotonic clock."""
        self.unmarked: dict[Ready, tuple[str, Any]] = {}
        """Steps that are under way, with the periods to be marked when they have completed; see `marks`."""
        self.outer_holds: OuterHolds | None = None
        """In the run of an element: what the run that waits for it holds meanwhile."""
        self.spender: Spender | None = None
        """Who spends the rate limits of the run itself; only of one that is kept from its beginning."""
        self.outer_results: Mapping[str, Any] | None = None
        """In the run of a dispatched step: the results of its parent."""
        self.common: Mapping[str, Any] = {}
        """Inputs that many executions have in common; whoever made this one has told it their secrets."""
        self._host: asyncio.Task[Any] | None = None
        self._scrubber: Scrubber | None = None
        self._secrets: set[str] = set()
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def status(self) -> Status:
        """The run's status as of now."""
        if self.outcome is not None:
            return self.outcome.status
        return "rolling_back" if self.state.root.stopped and self.state.settled else "running"

    @abstractmethod
    def lose(self, error: AioreactorError) -> None:
        """The run is another execution's, or cannot be written: stop at once, write nothing more."""

    @abstractmethod
    def unkept(self, error: Exception) -> None:
        """A part of a checkpoint cannot be kept as it is: the run fails."""

    @abstractmethod
    def keep_progress(self) -> None:
        """Have what bodies report kept soon, with whatever else there is to keep then."""

    @abstractmethod
    def interrupt(self, error: BaseException) -> None:
        """Abort the run: ``KeyboardInterrupt`` or ``SystemExit`` was raised inside it."""

    @abstractmethod
    def note_if_cancelled(self, error: asyncio.CancelledError) -> bool:
        """Whether a ``CancelledError`` is a cancellation of the run rather than a leak."""

    def option(self, plan: Plan, name: str) -> Any:
        """A policy: the class header's, else the runtime's. Nested reactors inherit no limits from the runtime."""
        chosen = getattr(plan.options, name)
        if chosen is not None or (name in _OF_THE_ROOT and plan is not self.plan):
            return chosen
        return getattr(self.environment, name)

    def policy(self, scope: Scope, name: str) -> Any:
        """A policy in force in a scope: its own header's, else that of the nearest scope around, else the runtime's."""
        current: Scope | None = scope
        while current is not None:
            chosen = getattr(current.plan.options, name)
            if chosen is not None:
                return chosen
            current = current.owner
        return getattr(self.environment, name)

    def span(self, scope: Scope, name: str) -> float:
        """A policy that is a number of seconds."""
        found: float = self.policy(scope, name)
        return found

    def resource(self, name: str, annotation: Any) -> Any:
        """A resource, by name or by type."""
        return self.environment.resource(name, annotation)

    def since(self, began: float) -> float:
        """Seconds since a moment of the clock."""
        return self.clock.monotonic() - began

    def scrub(self, text: str) -> str:
        """A text without the run's secrets."""
        return self.scrubber(text)

    @property
    def scrubber(self) -> Scrubber:
        """Takes the secrets that the run has met so far out of texts."""
        if self._scrubber is None:
            self._scrubber = Scrubber(self._secrets)
        return self._scrubber

    def learn_secrets(self, secrets: Iterable[str]) -> None:
        """Texts that must not be shown from now on."""
        before = len(self._secrets)
        self._secrets.update(secrets)
        if len(self._secrets) != before:
            self._scrubber = None

    def learn_inputs(self, inputs: Mapping[str, Any], hidden: Iterable[str]) -> None:
        """Learn the secrets among inputs; what is common to many runs is not walked through for each of them."""
        self.learn_secrets(secrets_of_fields(self.own(inputs), hidden))

    def own(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those inputs that are not common to many runs."""
        common = self.common
        return {name: item for name, item in inputs.items() if common.get(name) is not item} if common else inputs

    async def save(self, *, always: bool = False, firm: bool = False) -> None:
        """Write a checkpoint of what changed; shielded, since what completed has to be known.

        ``always``: also when nothing did, so that it is known that the run is still ours. ``firm``: the same, and the
        run's fate and all earlier checkpoints are kept when this returns, also by a journal that writes behind.
        """
        if self.lost is not None:
            return
        nodes, entries = self.state.take_changes()
        if nodes or entries or always or firm:
            saving = self._kept(self._checkpoint(nodes, entries, self.status, firm=firm))
            try:
                if self.journal.behind:
                    await shielded(saving)
                else:
                    with CancelScope(shield=True):
                        await saving
            except (OwnershipLost, JournalFailed) as error:
                self.lose(error)
            except (SerializationError, PayloadTooLarge) as error:
                self.unkept(error)

    async def may_begin(self, scope: Scope) -> bool:
        """Whether something may begin although the lease may have ended meanwhile: the run is still ours, and goes on.

        The loop, or the process, has stood still. Nothing else would ask before a body that was ready then is entered.
        """
        await self.save(always=True)
        return not scope.stopped

    async def _kept(self, checkpoint: Checkpoint) -> None:
        """Save; a body that cancelled its own task must not get around it."""
        while True:
            try:
                await self.journal.save(checkpoint)
                return
            except asyncio.CancelledError as error:
                self.note_if_cancelled(error)
                # It is being written; to wait for that is enough.
                checkpoint = self._checkpoint([], [], self.status, firm=checkpoint.firm)

    async def close(self, outcome: Outcome[Any]) -> bool:
        """Write the last checkpoint with the outcome, if the run is not lost; whether it has ended with that."""
        if self.lost is not None:
            return False
        nodes, entries = self.state.take_changes()
        try:
            await self.journal.close(self._checkpoint(nodes, entries, outcome.status), outcome)
        except (OwnershipLost, JournalFailed) as error:
            self.lose(error)
            return False
        return True

    async def part(self, delay: float, waits_for: str, status: Status = "running") -> str:
        """Write the last checkpoint, and let the run go unfinished; gives the id of the job that goes on with it."""
        if self.lost is not None:
            return ""
        nodes, entries = self.state.take_changes()
        try:
            job_id = await self.journal.part(self._checkpoint(nodes, entries, status), delay, waits_for)
        except (OwnershipLost, JournalFailed) as error:
            self.lose(error)
            return ""
        self.parted = True
        return job_id

    def _checkpoint(
        self, nodes: list[Ready], entries: list[RawEntry], status: Status, *, firm: bool = False
    ) -> Checkpoint:
        if self.unmarked:
            marks.owe(cast("Execution", self))
        fate = self._fate()
        return Checkpoint(
            nodes,
            entries,
            status,
            fate,
            self.state.notes,
            firm,
            self.state.served,
            self.state.gates,
            self._reported(),
            self.state.rollback_failures if fate is None else (),
        )

    def _reported(self) -> Mapping[str, Any] | None:
        return dict(self.state.reported) if self.state.reported else None

    def _fate(self) -> Fate | None:
        state = self.state
        left = tuple(state.rollback_failures)
        if state.failures:
            first, *rest = state.failures
            others = [failed.error for failed in rest]
            return Fate(
                "failed",
                first.path,
                first.error,
                first.attempts,
                left=left,
                others=others,
                arguments=first.arguments,
                retryable=first.retryable,
            )
        if self.ordered is not None and self.ordered.mode == "stop":
            return None  # it goes back only if somebody asks for that
        if state.cancelled:
            return Fate("cancelled", reason=self.ordered.reason if self.ordered is not None else None, left=left)
        if state.halt is None:
            return None
        others = [failed.error for failed in state.late_errors]
        return Fate("halted", state.halt[1], reason=state.halt[0], left=left, others=others)

    def hooks_of(self, around: Hooks | None, middlewares: Iterable[Any]) -> Hooks | None:
        """The hooks of a nested scope with middlewares of its own."""
        return around.and_then(middlewares) if around is not None else hooks_for(middlewares)

    async def tell(
        self,
        scope: Scope,
        /,
        hook: str,
        event: Callable[..., events.Event],
        node: int | None = None,
        attempt: int = 1,
        **fields: Any,
    ) -> None:
        """Call the hooks of a scope that listen. A cancellation that reaches one is noted, and does not come out."""
        listening = scope.hooks.listening(hook) if scope.hooks is not None else ()
        if not listening:
            return
        path = scope.path if node is None else scope.path_of(node)
        made = event(
            run_id=self.state.run_id,
            reactor=scope.plan.name,
            path=path,
            attempt=attempt,
            at=self.clock.now(),
            **reporting.shown_fields(fields),
        )
        try:
            await tell(listening, made)
        except asyncio.CancelledError as error:
            self.note_if_cancelled(error)
        except (KeyboardInterrupt, SystemExit) as error:
            self.interrupt(error)

    def report_progress(
        self, scope: Scope, index: int, attempt: int, done: float, total: float | None, message: str
    ) -> None:
        """Keep how far a body is, and send a progress event, from the body or its thread, without making it wait."""
        self.state.reported[scope.path_of(index)] = (done, total, message)
        if self.state.recording:
            assert self._host is not None
            self._host.get_loop().call_soon_threadsafe(self.keep_progress)
        if scope.hooks is None or not scope.hooks.listening("on_progress"):
            return
        send = partial(
            self.tell,
            scope,
            "on_progress",
            events.ProgressReported,
            index,
            attempt,
            done=done,
            total=total,
            message=message,
        )
        assert self._host is not None
        self._host.get_loop().call_soon_threadsafe(self._send, send)

    def _send(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(send())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def sent(self) -> None:
        """Wait until what bodies reported has been told."""
        while self._sending:
            await asyncio.wait(self._sending)
