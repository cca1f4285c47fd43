"""Positions in ordered locks: somebody gives signs of life for all runs that live, and gives up those of all others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Struct

from aioreactor import (
    Failure,
    OrderedLock,
    Paused,
    Reactor,
    Success,
    async_reactor,
    interrupt,
    runs,
    step,
    timer,
)
from aioreactor.coordination import orders
from aioreactor.coordination.reports import Place as Position
from aioreactor.durable.lines import Lined
from tests.integration.coordination.kit import LoseReply
from tests.integration.durable.kit import Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import parked, place, working

__all__ = ["place"]
KEY = "line"
ON_LINE: list[Any] = [OrderedLock(lambda i: f"line{i.key}")]


class Yes(Struct):
    by: str


class Simple(Reactor, name="cl.Simple", coordination=ON_LINE):
    key: str = ""
    a = noted()


class Asks(Reactor, name="cl.Asks", coordination=ON_LINE):
    key: str = ""
    a = noted()
    approve = interrupt(Yes, after=[a])


class Sleeps(Reactor, name="cl.Sleeps", coordination=ON_LINE):
    key: str = ""
    a = noted()
    pause = timer(seconds=86_400, after=[a])


async def line(key: str = KEY) -> tuple[Position, ...]:
    report = await OrderedLock.peek(key)
    return report.places if report is not None else ()


async def hush(place: Place, key: str = KEY) -> None:
    """All who stand in line have been silent for long."""
    assert place.runtime.durable is not None
    _, seats, _ = place.runtime.coordinator().desk().keys.order(key)
    flat = await place.do("HGETALL", seats)
    for field, row in zip(flat[::2], flat[1::2], strict=True):
        if not field.startswith(b"t:"):
            beat, rest = row.split(b" ", 1)
            await place.do("HSET", seats, field, b"%d " % (int(beat) - 500_000) + rest)


async def swept(place: Place) -> list[str]:
    """The time of all entries has come, and a sweeper comes by; what is left of them."""
    key = place.store.space.lined()
    for entry in await place.do("ZRANGE", key, 0, -1):
        await place.do("ZADD", key, 1, entry)
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.swept().stalled(100)
    return [entry.decode() for entry in await place.do("ZRANGE", key, 0, -1)]


async def assert_beaten(place: Place, number: int = 1) -> None:
    await hush(place)
    assert [each.silent_for > 400 for each in await line()] == [True] * number
    assert len(await swept(place)) == number
    assert [each.silent_for < 60 for each in await line()] == [True] * number


async def test_of_queued_and_of_delayed_runs(place: Place) -> None:
    handles = [await Simple.enqueue(), await Simple.with_options(delay=7200).enqueue()]
    await assert_beaten(place, 2)
    for handle in handles:
        await handle.cancel()
    assert await line() == ()


async def test_of_paused_runs(place: Place) -> None:
    paused = await Asks.run()
    assert isinstance(paused, Paused)
    second = await Simple.enqueue()
    await assert_beaten(place, 2)
    async with working(place):
        await Asks.runs.resume(paused.run_id, "approve", {"by": "a"})
        assert isinstance(await second.result(timeout=30), Success)
    assert ledger == ["do:a", "do:a"]
    assert await line() == ()


async def test_of_runs_that_were_left_in_their_turn(place: Place) -> None:
    handle = await Sleeps.enqueue()
    async with working(place, park_after=0.05) as worker:
        await parked(place, handle.run_id)
        assert await worker.service.host.idle(30)
    assert [each.running for each in await line()] == [True]
    await assert_beaten(place)
    await handle.cancel()
    assert await line() == ()


async def test_the_time_of_the_next_sign_follows_from_the_lock(place: Place) -> None:
    class Hasty(Simple, name="cl.Hasty", coordination=[OrderedLock(KEY, poison_after=90)]):
        pass

    handle = await Hasty.enqueue()
    key, entry = place.store.space.lined(), b""
    for _ in range(2):
        (entry, due) = await place.do("ZRANGE", key, 0, -1, "WITHSCORES")
        seconds, micros = await place.do("TIME")
        assert 25 < float(due) / 1000 - int(seconds) - int(micros) / 1e6 <= 30
        await swept(place)
    assert b"%b" % handle.run_id.encode() in entry
    await handle.cancel()


async def test_who_deletes_a_run_lets_the_line_go_on(place: Place) -> None:
    paused = await Asks.run()
    waiting = await Simple.enqueue()
    last = await Simple.enqueue()
    assert [each.number for each in await line()] == [1, 2, 3]
    await runs.delete(waiting.run_id)
    assert [each.number for each in await line()] == [1, 3]
    await runs.delete(paused.run_id)
    async with working(place):
        assert isinstance(await last.result(timeout=30), Success)
    assert await line() == ()


async def test_a_run_that_was_cancelled_before_it_began_counts_as_failed(place: Place) -> None:
    first, last = await Simple.enqueue(), await Simple.enqueue()
    await first.cancel()
    assert [each.number for each in await line()] == [2]
    async with working(place):
        outcome = await last.result(timeout=30)
    assert (outcome.status, getattr(outcome, "reason", "")) == ("halted", "ordered_chain_failed")
    assert await line() == ()


async def test_a_position_without_a_run_goes_when_it_is_missed_twice(place: Place) -> None:
    """As when whoever was to create the run died in between, or deleted it and died."""
    handle = await Simple.enqueue()
    for key in await place.do("KEYS", f"{place.prefix}:*{{{handle.run_id}}}*"):
        await place.do("DEL", key)
    assert [entry[0] for entry in await swept(place)] == ["1"]
    assert len(await line()) == 1
    assert await swept(place) == []
    assert await line() == ()


async def test_a_run_that_was_slow_to_come_is_not_given_up(place: Place) -> None:
    handle = await Simple.enqueue()
    keys = await place.do("KEYS", f"{place.prefix}:*{{{handle.run_id}}}*")
    for key in keys:
        await place.do("RENAME", key, b"away:" + key)
    await swept(place)
    for key in keys:
        await place.do("RENAME", b"away:" + key, key)
    for _ in range(2):
        assert len(await swept(place)) == 1
    assert len(await line()) == 1
    async with working(place):
        assert isinstance(await handle.result(timeout=30), Success)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_position_that_its_run_left_behind_goes(place: Place, fails: bool) -> None:
    """Whoever ended the run died before it could say so to the line; what the end was, the line is told now."""
    if fails:
        behave["a"] = raises(ValueError("no"))
    handle = await Simple.enqueue()
    (first,), line_now = await line(), place.runtime.coordinator()
    async with working(place):
        await handle.result(timeout=30)
    again = await line_now.assign(OrderedLock(KEY), KEY, handle.run_id, handle.run_id)
    behind = await line_now.assign(OrderedLock(KEY), KEY, "behind", "behind")
    places = {KEY: {name: getattr(again, name) for name in again.__slots__}}
    assert place.runtime.durable is not None
    await place.runtime.durable.lined.put([(Lined(handle.run_id, places).pack(), 1)])
    assert first.number == 1
    assert await swept(place) == []
    report = await OrderedLock.peek(KEY)
    assert report is not None
    assert ([each.number for each in report.places], report.first_failed) == ([2], 1 if fails else None)
    await line_now.finish(behind, failed=False)


async def test_a_line_that_was_reset_is_not_looked_at_any_more(place: Place) -> None:
    handle = await Simple.enqueue()
    await OrderedLock.reset(KEY)
    assert await swept(place) == []
    async with working(place):
        outcome = await handle.result(timeout=30)
    assert (outcome.status, getattr(outcome, "reason", "")) == ("halted", "stale_epoch")


# ---------------------------------------------------------------------- many at once


async def test_many_positions_are_handed_out_in_a_few_trips_and_in_order(place: Place) -> None:
    hook = LoseReply("nothing")
    async with place.another(hook):
        inputs = [{"key": "ab"[number % 2]} for number in range(2 * orders.PER_SCRIPT + 2)]
        handles = await Simple.enqueue_many(inputs)
    assert hook.seen.count("order_assign") == 4  # two lines, each in two parts
    for letter, found in (("a", handles[::2]), ("b", handles[1::2])):
        assert [each.label for each in await line(f"line{letter}")] == [handle.run_id for handle in found]
    await OrderedLock.reset("linea")
    await OrderedLock.reset("lineb")
    for handle in handles:
        await runs.delete(handle.run_id)


async def test_positions_that_were_handed_out_twice_are_the_same(place: Place) -> None:
    """The reply was lost."""
    for number, before in ((0, True), (0, False)):
        async with place.another(LoseReply("order_assign", number, before=before)):
            handles = await Simple.enqueue_many([{}] * 20)
        assert [(each.number, each.label) for each in await line()] == [
            (place, handle.run_id) for place, handle in enumerate(handles, 1)
        ]
        for handle in handles:
            await runs.delete(handle.run_id)
        assert await line() == ()


# ---------------------------------------------------------------------- units


class Unit(Reactor[int], name="cl.Unit", coordination=[OrderedLock(KEY)]):
    n: int

    @step
    async def work(self, n: int) -> int:
        ledger.append(f"work:{n}")
        return n

    returns = work


class Sends(Reactor, name="cl.Sends"):
    n: int
    a = noted()
    unit = async_reactor(Unit, after=[a])
    b = noted([a])


async def test_a_unit_has_its_position_from_when_it_is_dispatched(place: Place) -> None:
    for number in range(3):
        assert isinstance(await Sends.with_options(run_id=f"{place.prefix}-{number}").run(n=number), Success)
    units = [(await runs.find(f"{place.prefix}-{number}")).children[0] for number in range(3)]
    assert [(each.number, each.label) for each in await line()] == list(enumerate(units, 1))
    await assert_beaten(place, 3)
    del ledger[:]
    async with working(place), working(place):
        for unit in units:
            await place.store.wait_done(unit, 30)
    assert ledger == ["work:0", "work:1", "work:2"]
    assert await line() == ()


async def test_a_unit_that_is_called_off_leaves_the_line(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    first = await Sends.run(n=1)
    assert isinstance(first, Failure)
    del behave["b"]
    assert await line() == ()
    await Sends.run(n=2)
    async with working(place):
        async with asyncio.timeout(30):
            while await line():
                await asyncio.sleep(0.005)
    assert "work:2" in ledger
    assert "work:1" not in ledger


async def test_a_unit_that_is_dispatched_again_after_a_crash_keeps_its_position(place: Place) -> None:
    run_id = f"{place.prefix}-again"
    await Sends.with_options(run_id=run_id).run(n=1)
    (unit,) = (await runs.find(run_id)).children
    other = await Simple.enqueue()
    row, durable = await place.store.peek(run_id), place.runtime.durable
    assert row is not None
    assert durable is not None
    again = durable.units_of(Sends.plan, run_id, row.created_ms, row.queue, 0.0)
    assert again is not None
    node = Sends.plan.nodes[Sends.plan.by_name["unit"]]
    assert (await again.dispatch("unit", node, {"n": 1})).run_id == unit
    assert [(each.number, each.label) for each in await line()] == [(1, unit), (2, other.run_id)]
    async with working(place):
        assert await Unit.with_options(run_id=unit).run(n=1) == Success(1)
        await other.result(timeout=30)
    assert await line() == ()
    await again.dispatch("unit", node, {"n": 1})
    assert await line() == ()
