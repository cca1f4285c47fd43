"""Periods: whether a calendar bucket has a marker, and marking it after a success.

The server's clock says which bucket it is; this process only computes where buckets begin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from aioreactor.coordination.calendars import Bucket, around, field_of
from aioreactor.coordination.desk import Desk
from aioreactor.definition.primitives import Period
from aioreactor.errors import AioreactorError, ContentionError
from aioreactor.store.calls import Value

_TRIES = 5


class PeriodClaimed(ContentionError):
    """Somebody succeeded in this calendar bucket already."""

    def __init__(self, key: str, marked_at: float, by: str, retry_after: float) -> None:
        self.marked_at = marked_at
        self.by = by
        super().__init__(key, f"period {key!r}: a run succeeded in this one already (by {by or 'somebody'})")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Claim:
    """A calendar bucket, and whether it was free when it was looked at.

    Attributes:
        first: Nobody had succeeded in it.
        bucket: In ms since the epoch.
        marked_at: When somebody did, in seconds since the epoch; 0 if nobody.
        marked_by: Who did.
    """

    key: str
    field: str
    bucket: Bucket
    first: bool
    marked_at: float = 0.0
    marked_by: str = ""

    @property
    def starts(self) -> datetime:
        """When the bucket begins."""
        return datetime.fromtimestamp(self.bucket.start / 1000, UTC)

    def refusal(self) -> PeriodClaimed:
        """What to raise when it is not the first."""
        left = max(self.bucket.end / 1000 - time.time(), 0.0)
        return PeriodClaimed(self.key, self.marked_at, self.marked_by, left)


async def check(desk: Desk, primitive: Period, key: str) -> Claim:
    """Look whether somebody succeeded in the current bucket.

    Raises:
        StoreError: The store is away.

    Cancellation: nothing happens.
    """
    field, at_ms = field_of(primitive.every, primitive.tz), int(time.time() * 1000)
    for _ in range(_TRIES):
        buckets = around(at_ms, primitive.every, primitive.tz)
        edges = [edge for bucket in buckets for edge in bucket]
        reply = await desk.call("period_check", [desk.keys.period(key)], [field, *edges])
        if reply.word == "CLOCK":
            at_ms = reply.values[0]
            continue
        bucket = next(item for item in buckets if item.start == reply.values[0])
        if reply.word == "FREE":
            return Claim(key, field, bucket, first=True)
        _, marked_ms, label = reply.values
        return Claim(key, field, bucket, False, marked_ms / 1000, label.decode())
    raise AioreactorError(f"period {key!r}: the server's clock runs away from every bucket")


async def mark(desk: Desk, claim: Claim, label: str) -> bool:
    """Note a success in the bucket that was claimed; False if somebody else did before.

    Raises:
        StoreError: The store is away; it may be marked.

    Cancellation: it was marked, or not.
    """
    keep_ms = 2 * (claim.bucket.end - claim.bucket.start)
    args: list[Value] = [claim.field, claim.bucket.start, keep_ms, label]
    reply = await desk.call("period_mark", [desk.keys.period(claim.key)], args)
    return reply.word == "MARKED"
