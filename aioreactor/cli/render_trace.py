"""From an outcome's trace to a tree: what ran, how long it took, what failed, what was rolled back.

Pure: it reads the outcome's public face and gives frozen data; `draw_trace` draws it, `trace_json` writes it.

The trace is flat, with dotted paths. ``trip.hotel`` becomes a leaf ``hotel`` under a branch ``trip``; ``m[2].pay``
a leaf ``pay`` under ``[2]`` under ``m``. A branch has no entries of its own: its status and its times are those of
what is inside it. Steps stand in the order in which they first appear, elements in index order.

Times are seconds since the epoch and spans are seconds. A step's span is from the start of its first attempt to the
end of its last, waits between them included. Rollback actions have no span: the trace says when one was called, not
when it returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from aioreactor import Failure, Halt, Outcome, RollbackFailure, Success, TraceEntry

Status: TypeAlias = Literal[
    "not_started", "running", "waiting", "completed", "skipped", "halted", "failed", "cancelled"
]

_ENDS: Mapping[str, Status] = {
    "success": "completed",
    "skip": "skipped",
    "halt": "halted",
    "failure": "failed",
    "cancel": "cancelled",
}
_WAITS = frozenset({"park", "interrupt", "dispatch"})
_ROLLBACK = frozenset({"undo", "compensate", "undo_all"})
_WORST_FIRST: tuple[Status, ...] = ("failed", "cancelled", "halted", "running", "waiting", "completed", "skipped")
_MODULE_OF_ERROR = re.compile(r"^[\w.<>]+\.(?=\w+(?::|$))")
_SEGMENT = re.compile(r"\[\d+\]|[^.\[\]]+")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a step. Without ``started_at`` its body was never entered (its arguments were not good)."""

    number: int
    status: Status = "running"
    started_at: float | None = None
    ended_at: float | None = None
    error: str = ""
    timed_out: bool = False
    retried_in: str = ""

    @property
    def duration(self) -> float | None:
        """Seconds; None while it runs, and when it never started."""
        return _span(self.started_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class RollbackAction:
    """One action of the rollback; ``order`` counts from 1. ``problem`` says why it did not complete."""

    order: int
    kind: str
    path: str
    at: float
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Whether it did what it should."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class StepTree:
    """A step, or a branch: a composed child, a map, an element. ``detail`` is the error, or why it halted."""

    name: str
    path: str
    status: Status
    started_at: float | None = None
    ended_at: float | None = None
    detail: str = ""
    attempts: tuple[Attempt, ...] = ()
    rollback: tuple[RollbackAction, ...] = ()
    notes: tuple[str, ...] = ()
    children: tuple[StepTree, ...] = ()

    @property
    def duration(self) -> float | None:
        """Seconds from the first start to the last end; None while it runs, and when nothing started."""
        return _span(self.started_at, self.ended_at)

    @property
    def is_element(self) -> bool:
        """Whether it is an element of a map."""
        return self.name.startswith("[")

    def walk(self) -> Iterator[StepTree]:
        """Itself and everything inside it, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class RunTree:
    """A run: its steps as a tree, and its rollback as the sequence in which it happened."""

    run_id: str
    reactor: str
    status: str
    started_at: float | None = None
    ended_at: float | None = None
    steps: tuple[StepTree, ...] = ()
    rollback: tuple[RollbackAction, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    stopped_at: str | None = None
    reason: str = ""
    field_errors: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def duration(self) -> float | None:
        """Seconds from the first entry of the trace to the last; None when nothing happened."""
        return _span(self.started_at, self.ended_at)

    def walk(self) -> Iterator[StepTree]:
        """Every step and branch, depth first."""
        for step in self.steps:
            yield from step.walk()


def trace_tree(outcome: Outcome[Any], *, planned: Iterable[str] = ()) -> RunTree:
    """The tree of a run.

    Args:
        outcome: whatever a run gave.
        planned: paths of steps that the tree shows as not started when the trace has nothing of them
            (`planned_paths` of a plan).
    """
    trace = outcome.trace
    actions = tuple(_actions(trace, getattr(outcome, "rollback_failures", ())))
    root = _grow(trace, actions)
    for path in planned:
        root.descend(path)
    tolerated = frozenset(root.children if isinstance(outcome, Success) else outcome.results)
    made = RunTree(
        run_id=outcome.run_id,
        reactor=outcome.reactor,
        status=outcome.status,
        started_at=trace[0].at if trace else None,
        ended_at=trace[-1].at if trace else None,
        steps=tuple(child.freeze(tolerated) for child in root.children.values()),
        rollback=actions,
        notes=tuple(map(_note, root.entries)),
    )
    if isinstance(outcome, Failure):
        return replace(made, error=_one_line(outcome), stopped_at=outcome.step, field_errors=outcome.field_errors)
    if isinstance(outcome, Halt):
        reason = "" if outcome.reason is None else str(outcome.reason)
        return replace(made, reason=reason, stopped_at=outcome.step)
    return made


def planned_paths(plan: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of all steps of a plan given as plain data (``R.plan.to_dict()``); those inside maps are left out."""
    for step in plan["steps"]:
        path = prefix + step["name"]
        if step["kind"] == "compose" and step["inner"] is not None:
            yield from planned_paths(step["inner"], f"{path}.")
        else:
            yield path


def short_error(text: str) -> str:
    """An error as the trace has it, ``shop.errors.Declined: no money``, without the module: ``Declined: no money``."""
    return _MODULE_OF_ERROR.sub("", text)


def _one_line(failure: Failure) -> str:
    return f"{failure.error_type}: {failure.message}" if failure.message else failure.error_type


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


# ---------------------------------------------------------------------- the rollback


def _actions(trace: Iterable[TraceEntry], failures: Iterable[RollbackFailure]) -> Iterator[RollbackAction]:
    """The actions in order. One that could not even be called has only a ``rollback_failure`` entry."""
    messages: dict[tuple[str, str], str] = {
        (each.kind, each.step): f"{each.reason}: {each.message}" for each in failures
    }
    called: list[RollbackAction] = []
    for entry in trace:
        if entry.kind in _ROLLBACK:
            called.append(RollbackAction(len(called) + 1, entry.kind, entry.path, entry.at))
        elif entry.kind == "rollback_failure":
            kind, _, reason = entry.detail.partition(" ")
            problem = messages.get((kind, entry.path), reason or "did not complete")
            last = called[-1] if called else None
            if last is not None and (last.kind, last.path) == (kind, entry.path) and last.complete:
                called[-1] = replace(last, problem=problem)
            else:
                called.append(RollbackAction(len(called) + 1, kind, entry.path, entry.at, problem))
    return iter(called)


# ---------------------------------------------------------------------- the tree


@dataclass(slots=True)
class _Growing:
    """A node while the trace is read."""

    name: str = ""
    path: str = ""
    entries: list[TraceEntry] = field(default_factory=list[TraceEntry])
    actions: list[RollbackAction] = field(default_factory=list[RollbackAction])
    children: dict[str, _Growing] = field(default_factory=dict[str, "_Growing"])

    def descend(self, path: str) -> _Growing:
        """The node at a path, made where it is missing."""
        found = self
        for name in _SEGMENT.findall(path):
            if name not in found.children:
                dot = "." if found.path and not name.startswith("[") else ""
                found.children[name] = _Growing(name, f"{found.path}{dot}{name}")
            found = found.children[name]
        return found

    def freeze(self, tolerated: frozenset[str]) -> StepTree:
        """The finished node. ``tolerated``: paths that completed whatever happened to elements inside them."""
        children = tuple(child.freeze(tolerated) for child in self._ordered())
        attempts = tuple(_attempts(self.entries))
        inside = _inside(children, tolerated=self.path in tolerated)
        status = _own_status(self.entries) or inside
        parts: tuple[Attempt | StepTree, ...] = (*attempts, *children)
        starts = [part.started_at for part in parts if part.started_at is not None]
        ends = [part.ended_at for part in parts if part.ended_at is not None]
        return StepTree(
            name=self.name,
            path=self.path,
            status=status,
            started_at=min(starts, default=None),
            ended_at=None if status == "running" else max(ends, default=None),
            detail=next((each.detail for each in reversed(self.entries) if each.kind in _ENDS), ""),
            attempts=attempts,
            rollback=tuple(self.actions),
            notes=tuple(_note(each) for each in self.entries if _is_note(each)),
            children=children,
        )

    def _ordered(self) -> Iterable[_Growing]:
        elements = [child for child in self.children.values() if child.name.startswith("[")]
        steps = [child for child in self.children.values() if not child.name.startswith("[")]
        return [*sorted(elements, key=lambda child: int(child.name[1:-1])), *steps]


def _grow(trace: Iterable[TraceEntry], actions: Iterable[RollbackAction]) -> _Growing:
    root = _Growing()
    for entry in trace:
        if entry.kind not in _ROLLBACK and entry.kind != "rollback_failure":
            root.descend(entry.path).entries.append(entry)
    for action in actions:
        root.descend(action.path).actions.append(action)
    return root


def _own_status(entries: list[TraceEntry]) -> Status | None:
    """What the node's own entries say; a branch has none."""
    status: Status | None = None
    for entry in entries:
        if entry.kind in _ENDS:
            status = _ENDS[entry.kind]
        elif entry.kind == "run":
            status = "running"
        elif entry.kind in {"resume", "timeout"} and status == "waiting":
            status = "completed"  # it was answered, or took its default; what else came of it follows
        elif entry.kind in _WAITS:
            status = "waiting"
    return status


def _inside(children: tuple[StepTree, ...], *, tolerated: bool) -> Status:
    """A branch is what the worst of its children is; a map that kept its failures has completed all the same."""
    found = {child.status for child in children} - {"not_started"}
    if not found:
        return "not_started"
    if tolerated and any(child.is_element for child in children):
        return "completed"
    return next(status for status in _WORST_FIRST if status in found)


def _is_note(entry: TraceEntry) -> bool:
    return entry.kind not in _ENDS and entry.kind not in {"run", "retry", "timeout"}


def _note(entry: TraceEntry) -> str:
    return f"{entry.kind.replace('_', ' ')}: {entry.detail}" if entry.detail else entry.kind.replace("_", " ")


def _attempts(entries: list[TraceEntry]) -> Iterator[Attempt]:
    """The attempts, told apart by their ``run`` entries (a crash leaves one without an end)."""
    made: list[Attempt] = []
    for entry in entries:
        is_open = bool(made) and made[-1].ended_at is None
        if entry.kind == "run":
            made.append(Attempt(entry.attempt, started_at=entry.at))
        elif entry.kind in _ENDS:
            if not is_open:
                made.append(Attempt(entry.attempt))
            error = entry.detail if entry.kind in {"failure", "cancel"} else ""
            made[-1] = replace(made[-1], status=_ENDS[entry.kind], ended_at=entry.at, error=error)
        elif entry.kind in _ON_LAST and made:
            made[-1] = _ON_LAST[entry.kind](made[-1], entry)
    return iter(made)


_ON_LAST: Mapping[str, Callable[[Attempt, TraceEntry], Attempt]] = {
    "timeout": lambda attempt, _: replace(attempt, timed_out=True),
    "retry": lambda attempt, entry: replace(attempt, retried_in=entry.detail),
}
