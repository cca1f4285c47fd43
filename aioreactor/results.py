"""Outcomes: what a run, or a step, came to. Frozen, slotted, made for ``match``.

`Skipped`, `Halt` and `Failure` are also what a body returns to say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, NoReturn, TypeAlias

from aioreactor.errors import InputValidationError, NoValue, ReactorFailed, StepError
from aioreactor.failures import Location, describe, error_text, format_traceback, locate, type_name
from aioreactor.redaction import NOTHING_TO_SCRUB, Scrubber, display
from aioreactor.trace import RunRecord, Status, Trace

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from aioreactor._typing import TypeVar

T_co = TypeVar("T_co", covariant=True, default=Any)

_NO_RUN = RunRecord()


class _Outcome:
    __slots__ = ("_record",)
    __match_args__: ClassVar[tuple[str, ...]] = ()
    ok: ClassVar[bool] = True
    halted: ClassVar[bool] = False
    _record: RunRecord

    def _fill(self, record: RunRecord | None, **fields: Any) -> None:
        object.__setattr__(self, "_record", record or _NO_RUN)
        for name, item in fields.items():
            object.__setattr__(self, name, item)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __getstate__(self) -> dict[str, Any]:
        slots = [slot for cls in type(self).__mro__ for slot in getattr(cls, "__slots__", ())]
        return {slot: getattr(self, slot) for slot in slots if hasattr(self, slot)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, item in state.items():
            object.__setattr__(self, name, item)

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._record.run_id

    @property
    def reactor(self) -> str:
        """Name of the reactor."""
        return self._record.reactor

    @property
    def status(self) -> Status:
        """Status of the run."""
        return self._record.status

    @property
    def results(self) -> Mapping[str, Any]:
        """What the steps that completed produced, by name."""
        return self._record.results

    @property
    def trace(self) -> Trace:
        """What happened, in order."""
        return self._record.trace

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={display(getattr(self, name))!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({fields})"


class Success(_Outcome, Generic[T_co]):
    """The run completed; ``value`` is what its ``returns`` step gave (or all results by name)."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    value: T_co

    def __init__(self, value: T_co, *, _record: RunRecord | None = None) -> None:
        self._fill(_record, value=value)

    def unwrap(self) -> T_co:
        """The value."""
        return self.value


