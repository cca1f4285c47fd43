"""Starting runs: created with their lease and executed here, or created for a worker; or attached to, by their key."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from aioreactor.durable.base import despite_cancel, logger
from aioreactor.durable.elements import Elements
from aioreactor.durable.lines import assigned, lines_of, resigned
from aioreactor.durable.reading import AT_REST
from aioreactor.engine import reporting
from aioreactor.errors import ContentionError, IdempotencyConflict, SerializationError
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.results import Dispatched, Outcome
from aioreactor.store.answers import Exists
from aioreactor.store.claim import Claim
from aioreactor.store.errors import StoreError
from aioreactor.store.keys import run_id_for_key
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import TERMINAL, Changes, NewRun
from aioreactor.trace import RunRecord, Status

R = TypeVar("R")
_REPLACEABLE: frozenset[Status] = TERMINAL


def run_id_of(plan: Plan, options: Mapping[str, Any]) -> str | None:
    """The run id that options ask for: given, or following from an idempotency key."""
    key = options.get("idempotency_key")
    given: str | None = options.get("run_id")
    return run_id_for_key(plan.name, key) if key is not None else given


class Starting(Elements):
    """The part of `DurableRuns` that begins runs."""

    async def run(
        self, plan: Plan, run_id: str, view: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Outcome[Any]:
        """Create the run and execute it here; or attach to the one that has this id already.

        Raises:
            IdempotencyConflict: it exists with other inputs (or at all, with ``on_conflict="reject"``).
            OwnershipLost: another execution took the run over.
            ContentionError: its own gates do not let it in, and it is not to be enqueued then; nothing has run.
            StoreError: the store is away; nothing has run.

        Cancellation: as `Reactor.run`; one that attached gives up only its wait.
        """
        key = options.get("idempotency_key")
        codec = self._codec()
        try:
            encoded = codec.inputs(plan, inputs)
        except SerializationError as error:
            return reporting.refused(plan, run_id, error, inputs)
        gates = await self._in_line(plan, run_id, inputs, options)
        new = self._new(plan, encoded, options, gates=gates)
        replace = _REPLACEABLE if options.get("on_conflict") == "replace" else ()
        creating = self.store.create(run_id, new, hold_ms=self._ttl_ms(), replace=replace)
        created, cancelled = await despite_cancel(self._created(creating, run_id, gates))
        if isinstance(created, Exists):
            if cancelled is not None:
                raise cancelled
            return await self._attach(plan, run_id, created, key or run_id, options)
        assert created.claim is not None
        codec.ahead = created.created_ms / 1000 - self.environment.clock.now()
        execution, journal = self._execution(
            plan, run_id, created.created_ms, created.claim, codec, new.queue, asked=new.durability
        )
        execution.awaits_trigger, execution.state.gates = plan.background is not None, gates
        execution.units = self.units_of(plan, run_id, created.created_ms, new.queue, codec.ahead)
        execution.fans = self.fans_of(plan, run_id, created.created_ms, new.queue, codec)
        if cancelled is not None:
            execution.note_cancel(cancelled)
        try:
            return await self._executing(created.claim, journal, new.queue, execution.run(view, inputs))
        except BaseException as error:
            if execution.refused is not error:
                raise
            return await self._refused(plan, run_id, created.claim, new.queue, error)

    async def _refused(self, plan: Plan, run_id: str, claim: Claim, queue: str, error: BaseException) -> Outcome[Any]:
        """The gates of a run do not let it in here: leave it to a worker where that is asked for, else forget it.

        Raises:
            BaseException: ``error``; there is no such run any more.
        """
        if isinstance(error, ContentionError) and plan.options.on_contention == "enqueue":
            _, cancelled = await despite_cancel(self.store.release(claim, Changes(status="pending")))
            job_id = await self.ring(run_id, queue)
            if cancelled is not None:
                raise cancelled
            return Dispatched(job_id, _record=RunRecord(run_id, plan.name, "pending"))
        try:
            if claim.open:
                await despite_cancel(self.store.delete(run_id, force=True))
        except StoreError as away:
            note(logger, logging.WARNING, "run_swept_later", str(away), run_id=run_id)
        raise error

    async def _in_line(
        self, plan: Plan, run_id: str, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Positions in the lines of a run that is about to be created; one that exists has its own.

        Raises:
            StoreError: the store is away.

        Cancellation: some may have been handed out; they are passed over later.
        """
        lines, coordinator = lines_of(plan, inputs), self.environment.coordinator()
        if not lines or coordinator is None:
            return None
        if run_id_of(plan, options) is not None:
            row = await self.store.peek(run_id)
            if row is not None and not (options.get("on_conflict") == "replace" and row.ended):
                return None
        (gates,) = await assigned(coordinator, self.lined, [(run_id, lines)])
        return gates

    async def _created(self, creating: Awaitable[R], run_id: str, gates: Mapping[str, Any] | None) -> R:
        """Wait for a run to be created; without it, its positions are given up.

        Cancellation: it was created, or not.
        """
        try:
            return await creating
        except StoreError:
            coordinator = self.environment.coordinator()
            if gates is not None and coordinator is not None:
                await resigned(coordinator, gates, run_id)
            raise

    def _new(
        self,
        plan: Plan,
        inputs: bytes,
        options: Mapping[str, Any],
        due_ms: int = 0,
        *,
        gates: Mapping[str, Any] | None = None,
    ) -> NewRun:
        deadline = plan.options.deadline if plan.options.deadline is not None else self.environment.deadline
        return NewRun(
            reactor=plan.name,
            inputs=inputs,
            version=str(plan.options.version or ""),
            fingerprint=plan.fingerprint,
            deadline_ms=None if deadline is None else max(1, int(deadline * 1000)),
            due_ms=due_ms,
            tags=tuple(options.get("tags") or ()),
            durability=options.get("durability") or "",
            queue=options.get("queue") or plan.options.queue or self.settings.queue or "",
            gates=b"" if gates is None else PlanCodec().gates(gates),
        )

    async def _attach(
        self, plan: Plan, run_id: str, existing: Exists, key: str, options: Mapping[str, Any]
    ) -> Outcome[Any]:
        await self._check_same(plan, run_id, existing, key, options)
        await self.store.wait_done(run_id, until=AT_REST)
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
        encoded = self._codec().inputs(plan, inputs)
        gates = await self._in_line(plan, run_id, inputs, options)
        new = self._new(plan, encoded, options, due_ms, gates=gates)
        replace = _REPLACEABLE if options.get("on_conflict") == "replace" else ()
        created = await self._created(self.store.create(run_id, new, replace=replace), run_id, gates)
        if isinstance(created, Exists):
            await self._check_same(plan, run_id, created, options.get("idempotency_key") or run_id, options)
            return False
        return True

    async def create_many(
        self, plan: Plan, runs: Sequence[tuple[str, Mapping[str, Any]]], options: Mapping[str, Any], *, due_ms: int = 0
    ) -> None:
        """Create new runs for workers to execute, each given by a new id and its inputs; a few round trips in all.

        Raises:
            SerializationError: inputs cannot be stored; nothing was created.
            StoreError: the store is away; some may have been created.

        Cancellation: some were created; the sweeper rings for them.
        """
        codec, encoded = self._codec(), []
        for place, (_, inputs) in enumerate(runs):
            try:
                encoded.append(codec.inputs(plan, inputs))
            except SerializationError as error:
                error.add_note(f"in the inputs at index {place}")
                raise
        coordinator = self.environment.coordinator()
        lines = [(run_id, lines_of(plan, inputs)) for run_id, inputs in runs]
        given = [None] * len(runs) if coordinator is None else await assigned(coordinator, self.lined, lines)
        found = []
        for (run_id, _), blob, gates in zip(runs, encoded, given, strict=True):
            found.append((run_id, self._new(plan, blob, options, due_ms, gates=gates)))
        await self.store.create_many(found)
