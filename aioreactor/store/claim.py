"""The right to write one run, and the writes that are on their way under it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aioreactor.errors import OwnershipLost
from aioreactor.store.calls import Value
from aioreactor.store.scripts import Reply, Script
from aioreactor.store.unique import UniqueTexts

if TYPE_CHECKING:
    from aioreactor.store.records import RunRow

DRIFT = 0.01
"""Part of a lease that its holder does not count on, because clocks do not run equally fast."""


def new_token() -> str:
    """What tells one holder from all others."""
    return os.urandom(10).hex()


new_write_id = UniqueTexts()
"""What tells one write from all others."""


class Write:
    """One write of a claim; whatever happens to its caller, it is sent again until it is answered."""

    __slots__ = ("args", "ends", "error", "id", "keys", "reply", "retention_ms", "script", "status")

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        status: str,
        *,
        ends: bool = False,
        retention_ms: int = 0,
    ) -> None:
        self.id = new_write_id()
        self.script = script
        self.keys = keys
        self.args = args
        self.status = status
        self.ends = ends
        self.retention_ms = retention_ms
        self.reply: Reply | None = None
        self.error: Exception | None = None


class Claim:
    """Who has one may write the run, until it is lost, released or closed.

    A claim belongs to one execution and one event loop. Its writes are applied one after another, in the order of
    the calls. A write that was cut off (the caller was cancelled, the store was away) is repeated before the next
    one, and applied once: its changes need not be passed again.

    Attributes:
        run_id: Whose.
        token: By which the store knows the holder.
        ver: Version of the record after the last write.
        fence: Grows with each claim of the run; for systems that are told who writes.
        ttl_ms: How long the lease lasts after each write or extension.
        asked: How many requests had been left when the store answered last.
        trusted_until: `time.monotonic` until which nobody else can have taken the run.
        keys: Of the run, where it has keys.
        found: The run as it was before it was taken, where that is known.
        recoveries: How often in a row, this time included, the run was taken from somebody who had not let it go.
        lost: Why it is no longer ours; empty while it is, or may be.
        ended: It was released or closed.
        woke: The run that waited for the end of this one, and its queue; workers are to be told of it.
    """

    __slots__ = (
        "asked",
        "ended",
        "fence",
        "found",
        "keys",
        "lost",
        "outbox",
        "recoveries",
        "run_id",
        "token",
        "trusted_until",
        "ttl_ms",
        "turn",
        "ver",
        "woke",
    )

    def __init__(
        self,
        run_id: str,
        token: str,
        *,
        ver: int,
        fence: int,
        ttl_ms: int,
        asked_at: float,
        keys: tuple[str, ...] = (),
    ) -> None:
        self.run_id = run_id
        self.keys = keys
        self.token = token
        self.ver = ver
        self.fence = fence
        self.ttl_ms = ttl_ms
        self.asked = 0
        self.recoveries = 0
        self.found: RunRow | None = None
        self.lost = ""
        self.ended = False
        self.woke: tuple[str, str] | None = None
        self.outbox: deque[Write] = deque()
        self.turn = asyncio.Lock()
        self.trusted_until = 0.0
        self.trust(asked_at)

    def trust(self, asked_at: float) -> None:
        """The store has extended the lease; counted from when it was asked, which is earlier than it did."""
        self.trusted_until = max(self.trusted_until, asked_at + self.ttl_ms / 1000 * (1 - DRIFT))

    @property
    def trusted(self) -> bool:
        """Whether nobody else can have taken the run yet."""
        return not self.lost and time.monotonic() < self.trusted_until

    @property
    def open(self) -> bool:
        """Whether it may still be written under."""
        return not self.lost and not self.ended

    def require_open(self) -> None:
        """Refuse a write that the store would refuse anyway.

        Raises:
            OwnershipLost: The run is no longer ours.
        """
        if self.lost:
            raise OwnershipLost(self.run_id, self.lost)
        if self.ended:
            raise OwnershipLost(self.run_id, "it was released or closed by this execution itself")

    def lose(self, why: Any) -> OwnershipLost:
        """Note that the run is no longer ours; nothing is sent under this claim any more."""
        reason = why.decode() if isinstance(why, bytes) else str(why)
        self.lost = self.lost or _REASONS.get(reason, reason)
        self.outbox.clear()
        return OwnershipLost(self.run_id, self.lost)

    def __repr__(self) -> str:
        state = f" lost: {self.lost}" if self.lost else " ended" if self.ended else ""
        return f"<Claim {self.run_id} ver={self.ver} fence={self.fence}{state}>"


class FanClaim(Claim):
    """The right of a session to execute elements of a map of a run; nothing is written under it but what they came to.

    Attributes:
        path: Of the map.
        cut: How what is under way is to be cancelled, once the store has said so.
    """

    __slots__ = ("cut", "path")

    def __init__(self, run_id: str, path: str, token: str, *, ttl_ms: int, asked_at: float) -> None:
        super().__init__(run_id, token, ver=0, fence=0, ttl_ms=ttl_ms, asked_at=asked_at)
        self.path = path
        self.cut = ""


_REASONS = {
    "token": "its lease was taken over or given up",
    "version": "it was written by another execution with the same token",
    "gone": "it was deleted",
}
