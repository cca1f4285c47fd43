"""Reactors whose bodies, undos and compensates write a ledger that outlives their process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from aioreactor import (
    Context,
    Failure,
    Outcome,
    Reactor,
    Retry,
    Step,
    Success,
    async_reactor,
    async_step,
    compose,
    halt,
    interrupt,
    map_each,
    result,
    step,
    timer,
    value,
)
from aioreactor.store.client import StoreClient


class Ledger:
    """One list in Redis: ``run_id kind:path`` per line. ``die_after`` lines of this process, it is killed."""

    def __init__(self, url: str, key: str, *, die_after: int | None = None) -> None:
        self.client = StoreClient(url)
        self.key = key
        self.die_after = die_after
        self.written = 0

    async def write(self, run_id: str, line: str) -> None:
        await self.client.execute("RPUSH", self.key, f"{run_id} {line}")
        self.written += 1
        if self.die_after is not None and self.written > self.die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    async def lines(self, run_id: str) -> list[str]:
        found: list[bytes] = await self.client.execute("LRANGE", self.key, 0, -1)
        split = [line.decode().partition(" ") for line in found]
        return [line for run, _, line in split if run == run_id]

    async def visit(self, who: str, what: str, key: str, pid: int | None = None) -> None:
        """Somebody comes into what a key protects, or leaves it; in the server's order, and with its time."""
        fields = ("who", who, "what", what, "key", key, "pid", os.getpid() if pid is None else pid)
        await self.client.execute("XADD", f"{self.key}.visits", "*", *fields)

    async def aclose(self) -> None:
        await self.client.aclose(drain=0)


_ledgers: dict[asyncio.AbstractEventLoop, Ledger] = {}


def use(ledger: Ledger) -> None:
    """Where the bodies of this loop write."""
    _ledgers.clear()
    _ledgers[asyncio.get_running_loop()] = ledger


def ledger() -> Ledger:
    """Where the bodies of this loop write."""
    return _ledgers[asyncio.get_running_loop()]


async def write(ctx: Context, kind: str) -> None:
    await _ledgers[asyncio.get_running_loop()].write(ctx.run_id, f"{kind}:{ctx.path}")


async def note(run_id: str, line: str) -> None:
    await _ledgers[asyncio.get_running_loop()].write(run_id, line)


Then = Callable[[Context], Any]


def noted(after: Any = (), then: Then | None = None, undo_too: Then | None = None, **options: Any) -> Any:
    """A step with all three functions; ``then`` says what its body does after its effect."""

    async def body(self: Any, ctx: Context) -> str:
        await write(ctx, "do")
        if then is not None:
            found = then(ctx)
            if hasattr(found, "__await__"):
                await found
        return f"{ctx.path}!"

    async def undo(self: Any, ctx: Context, result: Any) -> None:
        assert result == f"{ctx.path}!", result
        await write(ctx, "undo")
        if undo_too is not None:
            found = undo_too(ctx)
            if hasattr(found, "__await__"):
                await found

    async def compensate(self: Any, ctx: Context, error: BaseException) -> None:
        assert isinstance(error, BaseException)
        await write(ctx, "comp")

    node = step(after=after, **options)(body)
    node.undo(undo)
    node.compensate(compensate)
    return node


def breaks(ctx: Context) -> None:
    raise ValueError(f"no {ctx.path}")


def breaks_twice(ctx: Context) -> None:
    if ctx.attempt < 3:
        raise ValueError(f"no {ctx.path} {ctx.attempt}")


def breaks_in(*paths: str) -> Then:
    def then(ctx: Context) -> None:
        if ctx.path in paths:
            raise ValueError(f"no {ctx.path}")

    return then


def halts(ctx: Context) -> None:
    halt("enough")


class Steady(Reactor):
    """Long enough for things to happen to the server."""

    s0 = noted(then=lambda ctx: asyncio.sleep(0.01))
    s1 = noted(after=[s0], then=lambda ctx: asyncio.sleep(0.01))
    s2 = noted(after=[s1], then=lambda ctx: asyncio.sleep(0.01))
    s3 = noted(after=[s2], then=lambda ctx: asyncio.sleep(0.01))
    s4 = noted(after=[s3], then=lambda ctx: asyncio.sleep(0.01))
    s5 = noted(after=[s4], then=breaks)


