"""Reactors that hold: as a whole, or in each of their steps. Bodies note when they come in and leave, at the server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aioreactor import Context, Lock, OrderedLock, Period, RateLimit, Reactor, Semaphore, step
from tests.faults import reactors
from tests.faults.reactors import Then, breaks, note, write

TTL = 1.0
POISON = 180.0


def key_of(given: Any) -> str:
    """Each run has its key; so has each of its steps."""
    return str(given.key)


@asynccontextmanager
async def inside(ctx: Context, key: str) -> AsyncIterator[None]:
    """Be in there, as far as the server can tell."""
    ledger = reactors.ledger()
    await ledger.visit(ctx.run_id, "enter", key)
    try:
        yield
    finally:
        await ledger.visit(ctx.run_id, "leave", key)


def kept(after: Any = (), then: Then | None = None, **options: Any) -> Any:
    """A step with all three functions, each inside what its run, or itself, holds."""

    async def body(self: Any, key: str, ctx: Context) -> str:
        async with inside(ctx, key):
            await write(ctx, "do")
            found: Any = then(ctx) if then is not None else None
            if hasattr(found, "__await__"):
                await found
        return f"{ctx.path}!"

    async def undo(self: Any, key: str, ctx: Context, result: Any) -> None:
        assert result == f"{ctx.path}!", result
        async with inside(ctx, key):
            await write(ctx, "undo")

    async def compensate(self: Any, key: str, ctx: Context, error: BaseException) -> None:
        async with inside(ctx, key):
            await write(ctx, "comp")

    node = step(after=after, **options)(body)
    node.undo(undo)
    node.compensate(compensate)
    return node


def slots(ttl: float) -> list[Any]:
    """A lock and a semaphore of one slot."""
    patient: dict[str, Any] = {"ttl": ttl, "wait": 5, "rollback_wait": 20}
    return [Lock(key_of, **patient), Semaphore(key_of, limit=1, **patient)]


LOCK, SLOT = slots(TTL)
RATE = RateLimit(key_of, 100, "year")
TURN = OrderedLock(key_of, poison_after=POISON, wait=10)
OTHERS = [RATE, TURN, Period(key_of, every="year")]
ALL = [LOCK, SLOT, *OTHERS]


class Held(Reactor, coordination=ALL):
    key: str
    a = kept()
    b = kept(after=[a])


class HeldFails(Reactor, coordination=ALL):
    key: str
    a = kept()
    b = kept(after=[a], then=breaks)


class HeldLong(Held, coordination=[*slots(15), *OTHERS]):
    """What it holds outlives the time in which somebody else takes it over."""


class HeldLongFails(HeldFails, coordination=[*slots(15), *OTHERS]):
    """Likewise."""


class InSteps(Reactor):
    key: str
    a = kept(coordination=[LOCK, SLOT, RATE])
    b = kept(after=[a], coordination=[LOCK, TURN])


class InStepsFails(Reactor):
    key: str
    a = kept(coordination=[LOCK, SLOT, RATE])
    b = kept(after=[a], coordination=[LOCK, TURN], then=breaks)


async def stands_still(ctx: Context) -> None:
    """Its process is stopped; when it wakes up it finds out before it does anything else."""
    if reactors.STOPPING:
        await note(ctx.run_id, "stop:b")
        os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(3600)
        await note(ctx.run_id, "woken:b")


async def until_told(ctx: Context) -> None:
    while "go" not in await reactors.ledger().lines(ctx.run_id):
        await asyncio.sleep(0.01)


class HeldStops(Reactor, coordination=[LOCK, SLOT]):
    key: str
    a = kept()
    b = kept(after=[a], then=stands_still)


class InStepsStops(Reactor):
    key: str
    a = kept()
    b = kept(after=[a], coordination=[LOCK, SLOT], then=stands_still)


class InStepsWaits(Reactor):
    key: str
    a = kept(coordination=[LOCK], then=until_told)


class HeldWaits(Reactor, coordination=[LOCK]):
    key: str
    a = kept(then=until_told)


class Following(Reactor, coordination=[OrderedLock(key_of, poison_after=120, strict=False)]):
    """One of many in a line; some take longer, some fail."""

    key: str
    n: int
    ms: int
    fails: bool

    @step
    async def a(self, ctx: Context) -> None:
        await note(self.key, f"{self.n}")
        await asyncio.sleep(self.ms / 1000)
        await note(self.key, f"{self.n}")
        if self.fails:
            raise ValueError(self.n)


class FollowingStrictly(Following, coordination=[OrderedLock(key_of, poison_after=120)]):
    """After a failure nobody follows."""


WHOLE = (Held, HeldFails, HeldLong, HeldLongFails, HeldStops, HeldWaits, Following, FollowingStrictly)
reactors.ALL |= {cls.__name__: cls for cls in (*WHOLE, InSteps, InStepsFails, InStepsStops, InStepsWaits)}
