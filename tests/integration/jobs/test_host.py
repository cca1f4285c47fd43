"""The host: bounded, told twice of the same run, emptied in time. No server."""

from __future__ import annotations

import asyncio

import pytest

from aioreactor.jobs.host import Host


class Gates:
    """A carrier whose executions end when they are told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.handed: list[str] = []
        self.changed = asyncio.Event()
        self.stubborn = False

    async def carry_on(self, run_id: str, delivery: str) -> None:
        self.calls.append(run_id)
        self.changed.set()
        try:
            await self.gates.setdefault(run_id, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.handed.append(run_id)
            if self.stubborn:
                await asyncio.Event().wait()

    async def called(self, number: int) -> None:
        while len(self.calls) < number:
            self.changed.clear()
            await self.changed.wait()

    def open(self, run_id: str) -> None:
        self.gates.setdefault(run_id, asyncio.Event()).set()


async def test_it_takes_what_fits() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=2)
    assert host.admit(["a", "b", "c", "d"], "job") == ["c", "d"]
    assert (host.free, host.running) == (0, 2)
    await gates.called(2)
    gates.open("a")
    assert await host.room(10)
    assert host.admit(["c", "d"], "job") == ["d"]
    assert sorted(await host.drain(0)) == ["b", "c"]
    assert (host.free, host.running) == (0, 0)


async def test_no_room_within_the_time_is_false() -> None:
    host = Host(Gates(), max_concurrency=1)
    host.admit(["a"], "job")
    assert not await host.room(0)
    await host.drain(0)
    assert not await host.room(10)


async def test_a_ring_for_what_lives_here_is_looked_at_once_more() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=1)
    host.admit(["a"], "job")
    await gates.called(1)
    assert host.admit(["a"], "again") == []
    assert host.admit(["a"], "and again") == []
    gates.open("a")
    await gates.called(2)
    assert await host.idle(10)
    assert gates.calls == ["a", "a"]


async def test_room_is_told() -> None:
    gates, told = Gates(), asyncio.Event()
    host = Host(gates, max_concurrency=1, on_room=told.set)
    host.admit(["a"], "job")
    gates.open("a")
    async with asyncio.timeout(10):
        await told.wait()
    assert host.free == 1


async def test_draining_lets_end_what_can() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=3)
    host.admit(["a"], "job")
    await gates.called(1)
    draining = asyncio.create_task(host.drain(60))
    gates.open("a")
    assert await draining == []
    assert host.admit(["b"], "job") == ["b"]


async def test_what_was_rung_while_it_ended_is_rung_again() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=1)
    host.admit(["a"], "job")
    await gates.called(1)
    host.admit(["a"], "again")
    draining = asyncio.create_task(host.drain(60))
    await asyncio.sleep(0)
    gates.open("a")
    assert await draining == ["a"]
    assert gates.calls == ["a"]


async def test_one_cancelled_before_its_first_step_is_handed_back() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=1)
    host.admit(["a"], "job")
    assert await host.drain(0) == ["a"]
    assert gates.calls == []


async def test_a_hurry_ends_the_grace() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=1)
    host.admit(["a"], "job")
    await gates.called(1)
    draining = asyncio.create_task(host.drain(600))
    host.hurry()
    assert await draining == ["a"]
    assert gates.handed == ["a"]


async def test_one_that_does_not_let_go_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aioreactor.jobs.host.HAND_BACK", 0.01)
    gates = Gates()
    gates.stubborn = True
    host = Host(gates, max_concurrency=1)
    host.admit(["a"], "job")
    await gates.called(1)
    assert await host.drain(0) == ["a"]
    assert "was not handed back" in caplog.text
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_cancelled_drain_cancels_what_runs() -> None:
    gates = Gates()
    host = Host(gates, max_concurrency=1)
    host.admit(["a"], "job")
    await gates.called(1)
    draining = asyncio.create_task(host.drain(600))
    await asyncio.sleep(0)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert await host.idle(10)
    assert gates.handed == ["a"]


async def test_a_carrier_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def carry_on(self, run_id: str, delivery: str) -> None:
            raise RuntimeError("no")

    host = Host(Broken(), max_concurrency=1)
    host.admit(["a"], "job")
    assert await host.idle(10)
    assert "the carrier raised" in caplog.text


def test_there_is_room_for_one_at_least() -> None:
    with pytest.raises(ValueError, match="max_concurrency"):
        Host(Gates(), max_concurrency=0)