async def waits(ctx: Context) -> None:
    await asyncio.sleep(3600)


THRICE = Retry(3, backoff="fixed", base_delay=0.0)


class Chain(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b])


class ChainFails(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b], then=breaks)


class Diamond(Reactor):
    a = noted()
    left = noted(after=[a])
    right = noted(after=[a])
    z = noted(after=[left, right])


class DiamondFails(Reactor):
    a = noted()
    left = noted(after=[a])
    right = noted(after=[a])
    z = noted(after=[left, right], then=breaks)


class Trip(Reactor):
    t1 = noted()
    t2 = noted(after=[t1])


class TripFails(Reactor):
    t1 = noted()
    t2 = noted(after=[t1], then=breaks)


class Composed(Reactor):
    a = noted()
    trip = compose(Trip, after=[a])
    z = noted(after=[trip])


class ComposedFailsInside(Reactor):
    a = noted()
    trip = compose(TripFails, after=[a])
    z = noted(after=[trip])


class ComposedFailsAfter(Reactor):
    a = noted()
    trip = compose(Trip, after=[a])
    z = noted(after=[trip], then=breaks)


class Element(Reactor):
    n: int
    e1 = noted()
    e2 = noted(after=[e1], then=breaks_in("f[2].e2", "loose[1].e2"))


class Mapped(Reactor):
    a = noted()
    m = map_each(Element, over=value([0, 1, 2]), item="n", concurrency=1, after=[a])
    z = noted(after=[m])


class MappedWide(Reactor):
    a = noted()
    m = map_each(Element, over=value([0, 1, 2]), item="n", after=[a])
    z = noted(after=[m])


class MappedFails(Reactor):
    a = noted()
    f = map_each(Element, over=value([0, 1, 2]), item="n", concurrency=1, after=[a])
    z = noted(after=[f])


class MappedFailsAfter(Reactor):
    a = noted()
    m = map_each(Element, over=value([0, 1, 2]), item="n", concurrency=1, after=[a])
    z = noted(after=[m], then=breaks)


class MappedLoosely(Reactor):
    """One element fails and rolls itself back; the map goes on."""

    a = noted()
    loose = map_each(Element, over=value([0, 1, 2]), item="n", concurrency=1, atomic=False, after=[a])
    z = noted(after=[loose])


class Nest(Reactor):
    n: int
    e0 = noted()
    trip = compose(TripFails, after=[e0])


class MappedLooselyDeep(Reactor):
    a = noted()
    deep = map_each(Nest, over=value([0, 1]), item="n", concurrency=1, atomic=False, after=[a])
    z = noted(after=[deep])


class Retried(Reactor):
    a = noted()
    b = noted(after=[a], then=breaks_twice, retries=THRICE)
    c = noted(after=[b])


class RetriedFails(Reactor):
    a = noted()
    b = noted(after=[a], then=breaks, retries=THRICE)


class Halts(Reactor):
    a = noted()
    b = noted(after=[a], then=halts)
    c = noted(after=[b])


class Charge(Step[str]):
    """A step class: its undo needs what its body was given."""

    amount: int
    who: str = "nobody"

    async def run(self, ctx: Context) -> str:
        assert (self.amount, self.who) == (7, "alice")
        await write(ctx, "do")
        return f"{ctx.path}!"

    async def undo(self, ctx: Context, result: str) -> None:
        assert (self.amount, self.who) == (7, "alice"), (self.amount, self.who)
        await write(ctx, "undo")

    async def compensate(self, ctx: Context, error: BaseException) -> None:
        assert (self.amount, self.who) == (7, "alice"), (self.amount, self.who)
        await write(ctx, "comp")


class WithClass(Reactor):
    a = noted()
    charge = Charge.step(amount=7, who="alice", after=[a])
    z = noted(after=[charge], then=breaks)


class Undecided(Reactor):
    """``slow`` is in flight while ``bad`` fails."""

    a = noted()
    slow = noted(after=[a], then=lambda ctx: asyncio.sleep(0.02))
    bad = noted(after=[a], then=breaks)


class Cancelled(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b], then=waits)


class Timed(Reactor):
    a = noted()
    nap = timer(seconds=0.03, after=[a])
    b = noted(after=[nap])
    c = noted(after=[b])


