"""What all that is done with stored runs stands on: connections, leases, and an execution under a claim."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from aioreactor.durable.correlating import RunCorrelations
from aioreactor.durable.gatekeeper import Gatekeeper
from aioreactor.durable.lines import LineWatch, resigned
from aioreactor.durable.requests import Ears, RunMailbox
from aioreactor.durable.sweeping import SweptRuns
from aioreactor.engine import orders
from aioreactor.engine.ports import Detached, Environment, JournalFailed
from aioreactor.engine.scheduler import Execution
from aioreactor.errors import AioreactorError, OwnershipLost, RunNotFound, SerializationError
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.queues import QueueReport
from aioreactor.results import Outcome
from aioreactor.settings import Settings
from aioreactor.snapshots import encode_outcome
from aioreactor.store.behind import KINDS
from aioreactor.store.blocked import BlockReports
from aioreactor.store.claim import Claim
from aioreactor.store.client import StoreClient
from aioreactor.store.correlations import CorrelationIndex
from aioreactor.store.errors import StoreError
from aioreactor.store.fans import FAN_KEYS
from aioreactor.store.journal import RunJournal
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.lined import LinedRuns
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.records import RunRow
from aioreactor.store.store import RunStore

logger = logging.getLogger("aioreactor.runs")
R = TypeVar("R")


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait for the end of a task, whatever comes of it.

    Cancellation: only the wait ends.
    """
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def despite_cancel(work: Coroutine[Any, Any, R]) -> tuple[R, asyncio.CancelledError | None]:
    """Wait for the end of ``work`` even when cancelled; gives the cancellation instead of raising it.

    Cancellation: raised only if ``work`` fails as well; else the caller has to.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None and task.exception() is not None:
        raise cancelled from task.exception()
    return task.result(), cancelled


@contextmanager
def store_needed(what: str) -> Iterator[None]:
    """What the store could not do is a failure of the journal.

    Raises:
        JournalFailed: the store is away.
    """
    try:
        yield
    except StoreError as error:
        raise JournalFailed(f"the store is away, and was to {what}: {error}") from error


class HandedBack(AioreactorError):
    """This process is told to end: the execution stopped where it was, for another worker to go on with."""


class Queue(Protocol):
    """Tells workers of runs; see `aioreactor.jobs.ports.Doorbell`."""

    async def ring(self, run_ids: Iterable[str], *, due_ms: int | None = None) -> list[str]:
        """Have workers carry these runs on, ``due_ms`` from now."""
        ...

    async def look(self) -> QueueReport:
        """Who serves it, and what waits in it."""
        ...


Queues: TypeAlias = Callable[[str], Queue]
"""The queue of a name; the empty name is the default queue."""


class Base:
    """Connections are made when first needed, one set per event loop."""

    def __init__(self, settings: Settings, environment: Environment, queues: Queues) -> None:
        assert settings.redis_url is not None
        self.settings = settings
        self.environment = environment
        self.queues = queues
        self.client = StoreClient(
            settings.redis_url,
            retry_for=settings.store_retry_for,
            wait_replicas=settings.wait_replicas,
            replicas_timeout=settings.wait_replicas_timeout,
        )
        self.store = RunStore(self.client, prefix=settings.key_prefix, others=FAN_KEYS)
        self._executing_here: dict[str, Execution] = {}
        self._ears: WeakKeyDictionary[asyncio.AbstractEventLoop, Ears] = WeakKeyDictionary()
        self._put_off: dict[tuple[str, str], float] = {}
        """Fan-outs that there was no room for, and when they are rung again, by the monotonic clock."""
        self._handing_back: set[str] = set()
        """Runs that were called off before their execution was made."""
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, LeaseKeeper] = WeakKeyDictionary()

    @property
    def lined(self) -> LinedRuns:
        """Which runs stand in lines of ordered locks."""
        return LinedRuns(self.client, self.store.space)

    @property
    def correlations(self) -> CorrelationIndex:
        """Which interrupt waits for which correlation id."""
        return CorrelationIndex(self.client, self.store.space)

    def _keeper(self) -> LeaseKeeper:
        loop = asyncio.get_running_loop()
        if loop not in self._keepers:
            reports = BlockReports(self._executing_here.values)
            self._keepers[loop] = LeaseKeeper(self.store, reports=reports, thread_limit=self.settings.thread_limit)
        return self._keepers[loop]

    def _heard_here(self) -> Ears:
        loop = asyncio.get_running_loop()
        if loop not in self._ears:
            self._ears[loop] = Ears(self.store.pushes(), self.store.space.asked_channel())
        return self._ears[loop]

    def _codec(self) -> PlanCodec:
        return PlanCodec(limit=self.settings.max_value_bytes, cipher=self.settings.cipher)

    async def aclose(self) -> None:
        """Let go of leases and connections of this event loop.

        Cancellation: as far as it got; call it again.
        """
        keeper = self._keepers.pop(asyncio.get_running_loop(), None)
        ears = self._ears.pop(asyncio.get_running_loop(), None)
        if ears is not None:
            ears.close()
        if keeper is not None:
            await keeper.aclose()
        await self.store.aclose()
        await self.client.aclose()

    def swept(self) -> SweptRuns:
        """The store as a sweeper is to see it."""
        keeper = self.environment.coordinator()
        lines = LineWatch(self.store, keeper, self.lined) if isinstance(keeper, Gatekeeper) else None
        return SweptRuns(self.store, self.correlations, max(1, int(self.settings.retention * 1000)), lines)

    def _ttl_ms(self) -> int:
        return int(self.settings.lease_ttl * 1000)

    def _retention_ms(self, plan: Plan) -> int:
        retention = plan.options.retention if plan.options.retention is not None else self.settings.retention
        return max(1, int(retention * 1000))

    def _execution(
        self,
        plan: Plan,
        run_id: str,
        created_ms: int,
        claim: Claim,
        codec: PlanCodec,
        queue: str,
        state: bytes = b"",
        asked: str = "",
        served: int = 0,
    ) -> tuple[Execution, RunJournal]:
        def lost(error: OwnershipLost) -> None:
            execution.lose(error)

        hold = self._keeper().watch(claim, lost, lambda: orders.heed(execution))
        retention_ms = self._retention_ms(plan)
        ring = partial(self.ring, run_id, queue)
        level = asked or plan.options.durability or self.settings.durability or "step"
        journal = KINDS.get(level, RunJournal)(
            self.store,
            claim,
            hold,
            codec,
            encode_outcome,
            ring=ring,
            retention_ms=retention_ms,
            known_state=state,
            served=served,
        )
        execution = Execution(self.environment, plan, run_id, journal)
        execution.state.served = served
        execution.park_timers_after = self.settings.park_after
        # Another run that comes to have its id is somebody else.
        execution.spender = (f"{run_id}@{created_ms}", claim.fence)
        execution.mailbox = RunMailbox(self.store, run_id, plan, codec)
        execution.correlations = RunCorrelations(self.store, self.correlations, run_id, retention_ms)
        self._heard_here().watch(run_id, execution)
        journal.scrubber = lambda: execution.scrubber
        journal.failed = execution.lose
        self._executing_here[run_id] = execution
        return execution, journal

    async def _executing(
        self, claim: Claim, journal: RunJournal, queue: str, work: Coroutine[Any, Any, Outcome[Any]]
    ) -> Outcome[Any]:
        try:
            try:
                await journal.check()  # the process may have slept since it took the run
            except OwnershipLost as error:
                self._executing_here[claim.run_id].lose(error)
                raise
            outcome = await work
            await self.wake_parent(claim)
            return outcome
        except HandedBack:
            if claim.open:
                await despite_cancel(journal.hand_back())
            raise
        finally:
            work.close()
            execution = self._executing_here.pop(claim.run_id, None)
            journal.let_go()
            if execution is not None:
                self._heard_here().forget(claim.run_id, execution)
            correlations = execution.correlations if execution is not None else None
            if isinstance(correlations, RunCorrelations) and correlations.has_answered:
                _, cancelled = await despite_cancel(correlations.settle())
                if cancelled is not None:
                    raise cancelled
            if execution is not None and isinstance(execution.lost, Detached):
                await despite_cancel(self._detach(claim, journal, queue))

    async def _detach(self, claim: Claim, journal: RunJournal, queue: str) -> None:
        """Leave the run to a worker; what cannot be let go is swept when its lease has ended."""
        try:
            if claim.open:
                await journal.hand_back()
                await self.ring(claim.run_id, queue)
        except (StoreError, OwnershipLost) as error:
            note(logger, logging.WARNING, "run_swept_later", str(error), run_id=claim.run_id)

    async def ring(self, run_id: str, queue: str, delay_ms: int = 0) -> str:
        """Tell workers of a run; gives the job's id, or nothing when the queue is away: then the run is swept.

        Cancellation: it was told, or not.
        """
        try:
            [job_id] = await self.queues(queue).ring([run_id], due_ms=delay_ms or None)
        except StoreError as error:
            note(logger, logging.WARNING, "run_swept_later", str(error), run_id=run_id)
            return ""
        return job_id

    async def wake_parent(self, claim: Claim) -> None:
        """A run has ended: tell workers of the one that was parked for it, if there is one.

        Cancellation: it was told, or not; then it is swept.
        """
        if claim.woke is not None:
            woke, claim.woke = claim.woke, None
            await self.ring(*woke)

    async def out_of_line(self, row: RunRow) -> None:
        """A run is over that nobody executed to its end: the lines that it stood in go on.

        Cancellation: some of them go on when a sweep comes by.
        """
        coordinator = self.environment.coordinator()
        if coordinator is None or not row.gates:
            return
        try:
            gates = PlanCodec().gates_back(row.gates)
        except SerializationError as error:
            note(logger, logging.WARNING, "position_not_beaten", str(error), run_id=row.run_id)
            return
        await resigned(coordinator, gates, row.run_id)

    async def _read(self, run_id: str) -> StoredRun:
        record = await self.store.read(run_id)
        if record is None:
            raise RunNotFound(run_id)
        return record
