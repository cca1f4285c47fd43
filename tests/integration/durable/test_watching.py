"""Runs followed entry by entry: live ones elsewhere, paused ones, ended ones, and volatile ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import Paused, Reactor, RunNotFound, interrupt, runs
from aioreactor.runtime import Runtime
from aioreactor.settings import Settings
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
