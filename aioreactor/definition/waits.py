"""Nodes at which a run waits: for somebody's answer, or for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from aioreactor.definition.markers import Default
from aioreactor.definition.nodes import InterruptNode, Node, NodeRef, TimerNode
from aioreactor.definition.policies import timeout_problem
from aioreactor.definition.wiring import Wire, as_wire

R = TypeVar("R")
_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


def interrupt(
    payload: type[R],
    /,
    *,
    after: NodeRef | Sequence[NodeRef] = (),
    correlation_id: Callable[[Any], str] | None = None,
    timeout: float | None = None,
    on_timeout: Literal["fail", "wait"] | Default = "fail",
    max_attempts: int | None = None,
    resume: Literal["inline", "background"] = "inline",
    coordination: Sequence[Any] | None = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
) -> InterruptNode[R]:
    """Pause the run here until ``runs.resume`` brings a payload of this type. Needs a store.

    ``correlation_id`` computes, from the context, the id that an outside system answers with; ``timeout`` (seconds)
    and ``on_timeout`` say what happens when nobody does.
    """
    node: InterruptNode[R] = InterruptNode(
        payload=payload,
        correlation_id=correlation_id,
        timeout=timeout,
        on_timeout=on_timeout,
        max_attempts=max_attempts,
        resume=resume,
        after=after,
        name=name,
        aliases=aliases,
        description=description,
    )
    if coordination:
        node.problems.append("interrupt: coordination= does not apply, since nothing runs there; put it on a step")
    if on_timeout not in ("fail", "wait") and not isinstance(on_timeout, Default):
        node.problems.append(f"interrupt: on_timeout={on_timeout!r}: 'fail', 'wait' or Default(value)")
    if correlation_id is not None and not callable(correlation_id):
        node.problems.append(f"interrupt: correlation_id={correlation_id!r}: a function of the context")
    if resume not in ("inline", "background"):
        node.problems.append(f"interrupt: resume={resume!r}: 'inline' or 'background'")
    whole = isinstance(max_attempts, int) and not isinstance(max_attempts, bool) and max_attempts >= 1
    if timeout_problem("interrupt", timeout) or not (max_attempts is None or whole):
        node.problems.append("interrupt: timeout is in seconds above 0 and max_attempts at least 1")
    return node


def timer(
    *,
    seconds: float | None = None,
    minutes: float | None = None,
    hours: float | None = None,
    days: float | None = None,
    until: datetime | Wire | Any = None,
    after: NodeRef | Sequence[NodeRef] = (),
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
) -> TimerNode:
    """Wait durably: for a span, or ``until`` a moment (a datetime with a zone, or a wire to one). Needs a store."""
    given = {"seconds": seconds, "minutes": minutes, "hours": hours, "days": days}
    numbers = {word: span for word, span in given.items() if isinstance(span, (int, float))}
    spans = [span * _SECONDS[word] for word, span in numbers.items() if span is not None]
    node = TimerNode(
        seconds=sum(spans) if spans else None,
        until=as_wire(until) if isinstance(until, (Wire, Node)) else until,
        after=after,
        name=name,
        aliases=aliases,
        description=description,
    )
    node.problems += [
        f"timer: {word}={span!r}: a number" for word, span in given.items() if span is not None and word not in numbers
    ]
    if any(span is not None for span in given.values()) == (until is not None):
        node.problems.append("timer: give a span (seconds=, minutes=, hours=, days=) or until=, one of the two")
    if any(span < 0 for span in spans):
        node.problems.append("timer: a span cannot be negative")
    if until is not None and not isinstance(until, (datetime, Wire, Node)):
        node.problems.append(f"timer: until={until!r}: a datetime with a time zone, or a wire to one")
    if isinstance(until, datetime) and until.tzinfo is None:
        node.problems.append("timer: until= has no time zone; use datetime(…, tzinfo=UTC)")
    return node
