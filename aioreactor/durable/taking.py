"""Going on with stored runs: after a crash, for a worker, or back (undo)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from aioreactor.durable.base import HandedBack, despite_cancel, ended, logger
from aioreactor.durable.elements import Elements
from aioreactor.durable.fits import Opened, check_fans, check_fits, check_inputs
from aioreactor.durable.requests import RunMailbox
from aioreactor.durable.units import called_off
from aioreactor.engine import marks, orders
from aioreactor.engine.arguments import view_of
from aioreactor.engine.guarding import Guard, taken_again
from aioreactor.engine.ports import Fate
from aioreactor.engine.recovery import restoring
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.snapshot import Restorer
from aioreactor.engine.state import RunState
from aioreactor.errors import (
    ArgumentError,
    ContentionError,
    DefinitionError,
    NotResumable,
    OwnershipLost,
    PlanChanged,
    RecoveriesExhausted,
    RunNotFound,
    SerializationError,
    UnknownReactor,
)
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.plan.paths import present_records
from aioreactor.registry import find_plan
from aioreactor.results import Failure, Outcome
from aioreactor.snapshots import encode_outcome
from aioreactor.store.answers import Held, Missing, Refused
from aioreactor.store.claim import Claim
from aioreactor.store.journal import RunJournal
from aioreactor.store.keys import FAN
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import TERMINAL, Changes, RunRow
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.trace import RunRecord, Status

EARLY_MS = 5000
"""A job that comes before its run is due by more than this, clocks being what they are, is not the one for that."""
UNDO_WAITS = 5.0
"""Seconds for which whoever wants to undo a run that somebody executes waits for its end."""
_UNDOABLE: frozenset[Status] = frozenset(("completed", "failed", "halted", "aborted", "cancelled", "paused"))


class Taking(Elements):
    """The part of `DurableRuns` that takes over runs which others began."""

    async def recover(self, run_id: str) -> Outcome[Any] | None:
        """Go on with a run whose process died; None when somebody else has it, or it is over.

        Raises:
            PlanChanged: the code does not fit the run; it is kept, and left alone.
        """
        claim = await self._taken(run_id)
        return None if claim is None else await self._resume(claim, None)

    async def _taken(self, run_id: str) -> Claim | None:
        """As `_take`; who is cancelled meanwhile lets the run go again."""
        claim, cancelled = await despite_cancel(self._take(run_id))
        if cancelled is not None:
            if claim is not None:
                await despite_cancel(self._put_back(claim))
            raise cancelled
        return claim

    async def _put_back(self, claim: Claim) -> None:
        """Let a run go of which nothing was executed: it is what it was before, for somebody else to take."""
        row = claim.found
        if row is None:
            await self.store.release(claim)
            return
        fence, _, waits_for = row.rest.partition(" ")
        rest = f"{claim.fence} {waits_for}" if fence == str(row.fence) else None  # still nothing is in flight
        due_ms = 1 if row.status == "paused" else 0  # there was a reason to take it, and there still is
        await self.store.release(claim, Changes(status=row.status, rest=rest), due_ms=due_ms)

    async def _take(self, run_id: str) -> Claim | None:
        """The claim of a run that has to be moved on; None when somebody else has it, or it is over."""
        row = await self.store.peek(run_id)
        if row is None or not row.is_owed or row.awaited_ms - row.now_ms > EARLY_MS:
            return None
        status: Status | None = "running" if row.status in {"pending", "paused"} else None
        claim = await self.store.take(run_id, (row.status,), ttl_ms=self._ttl_ms(), status=status)
        if not isinstance(claim, Claim):
            return None
        claim.found = row
        if row.lease_ms:
            note(logger, logging.WARNING, "run_recovered", run_id=run_id)
        return claim

    async def carry_on(self, run_id: str, delivery: str) -> None:
        """What a worker does with a run that a job brought: execute it here, unless it lives elsewhere or is over.

        Never raises; what comes of the run is in the store.

        Cancellation: the execution stops where it was and the run is let go, for another worker.
        """
        try:
            if run_id.startswith(FAN):
                await self.serve_fan(run_id)
                return
            claim = await self._taken(run_id)
            if claim is not None:
                await self._carry(claim)
        except PlanChanged as error:
            note(logger, logging.WARNING, "run_left", str(error), run_id=run_id, delivery=delivery)
        except (OwnershipLost, HandedBack):
            pass  # whoever noticed has said so, once
        except Exception as error:
            note(logger, logging.ERROR, "carry_failed", repr(error), run_id=run_id, delivery=delivery)

    async def _carry(self, claim: Claim) -> None:
        task = asyncio.ensure_future(self._resume(claim, None, park_after=self.settings.park_after))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._hand_back(claim, task)

    async def _hand_back(self, claim: Claim, task: asyncio.Task[Outcome[Any]]) -> None:
        execution = self._executing_here.get(claim.run_id)
        if execution is not None:
            execution.lose(HandedBack(f"run {claim.run_id} is handed back"))
        else:
            self._handing_back.add(claim.run_id)  # it is being loaded
        _, _ = await despite_cancel(ended(task))
        self._handing_back.discard(claim.run_id)
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
            NotResumable: it is executed, and was for `UNDO_WAITS` seconds; it has not ended; or what it is to hold
                meanwhile cannot be had.
            UnknownReactor, PlanChanged, SerializationError, DefinitionError: it cannot be undone by this code, and
                is left as it is.
        """
        record = await self._read(run_id)
        opened = self._opened(record)
        if record.row.status == "rolling_back":
            raise NotResumable(run_id, "rolling_back", "rollback in progress")
        if record.row.lease_left_ms:
            with contextlib.suppress(TimeoutError):
                await self.store.wait_done(run_id, UNDO_WAITS, until=_UNDOABLE)
        guard = await self._taken_again(opened, record)
        taking = self.store.take(run_id, _UNDOABLE, ttl_ms=self._ttl_ms(), status="rolling_back")
        try:
            claim, cancelled = await despite_cancel(taking)
        except BaseException:
            await _let_go(guard)
            raise
        if not isinstance(claim, Claim):
            await _let_go(guard)
        if isinstance(claim, Missing):
            raise RunNotFound(run_id)
        if isinstance(claim, Held):
            raise NotResumable(run_id, "running", f"{claim.owner} executes it")
        if isinstance(claim, Refused):
            text = "rollback in progress" if claim.status == "rolling_back" else "it has not ended"
            raise NotResumable(run_id, claim.status, text)
        try:
            return await self._resume(claim, Fate("cancelled"), cancelled, guard=guard)
        finally:
            await _let_go(guard)  # unless it was given back with the run

    async def _taken_again(self, opened: Opened, record: StoredRun) -> Guard | None:
        """The locks of a run that has ended, for its undo.

        Raises:
            NotResumable: they cannot be had.
        """
        plan, row = opened.plan, record.row
        coordinator = self.environment.coordinator()
        if coordinator is None or not plan.options.coordination or row.status not in _UNDOABLE:
            return None
        view = view_of(plan, opened.inputs, self._resources(plan))
        try:
            return await taken_again(coordinator, plan, view, row.run_id)
        except (ContentionError, ArgumentError) as error:
            raise NotResumable(row.run_id, row.status, f"its undo is to hold what the run held: {error}") from error

    def _opened(self, record: StoredRun, *, needs_resources: bool = True) -> Opened:
        """A record, decoded by the code that is here.

        Raises:
            PlanChanged: the code has no place for all that it holds.
            UnknownReactor, SerializationError: it cannot be read.
            DefinitionError: a resource is missing.
        """
        codec, row = self._codec(), record.row
        plan = find_plan(row.reactor, row.version)
        steps, former = present_records(plan, record.steps)
        images = {path: codec.image_back(path, data) for path, data in steps.items()}
        check_fits(plan, row.run_id, images)
        check_fans(plan, row.run_id, former)
        entries = [codec.entry_back(data) for data in record.trace]
        fate = codec.fate_back(row.failure) if row.failure else None
        inputs, notes, gates = (
            codec.inputs_back(plan, row.inputs),
            codec.notes_back(row.state),
            codec.gates_back(row.gates),
        )
        check_inputs(plan, row.run_id, inputs, images, codec)
        opened = Opened(plan, inputs, images, entries, fate, notes, gates, codec.left_back(row.left), former)
        Restorer(RunState(plan, row.run_id, time.time), images, codec, failing=True).restore()  # all values can be read
        for _, name, annotation in plan.resource_needs if needs_resources else ():
            self.environment.resource(name, annotation)
        return opened

    async def _loaded(self, claim: Claim) -> tuple[StoredRun, asyncio.CancelledError | None]:
        try:
            return await despite_cancel(self.store.load(claim))
        except OwnershipLost as error:
            note(logger, logging.WARNING, "run_left", str(error), run_id=claim.run_id)
            raise

    async def _resume(
        self,
        claim: Claim,
        fate: Fate | None,
        cancelled: asyncio.CancelledError | None = None,
        *,
        park_after: float | None = None,
        awaits_trigger: bool = False,
        guard: Guard | None = None,
    ) -> Outcome[Any]:
        record, cancelled_now = await self._loaded(claim)
        cancelled = cancelled or cancelled_now
        codec, row = self._codec(), record.row
        if claim.fence == 1 and await self.is_orphan(row):
            outcome = await self._end_unstarted(claim, called_off(row))
            await self.out_of_line(row)
            return outcome
        try:
            opened = self._opened(record)
        except (PlanChanged, DefinitionError):
            await self._put_back(claim)
            raise
        except (UnknownReactor, SerializationError) as error:
            return await self._end_unreadable(claim, error)
        doom = self._doom(claim)
        if doom is not None and (row.failure or row.status == "rolling_back"):
            # It comes no further back either: what is left stays owed.
            doom.__cause__ = opened.fate.error if opened.fate is not None else None
            return await self._end_unreadable(claim, doom)
        outer = await self.outer_results(opened.plan, row, opened.inputs)  # before anybody keeps the lease: it may fail
        execution, journal = self._readied(claim, row, opened, codec)
        execution.outer_results = outer
        execution.doom, execution.park_after, execution.may_park = doom, park_after, fate is None
        execution.awaits_trigger = awaits_trigger and opened.plan.background not in {None, "all"}
        self._fill(execution, row, opened, guard)
        if fate is None and opened.fate is None:
            self._hand_over(execution, record, opened.plan, codec)
            if await self.is_stray(row):
                execution.order_cancel(
                    orders.Cancel(0, f"run {row.parent}, whose element it is, has ended", "rollback")
                )
        if cancelled is not None:
            execution.note_cancel(cancelled)
        if row.run_id in self._handing_back:
            execution.lose(HandedBack(f"run {row.run_id} is handed back"))
        if claim.fence == 1 and opened.images and execution.fans is not None:
            await self.store.fans.persist(row.run_id)  # of a run that takes over the results of another one
        if fate is None and _is_fresh(claim, opened):
            work = _begun(execution, opened)
        else:
            fate, quiet = fate or opened.fate, row.was_quiet or claim.fence == 1
            restore = restoring(execution, codec, opened.images, opened.entries, opened.inputs, fate, quiet=quiet)
            work = execution.resume(opened.inputs, restore, back=fate is not None or doom is not None)
        return await self._settled(row, await self._executing(claim, journal, row.queue, work))

    def _readied(self, claim: Claim, row: RunRow, opened: Opened, codec: PlanCodec) -> tuple[Execution, RunJournal]:
        """An execution that can reach all that a run needs; it knows nothing of what the run has done."""
        plan = opened.plan
        codec.ahead = row.now_ms / 1000 - self.environment.clock.now()
        execution, journal = self._execution(
            plan, row.run_id, row.created_ms, claim, codec, row.queue, row.state, row.durability, row.served
        )
        _note_code(journal, plan, row)
        execution.units = self.units_of(plan, row.run_id, row.created_ms, row.queue, codec.ahead, opened.former)
        if row.place is None:
            execution.fans = self.fans_of(plan, row.run_id, row.created_ms, row.queue, codec)
        elif not row.place.back:
            execution.outer_holds = partial(self.outer_holds, row.parent)
        return execution, journal

    async def _settled(self, row: RunRow, outcome: Outcome[Any]) -> Outcome[Any]:
        """An element that has ended is counted by its map; what of that is lost is done by who looks at the map."""
        if row.place is not None and outcome.status in TERMINAL:
            await self.settle_and_ring(row.run_id)
        return outcome

    def _fill(self, execution: Execution, row: RunRow, opened: Opened, guard: Guard | None) -> None:
        """What is kept of a run beside its nodes."""
        state = execution.state
        state.notes.update(opened.notes)
        state.gates = opened.gates
        state.rollback_failures += opened.left
        if guard is not None:
            state.gates = marks.beside(execution, {"holds": guard.to_data()})
            guard.enter(execution, state.root, execution.base)
        if row.deadline_ms is not None:
            state.root.deadline = self.environment.clock.now() + (row.deadline_ms - row.now_ms) / 1000
        state.root.view = view_of(opened.plan, opened.inputs, self._resources(opened.plan))

    def _hand_over(self, execution: Execution, record: StoredRun, plan: Plan, codec: PlanCodec) -> None:
        """What others want of the run and nobody has done: the first thing that is done, with a cancel before all."""
        waiting = RunMailbox(self.store, record.row.run_id, plan, codec).read(record.waiting)
        cancel = next((order for order in waiting if isinstance(order, orders.Cancel)), None)
        if cancel is not None:
            execution.order_cancel(cancel)
        else:
            execution.first_orders = waiting

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
        await self._end_unstarted(claim, outcome)
        return outcome

    async def _end_unstarted(self, claim: Claim, outcome: Failure) -> Failure:
        retention_ms = max(1, int(self.settings.retention * 1000))
        await self.store.close(claim, outcome.status, encode_outcome(outcome), retention_ms=retention_ms)
        await self.wake_parent(claim)
        await self.settle_run(claim.run_id)
        return outcome

    async def stalled(self, limit: int) -> list[str]:
        """Ids of runs that somebody has to move on and nobody does; each is told to one sweeper only for a while."""
        swept = self.swept()
        rows = await swept.stalled(limit)
        await swept.repair(limit)
        return [row.run_id for row in rows]


async def _let_go(guard: Guard | None) -> None:
    """Give back what an undo holds.

    Cancellation: all of it is given back all the same, then it is raised.
    """
    for holding in guard.forget() if guard is not None else ():
        await holding.release("halt")


def _is_fresh(claim: Claim, opened: Opened) -> bool:
    """Whether nobody has executed the run before."""
    return (claim.fence == 1 or opened.is_fresh) and not opened.images


def _begun(execution: Execution, opened: Opened) -> Coroutine[Any, Any, Outcome[Any]]:
    execution.state.adopt_trace(opened.entries)
    return execution.run(execution.state.root.view, opened.inputs)


def _note_code(journal: RunJournal, plan: Plan, row: RunRow) -> None:
    """Other code than it began with goes on with a run."""
    version = str(plan.options.version or "")
    if (row.version, row.fingerprint) != (version, plan.fingerprint):
        note(logger, logging.INFO, "plan_changed", "and still fits", run_id=row.run_id, reactor=plan.name)
        journal.changed_code(version, plan.fingerprint)
