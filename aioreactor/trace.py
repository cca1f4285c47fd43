"""The trace of a run, and what all outcomes of one run share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

Status: TypeAlias = Literal[
    "pending", "running", "paused", "rolling_back", "completed", "failed", "halted", "cancelled", "aborted"
]
RawEntry: TypeAlias = tuple[float, str, str, int, str]
"""A trace entry as the engine keeps it: at, kind, path, attempt, detail."""


class TraceEntry(NamedTuple):
    """One thing that happened. ``at`` is in seconds since the epoch; ``str(entry)`` is ``kind:path``."""

    seq: int
    at: float
    kind: str
    path: str
    attempt: int = 1
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}"


class Trace(tuple[TraceEntry, ...]):
    """What happened, in order. A tuple that can be filtered and reads well."""

    __slots__ = ()

    @classmethod
    def of(cls, raw: Sequence[RawEntry]) -> Trace:
        """Build it from what the engine kept."""
        return cls(TraceEntry(seq, *entry) for seq, entry in enumerate(raw))

    def only(self, *kinds: str) -> Trace:
        """The entries of these kinds."""
        wanted = frozenset(kinds)
        return Trace(entry for entry in self if entry.kind in wanted)

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def __repr__(self) -> str:
        return f"<Trace {self}>"


class RunRecord:
    """What every outcome of one run shares; results and trace are put together when somebody looks."""

    __slots__ = ("_entries", "_results", "reactor", "run_id", "status")

    def __init__(
        self,
        run_id: str = "",
        reactor: str = "",
        status: Status = "completed",
        results: Callable[[], Mapping[str, Any]] | Mapping[str, Any] | None = None,
        entries: Sequence[RawEntry] | Trace = (),
    ) -> None:
        self.run_id = run_id
        self.reactor = reactor
        self.status: Status = status
        self._results = results
        self._entries = entries

    @property
    def results(self) -> Mapping[str, Any]:
        """Values by step name."""
        found = self._results
        if found is not None and not isinstance(found, Mapping):
            found = self._results = found()
        return found or {}

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        if not isinstance(self._entries, Trace):
            self._entries = Trace.of(self._entries)
        return self._entries

    def __getstate__(self) -> tuple[Any, ...]:
        return self.run_id, self.reactor, self.status, dict(self.results), self.trace

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.run_id, self.reactor, self.status, self._results, self._entries = state
