"""Outcomes and `MapResults` as values: what readers of units, maps and child reactors get.

An outcome is an extension item that names its kind, so it comes back as what it was with or without an annotation;
``Success[T]`` and `MapResults[T]` also keep the type of what is inside. Stored with it: run id, reactor, status, trace.
Not ``results``, which the run's own record holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.msgpack import Ext

from aioreactor.map_results import MapResults
from aioreactor.redaction import NOTHING_TO_SCRUB
from aioreactor.results import (
    _NO_RUN,
    Dispatched,
    Failure,
    Halt,
    OpenInterrupt,
    Paused,
    RollbackFailure,
    Skipped,
    Success,
)
from aioreactor.store.codec_coders import PLAIN, Coder
from aioreactor.store.codec_facts import OUTCOMES
from aioreactor.store.codec_portable import portable
from aioreactor.store.codec_wire import Code, Undecodable, Unencodable, as_ext, dump, pack_plain, reads, revive
from aioreactor.store.failures_data import ErrorData, Scrub, failure_to_data, scrubbed
from aioreactor.store.failures_revive import failure_from_data
from aioreactor.trace import RunRecord, Status, Trace, TraceEntry

_KINDS: dict[str, type] = {kind.__name__: kind for kind in OUTCOMES}
_PLACES: tuple[Any, ...] = (Success, Skipped)
"""Elements of a map that are only a value are stored as the place in here and the value; -1 is any outcome."""
_NIL = Raw(pack_plain(None))


class _Run(Struct, array_like=True):
    run_id: str
    reactor: str
    status: Status
    trace: list[TraceEntry]


class _Data(Struct, omit_defaults=True):
    """All kinds in one shape; each uses the fields it has."""

    kind: str
    run: _Run | None = None
    value: Raw = _NIL
    items: list[tuple[int, Raw]] = []
    """Of a `MapResults`; see `_PLACES`."""
    error: int = 0
    errors: list[ErrorData] = []
    step: str | None = None
    reason: Any = None
    inputs: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    attempts: int = 0
    retryable: bool = True
    rollback_failures: list[RollbackFailure] = []
    job_id: str = ""
    interrupts: list[OpenInterrupt] = []


_read = msgspec.msgpack.Decoder(_Data, ext_hook=revive).decode


class OutcomeCoder:
    """The coder of one outcome class (any of them, for None) whose values are read by ``inner``."""

    def __init__(self, kind: type | None, inner: Coder) -> None:
        self._kind = kind
        self._inner = inner

    def pack(self, value: Any) -> bytes:
        """One extension item."""
        return pack_plain(self.pack_ext(value))

    def pack_ext(self, value: Any) -> Ext:
        """The outcome in the form that other items can hold."""
        if self._kind is not None and not isinstance(value, self._kind):
            raise Unencodable(f"{type(value).__qualname__} is no {self._kind.__qualname__}")
        return Ext(Code.OUTCOME, pack_plain(self._data(value)))

    def unpack(self, data: bytes) -> Any:
        """The outcome again."""
        found = as_ext(data)
        if found is None or found.code != Code.OUTCOME:
            raise Undecodable("this is no outcome")
        return self.unpack_ext(bytes(found.data))

    def unpack_ext(self, data: bytes) -> Any:
        """The outcome again, from the content of its extension."""
        row = _read(data)
        kind = _KINDS.get(row.kind)
        if kind is None or (self._kind is not None and kind is not self._kind):
            raise Undecodable(f"{row.kind!r} is no {self._kind.__qualname__ if self._kind else 'outcome'}")
        return self._build(kind, row)

    # ------------------------------------------------------------------ writing

    def _data(self, value: Any) -> _Data:
        if isinstance(value, MapResults):
            return _Data("MapResults", items=[self._item(outcome) for outcome in value.outcomes()])
        kind, run = type(value).__name__, _run_of(value)
        if isinstance(value, (Success, Skipped)):
            return _Data(kind, run, value=Raw(self._inner.pack(value.value)))
        if isinstance(value, Failure):
            return _failure_data(value, run)
        if isinstance(value, Halt):
            errors = [failure_to_data(error) for error in value.errors]
            left = value.rollback_failures
            return _Data(
                kind, run, reason=portable(value.reason), step=value.step, errors=errors, rollback_failures=left
            )
        if isinstance(value, Dispatched):
            return _Data(kind, run, job_id=value.job_id)
        return _Data(kind, run, interrupts=list(value.interrupts))

    def _item(self, outcome: Any) -> tuple[int, Raw]:
        place = _PLACES.index(type(outcome)) if outcome._record is _NO_RUN and type(outcome) in _PLACES else -1
        if place >= 0:
            return place, Raw(self._inner.pack(outcome.value))
        return place, Raw(OutcomeCoder(None, self._inner).pack(outcome))

    # ------------------------------------------------------------------ reading

    def _element(self, place: int, data: bytes) -> Any:
        if place < 0:
            return OutcomeCoder(None, self._inner).unpack(data)
        return _PLACES[place](self._inner.unpack(data))

    def _build(self, kind: type, row: _Data) -> Any:
        if kind is MapResults:
            return MapResults([self._element(place, bytes(raw)) for place, raw in row.items])
        record = _record_of(row.run)
        if kind in {Success, Skipped}:
            return kind(self._inner.unpack(bytes(row.value)), _record=record)
        errors = [failure_from_data(error) for error in row.errors]
        if kind is Failure:
            return _failure(row, errors, record)
        if kind is Halt:
            left = row.rollback_failures
            return Halt(row.reason, row.step, errors=errors, rollback_failures=left, _record=record)
        if kind is Dispatched:
            return Dispatched(row.job_id, _record=record)
        return Paused(row.interrupts, _record=record)


def _run_of(outcome: Any) -> _Run | None:
    record: RunRecord = outcome._record
    if record is _NO_RUN:
        return None
    return _Run(record.run_id, record.reactor, record.status, list(record.trace))


def _record_of(run: _Run | None) -> RunRecord | None:
    return None if run is None else RunRecord(run.run_id, run.reactor, run.status, None, Trace(run.trace))


def _failure_data(failure: Failure, run: _Run | None) -> _Data:
    # What is stored of a failure is what people read later, so it is scrubbed now: the scrubber does not survive.
    scrub = None if failure._scrub is NOTHING_TO_SCRUB else failure._scrub
    errors = list(failure.errors)
    if not any(error is failure.error for error in errors):
        errors.insert(0, failure.error)
    return _Data(
        "Failure",
        run,
        error=next(at for at, error in enumerate(errors) if error is failure.error),
        errors=[failure_to_data(error, scrub=scrub) for error in errors],
        step=failure.step,
        inputs=_shown(failure.inputs, scrub),
        arguments=_shown(failure.arguments, scrub),
        attempts=failure.attempts,
        retryable=failure.retryable,
        rollback_failures=[entry._replace(message=scrub(entry.message)) for entry in failure.rollback_failures]
        if scrub
        else failure.rollback_failures,
    )


def _failure(row: _Data, errors: Sequence[BaseException], record: RunRecord | None) -> Failure:
    if not 0 <= row.error < len(errors):
        raise Undecodable("a failure without an error")
    return Failure(
        errors[row.error],
        row.step,
        retry=row.retryable,
        errors=errors,
        inputs=row.inputs,
        arguments=row.arguments,
        attempts=row.attempts,
        rollback_failures=row.rollback_failures,
        _record=record,
    )


def _shown(values: Mapping[str, Any], scrub: Scrub | None) -> dict[str, Any]:
    """Redacted values for people to read: what cannot be stored is kept as its text."""
    return {name: scrubbed(value, scrub) for name, value in values.items()}


_ANY = OutcomeCoder(None, PLAIN)
for _kind in OUTCOMES:
    dump.register(_kind, _ANY.pack_ext)
reads(Code.OUTCOME)(_ANY.unpack_ext)
