"""Places in line of runs in workers: none is left by whoever goes, and none is taken from whoever goes on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from aioreactor import (
    Failure,
    Lock,
    LockUnavailable,
    OrderedLock,
    Period,
    Reactor,
    Runtime,
    Semaphore,
    Success,
    compose,
)
from aioreactor.coordination import inspect
from aioreactor.store.calls import Call
from tests.integration.durable.kit import Gate, Place, behave, every_turn, ledger, noted
from tests.integration.durable.test_background import place

__all__ = ["place"]


class InStep(Reactor[str], name="cp.InStep"):
    a = noted(coordination=[Lock("k", ttl=30)])
    returns = a


class AsWhole(Reactor[str], name="cp.AsWhole", coordination=[Lock("k", ttl=30)]):
    a = noted()
    returns = a


class AsChild(Reactor[str], name="cp.AsChild"):
    inner = compose(AsWhole)
    returns = inner


class OfTwo(Reactor[str], name="cp.OfTwo"):
    """The first one it has each time; it waits for the second."""

    a = noted(coordination=[Lock("j", ttl=30), Semaphore("k", limit=1, ttl=30)])
    returns = a


class Beside(Reactor[str], name="cp.Beside", coordination=[Lock("j", ttl=30)]):
    """It holds the first one meanwhile."""

    a = noted(coordination=[Lock("k", ttl=30)])
    returns = a


KINDS: dict[type[Reactor[Any]], Any] = {kind: Lock("k", ttl=30) for kind in (InStep, AsWhole, AsChild, Beside)}
KINDS[OfTwo] = Semaphore("k", limit=1, ttl=30)


async def counts(key: str = "k") -> tuple[int, int]:
    """How many hold, and how many stand in line."""
    report = await inspect(key)
    found = report.lock or report.semaphore
    return (len(found.holders), len(found.waiters)) if found is not None else (0, 0)


async def until(holders: int, waiters: int) -> None:
    async with asyncio.timeout(8):  # well below the time for which a place is kept for whoever it is given to
        while await counts() != (holders, waiters):
            await asyncio.sleep(0.002)


def carrying(runtime: Runtime, run_id: str) -> asyncio.Task[None]:
    """What a worker does with a run; cancelled, it hands it back."""
    assert runtime.durable is not None
    return asyncio.create_task(runtime.durable.carry_on(run_id, "test"))


async def ended(task: asyncio.Task[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
async def test_handed_back_at_any_moment_it_has_one_place_at_most(place: Place, kind: type[Reactor[Any]]) -> None:
    """It is refused, and told to end after any number of turns; whoever goes on with it stands in line once."""
    async with place.another(park_after=0.01, snooze_delay=600) as other, KINDS[kind]:
        for number in every_turn():
            handle = await kind.enqueue()
            task = carrying(place.runtime if number % 2 else other, handle.run_id)
            for _ in range(number):
                await asyncio.sleep(0)
            done = task.done()
            task.cancel()
            await ended(task)
            assert (await counts())[1] <= 1, f"after {number} turns"
            await place.do("HSET", place.store.space.run(handle.run_id), "due_ms", 0)
            await ended(carrying(other, handle.run_id))
            assert await counts() == (1, 1), f"after {number} turns"
            assert (await place.store.peek(handle.run_id)).lease_ms == 0  # type: ignore[union-attr]
            await handle.cancel("enough")
            await ended(carrying(other, handle.run_id))
            assert await counts() == (1, 0), f"after {number} turns"
            if done:
                break
    assert await counts("j") == (0, 0)
    assert ledger == []


class Once(Reactor[Any], name="cp.Once"):
    a = noted(coordination=[Period("k", every="year"), Lock("k", ttl=30)])
    b = noted([a])
    returns = b


async def test_a_step_whose_period_is_over_while_it_waits_leaves_the_line(place: Place) -> None:
    handle = await Once.enqueue()
    async with place.another(snooze_delay=0.1) as other:
        async with Lock("k", ttl=30), Period("k", every="year"):
            task = carrying(other, handle.run_id)
            await until(1, 1)
        # The period is marked now, and the lock goes to the one in line, who does not need it any more.
        await task
    assert await handle.result(timeout=10) == Success("b")
    assert ledger == ["do:b"]
    await until(0, 0)


class Line(Reactor[str], name="cp.Line", coordination=[OrderedLock("line"), Lock("k", ttl=30)]):
    a = noted()
    returns = a


@pytest.mark.parametrize("taken", [False, True])
async def test_a_run_that_is_cancelled_while_it_waits_for_its_turn_leaves_the_line(place: Place, taken: bool) -> None:
    gate = Gate()
    behave["a"] = gate
    handles = [await Line.enqueue() for _ in range(3)]
    async with place.another(park_after=0.01, snooze_delay=600) as other:
        first = carrying(other, handles[0].run_id)
        await gate.reached.wait()
        if taken:
            await carrying(other, handles[1].run_id)
        await handles[1].cancel("enough")
        gate.open.set()
        await first
        await asyncio.wait_for(carrying(other, handles[2].run_id), 20)
        assert await handles[2].result(timeout=10) == Success("a")
    assert [await handle.status() for handle in handles] == ["completed", "cancelled", "completed"]
    assert ledger == ["do:a"] * 2
    assert await OrderedLock.peek("line") is None
    await until(0, 0)


class Impossible(Reactor[Any], name="cp.Impossible"):
    """Its second gate cannot be computed any more when it comes back."""

    a = noted(coordination=[Lock("j", ttl=30), Lock("k", ttl=30)])


async def test_a_step_that_fails_at_another_gate_leaves_the_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from aioreactor.coordination import slots

    async with place.another(snooze_delay=0.1) as other, Lock("k", ttl=30):
        handle = await Impossible.enqueue()
        task = carrying(other, handle.run_id)
        await until(1, 1)
        real = slots.enter

        async def enter(desk: Any, slot: Any, *args: Any, **more: Any) -> Any:
            if slot.key == "j":
                raise RuntimeError("no")
            return await real(desk, slot, *args, **more)

        monkeypatch.setattr(slots, "enter", enter)
        await task
        outcome = await handle.result(timeout=10)
        assert isinstance(outcome, Failure)
        assert str(outcome.error) == "no"
        assert await counts() == (1, 0)


class Overheard:
    """What a process said to the store."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_send(self, call: Call) -> None:
        self.names.append(call.name)

    def after_reply(self, call: Call, reply: Any) -> None:
        """Of no interest."""


