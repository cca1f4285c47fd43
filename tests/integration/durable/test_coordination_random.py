"""Many runs, few keys, two workers that come and go, failures by chance: never two inside, and everything ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from aioreactor import Context, Failure, Lock, Outcome, Reactor, Retry, Semaphore, Success, compose, map_each, value
from aioreactor.coordination import inspect
from tests.integration.durable.kit import Place, behave, noted
from tests.integration.durable.test_background import place, working

__all__ = ["place"]
AGAIN = Retry(max_attempts=3, base_delay=0.01)


class Inner(Reactor[str], name="cr.Inner", coordination=[Lock(lambda i: f"key:{i.key}")]):
    key: int
    one = noted(retries=AGAIN)
    two = noted([one])
    returns = two


class Keyed(Reactor[str], name="cr.Keyed", coordination=[Lock(lambda i: f"key:{i.key}"), Semaphore("few", limit=3)]):
    key: int
    one = noted(retries=AGAIN)
    two = noted([one], coordination=[Lock(lambda i: "key:9", rollback_wait=30)])
    returns = two


class Steps(Reactor[str], name="cr.Steps"):
    key: int
    free = noted()
    one = noted([free], coordination=[Lock("key:1", rollback_wait=30)], retries=AGAIN)
    two = noted([free], coordination=[Lock("key:2", rollback_wait=30)])
    three = noted([one, two], coordination=[Semaphore("few", limit=3)])
    returns = three


class Nested(Reactor[str], name="cr.Nested"):
    key: int
    inner = compose(Inner)
    after_it = noted([inner], coordination=[Lock("key:9")])
    returns = after_it


class Mapped(Reactor[str], name="cr.Mapped"):
    key: int
    m = map_each(Inner, over=value([0, 1, 2]), item="key", concurrency=2)
    last = noted([m])
    returns = last


KINDS: list[type[Reactor[Any]]] = [Keyed, Steps, Nested, Mapped]
KEYS = {"cr.Steps": {"one": "key:1", "two": "key:2"}, "cr.Nested": {"after_it": "key:9"}}


def key_of(ctx: Context) -> list[str]:
    """What a body is supposed to hold alone."""
    if ctx.reactor in {"cr.Inner", "cr.Keyed"}:
        held = [f"key:{ctx.inputs['key']}"]
        return [*held, "key:9"] if (ctx.reactor, ctx.step) == ("cr.Keyed", "two") else held
    name = KEYS.get(ctx.reactor, {}).get(ctx.step)
    return [name] if name is not None else []


class World:
    def __init__(self, seed: int, failing: float) -> None:
        self.chance = random.Random(seed)
        self.failing = failing
        self.inside: Counter[str] = Counter()
        self.broken: list[str] = []
        self.standing: Counter[str] = Counter()

    async def visit(self, ctx: Context, what: str) -> None:
        keys = key_of(ctx)
        for key in keys:
            self.inside[key] += 1
            if self.inside[key] > 1:
                self.broken.append(f"{what} {ctx.run_id} {ctx.path} in {key}")
        try:
            for _ in range(self.chance.randrange(4)):
                await asyncio.sleep(0.001)
        finally:
            for key in keys:
                self.inside[key] -= 1

    async def body(self, ctx: Context) -> None:
        await self.visit(ctx, "do")
        self.standing[ctx.run_id] += 1
        if self.chance.random() < self.failing:
            self.standing[ctx.run_id] -= 1
            raise ValueError("by chance")

    async def back(self, ctx: Context) -> None:
        await self.visit(ctx, "undo")
        self.standing[ctx.run_id] -= 1

    async def compensate(self, ctx: Context) -> None:
        await self.visit(ctx, "comp")


PATHS = ["one", "two", "three", "free", "after_it", "last", "inner.one", "inner.two"]
PATHS += [f"m[{index}].{name}" for index in range(3) for name in ("one", "two")]


@asynccontextmanager
async def two_working(place: Place) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(working(place, snooze_delay=1, snooze_max=60, park_after=0.05))
        yield


async def described(place: Place, ids: list[str]) -> str:
    """Who has not ended, and who holds what."""
    rows = [await place.store.peek(run_id) for run_id in ids]
    found = [
        f"{row.run_id} {row.reactor} {row.status} lease {row.lease_left_ms} due {row.due_ms - row.now_ms} {row.rest!r}"
        for row in rows
        if row is not None and not row.ended
    ]
    for key in ("key:0", "key:1", "key:2", "key:9", "few"):
        report = await inspect(key)
        found.append(f"{key}: {report.lock} {report.semaphore}")
    return "\n".join(found)


@pytest.mark.parametrize("seed", range(4))
async def test_never_two_inside_and_everything_ends(place: Place, seed: int) -> None:
    world = World(seed, failing=0.15)
    for path in PATHS:
        behave[path], behave[f"undo:{path}"], behave[f"comp:{path}"] = world.body, world.back, world.compensate
    handles = [await world.chance.choice(KINDS).enqueue(key=world.chance.randrange(3)) for _ in range(40)]
    for _ in range(3):
        async with two_working(place):
            await asyncio.sleep(0.15)
    assert place.runtime.durable is not None
    for handle in handles:  # the sweeper's work: jobs that the workers had taken come again after half a minute only
        await place.runtime.durable.ring(handle.run_id, f"{place.prefix}-queue")
    outcomes: list[Outcome[Any]] = []
    async with two_working(place):
        for handle in handles:
            try:
                outcomes.append(await handle.result(timeout=40))
            except TimeoutError:
                pytest.fail(await described(place, [each.run_id for each in handles]))
    assert world.broken == []
    for outcome in outcomes:
        assert isinstance(outcome, (Success, Failure)), outcome
        if isinstance(outcome, Failure):
            assert isinstance(outcome.error, ValueError), outcome
            assert outcome.rollback_failures == []
    async with asyncio.timeout(10):  # what is held is given back just after the outcome
        for key in ("key:0", "key:1", "key:2", "key:9", "few"):
            while (report := await inspect(key)).lock is not None or report.semaphore is not None:
                await asyncio.sleep(0.01)
