"""Every error the library raises, as one tree under `AioreactorError`.

Each class says who raises it and what to do. All of them keep their typed fields through pickling, because they
are built again from ``args`` and ``__dict__`` and never by calling ``__init__`` a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aioreactor.results import Dispatched, Failure, Halt, Paused


def _revive(cls: type[AioreactorError], args: tuple[Any, ...], state: dict[str, Any]) -> AioreactorError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class AioreactorError(Exception):
    """Root of the tree: ``except AioreactorError`` catches whatever the library itself raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


class DefinitionError(AioreactorError):
    """A reactor or step class was written wrongly.

    Raised when the class is created (or by ``plan.check()`` for what could not be known then), with *all* mistakes
    of the class at once. Every entry of ``problems`` says where it is and how to mend it.
    """

    def __init__(self, owner: str, problems: Sequence[str]) -> None:
        self.owner = owner
        self.problems: tuple[str, ...] = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  {number}. {text}" for number, text in enumerate(self.problems, 1))
        super().__init__(f"{owner} has {count}:{lines}")


class InputValidationError(AioreactorError):
    """Values did not fit the declared fields: a reactor's inputs, a step class's fields, an interrupt's payload.

    Arrives as ``Failure.error``. ``field_errors`` maps every faulty field to its messages; ``"*"`` holds what
    concerns several fields at once.
    """

    retryable = False

    def __init__(self, owner: str, field_errors: Mapping[str, Sequence[str]]) -> None:
        self.owner = owner
        self.field_errors: dict[str, list[str]] = {name: list(texts) for name, texts in field_errors.items()}
        text = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in self.field_errors.items())
        super().__init__(f"invalid values for {owner}: {text}")


class OutputValidationError(InputValidationError):
    """A step's result did not pass its ``output=`` check. The step has run, so it is compensated; not retried."""

    def __init__(self, step: str, text: str) -> None:
        super().__init__(f"the result of step {step!r}", {"*": [text]})


class ArgumentError(AioreactorError):
    """A step's arguments could not be resolved: a path, a ``transform=`` or a map's source raised.

    Arrives as ``Failure.error``; the step was never started. The original error is its ``__cause__``.
    """

    retryable = False

    def __init__(self, step: str, parameter: str, reason: str) -> None:
        self.step = step
        self.parameter = parameter
        super().__init__(f"step {step!r}: could not resolve {parameter!r}: {reason}")


class StepError(AioreactorError):
    """A step said so itself, with a text and no exception: ``fail("card declined")`` or ``Failure("…")``."""


class StepTimeout(AioreactorError):
    """One attempt of a step ran longer than its ``timeout``; it was cancelled. Retryable unless excluded."""

    def __init__(self, step: str, timeout: float) -> None:
        self.step = step
        self.timeout = timeout
        super().__init__(f"step {step!r} did not finish within its timeout of {timeout:g} s")


class InterruptTimeout(StepTimeout):
    """Nobody answered an interrupt within its ``timeout``, and ``on_timeout`` is ``"fail"``: the run rolled back."""

    retryable = False

    def __init__(self, step: str, timeout: float) -> None:
        self.step = step
        self.timeout = timeout
        AioreactorError.__init__(self, f"interrupt {step!r} was not answered within its timeout of {timeout:g} s")


class CorrelationTaken(AioreactorError):
    """An open interrupt of another run of the reactor waits for this correlation id; make the ids unique."""

    retryable = False

    def __init__(self, step: str, correlation_id: str, run_id: str) -> None:
        self.step = step
        self.correlation_id = correlation_id
        self.run_id = run_id
        super().__init__(f"interrupt {step!r}: run {run_id} waits for the correlation id {correlation_id!r} already")


class DeadlineExceeded(AioreactorError):
    """The run as a whole took longer than its ``deadline``; bodies in flight were cancelled, then rolled back."""

    retryable = False

    def __init__(self, reactor: str, deadline: float) -> None:
        self.reactor = reactor
        self.deadline = deadline
        super().__init__(f"{reactor} did not finish within its deadline of {deadline:g} s")


