"""A thread that notices while an event loop stands still, and shows what the loop's thread is doing at that moment.

Overview. A loop that holds leases says by when it will be heard of again (`Pulse.expect`, at each beat of its
`leases.LeaseKeeper`). One daemon thread per process sleeps until the first of these promises is overdue by more than
its patience, and then hands out the stack of that loop's thread; once per standstill. The thread exists only while
somebody is watched, and a moment longer, since runs come and go. It costs a wake-up per third of a lease.

Limits. When the whole process stood still (it was stopped, or something kept the interpreter's lock), this thread did,
too, and there is nothing to be seen any more: the loop is given time to come back first.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from types import FrameType
from typing import Any, Protocol

from aioreactor.logs import note

logger = logging.getLogger("aioreactor.engine")

LINGER = 1.0
"""Seconds for which the thread stays when nobody is watched."""

LONGEST = 60.0


class Reporter(Protocol):
    """Who is told of a standstill, in the watchdog's thread."""

    def seen(self, frame: FrameType) -> Any:
        """What there is to be told of a thread whose innermost frame this is."""
        ...

    def blocked(self, seconds: float, seen: Any) -> None:
        """The loop has stood still for so long, and did when that was ``seen``."""
        ...


class Pulse:
    """What is known of one loop's life. Made in the loop's thread.

    Attributes:
        due: `time.monotonic` by which it is to be heard of again.
        patience: Seconds of delay that are nobody's business.
    """

    __slots__ = ("_reporter", "_told", "due", "patience", "thread_id")

    def __init__(self, reporter: Reporter) -> None:
        self.thread_id = threading.get_ident()
        self._reporter = reporter
        self.due, self.patience, self._told = math.inf, 0.0, 0.0

    def expect(self, seconds: float, patience: float) -> None:
        """It is alive, and will be heard of again within ``seconds``."""
        self.patience = patience
        self.due = time.monotonic() + seconds
        _watchdog.watch(self)

    def forget(self) -> None:
        """It need not be heard of any more."""
        _watchdog.forget(self)
        self.due = math.inf

    def late_by(self, now: float) -> float:
        """Seconds by which it is overdue."""
        return max(0.0, now - self.due)

    @property
    def look_at(self) -> float:
        """When it is time to look after it; after a standstill that was told, when it may be the next one."""
        due = self.due
        return due + self.patience if due not in (self._told, math.inf) else time.monotonic() + self.patience

    def look(self) -> None:
        """Tell of a standstill, once."""
        due, now = self.due, time.monotonic()
        if self._told == due or now - due <= self.patience:
            return
        frame = sys._current_frames().get(self.thread_id)
        seen = self._reporter.seen(frame) if frame is not None else None
        del frame
        if self.due == due:  # else it has just come back, and what was seen may be somebody else
            self._told = due
            self._reporter.blocked(now - due, seen)


class Watchdog:
    """Looks after the pulses of this process."""

    def __init__(self) -> None:
        self._pulses: set[Pulse] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._next = 0.0

    @property
    def alive(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None and self._thread.is_alive()

    def watch(self, pulse: Pulse) -> None:
        """Look after it from now on, and in time."""
        if pulse not in self._pulses or self._thread is None:
            with self._lock:
                self._pulses.add(pulse)
                if not self.alive:
                    self._next = 0.0
                    self._thread = threading.Thread(target=self._run, name="aioreactor-watchdog", daemon=True)
                    self._thread.start()
        if pulse.look_at < self._next:
            self._wake.set()

    def forget(self, pulse: Pulse) -> None:
        """Look after it no longer."""
        with self._lock:
            self._pulses.discard(pulse)

    def _run(self) -> None:
        while True:
            span = self._rest()
            if span is None:
                return
            overslept = self._sleep(span)
            for pulse in self._watched():
                if overslept > pulse.patience / 2:
                    self._sleep(pulse.patience / 4)
                self._look(pulse)

    def _sleep(self, span: float) -> float:
        """Seconds by which it took longer than it should."""
        began = time.monotonic()
        self._wake.wait(span)
        self._wake.clear()
        return time.monotonic() - began - span

    def _watched(self) -> list[Pulse]:
        with self._lock:
            return list(self._pulses)

    def _rest(self) -> float | None:
        """How long to sleep; None when there was nothing to do for a while, and the thread has to end."""
        if not self._watched():
            self._next = time.monotonic() + LINGER
            self._sleep(LINGER)
        with self._lock:
            if not self._pulses:
                self._thread = None
                return None
            now = time.monotonic()
            self._next = min(now + LONGEST, *(pulse.look_at for pulse in self._pulses))
            return max(0.005, self._next - now)

    def _look(self, pulse: Pulse) -> None:
        try:
            pulse.look()
        except Exception as error:
            # Nobody waits for this thread: without a line in the log nobody would know.
            note(logger, logging.ERROR, "engine_error", f"the watchdog failed: {error!r}")


_watchdog = Watchdog()


def _after_fork() -> None:
    # The thread was not copied, and a lock may have been held.
    _watchdog.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
