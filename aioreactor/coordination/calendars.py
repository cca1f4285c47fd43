"""Calendar buckets in time zones. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

_EVEN = {"minute": 60, "hour": 3600}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


class Bucket(NamedTuple):
    """From ``start`` up to ``end``, in ms since the epoch."""

    start: int
    end: int


def field_of(every: str | float, tz: str) -> str:
    """Under which name a kind of bucket is kept: days of different zones are different buckets."""
    return f"{every}:{tz}" if isinstance(every, str) else f"{int(every * 1000)}ms"


def bucket_of(at_ms: int, every: str | float, tz: str) -> Bucket:
    """The bucket that a moment is in. A number of seconds counts from the epoch, without a zone."""
    if not isinstance(every, str):
        return _even(at_ms, int(every * 1000), 0)
    local = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(tz))
    if every in _EVEN:
        offset = local.utcoffset() or timedelta()
        return _even(at_ms, _EVEN[every] * 1000, int(offset.total_seconds()) * 1000)
    first, after = _days(local, every)
    return Bucket(_ms(first), _ms(after))


def around(at_ms: int, every: str | float, tz: str) -> list[Bucket]:
    """The bucket of a moment, the one before it and the one after: for a clock that may be a little wrong."""
    here = bucket_of(at_ms, every, tz)
    return [here, bucket_of(here.start - 1, every, tz), bucket_of(here.end, every, tz)]


def _even(at_ms: int, length: int, offset: int) -> Bucket:
    start = (at_ms + offset) // length * length - offset
    return Bucket(start, start + length)


def _days(local: datetime, every: str) -> tuple[datetime, datetime]:
    """Midnights, by the wall clock, on which the bucket begins and the next one does."""
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if every == "day":
        return midnight, midnight + timedelta(days=1)
    if every == "week":
        monday = midnight - timedelta(days=local.weekday())
        return monday, monday + timedelta(days=7)
    months = _MONTHS[every]
    first = midnight.replace(day=1, month=(local.month - 1) // months * months + 1)
    index = first.year * 12 + first.month - 1 + months
    return first, first.replace(year=index // 12, month=index % 12 + 1)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