class StepCancelled(AioreactorError):
    """The engine cancelled a step in flight (a failure elsewhere, the deadline, a cancelled run).

    A compensate receives it as ``error``; it is never the first failure of a run.
    """

    retryable = False

    def __init__(self, step: str, reason: str) -> None:
        self.step = step
        self.reason = reason
        super().__init__(f"step {step!r} was cancelled: {reason}")


class ReactorFailed(AioreactorError):
    """Raised by ``run_or_raise`` and ``unwrap``; ``failure`` is the whole outcome, ``__cause__`` the step's error."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.summary())


class NoValue(ReactorFailed):
    """``run_or_raise`` or ``unwrap`` met an outcome without a value: halted, handed off, or paused.

    Nothing failed. ``outcome`` is what came; use ``run`` and match on it where that can happen.
    """

    def __init__(self, outcome: Halt | Dispatched | Paused, failure: Failure) -> None:
        self.outcome = outcome
        super().__init__(failure)


class ContentionError(AioreactorError):
    """Somebody else holds what is needed. Raised by a primitive after ``wait``; retry later or wait longer.

    ``retry_after`` (seconds) says when it is worth another try, where that is known. ``cycle`` says that no wait would
    have helped: runs that hold what the others wait for, one line for each of them; otherwise it is empty.
    """

    retry_after: float | None = None
    cycle: tuple[str, ...] = ()

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(text)


class LockUnavailable(ContentionError):
    """A `Lock` is held by another owner."""


class SemaphoreUnavailable(ContentionError):
    """All slots of a `Semaphore` are taken."""


class RateLimited(ContentionError):
    """A `RateLimit` admits no more in this window; ``retry_after`` (seconds) says when it does again."""

    def __init__(self, key: str, *, retry_after: float, window: str, limit: int) -> None:
        self.retry_after: float = retry_after  # pyright: ignore[reportIncompatibleVariableOverride]
        self.window = window
        self.limit = limit
        super().__init__(key, f"rate limit {key!r}: {limit} per {window} reached, retry in {retry_after:g} s")


class OutOfTurn(ContentionError):
    """It is not the turn of this position of an `OrderedLock`. ``reason`` says why.

    ``"waiting"``: earlier positions did not finish yet. ``"ordered_chain_failed"``: an earlier one failed, and the
    chain is strict. ``"passed_over"``: it is done, or gave no sign of life, or was skipped. ``"stale_epoch"``: the line
    that it stood in is long gone.
    """

    def __init__(self, key: str, text: str, reason: str = "waiting") -> None:
        self.reason = reason
        super().__init__(key, text)


class LeaseLost(AioreactorError):
    """A hold was lost while it was used (expired, taken, deleted): what it protected was cancelled."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"the hold of {key!r} was lost: {reason}")


class OwnershipLost(AioreactorError):
    """Another process owns this run now: the store refused a write, and this execution stopped at once."""

    def __init__(self, run_id: str, reason: str) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(f"run {run_id} belongs to another execution now: {reason}")


class RecoveriesExhausted(AioreactorError):
    """A run lost its process again and again without getting any further, as when a body kills whoever executes it.

    The run ended ``failed``. What had completed was rolled back, unless the rollback itself was what came no further:
    then ``runs.undo`` tries the rest again.
    """

    def __init__(self, run_id: str, recoveries: int) -> None:
        self.run_id = run_id
        self.recoveries = recoveries
        super().__init__(
            f"run {run_id} was taken over {recoveries} times in a row from processes that died or stood still, and "
            "came no further (max_recoveries)"
        )


class StoreRequired(AioreactorError):
    """Something was asked for that only works with a Redis store. Raised before anything has run.

    Configure one (``aioreactor.configure(redis_url="redis://localhost")`` or ``AIOREACTOR_REDIS_URL``);
    ``pip install "aioreactor[embedded]"`` brings a local server.
    """

    def __init__(self, what: str, reasons: Sequence[str] = ()) -> None:
        self.what = what
        self.reasons: tuple[str, ...] = tuple(reasons)
        because = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        super().__init__(
            f'{what} needs a store{because}. Configure one: aioreactor.configure(redis_url="redis://localhost") or '
            'AIOREACTOR_REDIS_URL. No server at hand? pip install "aioreactor[embedded]" brings a local one.'
        )


