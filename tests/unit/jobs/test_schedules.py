"""What a schedule says, what is refused when it is written, and which schedules a worker has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest

import aioreactor
from aioreactor import DefinitionError, InputValidationError, Reactor, schedule, step, worker_settings
from aioreactor.jobs.schedules import MAX_KEY, checked

DAY = 86_400_000


class Report(Reactor[int], name="unit.Report"):
    day: int = 0

    @step
    async def write(self, day: int) -> int:
        return day


class Needy(Reactor[int], name="unit.Needy"):
    day: int

    @step
    async def write(self, day: int) -> int:
        return day


def ms(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp() * 1000)


def test_its_name_is_the_reactors_if_it_has_none() -> None:
    assert schedule(Report, cron="@daily").key == "unit.Report"
    assert schedule(Report, cron="@daily", key="nightly").tag == "schedule:nightly"


def test_a_run_is_named_after_key_and_moment() -> None:
    nightly = schedule(Report, cron="0 3 * * *", tz="Europe/Madrid", key="nightly")
    tick = nightly.ticks.after(ms(datetime(2026, 7, 1)))
    assert tick is not None
    assert nightly.run_id(tick) == "schedule:nightly@2026-07-01T01:00:00Z"
    longest = schedule(Report, cron="@daily", key="k" * MAX_KEY)
    assert len(longest.run_id(tick)) <= 200


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cron": "0 3 * *"}, ValueError, "wrong number of fields"),
        ({"tz": "Mars/Olympus"}, ValueError, "no such time zone"),
        ({"missed": "some"}, ValueError, "missed='some': one of 'skip', 'last', 'all'"),
        ({"overlap": "queue"}, ValueError, "overlap='queue': one of 'allow', 'skip'"),
        ({"missed_limit": 0}, ValueError, "missed_limit=0"),
        ({"key": ""}, ValueError, "1 to 150 characters, not 0"),
        ({"key": "k" * 151}, ValueError, "give key="),
        ({"inputs": {"day": "x"}}, InputValidationError, "day"),
        ({"inputs": {"dya": 1}}, InputValidationError, "the closest is 'day'"),
    ],
)
def test_mistakes_are_told_where_it_is_written(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        schedule(Report, **{"cron": "@daily", **options})
    assert text in str(caught.value)


def test_inputs_that_are_missing_are_told() -> None:
    with pytest.raises(InputValidationError, match="day"):
        schedule(Needy, cron="@daily")
    assert schedule(Needy, cron="@daily", inputs=lambda tick: {"day": tick.day}).key == "unit.Needy"


@pytest.mark.parametrize("given", [Report(day=1), Reactor, object, "unit.Report"])
def test_what_is_no_reactor_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="takes a reactor class"):
        schedule(given, cron="@daily")


def test_a_reactor_that_no_worker_finds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Reactor[int]):
        pass

    monkeypatch.setattr(Local, "__module__", "__main__")
    with pytest.raises(DefinitionError, match="__main__"):
        schedule(Local, cron="@daily")


def test_the_next_ticks_are_shown_in_its_zone() -> None:
    nightly = schedule(Report, cron="30 2 * * *", tz="Europe/Madrid")
    shown = [each.isoformat() for each in nightly.upcoming(2, after=datetime(2026, 3, 28, 12, tzinfo=UTC))]
    assert shown == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    [following] = nightly.upcoming()
    assert 0 < (following - datetime.now(UTC)).total_seconds() <= 90_000


async def test_inputs_are_those_given_or_made_for_the_tick() -> None:
    tick = ms(datetime(2026, 7, 1, 1))
    fixed = schedule(Report, cron="@daily", inputs={"day": 3})
    assert await fixed.inputs(tick) == {"day": 3}
    made = schedule(Report, cron="@daily", tz="Asia/Tokyo", inputs=lambda at: {"day": at.hour})
    assert await made.inputs(tick) == {"day": 10}
    broken: Any = schedule(Report, cron="@daily", inputs=lambda at: [at])
    with pytest.raises(TypeError, match="inputs= gave list"):
        await broken.inputs(tick)


def test_missed_ticks_are_bounded_however_long_it_was() -> None:
    busy = schedule(Report, cron="* * * * * *", missed="all", missed_limit=5)
    now = ms(datetime(2026, 7, 1))
    due = busy.due(now - 300 * DAY, now)
    assert len(due.start) == 5 + 61
    assert due.start == sorted(set(due.start))
    assert (due.missed, due.more) == (0, True)


def test_two_of_one_key_are_refused_and_one_that_comes_twice_is_not() -> None:
    first, second = schedule(Report, cron="@daily"), schedule(Report, cron="@hourly")
    assert checked([first, first]) == (first,)
    with pytest.raises(ValueError, match="two schedules have the key 'unit.Report'"):
        checked([first, second])


def test_what_could_not_be_checked_before_is_checked_by_the_worker() -> None:
    class Later(Reactor[int], name="unit.Later"):
        day: NotYet  # type: ignore[name-defined]  # noqa: F821

        @step
        async def write(self) -> int:
            return 1

    unchecked = schedule(Later, cron="@daily", inputs={"day": 1})
    with pytest.raises(DefinitionError, match="NotYet"):
        checked([unchecked])


# ---------------------------------------------------------------------- which ones a worker has


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType("unit_scheduled")
    module.nightly = schedule(Report, cron="@daily", key="nightly")  # type: ignore[attr-defined]
    module.other = 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unit_scheduled", module)
    yield module


def keys(settings: Any) -> list[str]:
    return [each.key for each in settings.service.schedules]


def test_a_worker_has_those_it_is_given_and_those_of_its_modules(module: ModuleType) -> None:
    hourly = schedule(Report, cron="@hourly", key="hourly")
    assert keys(worker_settings()) == []
    assert keys(worker_settings(schedules=[hourly])) == ["hourly"]
    assert keys(worker_settings(["unit_scheduled"])) == ["nightly"]
    assert keys(worker_settings(["unit_scheduled"], schedules=[hourly, module.nightly])) == ["hourly", "nightly"]
    assert keys(worker_settings(["unit_scheduled"], schedules=None)) == []


def test_it_is_public() -> None:
    assert "schedule" in aioreactor.__all__
    assert aioreactor.schedule is schedule
