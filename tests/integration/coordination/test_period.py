"""`Period` alone, and the calendar."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from aioreactor import Period
from aioreactor.coordination import periods
from aioreactor.coordination.calendars import around, bucket_of, field_of
from tests.integration.coordination.kit import LoseReply, Place

UNITS = ["minute", "hour", "day", "week", "month", "quarter", "year"]


def ms(text: str, tz: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp() * 1000)


# ---------------------------------------------------------------------- the calendar


@pytest.mark.parametrize(
    ("every", "tz", "start", "end"),
    [
        ("minute", "UTC", "2024-03-31T12:34", "2024-03-31T12:35"),
        ("hour", "UTC", "2024-03-31T12:00", "2024-03-31T13:00"),
        ("hour", "Asia/Kolkata", "2024-03-31T18:00", "2024-03-31T19:00"),
        ("day", "UTC", "2024-03-31", "2024-04-01"),
        ("day", "Europe/Berlin", "2024-03-31", "2024-04-01"),
        ("day", "Pacific/Kiritimati", "2024-04-01", "2024-04-02"),
        ("week", "UTC", "2024-03-25", "2024-04-01"),
        ("month", "UTC", "2024-03-01", "2024-04-01"),
        ("quarter", "UTC", "2024-01-01", "2024-04-01"),
        ("quarter", "Pacific/Kiritimati", "2024-04-01", "2024-07-01"),
        ("year", "America/New_York", "2024-01-01", "2025-01-01"),
    ],
)
def test_a_moment_has_its_bucket(every: str, tz: str, start: str, end: str) -> None:
    assert bucket_of(ms("2024-03-31T12:34:56"), every, tz) == (ms(start, tz), ms(end, tz))


def test_days_of_a_changing_clock_have_their_length() -> None:
    spring = bucket_of(ms("2024-03-31T12:00"), "day", "Europe/Berlin")
    autumn = bucket_of(ms("2024-10-27T12:00"), "day", "Europe/Berlin")
    assert (spring.end - spring.start, autumn.end - autumn.start) == (23 * 3600_000, 25 * 3600_000)
    twice = [bucket_of(ms(f"2024-10-27T0{hour}:30"), "hour", "Europe/Berlin") for hour in (0, 1)]
    assert twice[0].end == twice[1].start  # two o'clock comes twice, and is two hours


@pytest.mark.parametrize("every", [*UNITS, 90, 0.5])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Sao_Paulo", "Pacific/Apia"])
def test_buckets_leave_no_gap(every: str | float, tz: str) -> None:
    at = ms("2024-03-30T23:59:59")
    for _ in range(40):
        here, before, after = around(at, every, tz)
        assert here.start <= at < here.end
        assert (before.end, after.start) == (here.start, here.end)
        at = here.end


def test_kinds_of_buckets_have_their_names() -> None:
    names = [field_of(every, tz) for every in ("day", "hour", 60, 60.5) for tz in ("UTC", "Europe/Berlin")]
    assert (
        names == ["day:UTC", "day:Europe/Berlin", "hour:UTC", "hour:Europe/Berlin"] + ["60000ms"] * 2 + ["60500ms"] * 2
    )


def test_a_zone_that_is_none_is_refused() -> None:
    for tz in ("Mars/Olympus", "", "../etc/passwd"):
        with pytest.raises(ValueError, match="no time zone"):
            Period("p", tz=tz)


# ---------------------------------------------------------------------- on the server


async def test_it_is_marked_after_a_success_only(place: Place) -> None:
    period = Period("p", every="year")
    with pytest.raises(ZeroDivisionError):
        async with period as claim:
            assert claim.first
            raise ZeroDivisionError
    task = asyncio.create_task(_stuck(period))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with period as claim:
        assert claim.first
    async with period as claim:
        assert not claim.first
    async with Period("p", every="month") as claim, Period("p", every="year", tz="Asia/Tokyo") as other:
        assert (claim.first, other.first) == (True, True)
    async with Period("q", every="year") as claim:
        assert claim.first
    assert claim.starts == datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC)


async def _stuck(period: Period) -> None:
    async with period as claim:
        assert claim.first
        await asyncio.Event().wait()


@pytest.mark.parametrize("every", [*UNITS, 3600])
async def test_its_marker_lives_for_two_buckets(place: Place, every: str | float) -> None:
    async with Period("p", every=every):
        pass
    claim = await periods.check(place.coordinator.desk(), Period("p", every=every), "p")
    twice = 2 * (claim.bucket.end - claim.bucket.start)
    ttl = await place.do("PTTL", place.keys.period("p"))
    assert twice - 60_000 < ttl <= twice


async def test_the_next_bucket_is_free_again(place: Place) -> None:
    period, seen, firsts = Period("p", every=0.3), list[datetime](), list[datetime]()
    async with asyncio.timeout(60):
        while len(firsts) < 4:
            async with period as claim:
                seen.append(claim.starts)
                firsts += [claim.starts] if claim.first else []
            await asyncio.sleep(0.01)
    assert len(set(seen)) == 4
    assert firsts == sorted(set(seen))


@pytest.mark.parametrize("off", [-86400 * 800, -3600, 3600, 86400 * 800])
async def test_the_servers_clock_decides(place: Place, off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Period("p", every="minute") as claim:
        right = claim.starts
    now = time.time
    monkeypatch.setattr(periods.time, "time", lambda: now() + off)  # type: ignore[attr-defined]
    async with Period("p", every="minute") as claim:
        assert not claim.first or claim.starts > right
        assert 0 <= (claim.starts - right).total_seconds() <= 60


async def test_a_later_marker_is_never_set_back(place: Place) -> None:
    desk = place.coordinator.desk()
    claim = await periods.check(desk, Period("p"), "p")
    assert await periods.mark(desk, claim, "first")
    earlier = periods.Claim("p", claim.field, claim.bucket._replace(start=claim.bucket.start - 1), True)
    assert not await periods.mark(desk, earlier, "second")
    assert not await periods.mark(desk, claim, "second")
    (marker,) = (await place.coordinator.inspect("p")).markers
    assert (marker.bucket, marker.marked_by, marker.starts) == ("day:UTC", "first", claim.bucket.start / 1000)
    again = await periods.check(desk, Period("p"), "p")
    assert (again.first, again.marked_by) == (False, "first")
    assert (again.refusal().key, again.refusal().by) == ("p", "first")


@pytest.mark.parametrize("before", [False, True])
async def test_a_lost_reply_marks_all_the_same(place: Place, before: bool) -> None:
    async with place.another(LoseReply("period_mark", before=before)), Period("p") as claim:
        assert claim.first
    assert len((await place.coordinator.inspect("p")).markers) == 1
