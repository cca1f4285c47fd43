"""Maps that fan out, whose elements write the ledger."""

from __future__ import annotations

import asyncio

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


class Sleeper(Reactor, name="fanned.Sleeper"):
    """Its first element stops the process of a worker that was told to."""

    @map_each(over=value(list(range(4))), fan_out=True)
    async def m(self, n: int, ctx: Context) -> int:
        await reactors.write(ctx, "do")
        if n == 0 and reactors.STOPPING:
            await reactors.stop_here(ctx)
        return n


ALL = {each.__name__: each for each in (Fanned, FannedFails, Single, Sleeper)}
