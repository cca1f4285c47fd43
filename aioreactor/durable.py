"""Durable runs in this process: created, leased, kept, found again, and taken over when their process died.

Overview. `DurableRuns.run` creates the record with its lease, executes under it, and closes it. Another process that
finds the lease at its end (`DurableRuns.recover`) takes the run with a lease of its own, which makes every later write
of the old holder be refused, restores the state from the record and goes on. A run that was already going back goes on
going back. `undo` takes a run that has ended and rolls back what still stands.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from aioreactor.engine import reporting
from aioreactor.engine.arguments import view_of
from aioreactor.engine.ports import Environment, Fate
from aioreactor.engine.recovery import restoring
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.snapshot import Image, Restorer
from aioreactor.engine.state import RunState
from aioreactor.errors import (
    AioreactorError,
    DefinitionError,
    IdempotencyConflict,
    NotResumable,
    OwnershipLost,
    PlanChanged,
    RecoveriesExhausted,
    RunNotFound,
    SerializationError,
    UnknownReactor,
)
from aioreactor.logs import note
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.registry import find_reactor
from aioreactor.results import Failure, Outcome
from aioreactor.settings import Settings
from aioreactor.snapshots import RunSnapshot, StoredReader, encode_outcome, from_row
from aioreactor.store.claim import Claim
from aioreactor.store.client import StoreClient
from aioreactor.store.journal import RunJournal
from aioreactor.store.keys import run_id_for_key
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import LIVE, TERMINAL, Exists, Held, Missing, NewRun, Query, Refused
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.store import RunStore
from aioreactor.trace import RawEntry, RunRecord, Status

logger = logging.getLogger("aioreactor.runs")
R = TypeVar("R")
_UNDOABLE: frozenset[Status] = frozenset(("completed", "failed", "halted", "aborted", "cancelled"))
_REPLACEABLE: frozenset[Status] = TERMINAL


def run_id_of(plan: Plan, options: Mapping[str, Any]) -> str | None:
    """The run id that options ask for: given, or following from an idempotency key."""
    key = options.get("idempotency_key")
    given: str | None = options.get("run_id")
    return run_id_for_key(plan.name, key) if key is not None else given


class HandedBack(AioreactorError):
    """This process is told to end: the execution stopped where it was, for another worker to go on with."""


async def _ended(task: asyncio.Task[Any]) -> None:
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


class DurableRuns:
    """The runs of one store. Connections are made when first needed, one set per event loop."""

    def __init__(self, settings: Settings, environment: Environment) -> None:
        assert settings.redis_url is not None
        self.settings = settings
        self.environment = environment
        self.client = StoreClient(settings.redis_url, retry_for=settings.store_retry_for)
        self.store = RunStore(self.client, prefix=settings.key_prefix)
        self._executing_here: dict[str, Execution] = {}
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, LeaseKeeper] = WeakKeyDictionary()

    def _keeper(self) -> LeaseKeeper:
        loop = asyncio.get_running_loop()
        if loop not in self._keepers:
            self._keepers[loop] = LeaseKeeper(self.store, on_lag=self._on_lag)
        return self._keepers[loop]

    def _on_lag(self, seconds: float) -> None:
        text = "something blocked the event loop; leases are checked before anything else runs"
        note(logger, logging.WARNING, "loop_blocked", text, seconds=f"{seconds:.2f}")

    def _codec(self) -> PlanCodec:
        return PlanCodec(limit=self.settings.max_value_bytes, cipher=self.settings.cipher)

    async def aclose(self) -> None:
        """Let go of leases and connections of this event loop.

        Cancellation: as far as it got; call it again.
        """
        keeper = self._keepers.pop(asyncio.get_running_loop(), None)
        if keeper is not None:
            await keeper.aclose()
        await self.store.aclose()
        await self.client.aclose()

    # ------------------------------------------------------------------ starting

    async def run(
        self, plan: Plan, run_id: str, view: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Outcome[Any]:
        """Create the run and execute it here; or attach to the one that has this id already.

        Raises:
            IdempotencyConflict: it exists with other inputs (or at all, with ``on_conflict="reject"``).
            OwnershipLost: another execution took the run over.
            StoreError: the store is away; nothing has run.

        Cancellation: as `Reactor.run`; one that attached gives up only its wait.
        """
        key = options.get("idempotency_key")
        codec = self._codec()
        try:
            encoded = codec.inputs(plan, inputs)
        except SerializationError as error:
            return reporting.refused(plan, run_id, error, inputs)
        new = self._new(plan, encoded, options)
        replace = _REPLACEABLE if options.get("on_conflict") == "replace" else ()
        creating = self.store.create(run_id, new, hold_ms=self._ttl_ms(), replace=replace)
        created, cancelled = await despite_cancel(creating)
        if isinstance(created, Exists):
            if cancelled is not None:
                raise cancelled
            return await self._attach(plan, run_id, created, key or run_id, options)
        assert created.claim is not None
        execution, journal = self._execution(plan, run_id, created.claim, codec)
        if cancelled is not None:
            execution.note_cancel(cancelled)
        return await self._executing(created.claim, journal, execution.run(view, inputs))

    def _new(self, plan: Plan, inputs: bytes, options: Mapping[str, Any], due_ms: int = 0) -> NewRun:
        deadline = plan.options.deadline if plan.options.deadline is not None else self.environment.deadline
        return NewRun(
            reactor=plan.name,
            inputs=inputs,
            version=str(plan.options.version or ""),
            fingerprint=plan.fingerprint,
            deadline_ms=None if deadline is None else max(1, int(deadline * 1000)),
            due_ms=due_ms,
            tags=tuple(options.get("tags") or ()),
        )

    def _ttl_ms(self) -> int:
        return int(self.settings.lease_ttl * 1000)

    def _execution(
        self, plan: Plan, run_id: str, claim: Claim, codec: PlanCodec, state: bytes = b""
    ) -> tuple[Execution, RunJournal]:
        def lost(error: OwnershipLost) -> None:
            execution.lose(error)

        hold = self._keeper().watch(claim, lost)
        retention = plan.options.retention if plan.options.retention is not None else self.settings.retention
        retention_ms = max(1, int(retention * 1000))
        journal = RunJournal(
            self.store, claim, hold, codec, encode_outcome, retention_ms=retention_ms, known_state=state
        )
        execution = Execution(self.environment, plan, run_id, journal)
        journal.scrubber = lambda: execution.scrubber
        self._executing_here[run_id] = execution
        return execution, journal

    async def _executing(
        self, claim: Claim, journal: RunJournal, work: Coroutine[Any, Any, Outcome[Any]]
    ) -> Outcome[Any]:
        try:
            try:
                await journal.check()  # the process may have slept since it took the run
            except OwnershipLost as error:
                self._executing_here[claim.run_id].lose(error)
                raise
            return await work
        finally:
            work.close()
            self._executing_here.pop(claim.run_id, None)
            journal.let_go()

    async def _attach(
        self, plan: Plan, run_id: str, existing: Exists, key: str, options: Mapping[str, Any]
    ) -> Outcome[Any]:
        await self._check_same(plan, run_id, existing, key, options)
        await self.store.wait_done(run_id)
        return await self.outcome(run_id, plan)

    async def _check_same(
        self, plan: Plan, run_id: str, existing: Exists, key: str, options: Mapping[str, Any]
    ) -> None:
        row = await self.store.peek(run_id)
        if row is not None and row.reactor not in {plan.name, *plan.options.aliases}:
            raise IdempotencyConflict(key, f"by {row.reactor}")
        if not existing.same_inputs:
            raise IdempotencyConflict(key)
        if options.get("on_conflict") == "reject":
            raise IdempotencyConflict(key, 'and on_conflict="reject" was asked for')

    async def create(
        self, plan: Plan, run_id: str, inputs: Mapping[str, Any], options: Mapping[str, Any], *, due_ms: int = 0
    ) -> bool:
        """Create the run for a worker to execute; whether it is new, rather than one that has this id already.

        Raises:
            IdempotencyConflict: it exists with other inputs (or at all, with ``on_conflict="reject"``).
            SerializationError: the inputs cannot be stored.
            StoreError: the store is away.

        Cancellation: it was created, or not; if it was, the sweeper rings for it.
        """
        new = self._new(plan, self._codec().inputs(plan, inputs), options, due_ms)
        replace = _REPLACEABLE if options.get("on_conflict") == "replace" else ()
        created = await self.store.create(run_id, new, replace=replace)
        if isinstance(created, Exists):
            await self._check_same(plan, run_id, created, options.get("idempotency_key") or run_id, options)
            return False
        return True

    async def finished(self, run_id: str, timeout: float | None) -> Outcome[Any]:
        """The outcome of a run, once it has ended; pushed, not polled.

        Raises:
            RunNotFound: there is no such run (any more).
            TimeoutError: it took longer than ``timeout`` seconds.

        Cancellation: only the wait ends.
        """
        await self.store.wait_done(run_id, timeout)
        return await self.outcome(run_id)

    # ------------------------------------------------------------------ looking

    async def _read(self, run_id: str) -> StoredRun:
        record = await self.store.read(run_id)
        if record is None:
            raise RunNotFound(run_id)
        return record

    async def outcome(self, run_id: str, plan: Plan | None = None) -> Outcome[Any]:
        """The outcome of a run that has ended.

        Raises:
            RunNotFound: there is no such run (any more).
            NotResumable: it has not ended.
        """
        record = await self._read(run_id)
        found = self._reader(record, plan).outcome()
        if found is None:
            raise NotResumable(run_id, record.row.status, "it has no outcome yet")
        return found

    def _reader(self, record: StoredRun, plan: Plan | None = None) -> StoredReader:
        chosen = plan if plan is not None else find_reactor(record.row.reactor).plan
        return StoredReader(self.environment, chosen, self._codec(), record)

    async def find(self, run_id: str, plan: Plan | None = None) -> RunSnapshot:
        """A snapshot of a run; without steps and results when its reactor is not imported here.

        Raises:
            RunNotFound: there is no such run (any more).
        """
        record = await self._read(run_id)
        try:
            return self._reader(record, plan).snapshot()
        except UnknownReactor:
            return from_row(record.row)

    async def page(self, query: Query, limit: int, cursor: str) -> tuple[list[RunSnapshot], str]:
        """Some runs, newest first, and the cursor of the next page (empty after the last)."""
        page = await self.store.page(query, limit=limit, cursor=cursor)
        return [from_row(row) for row in page.rows], page.cursor

    async def reactor_of(self, run_id: str) -> str | None:
        """The name of a run's reactor; None when there is no such run."""
        row = await self.store.peek(run_id)
        return row.reactor if row is not None else None

    async def delete(self, run_id: str) -> None:
        """Remove all of a run at once.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: somebody executes it right now.
        """
        removed = await self.store.delete(run_id)
        if isinstance(removed, Held):
            raise NotResumable(run_id, "running", f"{removed.owner} executes it; cancel it first")
        if not removed:
            raise RunNotFound(run_id)

    # ------------------------------------------------------------------ taking over

    async def recover(self, run_id: str) -> Outcome[Any] | None:
        """Go on with a run whose process died; None when somebody else has it, or it is over.

        Raises:
            PlanChanged: the code does not fit the run; it is kept, and left alone.
        """
        claim, cancelled = await despite_cancel(self._take(run_id))
        if cancelled is not None:
            if claim is not None:
                await despite_cancel(self.store.release(claim))
            raise cancelled
        return None if claim is None else await self._resume(claim, None)

    async def _take(self, run_id: str) -> Claim | None:
        """The claim of a run that has to be moved on; None when somebody else has it, or it is over."""
        row = await self.store.peek(run_id)
        if row is None or row.status not in LIVE:
            return None
        status: Status | None = "running" if row.status == "pending" else None
        claim = await self.store.take(run_id, (row.status,), ttl_ms=self._ttl_ms(), status=status)
        if not isinstance(claim, Claim):
            return None
        if row.status != "pending":
            note(logger, logging.WARNING, "run_recovered", run_id=run_id)
        return claim

    async def carry_on(self, run_id: str, delivery: str) -> None:
        """What a worker does with a run that a job brought: execute it here, unless it lives elsewhere or is over.

        Never raises; what comes of the run is in the store.

        Cancellation: the execution stops where it was and the run is let go, for another worker.
        """
        try:
            claim = await self._take(run_id)
            if claim is not None:
                await self._carry(claim)
        except PlanChanged as error:
            note(logger, logging.WARNING, "run_left", str(error), run_id=run_id, delivery=delivery)
        except (OwnershipLost, HandedBack):
            pass  # whoever noticed has said so, once
        except Exception as error:
            note(logger, logging.ERROR, "carry_failed", repr(error), run_id=run_id, delivery=delivery)

    async def _carry(self, claim: Claim) -> None:
        task = asyncio.ensure_future(self._resume(claim, None))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._hand_back(claim, task)

    async def _hand_back(self, claim: Claim, task: asyncio.Task[Outcome[Any]]) -> None:
        execution = self._executing_here.get(claim.run_id)
        if execution is not None:
            execution.lose(HandedBack(f"run {claim.run_id} is handed back"))
        _, _ = await despite_cancel(_ended(task))
        if not claim.ended and not claim.lost:
            await despite_cancel(self.store.release(claim))

    async def recovered(self, run_id: str) -> bool:
        """Go on with a run, whatever comes of it; whether it was this process that did."""
        try:
            return await self.recover(run_id) is not None
        except OwnershipLost:
            return False  # whoever noticed has said so, once
        except (PlanChanged, DefinitionError) as error:
            note(logger, logging.WARNING, "run_left_alone", str(error), run_id=run_id)
            return False

    async def undo(self, run_id: str) -> Outcome[Any]:
        """Roll back what still stands of a run that has ended: what was cut off first, then newest first.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: it is executed right now, or it has not ended.
            UnknownReactor, PlanChanged, SerializationError, DefinitionError: it cannot be undone by this code, and
                is left as it is.
        """
        self._opened(await self._read(run_id))
        taking = self.store.take(run_id, _UNDOABLE, ttl_ms=self._ttl_ms(), status="rolling_back")
        claim, cancelled = await despite_cancel(taking)
        if isinstance(claim, Missing):
            raise RunNotFound(run_id)
        if isinstance(claim, Held):
            raise NotResumable(run_id, "running", f"{claim.owner} executes it")
        if isinstance(claim, Refused):
            text = "rollback in progress" if claim.status == "rolling_back" else "it has not ended"
            raise NotResumable(run_id, claim.status, text)
        return await self._resume(claim, Fate("cancelled"), cancelled)

    def _opened(self, record: StoredRun) -> _Opened:
        """A record, decoded by the code that is here.

        Raises:
            PlanChanged: the code has no place for all that it holds.
            UnknownReactor, SerializationError: it cannot be read.
            DefinitionError: a resource is missing.
        """
        codec, row = self._codec(), record.row
        plan = find_reactor(row.reactor).plan
        images = {path: codec.image_back(path, data) for path, data in record.steps.items()}
        _check_fits(plan, row.run_id, images)
        entries = [codec.entry_back(data) for data in record.trace]
        fate = codec.fate_back(row.failure) if row.failure else None
        opened = _Opened(plan, codec.inputs_back(plan, row.inputs), images, entries, fate, codec.notes_back(row.state))
        Restorer(RunState(plan, row.run_id, time.time), images, codec, failing=True).restore()  # all values can be read
        for _, name, annotation in plan.resource_needs:
            self.environment.resource(name, annotation)
        return opened

    async def _resume(
        self, claim: Claim, fate: Fate | None, cancelled: asyncio.CancelledError | None = None
    ) -> Outcome[Any]:
        try:
            record, cancelled_now = await despite_cancel(self.store.load(claim))
        except OwnershipLost as error:
            note(logger, logging.WARNING, "run_left", str(error), run_id=claim.run_id)
            raise
        cancelled = cancelled or cancelled_now
        codec, row = self._codec(), record.row
        try:
            opened = self._opened(record)
        except (PlanChanged, DefinitionError):
            await self.store.release(claim)
            raise
        except (UnknownReactor, SerializationError) as error:
            return await self._end_unreadable(claim, error)
        doom = self._doom(claim)
        if doom is not None and (row.failure or row.status == "rolling_back"):
            # It comes no further back either: what is left stays owed.
            doom.__cause__ = opened.fate.error if opened.fate is not None else None
            return await self._end_unreadable(claim, doom)
        plan, inputs = opened.plan, opened.inputs
        execution, journal = self._execution(plan, row.run_id, claim, codec, row.state)
        execution.doom = doom
        execution.state.notes.update(opened.notes)
        if row.deadline_ms is not None:
            execution.deadline_at = self.environment.clock.now() + (row.deadline_ms - row.now_ms) / 1000
        restore = restoring(execution, codec, opened.images, opened.entries, inputs, fate or opened.fate)
        view = view_of(plan, inputs)
        execution.state.root.view = view
        if cancelled is not None:
            execution.note_cancel(cancelled)
        return await self._executing(claim, journal, execution.resume(inputs, restore))

    def _doom(self, claim: Claim) -> RecoveriesExhausted | None:
        """Why a run that lost its process too often without getting further is to fail; None if it did not."""
        if claim.recoveries <= self.settings.max_recoveries:
            return None
        error = RecoveriesExhausted(claim.run_id, claim.recoveries)
        note(logger, logging.ERROR, "recoveries_exhausted", str(error), run_id=claim.run_id)
        return error

    async def _end_unreadable(self, claim: Claim, error: Exception) -> Outcome[Any]:
        """Nobody here can go on with it: it ends with the real reason, and who waits is told."""
        record = RunRecord(claim.run_id, "", "failed")
        outcome = Failure(error, None, retry=False, _record=record)
        note(logger, logging.ERROR, "run_unreadable", str(error), run_id=claim.run_id)
        await self.store.close(
            claim, "failed", encode_outcome(outcome), retention_ms=max(1, int(self.settings.retention * 1000))
        )
        return outcome

    async def stalled(self, limit: int) -> list[str]:
        """Ids of runs that somebody has to move on and nobody does; each is told to one sweeper only for a while."""
        rows = await self.store.stalled(limit)
        await self.store.repair(limit)
        return [row.run_id for row in rows]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A run's record, decoded."""

    plan: Plan
    inputs: dict[str, Any]
    images: dict[str, Image]
    entries: list[RawEntry]
    fate: Fate | None
    notes: dict[str, Any]


def _check_fits(plan: Plan, run_id: str, images: Mapping[str, Image]) -> None:
    """Whether every stored step, at every depth, still exists, and is what it was.

    Raises:
        PlanChanged: some do not.
    """
    missing = sorted(path for path, image in images.items() if not _has_place(plan, path, image))
    if missing:
        raise PlanChanged(run_id, missing)


def _has_place(plan: Plan, path: str, image: Image) -> bool:
    current: Plan | None = plan
    inside: PlanNode | None = None
    for name, element in _PART.findall(path):
        if current is None or name not in current.by_name:
            return False
        inside = current[name]
        current = inside.child
        if element:
            current = inside.element
            if current is None:
                return False
            inside = current.nodes[0] if current.element else None
            current = None if current.element else current
    if inside is None:
        return True
    is_child = image.inputs is not None
    return is_child == (inside.kind == "compose") or (inside.kind == "compose" and image.status in _NEVER_OPENED)


_PART = re.compile(r"([^.\[]+)(\[\d+\])?")
_NEVER_OPENED = (NodeStatus.WAITING, NodeStatus.READY, NodeStatus.FAILED)
