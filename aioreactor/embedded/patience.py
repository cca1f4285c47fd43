"""How long to wait for another process, and how to stop waiting."""

import threading
import time

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.010


class TimeIsUp(Exception):
    """The deadline has passed."""


class GaveUp(Exception):
    """Whoever was waiting no longer wants it."""


class Patience:
    """A deadline with pauses that grow, which another thread may cut short.

    What is awaited here (a socket of a starting server, a directory that goes away) has no event that
    can be waited for on every POSIX system, hence the polling; it starts at a millisecond, so the
    usual wait of a few tens of them is hardly lengthened.
    """

    def __init__(self, seconds: float) -> None:
        """Be patient for `seconds` from now."""
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._pause = FIRST_PAUSE
        self._given_up = threading.Event()

    def nap(self) -> None:
        """Pause before the next try.

        Raises:
            TimeIsUp: The deadline has passed.
            GaveUp: `give_up` was called.
        """
        left = self._deadline - time.monotonic()
        if self._given_up.wait(max(0.0, min(self._pause, left))):
            raise GaveUp
        if left <= 0:
            raise TimeIsUp
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)

    def give_up(self) -> None:
        """Wake the waiting thread at once; its `nap` raises `GaveUp`."""
        self._given_up.set()