@pytest.mark.parametrize("kind", [InStep, AsChild])
async def test_who_lost_the_run_while_it_waited_does_not_take_the_lock_from_who_has_it(
    place: Place, kind: type[Reactor[Any]]
) -> None:
    """Both know the same place in line: the run's. Its first process stood still, and finds that out as it wakes up."""
    gate, old_said = Gate(), Overheard()
    behave["a"] = behave["inner.a"] = gate
    async with (
        place.another(old_said, park_after=60, snooze_delay=0.5) as old,
        place.another(park_after=3600, snooze_delay=600) as new,
    ):
        async with Lock("k", ttl=30):
            handle = await kind.enqueue()
            first = carrying(old, handle.run_id)
            await until(1, 1)
            while not (await place.store.peek(handle.run_id)).ver > 2:  # type: ignore[union-attr]
                await asyncio.sleep(0.002)  # its place is kept
            old_said.names.clear()
            await place.lapse(handle.run_id)
            second = carrying(new, handle.run_id)
            while (await inspect("k")).lock.waiters[0].alive_for < 100:  # type: ignore[union-attr]
                await asyncio.sleep(0.002)  # it stands there now, too
        await asyncio.wait_for(gate.reached.wait(), 20)
        await ended(first)
        assert "slot_release" not in old_said.names
        assert await counts() == (1, 0)
        with pytest.raises(LockUnavailable):
            async with Lock("k"):
                raise AssertionError("two inside")
        gate.open.set()
        await second
        assert isinstance(await handle.result(timeout=10), Success)
    assert len(ledger) == 1
    await until(0, 0)


class AtLettingGo:
    """Does something when the server has let a run go, and its process does not know it yet."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def before_send(self, call: Call) -> None:
        """Not yet."""

    def after_reply(self, call: Call, reply: Any) -> None:
        if call.name == "run_release" and self.task is not None:
            self.task.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_told_to_end_while_it_lets_a_run_go_it_takes_no_place_from_it(
    place: Place, kind: type[Reactor[Any]]
) -> None:
    """Somebody else may have the run already, and come with its place in line."""
    hook = AtLettingGo()
    handle = await kind.enqueue()
    async with KINDS[kind]:
        runtime = place.another(hook, park_after=0.01, snooze_delay=600)
        async with runtime:
            hook.task = carrying(runtime, handle.run_id)
            await ended(hook.task)
            assert await counts() == (1, 1)
            hook.task = None
    async with place.another(snooze_delay=600) as other:
        await place.do("HSET", place.store.space.run(handle.run_id), "due_ms", 0)
        await carrying(other, handle.run_id)
        assert isinstance(await handle.result(timeout=10), Success)
    await until(0, 0)


async def test_a_slot_that_cannot_be_used_yet_is_left_to_others(place: Place) -> None:
    """What it waited for is given to it when it cannot have what comes before that: nobody waits for nothing."""
    handle, few = await OfTwo.enqueue(), Semaphore("k", limit=1, ttl=30, wait=5)
    async with place.another(park_after=3600, snooze_delay=600) as other, contextlib.AsyncExitStack() as stack:
        async with few:
            task = carrying(other, handle.run_id)
            await until(1, 1)
            await stack.enter_async_context(Lock("j", ttl=30))
        async with few:
            assert await counts("j") == (1, 1)
        assert await counts() == (0, 0)
        assert ledger == []
        await stack.aclose()
        await asyncio.wait_for(task, 10)
        assert other.coordinator().desk().inbox._callbacks == {}
    assert await handle.result(timeout=10) == Success("a")
    assert (await counts("j"), await counts()) == ((0, 0), (0, 0))
