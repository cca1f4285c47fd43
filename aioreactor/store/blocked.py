"""What the log tells of an event loop that stands still: while it does, and when it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NamedTuple

from aioreactor.engine.scheduler import Execution
from aioreactor.engine.whereabouts import Whereabouts, in_flight, locate, stack_of
from aioreactor.logs import note

logger = logging.getLogger("aioreactor.runs")
MOST = 5
"""So many bodies in flight are named when it is not known which of them it is."""


class Seen(NamedTuple):
    """What a blocked thread was doing."""

    at: Whereabouts | None
    stack: str


class BlockReports:
    """Tells of the standstills of one loop.

    Args:
        executions: What is executed in the loop.
    """

    def __init__(self, executions: Callable[[], Iterable[Execution]] = tuple) -> None:
        self._executions = executions

    def seen(self, frame: FrameType) -> Seen:
        """See `watchdog.Reporter`."""
        return Seen(locate(frame), stack_of(frame))

    def blocked(self, seconds: float, seen: Seen | None) -> None:
        """The loop stands still. Called in another thread."""
        fields = {"seconds": f"{seconds:.2f}", **self._whose(seen)}
        text = "the event loop stands still, and no lease is extended"
        if seen is not None:
            text = f"{text}; its thread is here:\n{seen.stack}"
        note(logger, logging.WARNING, "loop_blocked", text, **fields)

    def _whose(self, seen: Seen | None) -> dict[str, str]:
        if seen is not None and seen.at is not None:
            return {"run_id": seen.at.run_id, "path": seen.at.path, "kind": seen.at.kind}
        bodies = [f"{run_id}:{path}" for run_id, path in in_flight(self._executions())]
        more = [f"and {len(bodies) - MOST} more"] if len(bodies) > MOST else []
        return {"in_flight": ",".join([*bodies[:MOST], *more])} if bodies else {}

    def resumed(self, seconds: float) -> None:
        """The loop goes on after a standstill of so long."""
        text = "the event loop stood still; leases are checked before anything else runs"
        note(logger, logging.WARNING, "loop_resumed", text, seconds=f"{seconds:.2f}")

    def thread_stopped(self, seconds: float) -> None:
        """The loop has stood still for so long that its leases are not extended from outside any more."""
        text = "the event loop stood still for longer than lease_thread_limit; its runs may be taken over"
        note(logger, logging.WARNING, "lease_thread_stopped", text, seconds=f"{seconds:.2f}")
