"""The events that middlewares receive: frozen, typed, one class per hook.

Every event has ``run_id``, ``reactor``, ``path`` (dotted; empty for the run itself), ``attempt`` and ``at`` (seconds
since the epoch). Values of marked fields are redacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aioreactor.results import Outcome, RollbackFailure


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What all events share."""

    run_id: str
    reactor: str
    path: str = ""
    attempt: int = 1
    at: float = 0.0


class RunStarted(Event, frozen=True, kw_only=True):
    """``on_run_start``: inputs are valid, nothing has run yet."""

    inputs: Mapping[str, Any]


class RunResumed(Event, frozen=True, kw_only=True):
    """``on_run_resume``: a run that another execution began goes on here."""


class RunHandedOff(Event, frozen=True, kw_only=True):
    """``on_run_hand_off``: this process leaves the run to a worker, which the job ``job_id`` tells of it."""

    job_id: str


class RunParked(Event, frozen=True, kw_only=True):
    """``on_run_park``: a worker leaves the run for ``delay`` seconds, since all of it waits."""

    delay: float
    waits_for: str


class RunFinished(Event, frozen=True, kw_only=True):
    """``on_run_finish``: the outcome is final; ``duration`` in seconds."""

    outcome: Outcome[Any]
    status: str
    duration: float


class StepStarted(Event, frozen=True, kw_only=True):
    """``on_step_start``: an attempt is about to enter the body."""


class StepSucceeded(Event, frozen=True, kw_only=True):
    """``on_step_success``."""

    value: Any
    duration: float


class StepSkipped(Event, frozen=True, kw_only=True):
    """``on_step_skip``."""

    value: Any
    duration: float


class StepHalted(Event, frozen=True, kw_only=True):
    """``on_step_halt``."""

    reason: Any
    duration: float


class StepFailed(Event, frozen=True, kw_only=True):
    """``on_step_failure``: an attempt failed. ``started``: its body was entered. ``final``: it is not tried again."""

    error: BaseException
    started: bool
    final: bool
    duration: float


class StepRetried(Event, frozen=True, kw_only=True):
    """``on_step_retry``: ``attempt`` failed with ``error`` and is tried again in ``delay`` seconds."""

    error: BaseException
    delay: float


class StepCancelled(Event, frozen=True, kw_only=True):
    """``on_step_cancel``: the engine cancelled a body in flight."""

    error: BaseException
    duration: float


class StepParked(Event, frozen=True, kw_only=True):
    """``on_step_park``: a worker's step waits for ``waits_for``, and is tried again in ``delay`` seconds at most."""

    delay: float
    waits_for: str


class HoldAcquired(Event, frozen=True, kw_only=True):
    """``on_hold_acquired``: ``kind`` and ``key`` of a primitive, by ``scope``, after ``waited`` seconds."""

    kind: str
    key: str
    scope: str
    waited: float


class HoldContended(Event, frozen=True, kw_only=True):
    """``on_hold_contended``: somebody else has it; ``scope`` waits, or is refused."""

    kind: str
    key: str
    scope: str


class HoldReleased(Event, frozen=True, kw_only=True):
    """``on_hold_released``: ``scope`` gave it back."""

    kind: str
    key: str
    scope: str


class HoldLost(Event, frozen=True, kw_only=True):
    """``on_hold_lost``: ``scope`` does not hold it any more, and did not give it back."""

    kind: str
    key: str
    scope: str


class RollbackStarted(Event, frozen=True, kw_only=True):
    """``on_rollback_start``: of the run, or of a composed child or an element that failed (``path``)."""

    error: BaseException | None


class RollbackFinished(Event, frozen=True, kw_only=True):
    """``on_rollback_finish``."""

    failures: tuple[RollbackFailure, ...]
    duration: float


class CompensateStarted(Event, frozen=True, kw_only=True):
    """``on_compensate_start``."""


class CompensateFinished(Event, frozen=True, kw_only=True):
    """``on_compensate_finish``: ``failure`` is set when it did not complete."""

    failure: RollbackFailure | None
    duration: float


class UndoStarted(Event, frozen=True, kw_only=True):
    """``on_undo_start``: of one step, or of all elements of a map (``kind`` is ``undo`` or ``undo_all``)."""

    kind: str = "undo"


class UndoFinished(Event, frozen=True, kw_only=True):
    """``on_undo_finish``: ``failure`` is set when it did not complete."""

    failure: RollbackFailure | None
    duration: float
    kind: str = "undo"


class ElementFinished(Event, frozen=True, kw_only=True):
    """``on_element_finish``: element ``index`` of the map at ``path`` has its outcome."""

    index: int
    outcome: Any


class InterruptOpened(Event, frozen=True, kw_only=True):
    """``on_interrupt_open``: the run waits for an answer at ``path``; ``deadline`` in seconds since the epoch."""

    correlation_id: str | None
    deadline: float | None


class InterruptResumed(Event, frozen=True, kw_only=True):
    """``on_interrupt_resumed``: a payload was accepted and is part of the run."""

    value: Any


class InterruptExpired(Event, frozen=True, kw_only=True):
    """``on_interrupt_expired``: nobody answered within ``timeout`` seconds; it failed, or took its default."""

    timeout: float


class UnitDispatched(Event, frozen=True, kw_only=True):
    """``on_unit_dispatched``: the step or reactor at ``path`` is a run of its own now, ``unit_id``, for a worker.

    ``job_id`` is empty when no worker could be told; then the sweeper does it.
    """

    unit_id: str
    job_id: str


class UnitFinished(Event, frozen=True, kw_only=True):
    """``on_unit_finish``: a step that reads the unit at ``path`` has got its outcome."""

    unit_id: str
    outcome: Outcome[Any]


class ProgressReported(Event, frozen=True, kw_only=True):
    """``on_progress``: a body called ``ctx.progress``; or so many elements of a map that fans out have settled."""

    done: float
    total: float | None
    message: str
