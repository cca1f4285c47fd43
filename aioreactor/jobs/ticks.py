"""When a schedule ticks: a cron expression in a time zone, as moments. Pure.

`cronsim` knows the expressions. What becomes of them when clocks change is decided here, as Debian's cron does:

* With fixed times of the day (neither minutes nor hours, nor seconds, begin with ``*``) a day has each tick once. A
  time that is skipped becomes the end of the gap; of one that comes twice the first counts.
* All others follow the clock on the wall: what it never shows does not tick, what it shows twice ticks twice.

Moments are ms since the epoch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Ticks:
    """The moments of a cron expression in a time zone.

    Args:
        cron: Minute, hour, day of the month, month, day of the week; with seconds in front if there are six fields; or
            a name such as ``@daily``.
        tz: A name of the time zone database.

    Raises:
        ValueError: The expression or the zone cannot be used, or it would never tick.
    """

    def __init__(self, cron: str, tz: str = "UTC") -> None:
        self.cron, self.tz = cron, tz
        self._zone = _zone(tz)
        self._expression = NAMED.get(cron.strip().lower(), cron)
        fields = self._expression.split()
        self._by_the_wall = any(field.startswith("*") for field in fields[: len(fields) - 3])
        try:
            ticks = self.after(0) is not None
        except CronSimError as error:
            text = f"cron={cron!r}: {_small(str(error))}; it is 'minute hour day month weekday', seconds may come first"
            raise ValueError(text) from None
        if not ticks:
            raise ValueError(f"cron={cron!r} never ticks")

    def __str__(self) -> str:
        return f"{self.cron} {self.tz}"

    def local(self, at_ms: int) -> datetime:
        """A moment in the zone."""
        return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(self._zone)

    def after(self, at_ms: int) -> int | None:
        """The first tick after a moment; None if there is none within fifty years."""
        return next((tick for tick in self._from(at_ms, back=False) if tick > at_ms), None)

    def newest(self, after_ms: int, until_ms: int, limit: int | None = None) -> list[int]:
        """The ticks after one moment up to another, in order; the last ``limit`` of them."""
        backwards = (tick for tick in self._from(until_ms, back=True) if tick <= until_ms)
        found = list(islice(takewhile(lambda tick: tick > after_ms, backwards), limit))
        return found[::-1]

    def _from(self, at_ms: int, *, back: bool) -> Iterator[int]:
        """All ticks on one side of a moment, and perhaps some on the other; each once, in order."""
        twice: list[int] = []
        before = None
        for reading in CronSim(self._expression, self._begin(at_ms, back=back), reverse=back):
            found = self._moments(reading)
            if len(found) == 2:
                # An hour that comes twice comes once as a whole, and then again.
                twice += found
                continue
            for tick in (*sorted(twice, reverse=back), *found):
                if tick != before:
                    yield tick
                before = tick
            twice.clear()

    def _begin(self, at_ms: int, *, back: bool) -> datetime:
        """The reading from which on, or back, nothing on that side of a moment is left out."""
        local = self.local(at_ms)
        offsets = [local.replace(fold=fold).utcoffset() or timedelta() for fold in (0, 1)]
        # Within what comes twice, as long as that is; else nothing.
        margin = offsets[0] - offsets[1]
        reading = local.replace(tzinfo=None, microsecond=0)
        # The library leaves out where it begins; what is due at this very second is wanted back, and not forth.
        return reading + margin + _SECOND if back else reading - margin

    def _moments(self, reading: datetime) -> Sequence[int]:
        """When something that is to happen at this reading of the clock on the wall does."""
        shown = (reading.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        found = sorted({_ms(moment) for moment in shown if _is_shown(moment)})
        if self._by_the_wall:
            return found
        return found[:1] or [self._end_of_gap(reading)]

    def _end_of_gap(self, reading: datetime) -> int:
        moment = reading.replace(tzinfo=self._zone, second=0)
        while not _is_shown(moment):
            moment += _MINUTE
        return _ms(moment)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


def _is_shown(moment: datetime) -> bool:
    return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) == moment.replace(tzinfo=None)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # also where there is no time zone database
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        close = difflib.get_close_matches(name, available_timezones(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"tz={name!r}: there is no such time zone{hint}") from None


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]
