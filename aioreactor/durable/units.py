"""Dispatching: parts of a run as runs of their own, which know their parent and have ids that follow from it.

A unit's run is created before workers are told of it, so a crash in between leaves it to the sweeper; and creating it
again finds it. When it ends, the store makes a parent that is parked for it due, and who closed it tells workers; what
of this is lost, the sweeper does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from aioreactor.durable.base import store_needed
from aioreactor.durable.lines import assigned, lines_of
from aioreactor.durable.reading import Reading
from aioreactor.engine.ports import Sent
from aioreactor.errors import (
    NotResumable,
    RunNotFound,
    SerializationError,
    StepCancelled,
    UnknownReactor,
)
from aioreactor.plan.model import Plan, PlanNode, Source
from aioreactor.plan.units import PATH
from aioreactor.results import Failure, Outcome
from aioreactor.snapshots import encode_outcome
from aioreactor.store.answers import Exists
from aioreactor.store.keys import BOUND, run_id_for_unit
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import TERMINAL, NewRun, RunRow
from aioreactor.trace import RunRecord, Status

_DEEPEST = 8
"""Elements of elements that are followed to what is held around them."""

_ROLLED_BACK: frozenset[Status] = frozenset(("failed", "cancelled"))


class Dispatching(Reading):
    """The part of `DurableRuns` that knows of parents and units."""

    def units_of(
        self,
        plan: Plan,
        run_id: str,
        created_ms: int,
        queue: str,
        ahead: float,
        former: Mapping[str, str] = MappingProxyType({}),
    ) -> RunUnits | None:
        """Who dispatches the units of a run; None if its plan has none. ``former``: see `fits.Opened`."""
        return RunUnits(self, run_id, created_ms, queue, ahead, former) if plan.has_units else None

    async def ring_if_due(self, run_id: str, queue: str) -> None:
        """Tell workers of a run that was parked, if what it waits for was there at that very moment.

        Raises:
            JournalFailed: the store is away.

        Cancellation: it was told, or not.
        """
        with store_needed("look at a parked run"):
            row = await self.store.peek(run_id)
        if row is not None and row.due_ms == 0 and not row.owner and row.waits_for:
            await self.ring(run_id, queue)

    async def is_stray(self, row: RunRow) -> bool:
        """Whether an element that is a run of its own has outlived the run of its map: nothing runs after that."""
        if row.place is None:
            return False
        parent = await self.store.peek(row.parent)
        return parent is None or parent.ended

    async def is_orphan(self, row: RunRow) -> bool:
        """Whether a unit that nobody has taken before has a parent that rolled back, and nobody could call it off."""
        if not row.parent or not row.run_id.startswith(BOUND):  # a run that was tried again has a parent, too
            return False
        parent = await self.store.peek(row.parent)
        return parent is not None and parent.status in _ROLLED_BACK

    async def outer_holds(self, run_id: str) -> list[str]:
        """Tokens of what a run holds whose map waits for an element, and of the runs that it is an element of itself.

        Raises:
            StoreError: the store is away.

        Cancellation: nothing happens.
        """
        found: list[str] = []
        for _ in range(_DEEPEST):
            row = await self.store.peek(run_id)
            if row is None or row.ended or row.status == "rolling_back":
                break
            gates = PlanCodec().gates_back(row.gates) or {}
            found += [lease["token"] for lease in gates.get("holds", {}).get("leases", ())]
            if row.place is None or row.place.back:
                break
            run_id = row.parent
        return found

    async def outer_results(self, plan: Plan, row: RunRow, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """For a dispatched step that asks for its context: its parent's results as of now; none if they are gone."""
        if not plan.unit_of:
            return None
        record = await self.store.read(row.parent) if _wants_context(plan.nodes[0]) else None
        if record is None:
            return {}
        try:
            return (await self._reader(record)).results_beside(inputs[PATH])
        except (UnknownReactor, SerializationError):
            return {}


