"""What a stored run looks like to people and programs, and its outcome as the caller would have got it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aioreactor.engine.fanning import bind, fan_runs
from aioreactor.engine.fans import Fans
from aioreactor.engine.ports import Environment
from aioreactor.engine.recovery import fill_values
from aioreactor.engine.reporting import shown_inputs, text_of
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.scope import FanRun, NodeStatus
from aioreactor.engine.snapshot import Image, Restorer
from aioreactor.engine.state import RunState
from aioreactor.errors import SerializationError
from aioreactor.map_results import FanResults
from aioreactor.plan.model import Plan
from aioreactor.plan.paths import present_path, present_records
from aioreactor.results import Halt, OpenInterrupt, Outcome, Paused, RollbackFailure, Success
from aioreactor.store.codec import codec_for
from aioreactor.store.codec_records import stamp, unstamp
from aioreactor.store.keys import run_id_for_unit
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.records import RunRow
from aioreactor.trace import RawEntry, RunRecord, Status, Trace


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """One step of a stored run: its status, and how many attempts of it have failed."""

    path: str
    status: str
    failed_attempts: int = 0


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A stored run as of one moment. Times in seconds since the epoch, of the server's clock; inputs are redacted.

    ``waits_for`` says of a run that nobody executes now what it waits for: a worker, the next attempt of a step, a
    timer, an answer. ``interrupts`` are what `runs.resume` and `runs.decide` can answer.
    """

    run_id: str
    reactor: str
    status: Status
    created_at: float
    updated_at: float
    inputs: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[StepSnapshot, ...] = ()
    trace: Trace = field(default_factory=Trace)
    outcome: Outcome[Any] | None = None
    interrupts: tuple[OpenInterrupt, ...] = ()
    children: tuple[str, ...] = ()
    parent: str | None = None
    tags: tuple[str, ...] = ()
    version: str = ""
    waits_for: str = ""


def from_row(row: RunRow) -> RunSnapshot:
    """A snapshot of the scalars, as lists give it: without steps, results and trace."""
    return RunSnapshot(
        row.run_id,
        row.reactor,
        row.status,
        row.created_ms / 1000,
        row.updated_ms / 1000,
        parent=row.parent or None,
        tags=row.tags,
        version=row.version,
        waits_for=row.waits_for,
    )


def _stored_outcome(row: RunRow) -> Outcome[Any]:
    outcome: Outcome[Any] = codec_for().decode(unstamp(row.outcome, "the outcome"), "the outcome")
    return outcome


def bare_outcome(row: RunRow) -> Outcome[Any] | None:
    """The outcome of a run whose record cannot be read here; None if it has none, or one that needs the record."""
    stored = _stored_outcome(row) if row.outcome else None
    if stored is None or isinstance(stored, Success):
        return None
    object.__setattr__(stored, "_record", RunRecord(row.run_id, row.reactor, row.status))
    return stored


def left_of(codec: PlanCodec, row: RunRow) -> Sequence[RollbackFailure]:
    """What of rollbacks in a run has not completed so far; of one that has ended its outcome tells."""
    return codec.fate_back(row.failure).left if row.failure else codec.left_back(row.left)


