"""aioreactor: an asyncio-native workflow engine for business transactions that span several systems."""

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from aioreactor import runtime as _runtime
from aioreactor.definition.composite import after, async_reactor, before, compose, map_each
from aioreactor.definition.markers import Default, Page, Resource, Value
from aioreactor.definition.policies import FanOut, Retry
from aioreactor.definition.ports import seams as _seams
from aioreactor.definition.primitives import Lock, OrderedLock, Period, RateLimit, Semaphore
from aioreactor.definition.reactor import Reactor
from aioreactor.definition.steps import Step, async_step, step
from aioreactor.definition.waits import interrupt, timer
from aioreactor.definition.wiring import from_input, result, value
from aioreactor.engine.context import Context
from aioreactor.engine.hooks import Middleware
from aioreactor.engine.signals import fail, halt, skip, succeed
from aioreactor.errors import (
    AioreactorError,
    AlreadyResumed,
    ArgumentError,
    ContentionError,
    CorrelationTaken,
    DeadlineExceeded,
    DefinitionError,
    IdempotencyConflict,
    InputValidationError,
    InterruptTimeout,
    LeaseLost,
    LockUnavailable,
    NotResumable,
    NoValue,
    OutOfTurn,
    OutputValidationError,
    OwnershipLost,
    PayloadTooLarge,
    PlanChanged,
    RateLimited,
    ReactorFailed,
    RecoveriesExhausted,
    ResultsNotLoaded,
    RunNotFound,
    SemaphoreUnavailable,
    SerializationError,
    StepCancelled,
    StepError,
    StepTimeout,
    StoreRequired,
    UnitTimeout,
    UnknownRateLimit,
    UnknownReactor,
)
from aioreactor.failures import Location
from aioreactor.handles import RunHandle
from aioreactor.map_results import MapResults
from aioreactor.plan.compile import compile_plan as _compile_plan
from aioreactor.plan.model import Plan
from aioreactor.progress import MapProgress, Progress, StepReport
from aioreactor.redaction import Redact
from aioreactor.results import (
    Dispatched,
    Failure,
    Halt,
    OpenInterrupt,
    Outcome,
    Paused,
    RollbackFailure,
    Skipped,
    Success,
)
from aioreactor.runs import RunPage, Runs, sweep
from aioreactor.runtime import Runtime, configure, current_runtime, lifespan
from aioreactor.settings import Settings
from aioreactor.trace import Trace, TraceEntry

if TYPE_CHECKING:
    from aioreactor.jobs.schedules import schedule

_seams.compile = _compile_plan
_seams.launcher = _runtime.current_runtime

__version__ = "0.1.0"

runs = Runs()


def __getattr__(name: str) -> _Any:
    """What needs arq or Redis is imported when it is asked for."""
    if name == "coordination":
        return _importlib.import_module("aioreactor.coordination")
    if name in {"worker_settings", "functions", "cron_jobs"}:
        from aioreactor import workers

        return getattr(workers, name)
    if name == "schedule":
        from aioreactor.jobs import schedules

        return schedules.schedule
    raise AttributeError(f"module 'aioreactor' has no attribute {name!r}")


__all__ = [
    "AioreactorError",
    "AlreadyResumed",
    "ArgumentError",
    "ContentionError",
    "Context",
    "CorrelationTaken",
    "DeadlineExceeded",
    "Default",
    "DefinitionError",
    "Dispatched",
    "Failure",
    "FanOut",
    "Halt",
    "IdempotencyConflict",
    "InputValidationError",
    "InterruptTimeout",
    "LeaseLost",
    "Location",
    "Lock",
    "LockUnavailable",
    "MapProgress",
    "MapResults",
    "Middleware",
    "NoValue",
    "NotResumable",
    "OpenInterrupt",
    "OrderedLock",
    "OutOfTurn",
    "Outcome",
    "OutputValidationError",
    "OwnershipLost",
    "Page",
    "Paused",
    "PayloadTooLarge",
    "Period",
    "Plan",
    "PlanChanged",
    "Progress",
    "RateLimit",
    "RateLimited",
    "Reactor",
    "ReactorFailed",
    "RecoveriesExhausted",
    "Redact",
    "Resource",
    "ResultsNotLoaded",
    "Retry",
    "RollbackFailure",
    "RunHandle",
    "RunNotFound",
    "RunPage",
    "Runtime",
    "Semaphore",
    "SemaphoreUnavailable",
    "SerializationError",
    "Settings",
    "Skipped",
    "Step",
    "StepCancelled",
    "StepError",
    "StepReport",
    "StepTimeout",
    "StoreRequired",
    "Success",
    "Trace",
    "TraceEntry",
    "UnitTimeout",
    "UnknownRateLimit",
    "UnknownReactor",
    "Value",
    "after",
    "async_reactor",
    "async_step",
    "before",
    "compose",
    "configure",
    "current_runtime",
    "fail",
    "from_input",
    "halt",
    "interrupt",
    "lifespan",
    "map_each",
    "result",
    "runs",
    "schedule",
    "skip",
    "step",
    "succeed",
    "sweep",
    "timer",
    "value",
]
