"""Schedules tick once each, whatever becomes of the workers that have them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from aioreactor import runs, schedule
from aioreactor.jobs.book import KEEP_MS, Seen
from aioreactor.jobs.schedules import Schedule
from aioreactor.store.errors import StoreUnavailable
from tests.integration.schedules.kit import Era, Report, said

HOUR = 3600


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioreactor.jobs")


def every(cron: str, **options: Any) -> Schedule:
    return schedule(Report, cron=cron, key="report", **options)


# ---------------------------------------------------------------------- undisturbed


async def test_each_tick_begins_one_run_whatever_the_number_of_workers(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    tickers = [era.ticker(every("* * * * *")) for _ in range(5)]
    await era.advance(5 * 60)
    # The others do not even try.
    assert sum(len(era.starts(ticker).asked) for ticker in tickers) == 5
    assert await era.ticks("report") == [f"28T12:0{minute}" for minute in range(1, 6)]
    begun = Counter(record.run_id for record in said(caplog, "schedule_started"))  # type: ignore[attr-defined]
    assert begun == {f"schedule:report@2026-03-28T12:0{minute}:00Z": 1 for minute in range(1, 6)}
    assert all(float(record.late) < 1 for record in said(caplog, "schedule_started"))  # type: ignore[attr-defined]


async def test_a_new_schedule_has_missed_nothing(era: Era, caplog: pytest.LogCaptureFixture) -> None:
    era.ticker(every("0 0 * * *", missed="all"))
    await era.advance(60)
    assert await era.ticks("report") == []
    await era.advance(12 * HOUR)
    assert await era.ticks("report") == ["29T00:00"]
    assert said(caplog, "schedule_missed") == []


async def test_several_schedules_tick_apart(era: Era) -> None:
    pair = [schedule(Report, cron=f"{minute} * * * *", key=f"at {minute}") for minute in (1, 2)]
    for _ in range(2):
        era.ticker(*pair)
    await era.advance(90)
    assert [await era.ticks(f"at {minute}") for minute in (1, 2)] == [["28T12:01"], []]
    await era.advance(60)
    assert [await era.ticks(f"at {minute}") for minute in (1, 2)] == [["28T12:01"], ["28T12:02"]]


async def test_an_hour_that_comes_twice(era: Era) -> None:
    await era.set(datetime(2026, 10, 25, 0, 0, 10, tzinfo=UTC))
    once = schedule(Report, cron="30 2 * * *", tz="Europe/Madrid", key="once")
    twice = schedule(Report, cron="30 */2 * * *", tz="Europe/Madrid", key="twice")
    for _ in range(2):
        era.ticker(once, twice)
    await era.advance(2 * HOUR)
    assert await era.ticks("once") == ["25T00:30"]
    assert await era.ticks("twice") == ["25T00:30", "25T01:30"]


async def test_the_run_gets_what_inputs_give_for_its_tick(era: Era) -> None:
    async def inputs(tick: datetime) -> dict[str, str]:
        return {"day": f"{tick:%d.%m. %H:%M %Z}"}

    era.ticker(schedule(Report, cron="0 15 * * *", tz="Europe/Madrid", inputs=inputs, key="report"))
    era.ticker(schedule(Report, cron="0 15 * * *", tz="UTC", inputs={"day": "any"}, key="given", queue="slow"))
    await era.advance(3 * HOUR)
    [run] = await era.started("report")
    found = await runs.find(run.run_id)
    assert (dict(found.inputs), found.status, found.tags) == (
        {"day": "28.03. 15:00 CET"},
        "pending",
        ("schedule:report",),
    )
    [given] = await era.started("given")
    assert dict((await runs.find(given.run_id)).inputs) == {"day": "any"}
    # The queue of the worker, or of the schedule.
    queues = [await era.durable.store.peek(each.run_id) for each in (run, given)]
    assert [row.queue for row in queues if row is not None] == [f"{era.prefix}-worker", "slow"]
    assert await era.do("ZCARD", f"{era.prefix}-worker") == 1
    assert await era.do("ZCARD", "slow") == 1
    await era.do("DEL", "slow")


# ---------------------------------------------------------------------- missed


@pytest.mark.parametrize(
    ("options", "made_up", "missed"),
    [
        ({}, ["28T15:30"], 6),
        ({"missed": "last"}, ["28T15:30"], 6),
        ({"missed": "skip"}, [], 7),
        ({"missed": "all"}, ["28T12:30", "28T13:00", "28T13:30", "28T14:00", "28T14:30", "28T15:00", "28T15:30"], 0),
        ({"missed": "all", "missed_limit": 2}, ["28T15:00", "28T15:30"], "over 0"),
        ({"missed": "last", "missed_limit": 3}, ["28T15:30"], "over 2"),
    ],
)
async def test_after_a_down_time(
    era: Era, caplog: pytest.LogCaptureFixture, options: dict[str, Any], made_up: list[str], missed: Any
) -> None:
    first = every("*/30 * * * *", **options)
    era.ticker(first)
    await era.advance(30)
    await era.end()
    await era.set(datetime(2026, 3, 28, 15, 47, tzinfo=UTC))
    for _ in range(3):
        era.ticker(every("*/30 * * * *", **options))
    await era.advance(10)
    assert await era.ticks("report") == made_up
    told = [record.ticks for record in said(caplog, "schedule_missed")]  # type: ignore[attr-defined]
    assert told == ([missed] if missed else [])
    await era.advance(HOUR)
    assert await era.ticks("report") == [*made_up, "28T16:00", "28T16:30"]


@pytest.mark.parametrize("policy", ["skip", "last", "all"])
async def test_a_tick_within_the_last_minute_is_late_and_not_missed(
    era: Era, caplog: pytest.LogCaptureFixture, policy: Any
) -> None:
    era.ticker(every("*/30 * * * *", missed=policy))
    await era.advance(30)
    await era.end()
    await era.set(datetime(2026, 3, 28, 12, 30, 59, tzinfo=UTC))
    era.ticker(every("*/30 * * * *", missed=policy))
    await era.advance(1)
    assert await era.ticks("report") == ["28T12:30"]
    assert said(caplog, "schedule_missed") == []
    assert [round(float(each.late)) for each in said(caplog, "schedule_started")] == [59]  # type: ignore[attr-defined]


async def test_with_one_in_time_the_last_of_the_missed_is_not_made_up(era: Era) -> None:
    era.ticker(every("*/30 * * * *"))
    await era.advance(30)
    await era.end()
    await era.set(datetime(2026, 3, 28, 14, 0, 20, tzinfo=UTC))
    era.ticker(every("*/30 * * * *"))
    await era.advance(1)
    assert await era.ticks("report") == ["28T14:00"]


async def test_after_an_expression_has_changed_ticks_of_the_other_are_not_made_up(era: Era) -> None:
    era.ticker(every("0 0 * * *", missed="all"))
    await era.advance(9 * HOUR + 300)
    await era.end()
    era.ticker(every("*/30 * * * *", missed="all"))
    await era.advance(HOUR)
    assert await era.ticks("report") == ["28T21:30", "28T22:00"]


async def test_while_versions_with_two_expressions_run_both_tick(era: Era) -> None:
    era.ticker(every("*/30 * * * *", missed="skip"))
    era.ticker(every("*/20 * * * *", missed="skip"))
    await era.advance(HOUR)
    assert await era.ticks("report") == ["28T12:20", "28T12:30", "28T12:40", "28T13:00"]


async def test_what_is_known_of_a_schedule_goes_when_nobody_has_it_any_more(era: Era) -> None:
    era.ticker(every("0 0 1 * *"))
    await era.advance(1)
    key = era.durable.store.space.schedule("report")
    await era.do("PEXPIRE", key, 5000)
    await era.advance(61)  # the longest nap
    assert KEEP_MS - 60_000 < await era.do("PTTL", key) <= KEEP_MS
    await era.end()
    await era.do("DEL", key)
    await era.set(datetime(2026, 4, 2, tzinfo=UTC))
    era.ticker(every("0 0 1 * *"))
    await era.advance(1)
    assert await era.ticks("report") == []


# ---------------------------------------------------------------------- overlap


async def test_a_tick_is_skipped_while_the_run_before_has_not_ended(era: Era, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        era.ticker(every("* * * * *", overlap="skip"))
    await era.advance(3 * 60)
    assert await era.ticks("report") == ["28T12:01"]
    skipped = [record.run_id for record in said(caplog, "schedule_skipped")]  # type: ignore[attr-defined]
    assert skipped == [f"schedule:report@2026-03-28T12:0{minute}:00Z" for minute in (2, 3)]
    [first] = await era.started("report")
    await runs.cancel(first.run_id)
    await era.advance(60)
    assert await era.ticks("report") == ["28T12:01", "28T12:04"]


async def test_a_run_that_is_gone_has_ended(era: Era) -> None:
    era.ticker(every("* * * * *", overlap="skip"))
    await era.advance(60)
    [first] = await era.started("report")
    await runs.delete(first.run_id)
    await era.advance(60)
    assert await era.ticks("report") == ["28T12:02"]


# ---------------------------------------------------------------------- refused


async def test_a_tick_whose_inputs_are_no_good_is_refused_and_the_next_is_not(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    def inputs(tick: datetime) -> Any:
        if tick.minute == 1:
            raise LookupError("nothing to report")
        return {2: {"day": 7}, 3: {"dya": "x"}, 4: ["day"]}.get(tick.minute, {"day": "5"})

    for _ in range(2):
        era.ticker(every("* * * * *", inputs=inputs))
    await era.advance(5 * 60)
    assert await era.ticks("report") == ["28T12:05"]
    refused = [record.getMessage() for record in said(caplog, "schedule_refused")]
    assert [text.partition(": ")[2].partition(":")[0] for text in refused] == [
        "LookupError",
        "InputValidationError",
        "InputValidationError",
        "TypeError",
    ]
    assert {record.levelname for record in said(caplog, "schedule_refused")} == {"ERROR"}


# ---------------------------------------------------------------------- workers that die, sleep, end


async def test_one_that_dies_before_it_has_created_the_run(era: Era) -> None:
    victim = era.ticker(every("* * * * *"), halts="before")
    advancing = asyncio.ensure_future(era.advance(50.1))
    await era.halted(victim)
    await era.kill(victim)
    await advancing
    assert await era.ticks("report") == []
    era.ticker(every("* * * * *"))
    await era.advance(10)
    assert await era.ticks("report") == []  # the dead one has it yet
    await era.advance(10)
    assert await era.ticks("report") == ["28T12:01"]


async def test_one_that_dies_before_it_has_noted_the_run(era: Era, caplog: pytest.LogCaptureFixture) -> None:
    victim = era.ticker(every("* * * * *"), halts="after")
    advancing = asyncio.ensure_future(era.advance(50.1))
    await era.halted(victim)
    await era.kill(victim)
    await advancing
    for _ in range(2):
        era.ticker(every("* * * * *"))
    await era.advance(20)
    assert await era.ticks("report") == ["28T12:01"]
    assert said(caplog, "schedule_started") == []  # the dead one did not come to say so
    await era.advance(60)
    assert await era.ticks("report") == ["28T12:01", "28T12:02"]


async def test_one_that_sleeps_and_goes_on_when_another_has_begun_the_run(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper = era.ticker(every("* * * * *"), halts="before")
    advancing = asyncio.ensure_future(era.advance(50.1))
    start = await era.halted(sleeper)
    era.tickers.remove(sleeper)  # nobody waits for it
    await advancing
    era.ticker(every("* * * * *"))
    await era.advance(20)
    [run] = await era.started("report")
    before = await era.durable.store.read(run.run_id)
    start.halts = ""
    start.goes_on.set()
    era.tickers.append(sleeper)
    await era.advance(60)
    assert await era.ticks("report") == ["28T12:01", "28T12:02"]
    after = await era.durable.store.read(run.run_id)
    assert before is not None
    assert after is not None
    assert (after.row.ver, after.row.created_ms) == (before.row.ver, before.row.created_ms)
    assert len(said(caplog, "schedule_started")) == 2


async def test_one_that_wakes_up_among_ticks_that_others_have_made_up_for_stops(era: Era) -> None:
    era.ticker(every("*/30 * * * *", missed="all"))
    await era.advance(30)
    await era.end()
    await era.set(datetime(2026, 3, 28, 14, 17, tzinfo=UTC))
    sleeper = era.ticker(every("*/30 * * * *", missed="all"), halts="before")
    advancing = asyncio.ensure_future(era.advance(0.1))
    start = await era.halted(sleeper)
    era.tickers.remove(sleeper)
    await advancing
    await era.set(era.at + 16)
    other = era.ticker(every("*/30 * * * *", missed="all"))
    await era.advance(1)
    everything = ["28T12:30", "28T13:00", "28T13:30", "28T14:00"]
    assert await era.ticks("report") == everything
    start.goes_on.set()
    era.tickers.append(sleeper)
    await era.advance(60)
    assert [len(era.starts(each).asked) for each in (sleeper, other)] == [1, 4]
    assert await era.ticks("report") == everything


async def test_one_that_ends_brings_to_its_end_what_it_has_begun(era: Era) -> None:
    ending = era.ticker(every("* * * * *"), halts="before")
    advancing = asyncio.ensure_future(era.advance(50.1))
    start = await era.halted(ending)
    era.tickers.remove(ending)
    await advancing
    closing = asyncio.ensure_future(ending.aclose())
    await asyncio.sleep(0)
    start.goes_on.set()
    await closing
    assert await era.ticks("report") == ["28T12:01"]
    other = era.ticker(every("* * * * *"))
    await era.advance(1)
    assert await era.do("HEXISTS", era.durable.store.space.schedule("report"), "token") == 0
    assert other in era.tickers


async def test_a_store_that_is_away_is_waited_for(era: Era, caplog: pytest.LogCaptureFixture) -> None:
    book, tried = era.book(), 0
    claim = book.claim

    async def away(key: str, spec: str, token: str, tick_ms: int) -> Seen:
        nonlocal tried
        tried += 1
        if 2 <= tried <= 5:
            raise StoreUnavailable("schedule_claim", 10.0, None, may_be_applied=False)
        return await claim(key, spec, token, tick_ms)

    book.claim = away  # type: ignore[method-assign]
    era.ticker(every("* * * * *"), book=book)
    await era.advance(2 * 60)
    assert tried > 5
    assert await era.ticks("report") == ["28T12:01", "28T12:02"]
    assert len(said(caplog, "schedule_waits")) == 1
