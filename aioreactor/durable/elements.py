"""Elements of fan-outs in a worker: sessions that execute them, and those elements that are runs of their own."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from aioreactor.durable.base import HandedBack, despite_cancel, ended
from aioreactor.durable.correlating import RunCorrelations
from aioreactor.durable.element_events import Listeners
from aioreactor.durable.element_journal import ElementJournal
from aioreactor.durable.element_records import Record, kind_of, left_at, pack_left, placed, value_blob
from aioreactor.durable.element_sessions import Back, ElementSession, Forward
from aioreactor.durable.fans import CHUNK
from aioreactor.durable.requests import Body, RunMailbox, pack
from aioreactor.durable.units import Dispatching
from aioreactor.engine import orders
from aioreactor.engine.scheduler import Execution
from aioreactor.errors import SerializationError, UnknownReactor
from aioreactor.logs import note
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.plan.paths import node_at
from aioreactor.plan.units import PATH, has_undos, may_owe
from aioreactor.registry import find_plan
from aioreactor.results import Failure, Outcome, RollbackFailure, Success
from aioreactor.rooms import room_here
from aioreactor.snapshots import StoredReader, bare_outcome, encode_outcome
from aioreactor.store.claim import Claim
from aioreactor.store.errors import StoreError
from aioreactor.store.fans import RUN, Settled
from aioreactor.store.keys import fan_ring, fan_rung
from aioreactor.store.leases import Hold
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import Place, RunRow
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.unique import UniqueTexts
from aioreactor.trace import Status

logger = logging.getLogger("aioreactor.runs")
_ASKABLE: frozenset[Status] = frozenset(("pending", "running", "paused"))
_nonces = UniqueTexts()


class Elements(Dispatching):
    """The part of `DurableRuns` that knows of maps that fan out, and of their elements."""

    chunk_size = CHUNK

    async def ring_fan(self, run_id: str, path: str, queue: str, count: int, *, due_ms: int | None = None) -> None:
        """Tell so many workers that a fan-out has something to do; if none hears it, its run does so again.

        Cancellation: some were told, or none.
        """
        try:
            await self.queues(queue).ring([fan_ring(run_id, path, _nonces()) for _ in range(count)], due_ms=due_ms)
        except StoreError as error:
            note(logger, logging.WARNING, "run_swept_later", str(error), run_id=run_id, path=path)

    # ------------------------------------------------------------------ a session

    async def serve_fan(self, ring: str) -> None:
        """What a worker does with a ring for a fan-out: execute some of its elements, or roll some back.

        Cancellation: bodies are cancelled, and what was dealt is dealt again.
        """
        run_id, path = fan_rung(ring)
        row = await self.store.peek(run_id)
        if row is None or row.ended:
            return
        node = node_at(find_plan(row.reactor, row.version), path)
        if node is None or node.fan is None:
            text = "the code that is here has no such map that fans out"
            note(logger, logging.WARNING, "run_left", text, run_id=run_id, path=path)
            return
        room = room_here.get()
        if room is not None and not room.enter():
            await self._ring_later(
                run_id, path, (node.fan_out.queue if node.fan_out is not None else None) or row.queue
            )
            return
        try:
            await self._serve(run_id, path, node, row)
        finally:
            if room is not None:
                room.leave()

    async def _ring_later(self, run_id: str, path: str, queue: str) -> None:
        """Have whoever has room then try; one such ring at a time, or those of every session would add up."""
        now = time.monotonic()
        self._put_off = {key: due for key, due in self._put_off.items() if due > now}
        if (run_id, path) not in self._put_off:
            due_ms = random.randrange(250, 750)
            self._put_off[run_id, path] = now + due_ms / 1000
            await self.ring_fan(run_id, path, queue, 1, due_ms=due_ms)

    async def _serve(self, run_id: str, path: str, node: PlanNode, row: RunRow) -> None:
        for kind in (Forward, Back):
            session = kind(self, run_id, path, node)
            await self._prepare(session, row)
            if await self._served(session):
                return

    async def _prepare(self, session: ElementSession, row: RunRow) -> None:
        """What its elements see of the run around them."""
        plan = find_plan(row.reactor, row.version)
        session.codec.ahead = row.now_ms / 1000 - self.environment.clock.now()
        session.listeners = Listeners(self.environment, plan, row.run_id, session.path)
        if session.plan.unit_of:
            around = structs.replace(row, parent=row.run_id)
            session.outer = await self.outer_results(session.plan, around, {PATH: session.path})

    async def _served(self, session: ElementSession) -> bool:
        task = asyncio.ensure_future(session.serve())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            session.end(HandedBack(f"elements of {session.path!r} of run {session.run_id} are handed back"))
            await despite_cancel(ended(task))
            raise

    def _resources(self, plan: Plan) -> dict[str, Any]:
        return {item.name: self.environment.resource(item.name, item.annotation) for item in plan.fields.resources}

    def furnish(self, execution: Execution, codec: PlanCodec, retention_ms: int) -> None:
        """What the execution of an element needs besides its journal."""
        run_id = execution.state.run_id
        execution.mailbox = RunMailbox(self.store, run_id, execution.plan, codec)
        execution.correlations = RunCorrelations(self.store, self.correlations, run_id, retention_ms)
        execution.park_after = execution.park_timers_after = self.settings.park_after
        execution.may_park = True

    def keep(self, execution: Execution, claim: Claim) -> Hold:
        """Keep the lease of an element that has become a run of its own, and hear what others want of it."""
        self._heard_here().watch(claim.run_id, execution)
        return self._keeper().watch(claim, execution.lose, lambda: orders.heed(execution))

    async def part_with(self, execution: Execution, journal: ElementJournal) -> None:
        """An element's execution has ended, however it did.

        Cancellation: it is done all the same, then it is raised.
        """
        run_id = execution.state.run_id
        if journal.is_run:
            if isinstance(execution.lost, HandedBack) and journal.claim.open:
                await despite_cancel(self._handed_back(journal))
            journal.let_go()
            self._heard_here().forget(run_id, execution)
        correlations = execution.correlations
        if isinstance(correlations, RunCorrelations) and correlations.has_answered:
            _, cancelled = await despite_cancel(correlations.settle())
            if cancelled is not None:
                raise cancelled

    async def _handed_back(self, journal: ElementJournal) -> None:
        try:
            await journal.hand_back()
            await journal.ring_now()
        except Exception as error:
            note(logger, logging.WARNING, "run_swept_later", str(error), run_id=journal.claim.run_id)

    # ------------------------------------------------------------------ elements that are runs of their own

    async def cancel_element(self, run_id: str, reason: str, mode: str) -> None:
        """End an element that is a run of its own ``cancelled``, wherever it is; it is carried out by a worker.

        Cancellation: it was asked for, or not.
        """
        body = pack(Body("cancel", text=reason, mode=mode))
        await self.store.ask(run_id, body, request_id="cancel:map", allowed=_ASKABLE)
        row = await self.store.peek(run_id)
        if row is not None and not row.lease_left_ms and not row.ended:
            await self.ring(run_id, row.queue)

    async def settle_run(self, run_id: str) -> int:
        """An element that is a run of its own has ended: its map counts it, and its record goes.

        Gives how many elements could be dealt now. Repeated for one that was counted, it changes nothing.

        Raises:
            StoreError: the store is away; whoever looks at the fan-out next does it.

        Cancellation: it was counted, or not, as for `StoreError`.
        """
        record = await self.store.read(run_id)
        if record is None or record.row.place is None or not record.row.ended:
            return 0
        row, place = record.row, record.row.place
        assert place is not None
        outcome, plan = self._outcome_of(record)
        if place.back:
            dealt = await self._settled_back(record, place, outcome)
        else:
            found = self._record_of(record, outcome, plan)
            settled = [Settled(place.number, found.letter, found.packed())]
            dealt = await self.store.fans.settle(row.parent, place.path, RUN, settled, ttl_ms=1)
            if dealt is not None and dealt.counted:
                await self._tell_settled(row, place, outcome)
        await self.store.delete(run_id, force=True)
        if dealt is not None and dealt.wake is not None:
            await self.ring(row.parent, dealt.wake)
        return dealt.more if dealt is not None else 0

    async def _tell_settled(self, row: RunRow, place: Place, outcome: Outcome[Any]) -> None:
        """Tell who listens to the map's run of an element that was a run of its own."""
        parent = await self.store.peek(row.parent)
        plan = find_plan(parent.reactor, parent.version) if parent is not None else None
        node = node_at(plan, place.path) if plan is not None else None
        if plan is None or node is None or node.fan is None:
            return
        listeners = Listeners(self.environment, plan, row.parent, place.path)
        if listeners.of_elements:
            told = outcome if isinstance(outcome, Success) else placed(node.fan, place.path, place.number, outcome)
            await listeners.finished(place.number, told)

    async def settle_and_ring(self, run_id: str) -> None:
        """As `settle_run`, outside of any session: tells workers if something can be dealt now.

        Raises, Cancellation: as there; who is not told of it hears of it when the fan-out is looked at.
        """
        row = await self.store.peek(run_id)
        if row is not None and row.place is not None and await self.settle_run(run_id):
            await self.ring_fan(row.parent, row.place.path, row.queue, 1)

    def _outcome_of(self, record: StoredRun) -> tuple[Outcome[Any], Plan | None]:
        try:
            plan = find_plan(record.row.reactor, record.row.version)
            outcome = StoredReader(self.environment, plan, self._codec(), record).outcome()
        except (UnknownReactor, SerializationError) as error:
            return bare_outcome(record.row) or Failure(error, None, retry=False), None
        assert outcome is not None
        return outcome, plan

    def _record_of(self, record: StoredRun, outcome: Outcome[Any], plan: Plan | None) -> Record:
        """What its map keeps of an element."""
        if isinstance(outcome, Success) and plan is not None:
            steps = record.steps if has_undos(plan) else {}
            skipped = bool(plan.unit_of) and outcome.trace.only("skip") != ()
            return Record("k" if skipped else "s", value_blob(plan, self._codec(), outcome.value), steps)
        cut = record.row.status in {"halted", "cancelled", "aborted"} and plan is not None and may_owe(plan)
        left: Any = getattr(outcome, "rollback_failures", ())
        steps = record.steps if cut or left else {}
        return Record(kind_of(outcome), encode_outcome(outcome), steps)

    async def _settled_back(self, record: StoredRun, place: Place, outcome: Outcome[Any]) -> Any:
        parent = await self.store.peek(record.row.parent)
        node = node_at(find_plan(parent.reactor, parent.version), place.path) if parent is not None else None
        left = self.left_of(node, place.path, place.number, outcome) if node is not None else []
        [data] = await self.store.fans.records(record.row.parent, place.path, [place.number])
        before = Record.read(data)
        after = Record(before.kind, before.blob, record.steps if left else {})
        row = (place.number, after.letter.encode() + after.packed(), pack_left(left))
        return await self.store.fans.settle_back(record.row.parent, place.path, RUN, [row], ttl_ms=1)

    def left_of(self, node: PlanNode, path: str, index: int, outcome: Outcome[Any]) -> Sequence[RollbackFailure]:
        """What did not complete of an element's rollback, as its map reports it."""
        assert node.fan is not None
        return [left_at(node.fan, path, index, each) for each in getattr(outcome, "rollback_failures", ())]