class StoredReader:
    """Reads one stored run by its plan."""

    def __init__(self, environment: Environment, plan: Plan, codec: PlanCodec, record: StoredRun) -> None:
        self.plan = plan
        self.codec = codec
        self.record = record
        steps, self._former = present_records(plan, record.steps)
        self.images = {path: codec.image_back(path, data) for path, data in steps.items()}
        self.entries: list[RawEntry] = [codec.entry_back(data) for data in record.trace]
        self._execution = Execution(environment, plan, record.row.run_id)
        self._execution.state.rollback_failures += left_of(codec, record.row)  # elements are read with theirs
        Restorer(self._execution.state, self.images, codec, failing=True).restore()
        fill_values(self._execution, self._execution.state.root)

    def bind(self, fans: Fans | None) -> list[FanResults[Any]]:
        """Give the results of maps that fanned out a way to the store; gives them."""
        if fans is None:
            return []
        self._execution.fans = fans
        self._execution.state.root.inputs = self.codec.inputs_back(self.plan, self.record.row.inputs)
        return bind(self._execution)

    @property
    def state(self) -> RunState:
        """What it is restored to."""
        return self._execution.state

    def fan_runs(self) -> list[FanRun]:
        """The maps that fanned out and have begun."""
        return fan_runs(self._execution)

    def results(self) -> dict[str, Any]:
        """Values by step name."""
        return self._execution.state.root.results_by_name()

    def results_beside(self, path: str) -> dict[str, Any]:
        """Values by step name, of the scope in which the node at ``path`` stands."""
        around = present_path(self.plan, path).rpartition(".")[0]
        scopes = self._execution.state.scopes()
        return next((scope.results_by_name() for scope in scopes if scope.path == around), {})

    def units(self) -> tuple[str, ...]:
        """Ids of the runs that its nodes were dispatched as."""
        row, found = self.record.row, []
        for scope in self._execution.state.scopes():
            for node in scope.plan.nodes:
                if node.unit is not None and scope.status[node.index] == NodeStatus.COMPLETED:
                    path, free = scope.path_of(node.index), node.independent
                    stored = self._former.get(path, path)
                    found.append(run_id_for_unit(row.run_id, row.created_ms, stored, independent=free))
        return tuple(found)

    def interrupts(self) -> tuple[OpenInterrupt, ...]:
        """What waits for an answer, or for a decision, in the order of the plan."""
        row = self.record.row
        if row.ended or row.status == "rolling_back":
            return ()
        return tuple(
            OpenInterrupt(image.path, image.correlation, image.due or None)
            for image in self.images.values()
            if image.opened and image.status == NodeStatus.READY
        )

    def outcome(self) -> Outcome[Any] | None:
        """The outcome of a run that has ended, or is paused; its value from the steps' own records, for their types."""
        row = self.record.row
        if row.status == "paused":
            record = RunRecord(row.run_id, row.reactor, row.status, self.results(), self.entries)
            return Paused(self.interrupts(), _record=record)
        if not row.outcome:
            return None
        stored = _stored_outcome(row)
        record = RunRecord(row.run_id, row.reactor, row.status, self.results(), self.entries)
        if isinstance(stored, Success):
            return Success(self._execution.state.root.value(), _record=record)
        object.__setattr__(stored, "_record", record)
        return stored

    def snapshot(self) -> RunSnapshot:
        """All of it."""
        row = self.record.row
        inputs = self.codec.inputs_back(self.plan, row.inputs)
        return RunSnapshot(
            row.run_id,
            row.reactor,
            row.status,
            row.created_ms / 1000,
            row.updated_ms / 1000,
            shown_inputs(self.plan, inputs),
            self.results(),
            tuple(map(_step, self.images.values())),
            Trace.of(self.entries),
            self.outcome(),
            self.interrupts(),
            children=self.units(),
            parent=row.parent or None,
            tags=row.tags,
            version=row.version,
            waits_for=row.waits_for,
        )


def _step(image: Image) -> StepSnapshot:
    return StepSnapshot(image.path, NodeStatus(image.status).name.lower(), image.attempts)


def encode_outcome(outcome: Outcome[Any]) -> bytes:
    """An outcome as it is stored; a success without its value, which the steps' records hold."""
    kept: Any = Success(None) if isinstance(outcome, Success) else outcome
    try:
        return stamp(codec_for().encode(kept, "the outcome"))
    except SerializationError:
        if not isinstance(outcome, Halt):
            raise
        told = Halt(
            text_of(outcome.reason),
            outcome.step,
            errors=outcome.errors,
            rollback_failures=outcome.rollback_failures,
            _record=outcome._record,
        )
        return stamp(codec_for().encode(told, "the outcome"))
