"""While an event loop stands still, the log says which step of which run does that, and where."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from types import FrameType
from typing import Any

import pytest

from aioreactor import Reactor, Runtime, Settings, compose, map_each, step, value
from aioreactor.engine.ports import Environment
from aioreactor.engine.scheduler import Execution
from aioreactor.store import watchdog
from aioreactor.store.blocked import BlockReports
from aioreactor.store.claim import Claim
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.watchdog import Pulse

TTL_MS = 900


class Extends:
    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        claim.trust(time.monotonic())


class Told(logging.Handler):
    """What was said, and a bell that a blocked thread can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []
        self.bell = threading.Event()

    def emit(self, record: Any) -> None:
        self.records.append(record)
        if record.event == "loop_blocked":
            self.bell.set()

    def events(self) -> list[str]:
        return [record.event for record in self.records]


@pytest.fixture
def told() -> Iterator[Told]:
    global current
    handler, logger = Told(), logging.getLogger("aioreactor.runs")
    logger.addHandler(handler)
    current = handler
    yield handler
    logger.removeHandler(handler)


current: Told


def stand_still() -> None:
    """Block the loop until that was told of."""
    current.bell.clear()
    assert current.bell.wait(10)


def claim_of(ttl_ms: int = TTL_MS) -> Claim:
    return Claim("held", "token", ver=1, fence=1, ttl_ms=ttl_ms, asked_at=time.monotonic())


@pytest.fixture
async def keeper() -> AsyncIterator[LeaseKeeper]:
    keeper = LeaseKeeper(Extends(), reports=BlockReports())
    keeper.watch(claim_of(), lambda error: None)
    yield keeper
    await keeper.aclose()


class AtOnce(Reactor):
    @step
    async def pay(self) -> None:
        stand_still()


class AfterAWait(Reactor):
    @step
    async def pay(self) -> None:
        await asyncio.sleep(0)
        await self._deeper()

    async def _deeper(self) -> None:
        await asyncio.sleep(0)
        stand_still()


class Bounded(Reactor):
    @step(timeout=30)
    async def pay(self) -> None:
        await asyncio.sleep(0)
        stand_still()


class Nested(Reactor):
    trip = compose(AfterAWait)


class Elements(Reactor):
    @map_each(over=value([1, 2]), concurrency=1)
    async def m(self, item: int) -> None:
        if item == 2:
            stand_still()


class GoesBack(Reactor):
    @step
    async def book(self) -> int:
        return 1

    @book.undo
    async def cancel(self) -> None:
        stand_still()

    @step(after=[book])
    async def pay(self) -> None:
        raise ValueError("no")


class CleansUp(Reactor):
    @step
    async def pay(self) -> None:
        raise ValueError("no")

    @pay.compensate
    async def alert(self, error: BaseException) -> None:
        await asyncio.sleep(0)
        stand_still()


async def items(self: Any) -> list[int]:
    await asyncio.sleep(0)
    stand_still()
    return [1]


class Sources(Reactor):
    @map_each(over=items)
    async def m(self, item: int) -> None:
        pass


PLACES = [
    (AtOnce, "run", "pay", "pay"),
    (AfterAWait, "run", "pay", "_deeper"),
    (Bounded, "run", "pay", "pay"),
    (Nested, "run", "trip.pay", "_deeper"),
    (Elements, "run", "m[1]", "m"),
    (GoesBack, "undo", "book", "cancel"),
    (CleansUp, "compensate", "pay", "alert"),
    (Sources, "map", "m", "items"),
]


@pytest.mark.parametrize(
    ("reactor", "kind", "path", "function"), PLACES, ids=lambda each: getattr(each, "__name__", "")
)
async def test_the_step_and_its_stack_are_told_while_it_blocks(
    keeper: LeaseKeeper, told: Told, reactor: Any, kind: str, path: str, function: str
) -> None:
    async with Runtime(Settings()):
        outcome = await reactor.run()
    while "loop_resumed" not in told.events():
        await asyncio.sleep(0.005)
    assert told.events() == ["loop_blocked", "loop_resumed"]
    blocked, resumed = told.records
    assert (blocked.run_id, blocked.path, blocked.kind) == (outcome.run_id, path, kind)
    assert float(resumed.seconds) >= float(blocked.seconds) >= TTL_MS / 1000 / 3
    functions = re.findall(r"line \d+, in (\w+)", blocked.getMessage())
    assert functions[-3:] == ["stand_still", "wait", "wait"] or functions[-2:] == ["stand_still", "wait"]
    assert function in functions
    assert "aioreactor/engine" not in blocked.getMessage(), "only the user's code is shown"
    assert "stand_still()\n" in blocked.getMessage()


