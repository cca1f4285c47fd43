"""Runs followed entry by entry: live ones elsewhere, paused ones, ended ones, and volatile ones."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from aioreactor import Paused, Reactor, RunNotFound, current_runtime, interrupt, runs
from aioreactor.runtime import Runtime
from aioreactor.settings import Settings
from aioreactor.store import following
from tests.integration.durable.kit import Gate, Place, behave, noted, raises
from tests.integration.durable.test_background import place, working

__all__ = ["place"]


class Line(Reactor, name="watch.Line"):
    a = noted()
    b = noted([a])


class Asking(Reactor, name="watch.Asking"):
    a = noted()
    ok = interrupt(str, after=[a])
    b = noted([ok])


WHOLE = ["0 run:a", "1 success:a", "2 run:b", "3 success:b"]


async def seen(events: Any) -> list[str]:
    return [f"{entry.seq} {entry}" async for entry in events]


async def test_an_ended_run_is_told_from_where_one_wants(place: Place) -> None:
    outcome = await Line.run()
    assert await seen(runs.events(outcome.run_id)) == WHOLE
    assert await seen(Line.runs.events(outcome.run_id, after=1)) == WHOLE[2:]
    assert await seen(runs.events(outcome.run_id, after=100)) == []
    with pytest.raises(RunNotFound):
        await seen(runs.events("nobody"))
    with pytest.raises(RunNotFound):
        await seen(Asking.runs.events(outcome.run_id))


async def test_a_live_run_in_a_worker_is_followed_to_its_end(place: Place) -> None:
    behave["b"] = gate = Gate()
    async with working(place):
        handle = await Line.enqueue()
        found: list[str] = []
        async for entry in handle.events():
            found.append(f"{entry.seq} {entry}")
            if len(found) == 2:
                assert not gate.open.is_set()  # told while it runs
                gate.open.set()
        assert await handle.status() == "completed"
    assert found == WHOLE


async def test_a_paused_run_is_followed_on(place: Place) -> None:
    outcome = await Asking.run()
    assert isinstance(outcome, Paused)
    following = asyncio.create_task(seen(runs.events(outcome.run_id)))
    done, _ = await asyncio.wait({following}, timeout=0.4)
    assert not done
    await runs.resume(outcome.run_id, payload="x")
    assert await following == ["0 run:a", "1 success:a", "2 interrupt:ok", "3 resume:ok", "4 run:b", "5 success:b"]


async def test_what_was_spawned_here_is_followed_from_its_beginning(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    handle = await Line.spawn()
    ended = ["3 failure:b", "4 compensate:b", "5 undo:a"]
    assert await seen(handle.events()) == [*WHOLE[:3], *ended]


async def test_a_volatile_run_is_followed_too(place: Place) -> None:
    async with Runtime(Settings()):
        handle = await Line.spawn()
        assert await seen(handle.events()) == WHOLE
        assert await seen(handle.events(after=2)) == WHOLE[3:]


@pytest.fixture
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows looks when it is told, and never by itself."""
    monkeypatch.setattr(following, "EVERY", 1000.0)


async def test_entries_are_pushed_from_another_process(place: Place, never_looks: None) -> None:
    """Each is told while the step after it waits; the follower has a connection of its own."""
    behave["a"], behave["b"] = first, second = Gate(), Gate()
    handle = await Line.spawn()
    await first.reached.wait()
    async with place.another() as elsewhere:
        assert elsewhere.durable is not None
        async with asyncio.timeout(30), aclosing(elsewhere.durable.events(handle.run_id, -1)) as events:
            coming = asyncio.ensure_future(anext(events))
            while not await place.do("HEXISTS", place.store.space.run(handle.run_id), "watched_ms"):
                await asyncio.sleep(0.005)
            first.open.set()
            found = [str(await coming), str(await anext(events))]
            assert (found, second.open.is_set()) == (["run:a", "success:a"], False)
            second.open.set()
            found += [str(entry) async for entry in events]
    assert found == ["run:a", "success:a", "run:b", "success:b"]


async def test_what_is_not_followed_tells_nobody(place: Place) -> None:
    """The mark is gone with time, and then a write publishes nothing."""
    behave["a"] = gate = Gate()
    handle = await Line.spawn()
    await gate.reached.wait()
    run, trace = place.store.space.run(handle.run_id), place.store.space.of_run(handle.run_id)[2]
    async with place.store.pushes().listen(trace) as bell:
        await bell.wait(1)  # it rings once when it is subscribed
        await place.do("HSET", run, "watched_ms", 1)
        gate.open.set()
        await handle.result()
        assert not await bell.wait(0.1)


async def test_what_was_not_told_is_found_by_looking(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "EVERY", 0.02)
    monkeypatch.setattr(following, "WATCHED_MS", -1)
    behave["b"] = gate = Gate()
    handle = await Line.spawn()
    found = []
    async for entry in handle.events():
        found.append(f"{entry.seq} {entry}")
        if len(found) == 2:
            gate.open.set()
    assert found == WHOLE


async def test_a_long_trace_comes_in_pieces(place: Place, monkeypatch: pytest.MonkeyPatch, never_looks: None) -> None:
    outcome = await Line.run()
    for most in (1, 2, 3, 4):
        monkeypatch.setattr(following, "MOST", most)
        assert await seen(runs.events(outcome.run_id)) == WHOLE
        assert await seen(runs.events(outcome.run_id, after=1)) == WHOLE[2:]


async def test_who_stops_following_leaves_no_subscription(place: Place) -> None:
    durable = current_runtime().durable
    assert durable is not None
    pushes = durable.store.pushes()
    behave["b"] = gate = Gate()
    handle = await Line.spawn()
    await gate.reached.wait()
    async with aclosing(runs.events(handle.run_id)) as events:
        assert str(await anext(events)) == "run:a"
    waiting = asyncio.create_task(seen(runs.events(handle.run_id, after=1)))
    trace = place.store.space.of_run(handle.run_id)[2]
    while trace not in pushes._bells:
        await asyncio.sleep(0.005)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert trace not in pushes._bells
    gate.open.set()
    await handle.result()
    assert [key for key in pushes._bells if handle.run_id in key] == []


async def test_a_run_that_is_deleted_ends_its_following(place: Place, never_looks: None) -> None:
    outcome = await Asking.run()
    following_it = asyncio.create_task(seen(runs.events(outcome.run_id, after=2)))
    while not await place.do("HEXISTS", place.store.space.run(outcome.run_id), "watched_ms"):
        await asyncio.sleep(0.005)
    await runs.delete(outcome.run_id)
    with pytest.raises(RunNotFound):
        await following_it
