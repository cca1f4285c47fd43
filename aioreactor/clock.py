"""Time as the library sees it: one object that a test can replace.

`Clock.now` stamps what people read (epoch seconds); `Clock.monotonic` measures spans. The wait between two
attempts goes through `Clock.call_later`, so that moving a test's clock moves it; limits of single bodies
(``timeout``, ``undo_timeout``) belong to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A pending call that can be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""


class Clock(Protocol):
    """What the engine asks of time. All spans in seconds."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, never going back."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in ``delay`` seconds, in the running event loop."""
        ...


class SystemClock:
    """The machine's own clocks and the event loop's timers."""

    __slots__ = ()

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in ``delay`` seconds, in the running event loop."""
        return asyncio.get_running_loop().call_later(delay, callback)


SYSTEM_CLOCK = SystemClock()