class RunNotFound(AioreactorError):
    """No run of that id is known: it never existed, was deleted, or its ``retention`` is over."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"no run {run_id!r}: it never existed, was deleted, or its retention is over")


class NotResumable(AioreactorError):
    """The run cannot be resumed, cancelled, undone or retried in its present ``status``; nothing changed."""

    def __init__(self, run_id: str, status: str, reason: str) -> None:
        self.run_id = run_id
        self.status = status
        self.reason = reason
        super().__init__(f"run {run_id} is {status}: {reason}")


class AlreadyResumed(AioreactorError):
    """Another payload was accepted for this interrupt before; that one counts."""

    def __init__(self, run_id: str, step: str) -> None:
        self.run_id = run_id
        self.step = step
        super().__init__(f"interrupt {step!r} of run {run_id} was resumed already")


class IdempotencyConflict(AioreactorError):
    """The same ``run_id`` or ``idempotency_key`` was used before: with other inputs, or it may not be used twice."""

    def __init__(self, key: str, reason: str = "with other inputs") -> None:
        self.key = key
        self.reason = reason
        super().__init__(f'{key!r} was used before {reason}; use another key or on_conflict="replace"')


class UnitTimeout(AioreactorError):
    """A step waited longer than ``unit_wait`` (or ``unit_park``) for a dispatched unit that it reads."""

    retryable = False

    def __init__(self, unit: str, waited: float) -> None:
        self.unit = unit
        self.waited = waited
        super().__init__(f"unit {unit!r} had no outcome after {waited:g} s")


class ResultsNotLoaded(AioreactorError):
    """The results of a map that fanned out are too many to be in memory; read them with ``async for``."""

    retryable = False

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(
            f"these are the results of {count} elements, which are in the store: read them with "
            "`async for value in results`, or load all of them with `await results.load()`"
        )


class PlanChanged(AioreactorError):
    """A stored run does not fit the code any more; it is kept and goes on once code that fits is back.

    ``missing`` are steps that it has and the code does not; ``inputs`` are those that the code requires and it lacks.
    """

    def __init__(self, run_id: str, missing: Sequence[str], inputs: Sequence[str] = ()) -> None:
        self.run_id = run_id
        self.missing: tuple[str, ...] = tuple(missing)
        self.inputs: tuple[str, ...] = tuple(inputs)
        steps = [f"has steps that the code does not: {', '.join(self.missing)}"] if self.missing else []
        lacks = [f"lacks inputs that the code requires: {', '.join(self.inputs)}"] if self.inputs else []
        super().__init__(f"run {run_id} {'; it '.join([*steps, *lacks])}")


class PayloadTooLarge(AioreactorError):
    """A value is larger than ``max_value_bytes``; the step that made it failed. Store it elsewhere, pass a key."""

    retryable = False

    def __init__(self, step: str, size: int, limit: int) -> None:
        self.step = step
        self.size = size
        self.limit = limit
        super().__init__(f"the value of {step!r} takes {size} bytes, more than max_value_bytes={limit}")


class SerializationError(AioreactorError):
    """A value cannot be stored, or not be read back as what it was. Annotate the step, or return plain data."""

    retryable = False

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"{where}: {reason}")


class UnknownReactor(AioreactorError):
    """A stored name leads to no reactor: import the module that defines it, or add ``aliases=`` after a rename."""

    def __init__(self, name: str, reason: str = "") -> None:
        self.name = name
        super().__init__(f"no reactor {name!r} is known{': ' + reason if reason else ''}")


class UnknownRateLimit(AioreactorError):
    """A `RateLimit` names limits that are not configured; add it to ``configure(rate_limits={…})``."""

    retryable = False

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no rate limit named {name!r}; add it with aioreactor.configure(rate_limits={{{name!r}: …}})")
