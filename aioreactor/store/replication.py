"""Waiting until replicas have what was written: one `WAIT` behind each batch with a write, in the same round trip.

A connection that waits executes nothing else. So a link has one `WAIT` under way at a time, and what is issued
meanwhile leaves together, behind one of its own: a write takes two waits at most, however many there are.

The writes before a `WAIT` are done, whatever it says; it takes nothing back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from aioreactor.logs import note
from aioreactor.store.calls import Call, pack
from aioreactor.store.errors import StoreError

logger = logging.getLogger("aioreactor.store")

QUIET = 60.0
"""Seconds after a warning during which there is no other one."""


def _look(future: asyncio.Future[Any]) -> None:
    """Whoever waits for it gets its error; nobody has to."""
    if not future.cancelled():
        future.exception()


class Barrier(Call):
    """A `WAIT` that follows writes; it is never sent again, since another connection knows nothing of them."""

    __slots__ = ()

    def __init__(self, future: asyncio.Future[Any], payload: bytes, lane: str, issued: float, span: float) -> None:
        super().__init__(future, payload, "WAIT", None, None, lane, False, issued, span)
        future.add_done_callback(_look)


class Replication:
    """How many replicas have to have a write, and for how long that is waited for.

    Args:
        replicas: So many.
        timeout: Seconds.
    """

    def __init__(self, replicas: int, timeout: float) -> None:
        self.replicas = replicas
        self.timeout = timeout
        self._payload = pack(("WAIT", replicas, max(1, int(timeout * 1000))))
        self._warned_at = -QUIET
        self._unsaid = 0

    def barrier(self, loop: asyncio.AbstractEventLoop, lane: str) -> Barrier:
        """What is to follow a batch with writes."""
        return Barrier(loop.create_future(), self._payload, lane, loop.time(), self.timeout)

    async def confirm(self, write: str, barrier: Barrier) -> None:
        """Return when enough replicas have the write, or when that was waited for long enough; then it is noted.

        Cancellation: the write is done all the same.
        """
        try:
            have = await asyncio.shield(barrier.future)
        except StoreError as error:
            self._warn(write, "unknown", str(error))
        else:
            if have < self.replicas:
                self._warn(write, str(have), "too few replicas have a write in time; a failover now may lose it")

    def _warn(self, write: str, have: str, text: str) -> None:
        now = time.monotonic()
        if now - self._warned_at < QUIET:
            self._unsaid += 1
            return
        note(
            logger,
            logging.WARNING,
            "replicas_behind",
            text,
            write=write,
            have=have,
            wanted=self.replicas,
            unsaid=self._unsaid,
        )
        self._warned_at, self._unsaid = now, 0
