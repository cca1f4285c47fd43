"""Cron expressions as moments, through the days on which clocks change, against a search minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from aioreactor.jobs.ticks import NAMED, Ticks

MINUTE = timedelta(minutes=1)
# Where clocks change, each with the day before: at night, by half an hour, and at midnight.
CHANGES = [
    ("Europe/Madrid", datetime(2026, 3, 28)),
    ("Europe/Madrid", datetime(2026, 10, 24)),
    ("America/New_York", datetime(2026, 3, 7)),
    ("America/New_York", datetime(2026, 10, 31)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3)),
    ("America/Havana", datetime(2026, 3, 7)),
    ("America/Havana", datetime(2026, 10, 31)),
    ("UTC", datetime(2026, 2, 27)),
]


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def local(ticks: Ticks, found: list[int]) -> list[str]:
    return [f"{ticks.local(tick):%d %H:%M %z}" for tick in found]


def between(cron: str, tz: str, first: datetime, days: int) -> list[str]:
    """The ticks of these days, by the clock on the wall."""
    start = first.replace(tzinfo=ZoneInfo(tz))
    ticks = Ticks(cron, tz)
    return local(ticks, ticks.newest(ms(start) - 1, ms(start + timedelta(days=days)) - 1))


# ---------------------------------------------------------------------- said by example


def test_a_time_that_is_skipped_becomes_the_end_of_the_gap() -> None:
    found = between("30 2 * * *", "Europe/Madrid", datetime(2026, 3, 28), 3)
    assert found == ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]


def test_several_times_in_the_gap_are_one_tick() -> None:
    assert between("0,20,40 2,3 * * *", "Europe/Madrid", datetime(2026, 3, 29), 1) == [
        "29 03:00 +0200",
        "29 03:20 +0200",
        "29 03:40 +0200",
    ]


def test_a_time_that_comes_twice_ticks_the_first_time() -> None:
    found = between("30 2 * * *", "Europe/Madrid", datetime(2026, 10, 24), 3)
    assert found == ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]


def test_seconds_make_no_difference_to_that() -> None:
    assert between("15 30 2 * * *", "Europe/Madrid", datetime(2026, 10, 25), 1) == ["25 02:30 +0200"]


def test_every_so_often_follows_the_clock_on_the_wall() -> None:
    assert between("*/30 * * * *", "Europe/Madrid", datetime(2026, 3, 29), 1)[2:6] == [
        "29 01:00 +0100",
        "29 01:30 +0100",
        "29 03:00 +0200",
        "29 03:30 +0200",
    ]
    assert between("0 */2 * * *", "Europe/Madrid", datetime(2026, 10, 25), 1)[:4] == [
        "25 00:00 +0200",
        "25 02:00 +0200",
        "25 02:00 +0100",
        "25 04:00 +0100",
    ]


def test_a_day_that_a_zone_left_out_is_made_up_for_by_the_next() -> None:
    found = between("0 9 * * *", "Pacific/Apia", datetime(2011, 12, 29), 3)
    assert found == ["29 09:00 -1000", "31 00:00 +1400", "31 09:00 +1400"]


def test_names_steps_ranges_and_lists() -> None:
    assert between("0 9-17/4 * * mon-wed,FRI", "UTC", datetime(2026, 6, 4), 4) == [
        "05 09:00 +0000",
        "05 13:00 +0000",
        "05 17:00 +0000",
    ]
    assert between("0 0 L feb *", "UTC", datetime(2028, 2, 1), 29) == ["29 00:00 +0000"]


def test_a_day_of_the_month_or_of_the_week_when_both_are_said() -> None:
    assert between("0 0 13 * FRI", "UTC", datetime(2026, 6, 9), 7) == ["12 00:00 +0000", "13 00:00 +0000"]


@pytest.mark.parametrize("name", NAMED)
def test_names_of_expressions(name: str) -> None:
    at = ms(datetime(2026, 6, 4, 12, 30, tzinfo=UTC))
    assert Ticks(name.upper()).after(at) == Ticks(NAMED[name]).after(at)


def test_only_the_last_ones_are_asked_for() -> None:
    ticks, at = Ticks("*/10 * * * *"), ms(datetime(2026, 6, 4, tzinfo=UTC))
    assert local(ticks, ticks.newest(0, at, 3)) == ["03 23:40 +0000", "03 23:50 +0000", "04 00:00 +0000"]
    assert ticks.newest(at, at) == []
    assert ticks.newest(at - 1, at) == [at]
    assert ticks.newest(at, at + 599_999) == []


def test_a_tick_is_not_after_itself() -> None:
    ticks, at = Ticks("* * * * * *"), ms(datetime(2026, 6, 4, tzinfo=UTC))
    assert [ticks.after(at), ticks.after(at + 1), ticks.after(at + 999)] == [at + 1000] * 3


@pytest.mark.parametrize(
    ("cron", "tz", "text"),
    [
        ("0 3 * *", "UTC", "wrong number of fields; it is 'minute hour day month weekday'"),
        ("61 * * * *", "UTC", "cron='61 * * * *': bad minute"),
        ("0 0 30 2 *", "UTC", "bad day-of-month"),
        ("0 0 * * MOON", "UTC", "bad day-of-week"),
        ("@reboot", "UTC", "wrong number of fields"),
        ("0 3 * * *", "Europe/Madird", "tz='Europe/Madird': there is no such time zone; did you mean 'Europe/Madrid'"),
        ("0 3 * * *", "", "tz=''"),
        ("0 3 * * *", "../etc/passwd", "there is no such time zone"),
    ],
)
def test_mistakes_are_told(cron: str, tz: str, text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Ticks(cron, tz)
    assert text in str(caught.value)


# ---------------------------------------------------------------------- against a search


class Expression(NamedTuple):
    """Which readings match, and how that is written."""

    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int]
    text: str

    def matches(self, reading: datetime) -> bool:
        return (
            reading.minute in self.minutes
            and reading.hour in self.hours
            and (not self.weekdays or reading.isoweekday() % 7 in self.weekdays)
        )

    @property
    def is_fixed(self) -> bool:
        return not any(field.startswith("*") for field in self.text.split()[:2])


def _field(top: int) -> st.SearchStrategy[tuple[frozenset[int], str]]:
    steps = [each for each in (1, 2, 5, 10, 15, 30) if each < top]
    listed = st.sets(st.integers(0, top - 1), min_size=1, max_size=5)
    return st.one_of(
        st.sampled_from(steps).map(lambda step: (frozenset(range(0, top, step)), f"*/{step}")),
        listed.map(lambda values: (frozenset(values), ",".join(map(str, values)))),
        st.tuples(st.integers(0, top - 1), st.integers(0, top - 1)).map(
            lambda ends: (frozenset(range(min(ends), max(ends) + 1)), f"{min(ends)}-{max(ends)}")
        ),
    )


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    minutes, minute_text = draw(_field(60))
    hours, hour_text = draw(_field(24))
    weekdays = draw(st.sets(st.integers(0, 6), max_size=4))
    week_text = ",".join(map(str, weekdays)) or "*"
    return Expression(minutes, hours, frozenset(weekdays), f"{minute_text} {hour_text} * * {week_text}")


def searched(expression: Expression, tz: str, first: datetime, days: int) -> list[int]:
    """The same by looking at the clock each minute."""
    zone = ZoneInfo(tz)
    start = (first - timedelta(days=2)).replace(tzinfo=zone).astimezone(UTC)
    end = (first + timedelta(days=days)).replace(tzinfo=zone).astimezone(UTC)
    moments = [start + number * MINUTE for number in range((end - start) // MINUTE)]
    shown = [(moment, moment.astimezone(zone).replace(tzinfo=None)) for moment in moments]
    found: set[datetime] = set()
    if expression.is_fixed:
        reading, latest = shown[0][1], shown[0][1]
        for moment, now in shown:
            # All that this clock shows, or has passed over, for the first time.
            latest = max(latest, now)
            while reading <= latest:
                if expression.matches(reading):
                    found.add(moment)
                reading += MINUTE
    else:
        found = {moment for moment, now in shown if expression.matches(now)}
    begin = ms(first.replace(tzinfo=zone))
    return sorted(ms(moment) for moment in found if ms(moment) >= begin)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CHANGES), expressions())
@example(CHANGES[6], Expression(frozenset({0, 30}), frozenset(range(24)), frozenset({0}), "0,30 * * * 0"))
@example(CHANGES[6], Expression(frozenset(range(60)), frozenset({0}), frozenset({0}), "*/1 0 * * 0"))
@example(CHANGES[7], Expression(frozenset({30}), frozenset({0}), frozenset({0}), "30 0 * * 0"))
def test_ticks_are_those_that_a_search_finds(change: tuple[str, datetime], expression: Expression) -> None:
    tz, first = change
    ticks = Ticks(expression.text, tz)
    start, end = (ms((first + timedelta(days=days)).replace(tzinfo=ZoneInfo(tz))) for days in (0, 3))
    expected = searched(expression, tz, first, 3)
    assert ticks.newest(start - 1, end - 1) == expected
    forward, at = [], start - 1
    while (tick := ticks.after(at)) is not None and tick < end:
        forward.append(tick)
        at = tick
    assert forward == expected


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CHANGES), expressions(), st.integers(0, 3 * 1440), st.integers(0, 600))
def test_any_span_has_its_part_of_them(
    change: tuple[str, datetime], expression: Expression, first_minute: int, minutes: int
) -> None:
    """A worker that looks in the middle of an hour that comes twice finds what is due, no more and no less."""
    tz, first = change
    ticks = Ticks(expression.text, tz)
    start = ms(first.replace(tzinfo=ZoneInfo(tz))) + first_minute * 60_000 + 1
    until = start + minutes * 60_000
    everything = searched(expression, tz, first, 5)
    assert ticks.newest(start, until) == [tick for tick in everything if start < tick <= until]
    assert ticks.after(start) == next((tick for tick in everything if tick > start), ticks.after(start))