class Approved(Reactor):
    a = noted()
    ok = interrupt(str, after=[a], correlation_id=lambda ctx: ctx.run_id)
    b = noted(after=[ok])
    c = noted(after=[b])
    returns = ok


class Behind(Reactor):
    """An answer is for a worker: who brings it only rings."""

    a = noted()
    ok = interrupt(str, after=[a], resume="background")
    b = noted(after=[ok])
    c = noted(after=[b])
    returns = ok


class Late(Reactor, deadline=0.3):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b], then=waits)


class Deadly(Reactor):
    """Whoever executes ``b`` dies of it."""

    a = noted()
    b = noted(after=[a], then=lambda ctx: os.kill(os.getpid(), signal.SIGKILL))
    c = noted(after=[b])


class HandedBack(Reactor):
    """Its worker ends in ``b``."""

    a = noted()
    b = noted(after=[a], then=lambda ctx: _leaves(ctx))
    c = noted(after=[b])


class HandedBackInUndo(Reactor):
    a = noted()
    b = noted(after=[a], undo_too=lambda ctx: _leaves(ctx))
    c = noted(after=[b], then=breaks)


class Pauses(Reactor):
    """Its process stops in ``b``."""

    a = noted()
    b = noted(after=[a], then=lambda ctx: _stop(ctx))
    c = noted(after=[b])


class PausesThenActs(Reactor):
    """Its process stops in ``b``, which would do more after its next wait."""

    a = noted()
    b = noted(after=[a], then=lambda ctx: _stop_then_act(ctx))
    c = noted(after=[b], then=breaks)


class PausesInUndo(Reactor):
    a = noted()
    b = noted(after=[a], undo_too=lambda ctx: _stop(ctx))
    c = noted(after=[b], then=breaks)


class PausesBackingOff(Reactor):
    """Its process stops while ``b`` waits for its next attempt, and nothing else is in flight."""

    a = noted()
    b = noted(
        after=[a],
        then=lambda ctx: _fails_and_stops_soon(ctx),
        retries=Retry(3, backoff="fixed", base_delay=0.3),
    )


async def _slowly() -> Any:
    for n in range(3):
        yield n
        if n == 0 and STOPPING:
            asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(0.3)


class PausesBetweenElements(Reactor):
    """Its process stops while the source of a map makes its caller wait."""

    a = noted()

    @map_each(over=lambda self: _slowly(), after=[a])
    async def m(self, it: int, ctx: Context) -> str:
        await write(ctx, "do")
        return "x"


def _fails_and_stops_soon(ctx: Context) -> None:
    if STOPPING:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGSTOP)
    if ctx.attempt < 3:
        raise ValueError("no")


STOPPING = False
LEAVING = False


async def _leaves(ctx: Context) -> None:
    """Its worker is told to end while it is at work."""
    if LEAVING:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(3600)


async def _stop_then_act(ctx: Context) -> None:
    await _stop(ctx)
    if STOPPING:
        await asyncio.sleep(0.5)  # in which its keeper learns that the run is lost
        await write(ctx, "late")


async def _stop(ctx: Context) -> None:
    if STOPPING:
        await write(ctx, "stop")
        os.kill(os.getpid(), signal.SIGSTOP)


class Sent(Reactor[str]):
    """What `Sends` dispatches."""

    of: str
    x = noted()
    y = noted(after=[x])
    returns = y


class Sends(Reactor):
    """Two units, one of them a single step, and a step that reads both."""

    a = noted()
    child = async_reactor(Sent, of=result(a))

    @async_step
    async def mail(self, ctx: Context, a: str) -> str:
        await write(ctx, "do")
        return f"mailed {a}"

    @step
    async def read(
        self, ctx: Context, child: Outcome[str] = result(child), mail: str | Failure = result(mail)
    ) -> list[str]:
        await write(ctx, "do")
        assert isinstance(mail, str)
        return [child.value if isinstance(child, Success) else "", mail]

    @read.undo
    async def unread(self, ctx: Context, child: Outcome[str], mail: str | Failure) -> None:
        assert (child, mail) == (Success("y!"), "mailed a!")
        await write(ctx, "undo")

    last = noted(after=[read])


class SendsFails(Sends):
    last = noted(after=[Sends.read], then=breaks)


ALL = {cls.__name__: cls for cls in vars().copy().values() if isinstance(cls, type) and issubclass(cls, Reactor)}
