"""The named points of the protocols, and what happens to a process when it comes to one.

A point is a step, its number in the life of the process, and a moment: ``checkpoint 2 applied``. The moments are
``before`` (nothing of it was sent), ``applied`` (the server has done it, the process does not know), and ``known`` (it
knows, and has gone on until it waits for something else).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from typing import Any

from aioreactor.store.calls import Call

STEPS = {
    "live_expect": "announce",
    "run_create": "create",
    "index_put": "list",
    "run_peek": "look",
    "lease_take": "take",
    "run_load": "load",
    "run_save": "checkpoint",
    "run_close": "close",
    "run_release": "let go",
    "jobs_ring": "ring",
    "index_claim": "claim",
    "schedule_claim": "tick",
    "schedule_settle": "settle",
    "order_assign": "assign",
    "order_turn": "ask for the turn",
    "order_finish": "advance",
    "period_check": "see the period",
    "period_mark": "mark",
    "rate_fixed": "spend",
    "rate_restore": "restore",
    "slot_take": "acquire",
    "slot_release": "release",
    "slot_renew": "renew",
}
"""What each script is to the protocols. Extensions of runs' leases are not among them: they come when they come."""

UNCOUNTED = {"renew"}
"""Some of them come when they come, too: they are points, but no part of what a process has to come by."""

MOMENTS = ("before", "applied", "known")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def every_point(*steps: str) -> list[str]:
    """All points of these steps, each named as often as it is taken."""
    seen: Counter[str] = Counter()
    found = []
    for step in steps:
        seen[step] += 1
        found += [f"{step} {seen[step]} {moment}" for moment in MOMENTS]
    return found


class Fate:
    """A hook of the store's client: ends or stops its process at one point; notes the steps that it came by."""

    def __init__(self, point: str, act: str = "kill") -> None:
        self.step, self.number, self.moment = _parsed(point)
        self.signal = SIGNALS[act]
        self.passed: list[str] = []
        self._sent: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()

    def before_send(self, call: Call) -> None:
        step = STEPS.get(call.name)
        if step is not None:
            if step not in UNCOUNTED:
                self.passed.append(step)
            self._sent[step] += 1
            self._meet(step, self._sent, "before")

    def after_reply(self, call: Call, reply: Any) -> None:
        step = STEPS.get(call.name)
        if step is None:
            return
        self._answered[step] += 1
        self._meet(step, self._answered, "applied")
        if (step, self._answered[step], "known") == (self.step, self.number, self.moment):
            # The caller is woken in the next iteration of the loop, and goes on in the same one or the next.
            self._act_after(2)

    def _meet(self, step: str, seen: Counter[str], moment: str) -> None:
        if (step, seen[step], moment) == (self.step, self.number, self.moment):
            self._act()

    def _act_after(self, turns: int) -> None:
        later = self._act if turns == 0 else partial(self._act_after, turns - 1)
        asyncio.get_running_loop().call_soon(later)

    def _act(self) -> None:
        os.kill(os.getpid(), self.signal)


def _parsed(point: str) -> tuple[str, int, str]:
    if not point:
        return "", 0, ""
    step, number, moment = point.rsplit(" ", 2)
    return step, int(number), moment