async def _child() -> None:
    stand_still()


class Hands(Reactor):
    @step
    async def work(self) -> None:
        await asyncio.create_task(_child())

    @step
    async def other(self) -> None:
        await asyncio.sleep(0.01)


async def test_a_task_of_a_body_is_told_with_what_is_in_flight(told: Told) -> None:
    executions: dict[str, Execution] = {}
    keeper = LeaseKeeper(Extends(), reports=BlockReports(executions.values))
    hold = keeper.watch(claim_of(), lambda error: None)
    execution = Execution(Environment(), Hands.plan, "r1")
    executions["r1"] = execution
    outcome = await execution.run(None, {})
    assert outcome.ok
    record = told.records[0]
    assert record.in_flight.split(",") == ["r1:work", "r1:other"]
    assert not hasattr(record, "path")
    assert "in _child" in record.getMessage()
    hold.release()
    await keeper.aclose()


async def test_a_standstill_is_told_once_and_the_next_one_again(keeper: LeaseKeeper, told: Told) -> None:
    for round_ in (1, 2):
        stand_still()
        begun = time.monotonic()
        while time.monotonic() < begun + TTL_MS / 1000:
            pass  # the loop goes on standing still, for long enough to be told of once more
        while told.events().count("loop_resumed") < round_:
            await asyncio.sleep(0.005)
    assert told.events() == ["loop_blocked", "loop_resumed"] * 2
    assert "run_id" not in told.records[0].__dict__, "it was no step"
    assert "in test_a_standstill_is_told_once" in told.records[0].getMessage()


class Sees:
    """Notes what it is told of; ``meanwhile`` happens while it looks at the stack."""

    def __init__(self) -> None:
        self.told: list[float] = []
        self.pulse: Pulse | None = None

    def seen(self, frame: FrameType) -> None:
        if self.pulse is not None:
            self.pulse.expect(60, 60)

    def blocked(self, seconds: float, seen: Any) -> None:
        self.told.append(seconds)


def test_who_comes_back_while_its_stack_is_looked_at_is_not_told_of() -> None:
    sees = Sees()
    pulse = Pulse(sees)
    pulse.due, pulse.patience = time.monotonic() - 5, 10
    pulse.look()
    assert sees.told == [], "not late enough"
    pulse.patience = 1
    pulse.look()
    pulse.look()
    assert sees.told == [pytest.approx(5, abs=1)]
    pulse.due = time.monotonic() - 5
    sees.pulse = pulse
    pulse.look()
    assert len(sees.told) == 1
    assert pulse.late_by(time.monotonic()) == 0
    pulse.forget()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_thread_is_there_only_while_somebody_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LINGER", 0.02)
    dog = watchdog.Watchdog()
    monkeypatch.setattr(watchdog, "_watchdog", dog)
    keeper = LeaseKeeper(Extends())
    assert not dog.alive
    for _ in (1, 2):
        hold = keeper.watch(claim_of(120), lambda error: None)
        assert dog.alive
        hold.release()
        await until(lambda: not dog.alive)
    await keeper.aclose()


async def test_a_shorter_lease_is_looked_after_in_its_own_time(keeper: LeaseKeeper, told: Told) -> None:
    """The thread sleeps for the long lease of another loop when the short one comes."""
    long = Pulse(Sees())
    long.expect(60, 60)
    stand_still()
    long.forget()
    await until(lambda: "loop_resumed" in told.events())


def test_a_process_that_was_paused_as_a_whole_is_given_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sees, slept = Sees(), []
    dog = watchdog.Watchdog()
    pulse = Pulse(sees)
    pulse.patience = 1.0
    pulse.due = time.monotonic() - 3
    dog._pulses.add(pulse)

    def sleep(span: float) -> float:
        slept.append(span)
        if len(slept) == 2:
            pulse.due = time.monotonic() + 60  # the loop beats
        if len(slept) == 3:
            dog._pulses.clear()
        return 2.0

    monkeypatch.setattr(dog, "_sleep", sleep)
    dog._run()
    assert slept[:2] == [0.005, 0.25]
    assert sees.told == []
