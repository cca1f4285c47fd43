"""Why a run does not move, for people (one screen) and for programs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aioreactor.trace import Status

ReasonKind: TypeAlias = Literal[
    "ended", "executed", "lost", "worker", "start", "retry", "timer", "interrupt", "decision", "request", "plan"
]


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that a run waits for, or what it does. Times in seconds since the epoch, of the server's clock.

    ``kind``: it has ``ended``; somebody has it (``executed``) or had it and is gone (``lost``); it waits for a
    ``worker``, for its ``start``, for the next attempt of a step (``retry``), for a ``timer``, for an answer
    (``interrupt``) or a ``decision``; a ``request`` was accepted and not carried out yet; the code does not fit it
    (``plan``).
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
    """Why a run does not move: its ``reasons``, the most telling one first."""

    run_id: str
    reactor: str
    status: Status
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        lines = [f"run {self.run_id} of {self.reactor} is {self.status}", *(f"  {reason}" for reason in self.reasons)]
        return "\n".join(lines)


def moment(seconds: float) -> str:
    """A time for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