class RunUnits:
    """The units of one run; `engine.ports.Units`."""

    def __init__(
        self, runs: Dispatching, run_id: str, created_ms: int, queue: str, ahead: float, former: Mapping[str, str]
    ) -> None:
        self.longest_wait = runs.settings.unit_wait
        self.longest_park = runs.settings.unit_park
        self._runs = runs
        self._run_id = run_id
        self._created_ms = created_ms
        self._queue = queue
        self._ahead = ahead
        self._former = former

    def _id_of(self, path: str, node: PlanNode) -> str:
        stored = self._former.get(path, path)
        return run_id_for_unit(self._run_id, self._created_ms, stored, independent=node.independent)

    async def dispatch(self, path: str, node: PlanNode, inputs: Mapping[str, Any]) -> Sent:
        """See `Units.dispatch`."""
        runs, plan, unit_id = self._runs, node.unit, self._id_of(path, node)
        assert plan is not None
        queue = plan.options.queue or self._queue
        encoded = runs._codec().inputs(plan, inputs)
        with store_needed("create the run of a unit"):
            gates = await self._in_line(unit_id, plan, inputs)
            created = await runs.store.create(unit_id, self._new(plan, encoded, queue, gates))
            created_ms = await self._created(unit_id) if isinstance(created, Exists) else created.created_ms
        job_id = ""
        if not isinstance(created, Exists) or created.status == "pending":
            job_id = await runs.ring(unit_id, queue)
        return Sent(unit_id, job_id, created_ms / 1000 - self._ahead)

    async def _in_line(self, unit_id: str, plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Positions of a reactor that is dispatched, in the order of dispatch; one that was before has its own."""
        lines, coordinator = lines_of(plan, inputs), self._runs.environment.coordinator()
        if not lines or coordinator is None or await self._runs.store.peek(unit_id) is not None:
            return None
        (gates,) = await assigned(coordinator, self._runs.lined, [(unit_id, lines)])
        return gates

    async def _created(self, unit_id: str) -> int:
        row = await self._runs.store.peek(unit_id)
        if row is not None:
            return row.created_ms
        return round((self._runs.environment.clock.now() + self._ahead) * 1000)  # deleted at this very moment

    def _new(self, plan: Plan, inputs: bytes, queue: str, gates: Mapping[str, Any] | None) -> NewRun:
        deadline = plan.options.deadline if plan.options.deadline is not None else self._runs.environment.deadline
        return NewRun(
            reactor=plan.name,
            inputs=inputs,
            version=str(plan.options.version or ""),
            fingerprint=plan.fingerprint,
            deadline_ms=None if deadline is None or plan.unit_of else max(1, int(deadline * 1000)),
            parent=self._run_id,
            queue=queue or self._runs.settings.queue or "",
            listed=not plan.unit_of,
            gates=b"" if gates is None else PlanCodec().gates(gates),
        )

    async def outcome(self, path: str, node: PlanNode) -> Outcome[Any] | None:
        """See `Units.outcome`."""
        unit_id = self._id_of(path, node)
        with store_needed("read a unit"):
            row = await self._runs.store.peek(unit_id)
            if row is None:
                raise RunNotFound(unit_id)
            if row.status not in TERMINAL:
                return None
            try:
                return await self._runs.outcome(unit_id, node.unit)
            except NotResumable:
                return None  # it goes on again

    async def ended(self, path: str, node: PlanNode) -> None:
        """See `Units.ended`."""
        with store_needed("wait for a unit"):
            await self._runs.store.wait_done(self._id_of(path, node))

    async def withdraw(self, path: str, node: PlanNode) -> Status | None:
        """See `Units.withdraw`."""
        assert node.unit is not None
        options, unit_id = node.unit.options, self._id_of(path, node)
        retention = options.retention if options.retention is not None else self._runs.settings.retention
        outcome = encode_outcome(_called_off(unit_id, node.unit.name, self._run_id))
        with store_needed("call off a unit"):
            row = await self._runs.store.peek(unit_id) if options.coordination else None
            status = await self._runs.store.withdraw(unit_id, outcome, retention_ms=max(1, int(retention * 1000)))
            if row is not None and status == "cancelled":
                await self._runs.out_of_line(row)
            return status

    async def parted(self) -> None:
        """See `Units.parted`."""
        await self._runs.ring_if_due(self._run_id, self._queue)


def called_off(row: RunRow) -> Failure:
    """The outcome of a unit that was never started because its parent had rolled back."""
    return _called_off(row.run_id, row.reactor, row.parent)


def _called_off(run_id: str, reactor: str, parent: str) -> Failure:
    error = StepCancelled(reactor, f"run {parent}, which dispatched it, rolled back before it started")
    return Failure(error, None, retry=False, _record=RunRecord(run_id, reactor, "cancelled"))


def _wants_context(node: PlanNode) -> bool:
    calls = [call for call in (node.body, node.compensate, node.undo) if call is not None]
    return any(arg.source is Source.CONTEXT for call in calls for arg in call.args)
