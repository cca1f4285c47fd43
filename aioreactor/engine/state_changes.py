"""What a run has come to, and what of it a checkpoint has yet to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aioreactor.engine.limiter import Ready
from aioreactor.engine.scope import Failed, Scope
from aioreactor.engine.state_effects import Effect
from aioreactor.plan.model import Plan
from aioreactor.trace import RawEntry

WHOLE = -1
"""The index under which an element as a whole, rather than a node of it, is noted as changed."""


class Changes:
    """The part of a `RunState` that keeps what happened.

    ``now`` stamps the trace; ``recording`` notes which nodes changed, for a journal that keeps them.
    """

    __slots__ = (
        "_logged",
        "_sequence",
        "cancelled",
        "dirty",
        "effects",
        "failures",
        "freed",
        "gates",
        "halt",
        "late_errors",
        "notes",
        "now",
        "recording",
        "reported",
        "rollback_failures",
        "root",
        "run_id",
        "served",
        "trace",
        "unadopted",
    )

    def __init__(self, plan: Plan, run_id: str, now: Callable[[], float], *, recording: bool = False) -> None:
        self.run_id = run_id
        self.now = now
        self.root = Scope(plan, None, -1, "")
        self.trace: list[RawEntry] = []
        self.effects: list[Effect] = []
        self.failures: list[Failed] = []
        self.late_errors: list[Failed] = []
        self.halt: tuple[Any, str] | None = None
        self.cancelled = False
        self.rollback_failures: list[Any] = []
        self.notes: dict[str, Any] = {}
        self.reported: dict[str, tuple[float, float | None, str]] = {}
        """By path: how far bodies say they are."""
        self.gates: dict[str, Any] | None = None
        """How far the run is with its own gates, and what it holds, as data."""
        self.freed: list[Scope] = []
        """Nested scopes that have ended, and hold something."""
        self.unadopted: list[tuple[Scope, Mapping[str, Any]]] = []
        """What nested scopes held in another process, and is to be taken up again."""
        self.recording = recording
        self.served = 0
        """Number of the last request of somebody else's that was carried out."""
        self.dirty: dict[Ready, None] = {}
        self._sequence = 0
        self._logged = 0

    @property
    def settled(self) -> bool:
        """Whether nothing is in progress any more."""
        return self.root.active == 0

    @property
    def completed(self) -> bool:
        """Whether every step completed (or was skipped)."""
        return self.root.left == 0

    @property
    def admitted(self) -> bool:
        """Whether the run has done something that it would have to take back, or has passed gates of its own."""
        return self._sequence > 0 or self.root.guard is not None

    def log(self, kind: str, path: str, attempt: int = 1, detail: str = "") -> None:
        """Add a trace entry."""
        self.trace.append((self.now(), kind, path, attempt, detail))

    def take_changes(self) -> tuple[list[Ready], list[RawEntry]]:
        """What a checkpoint has to write: nodes that changed, and trace entries, since the last one."""
        nodes, self.dirty = list(self.dirty), {}
        entries, self._logged = self.trace[self._logged :], len(self.trace)
        return nodes, entries

    def adopt_trace(self, entries: list[RawEntry]) -> None:
        """What happened before, in other executions; it is stored already."""
        self.trace[:0] = entries
        self._logged += len(entries)

    def resume_sequence(self, last: int) -> None:
        """Go on counting after what was stored."""
        self._sequence = max(self._sequence, last)

    def touch(self, scope: Scope, index: int, *, ordered: bool = False) -> None:
        """A node changed. ``ordered``: it joined a stack of the rollback, whose order has to be kept."""
        if self.recording:
            self.dirty[scope, index] = None
            if ordered:
                self._sequence += 1
                scope.order = scope.order or {}
                scope.order[index] = self._sequence

    def scopes(self) -> Iterator[Scope]:
        """All scopes, the root first."""
        stack = [self.root]
        while stack:
            scope = stack.pop()
            yield scope
            for inner in (scope.children or {}).values():
                stack.extend([inner] if isinstance(inner, Scope) else inner.elements.values())
