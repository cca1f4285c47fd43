"""Maps that fan out, whose elements write the ledger."""

from __future__ import annotations

import asyncio
import os
import signal

from aioreactor import Context, FanOut, Reactor, map_each, value
from tests.faults import reactors

COUNT = 120


async def briefly(ctx: Context) -> None:
    await asyncio.sleep(0.01)


class Piece(Reactor[str], name="fanned.Piece"):
    n: int
    e1 = reactors.noted(then=briefly)
    e2 = reactors.noted([e1], undo_too=briefly)
    returns = e2


class Fanned(Reactor, name="fanned.Fanned"):
    a = reactors.noted()
    m = map_each(Piece, over=value(list(range(COUNT))), item="n", after=[a], fan_out=FanOut(batch_size=40))
    z = reactors.noted([m])


class FannedFails(Reactor, name="fanned.FannedFails"):
    a = reactors.noted()
    m = map_each(Piece, over=value(list(range(COUNT))), item="n", after=[a], fan_out=FanOut(batch_size=40))
    z = reactors.noted([m], then=reactors.breaks)


class Single(Reactor, name="fanned.Single"):
    a = reactors.noted()

    @map_each(over=value(list(range(COUNT))), after=[a], fan_out=FanOut(batch_size=40))
    async def m(self, n: int, ctx: Context) -> str:
        await reactors.write(ctx, "do")
        await asyncio.sleep(0.01)
        return "done"

    @m.undo
    async def undo_m(self, result: str, ctx: Context) -> None:
        assert result == "done"
        await reactors.write(ctx, "undo")

    @m.compensate
    async def comp_m(self, ctx: Context) -> None:
        await reactors.write(ctx, "comp")

    z = reactors.noted([m], then=reactors.breaks)


async def stops(ctx: Context) -> None:
    if reactors.STOPPING:
        if "[1]" in ctx.run_id:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            await asyncio.Event().wait()  # no other element has begun its next step when the process stops


class Sleepy(Reactor[str], name="fanned.Sleepy"):
    n: int
    e1 = reactors.noted(then=stops)
    e2 = reactors.noted([e1])
    returns = e2


class SleepsLater(Reactor[str], name="fanned.SleepsLater"):
    n: int
    e1 = reactors.noted()
    e2 = reactors.noted([e1], then=stops)
    e3 = reactors.noted([e2])
    returns = e3


class Early(Reactor, name="fanned.Early"):
    """The process of a worker that was told to stops in the first step of an element, which is none of its own yet."""

    m = map_each(Sleepy, over=value(list(range(4))), item="n", fan_out=True)


class Late(Reactor, name="fanned.Late"):
    """It stops in the second one: the element is a run of its own by then."""

    m = map_each(SleepsLater, over=value(list(range(4))), item="n", fan_out=True)


ALL = {each.__name__: each for each in (Fanned, FannedFails, Single, Early, Late)}
