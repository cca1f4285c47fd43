"""Starting runs: created with their lease and executed here, or created for a worker; or attached to, by their key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioreactor.durable.base import despite_cancel
from aioreactor.durable.units import Dispatching
from aioreactor.engine import reporting
from aioreactor.errors import IdempotencyConflict, SerializationError
from aioreactor.plan.model import Plan
from aioreactor.results import Outcome
from aioreactor.store.keys import run_id_for_key
from aioreactor.store.records import TERMINAL, Exists, NewRun
from aioreactor.trace import Status

_REPLACEABLE: frozenset[Status] = TERMINAL


def run_id_of(plan: Plan, options: Mapping[str, Any]) -> str | None:
    """The run id that options ask for: given, or following from an idempotency key."""
    key = options.get("idempotency_key")
    given: str | None = options.get("run_id")
    return run_id_for_key(plan.name, key) if key is not None else given


class Starting(Dispatching):
    """The part of `DurableRuns` that begins runs."""

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
        codec.ahead = created.created_ms / 1000 - self.environment.clock.now()
        execution, journal = self._execution(plan, run_id, created.claim, codec, new.queue, asked=new.durability)
        execution.awaits_trigger = plan.background is not None
        execution.units = self.units_of(plan, run_id, created.created_ms, new.queue, codec.ahead)
        if cancelled is not None:
            execution.note_cancel(cancelled)
        return await self._executing(created.claim, journal, new.queue, execution.run(view, inputs))

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
            durability=options.get("durability") or "",
            queue=options.get("queue") or plan.options.queue or self.settings.queue or "",
        )

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

    async def create_many(
        self, plan: Plan, runs: Sequence[tuple[str, Mapping[str, Any]]], options: Mapping[str, Any], *, due_ms: int = 0
    ) -> None:
        """Create new runs for workers to execute, each given by a new id and its inputs; a few round trips in all.

        Raises:
            SerializationError: inputs cannot be stored; nothing was created.
            StoreError: the store is away; some may have been created.

        Cancellation: some were created; the sweeper rings for them.
        """
        codec, found = self._codec(), []
        for place, (run_id, inputs) in enumerate(runs):
            try:
                encoded = codec.inputs(plan, inputs)
            except SerializationError as error:
                error.add_note(f"in the inputs at index {place}")
                raise
            found.append((run_id, self._new(plan, encoded, options, due_ms)))
        await self.store.create_many(found)