class Skipped(_Outcome, Generic[T_co]):
    """Returned by a body: there was nothing to do, go on with this value; never undone."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    value: T_co

    def __init__(self, value: T_co = None, *, _record: RunRecord | None = None) -> None:  # type: ignore[assignment]
        self._fill(_record, value=value)

    def unwrap(self) -> T_co:
        """The value."""
        return self.value


class Halt(_Outcome):
    """A clean stop that keeps what was done.

    ``errors`` holds what steps in flight raised after the run had halted; they were compensated.
    """

    __slots__ = ("errors", "reason", "rollback_failures", "step")
    __match_args__ = ("reason", "step")
    halted = True
    reason: Any
    step: str | None
    errors: tuple[BaseException, ...]
    rollback_failures: list[RollbackFailure]

    def __init__(
        self,
        reason: Any = None,
        step: str | None = None,
        *,
        errors: Sequence[BaseException] = (),
        rollback_failures: Sequence[RollbackFailure] = (),
        _record: RunRecord | None = None,
    ) -> None:
        self._fill(_record, reason=reason, step=step, errors=tuple(errors), rollback_failures=list(rollback_failures))

    def unwrap(self) -> NoReturn:
        """Raise `NoValue`: a halted run has none.

        Raises:
            NoValue: always.
        """
        raise no_value(self)


RollbackReason: TypeAlias = Literal[
    "raised", "returned_failure", "coordination_unavailable", "state_unavailable", "element_in_flight", "timed_out"
]
RollbackKind: TypeAlias = Literal["compensate", "undo", "undo_all"]


class RollbackFailure(NamedTuple):
    """One action of a rollback that did not complete: an effect that may still stand.

    ``step`` is the full dotted path; ``key`` the coordination key that could not be had; ``map_step`` and
    ``element`` say which element of which map it belonged to.
    """

    step: str
    kind: RollbackKind
    reason: RollbackReason
    message: str
    key: str | None = None
    map_step: str | None = None
    element: int | None = None


class Failure(_Outcome):
    """The run failed and was rolled back; or, returned by a body, that the step failed.

    As a run's outcome: ``error`` is the first failure, ``errors`` all of them in the order they happened, ``step``
    the dotted path of the first, ``inputs`` and ``arguments`` what the run and that step were given (redacted),
    ``attempts`` how often that step ran, ``rollback_failures`` every rollback action that did not complete.
    """

    __slots__ = (
        "_scrub",
        "arguments",
        "attempts",
        "error",
        "errors",
        "inputs",
        "retryable",
        "rollback_failures",
        "step",
    )
    __match_args__ = ("error", "step")
    ok = False
    error: BaseException
    errors: tuple[BaseException, ...]
    step: str | None
    inputs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    attempts: int
    retryable: bool
    rollback_failures: list[RollbackFailure]
    _scrub: Scrubber

    def __init__(
        self,
        error: BaseException | str,
        step: str | None = None,
        *,
        retry: bool = True,
        errors: Sequence[BaseException] = (),
        inputs: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        attempts: int = 0,
        rollback_failures: Sequence[RollbackFailure] = (),
        _scrub: Scrubber = NOTHING_TO_SCRUB,
        _record: RunRecord | None = None,
    ) -> None:
        cause = StepError(error) if isinstance(error, str) else error
        if not isinstance(cause, BaseException):
            raise TypeError(f"Failure takes an exception or a text, not {type(error).__name__}")
        self._fill(
            _record,
            error=cause,
            errors=tuple(errors) or (cause,),
            step=step,
            inputs=inputs or {},
            arguments=arguments or {},
            attempts=attempts,
            retryable=retry,
            rollback_failures=list(rollback_failures),
            _scrub=_scrub,
        )

    @property
    def error_type(self) -> str:
        """``module.QualName`` of the error; builtins bare."""
        return type_name(self.error)

    @property
    def message(self) -> str:
        """The error's text, without secrets."""
        return self._scrub(error_text(self.error))

    @property
    def traceback(self) -> str:
        """The error's traceback as Python prints it, without secrets and without the library's own frames."""
        return self._scrub(format_traceback(self.error))

    @property
    def location(self) -> Location | None:
        """Where in the user's code it was raised: ``file``, ``line``, ``function``, ``snippet``."""
        return locate(self.error)

    @property
    def field_errors(self) -> dict[str, list[str]]:
        """Faulty fields and their messages; empty unless the error is an `InputValidationError`."""
        if not isinstance(self.error, InputValidationError):
            return {}
        return {name: list(map(self._scrub, texts)) for name, texts in self.error.field_errors.items()}

    def summary(self) -> str:
        """One line: which reactor, which step, what error, and whether the rollback is complete."""
        where = self.reactor or "failed"
        at = f" at step {self.step!r}" if self.step else ""
        tries = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        left = f"; {len(self.rollback_failures)} rollback actions did not complete" if self.rollback_failures else ""
        return f"{where}{at}{tries}: {self._scrub(describe(self.error))}{left}"

    def unwrap(self) -> NoReturn:
        """Raise `ReactorFailed` from the error.

        Raises:
            ReactorFailed: always.
        """
        raise ReactorFailed(self) from self.error

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, redacted: for logs and JSON (values are left as they are)."""
        location = self.location
        return {
            "run_id": self.run_id,
            "reactor": self.reactor,
            "status": self.status,
            "step": self.step,
            "error_type": self.error_type,
            "message": self.message,
            "errors": [self._scrub(describe(error)) for error in self.errors],
            "attempts": self.attempts,
            "retryable": self.retryable,
            "inputs": dict(self.inputs),
            "arguments": dict(self.arguments),
            "field_errors": self.field_errors,
            "rollback_failures": [entry._asdict() for entry in self.rollback_failures],
            "location": location._asdict() if location else None,
            "traceback": self.traceback,
            "trace": [str(entry) for entry in self.trace],
        }

    def _key(self) -> tuple[Any, ...]:
        return self.error, self.step, self.run_id

    def __repr__(self) -> str:
        text = self._scrub(repr(self.error))
        left = f", rollback_failures={len(self.rollback_failures)}" if self.rollback_failures else ""
        return f"Failure({text}, step={self.step!r}{left})"


class Dispatched(_Outcome):
    """The rest of the run goes on in a worker."""

    __slots__ = ("job_id",)
    __match_args__ = ("job_id",)
    job_id: str

    def __init__(self, job_id: str, *, _record: RunRecord | None = None) -> None:
        self._fill(_record, job_id=job_id)

    def unwrap(self) -> NoReturn:
        """Raise `NoValue`: the value is not there yet.

        Raises:
            NoValue: always.
        """
        raise no_value(self)


class OpenInterrupt(NamedTuple):
    """One interrupt that waits for an answer; ``deadline`` in seconds since the epoch."""

    name: str
    correlation_id: str | None = None
    deadline: float | None = None


class Paused(_Outcome):
    """The run waits for one or more interrupts to be resumed."""

    __slots__ = ("interrupts",)
    __match_args__ = ("interrupts",)
    interrupts: tuple[OpenInterrupt, ...]

    def __init__(self, interrupts: Sequence[OpenInterrupt] = (), *, _record: RunRecord | None = None) -> None:
        self._fill(_record, interrupts=tuple(interrupts))

    def unwrap(self) -> NoReturn:
        """Raise `NoValue`: the run is not over.

        Raises:
            NoValue: always.
        """
        raise no_value(self)


Outcome: TypeAlias = Success[T_co] | Halt | Failure | Dispatched | Paused
"""What ``run`` returns."""


def no_value(outcome: Halt | Dispatched | Paused) -> NoValue:
    """The error of asking such an outcome for a value."""
    return NoValue(outcome, Failure(f"the run has no value: {outcome!r}"))
