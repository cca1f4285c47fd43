"""Why a run does not move, for people (one screen) and for programs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aioreactor.trace import Status

ReasonKind: TypeAlias = Literal[
    "ended", "aborted", "executed", "lost", "worker", "no_worker", "parked", "start", "rolling_back",
    "retry", "timer", "interrupt", "decision", "unit", "elements", "lock", "semaphore", "rate_limit", "ordered_lock",
    "cycle", "request", "plan", "unknown_reactor", "unreadable",
]  # fmt: skip
SHOWN = 20
"""So many reasons stand on one screen."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that a run waits for, or what it does. Times in seconds since the epoch, of the server's clock.

    ``kind`` is one word and stable; what it says of a run is in the guide on interrupts. ``path`` is that of the step
    that waits, empty where it is the run. ``holder`` is whoever has what is waited for: of a run its process, of a key
    the run, step and attempt (``run:step:1``), of a unit its run.
    """

    kind: ReasonKind
    text: str
    path: str = ""
    since: float | None = None
    until: float | None = None
    holder: str = ""

    def __str__(self) -> str:
        at = f"{self.path}: " if self.path else ""
        since = f", since {moment(self.since)}" if self.since is not None else ""
        until = f", until {moment(self.until)}" if self.until is not None else ""
        return f"{at}{self.text}{since}{until}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run does not move: its ``reasons``, what its steps wait for first, then who has it or is to have it.

    ``deadline`` is that of the run as a whole, in seconds since the epoch.
    """

    run_id: str
    reactor: str
    status: Status
    reasons: tuple[Reason, ...]
    deadline: float | None = None

    def __str__(self) -> str:
        bound = f", its deadline is {moment(self.deadline)}" if self.deadline is not None else ""
        lines = [f"run {self.run_id} of {self.reactor} is {self.status}{bound}"]
        lines += [f"  {reason}" for reason in self.reasons[:SHOWN]]
        more = len(self.reasons) - SHOWN
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)


def moment(seconds: float) -> str:
    """A time for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
