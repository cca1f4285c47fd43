"""A process that holds, or stands in line, is stopped for longer than its lease: others get in, and it does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest

from aioreactor import Lock, LockUnavailable, Semaphore, runs
from aioreactor.coordination import inspect
from tests.faults.holding import TTL
from tests.faults.kit import DEEP, Field, Zygote
from tests.faults.test_pauses import stopped
from tests.integration.coordination.kit import leftovers

KEY = "key:x"


class Standing:
    """A process that comes to stand still."""

    def __init__(self, field: Field, **order: Any) -> None:
        given = {"run_id": "x", "inputs": {"key": KEY}, "stopping": True, **order}
        self.pid = field.zygote.start({**field.base, **given})
        self.waiting = asyncio.create_task(asyncio.to_thread(field.zygote.wait))

    async def __aenter__(self) -> Standing:
        await stopped(self.pid)
        return self

    async def __aexit__(self, *error: Any) -> None:
        if not self.waiting.done():
            os.kill(self.pid, signal.SIGKILL)
            await self.waiting

    async def go_on(self, *, to_end: bool | None = None) -> None:
        """Wake it up, and wait for its end; a worker is told to end: at once, or when it has looked around."""
        if to_end:
            os.kill(self.pid, signal.SIGTERM)
        os.kill(self.pid, signal.SIGCONT)
        if to_end is False:
            await asyncio.sleep(0.5)
            os.kill(self.pid, signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await self.waiting == 0


async def visit(field: Field) -> None:
    """Come in when the lease has ended."""
    async with Lock(KEY, ttl=TTL, wait=20), Semaphore(KEY, 1, ttl=TTL, wait=20):
        await field.ledger.write("x", "rival")


@pytest.mark.parametrize("name", ["HeldStops", "InStepsStops"] if DEEP else ["InStepsStops"])
async def test_who_still_has_its_run_rolls_back_under_the_lock_again(field: Field, name: str) -> None:
    """Only its lease of the lock ended meanwhile."""
    async with Standing(field, reactor=name, lease_ttl=60) as still:
        await visit(field)
        assert await field.ledger.lines("x") == ["do:a", "do:b", "stop:b", "rival"]
        await still.go_on()
    assert await field.ledger.lines("x") == ["do:a", "do:b", "stop:b", "rival", "comp:b", "undo:a"]
    snapshot = await runs.find("x")
    assert snapshot.status == "failed"
    assert "LeaseLost" in repr(snapshot.outcome)
    assert await leftovers(field.do, field.prefix) == []


@pytest.mark.parametrize("name", ["HeldStops", "InStepsStops"] if DEEP else ["HeldStops"])
async def test_who_lost_its_run_as_well_does_nothing_any_more(field: Field, name: str) -> None:
    async with Standing(field, reactor=name) as still:
        await visit(field)
        found = await field.settle(["x"])
        expected = ["do:a", "do:b", "stop:b", "rival", "do:b"]
        assert (found["x"].status, await field.ledger.lines("x")) == ("completed", expected)
        async with Lock(KEY, ttl=TTL, wait=5) as held, Semaphore(KEY, 1, ttl=TTL) as slot:
            await still.go_on()
            await held.check()
            await slot.check()
    assert await field.ledger.lines("x") == [*expected, "end:OwnershipLost"]
    assert await leftovers(field.do, field.prefix) == []


CASES = [(name, to_end) for name in ("InStepsWaits", "HeldWaits") for to_end in (False, True)]


@pytest.mark.parametrize(("name", "wakes_to_end"), CASES if DEEP else CASES[::3])
async def test_who_stood_in_line_takes_nothing_from_who_has_its_place(
    ward: Field, clinic: list[Zygote], name: str, wakes_to_end: bool
) -> None:
    """Who goes on with its run comes with the same place, and is inside when it wakes up."""
    ward.base["default_queue"] = ward.queue()
    order = {"what": "work", "queue": ward.queue("-victims"), "park_after": 60, "snooze_delay": 0.5, "act": "stop"}
    async with contextlib.AsyncExitStack() as stack:
        async with Lock(KEY):
            await ward.enqueue(name, "x", "-victims", key=KEY)
            point = "checkpoint 1 known"  # a step stands in line in place
            if name == "HeldWaits":
                point = "acquire 1 applied"  # a run comes back to its place
                assert await ward.victim("x", **{**order, "point": "", "burst": True, "snooze_delay": 1}) == 0
                await ward.do("HSET", ward.runtime.durable.store.space.run("x"), "due_ms", 0)  # type: ignore[union-attr]
                await ward.ring(["x"], "-victims")
            still = await stack.enter_async_context(Standing(ward, point=point, **order))
            await stack.enter_async_context(ward.worker(clinic[0], park_after=3600, snooze_delay=1000))
            await in_line_for(500)
        await line_of(ward, "do:a")
        await still.go_on(to_end=wakes_to_end)
        report = await inspect(KEY)
        assert report.lock is not None
        assert [holder.label for holder in report.lock.holders] == ["x" if name == "HeldWaits" else "x:a:1"]
        with pytest.raises(LockUnavailable):
            async with Lock(KEY, ttl=TTL):
                raise AssertionError("two inside")
        await ward.ledger.write("x", "go")
        assert (await ward.ended(["x"]))["x"].status == "completed"
    assert await ward.ledger.lines("x") == ["do:a", "go"]
    assert await leftovers(ward.do, ward.prefix) == []


async def in_line_for(seconds: float) -> None:
    """Somebody stands in line who will come back within such a time."""
    async with asyncio.timeout(20):
        while (found := (await inspect(KEY)).lock) is None or not [
            each for each in found.waiters if each.alive_for > seconds
        ]:
            await asyncio.sleep(0.01)


async def line_of(field: Field, line: str) -> None:
    async with asyncio.timeout(20):
        while line not in await field.ledger.lines("x"):
            await asyncio.sleep(0.01)
