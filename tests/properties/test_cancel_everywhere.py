"""Cancel a run at every turn of the event loop it takes, in every way there is to cancel: no effect may be left behind.

Bodies note their effect in a ledger; undo and compensate take it out. A run that was hit has to end with an empty
ledger and the cancellation at the caller; one that was not hit ends as it always does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from aioreactor import Context, Failure, Reactor, Retry, Runtime, Settings, Success, compose, map_each, step, value
from tests.properties.stage import make_reactor

MOST_TURNS = 400


class Ledger:
    """What stands, and which rollback actions were called."""

    def __init__(self) -> None:
        self.stands: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.entered: set[str] = set()

    async def effect(self, path: str) -> None:
        await asyncio.sleep(0)
        self.stands.add(path)
        await asyncio.sleep(0)

    async def reverse(self, kind: str, path: str) -> None:
        self.calls[f"{kind}:{path}"] += 1
        self.entered.add(path)
        await asyncio.sleep(0)
        self.stands.discard(path)
        await asyncio.sleep(0)


class TurnClock:
    """Timers of the engine ring after some turns of the loop (one per second of delay), not after some time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        return _TurnTimer(int(delay), callback)


class _TurnTimer:
    def __init__(self, turns: int, callback: Callable[[], object]) -> None:
        self.turns = turns
        self.callback = callback
        self.off = False
        if turns < 30:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self.off:
            return
        self.turns -= 1
        if self.turns <= 0:
            self.callback()
        else:
            asyncio.get_running_loop().call_soon(self._turn)

    def cancel(self) -> None:
        self.off = True


class Kit:
    """Makes steps that write into one ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    def act(self, after: Sequence[Any] = (), fails: int = 0, slow: int = 0, **options: Any) -> Any:
        ledger = self.ledger

        async def body(_: Any, ctx: Context) -> str:
            await ledger.effect(ctx.path)
            for _turn in range(slow):
                await asyncio.sleep(0)
            if ctx.attempt <= fails:
                raise ValueError(ctx.path)
            return ctx.path

        async def undo(_: Any, ctx: Context) -> None:
            await ledger.reverse("undo", ctx.path)

        async def compensate(_: Any, ctx: Context) -> None:
            await ledger.reverse("compensate", ctx.path)

        node = step(after=after, **options)(body)
        node.undo(undo)
        node.compensate(compensate)
        return node

    def in_thread(self, after: Sequence[Any] = ()) -> Any:
        ledger = self.ledger

        def body(_: Any, ctx: Context) -> None:
            ledger.stands.add(ctx.path)
            time.sleep(0.001)

        def undo(_: Any, ctx: Context) -> None:
            ledger.calls[f"undo:{ctx.path}"] += 1
            ledger.stands.discard(ctx.path)

        def compensate(_: Any, ctx: Context) -> None:
            ledger.calls[f"compensate:{ctx.path}"] += 1
            ledger.stands.discard(ctx.path)

        node = step(after=after)(body)
        node.undo(undo)
        node.compensate(compensate)
        return node


class Hooks:
    """Awaits in every hook."""

    async def on_event(self, event: Any) -> None:
        await asyncio.sleep(0)


def chain(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    b = kit.act([a])
    return make_reactor("Chain", {"a": a, "b": b, "c": kit.act([b])}, **options)


def diamond(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    b, c = kit.act([a]), kit.act([a], slow=2)
    return make_reactor("Diamond", {"a": a, "b": b, "c": c, "d": kit.act([b, c])}, **options)


def composed(kit: Kit, **options: Any) -> Any:
    x = kit.act()
    inner = make_reactor("Inner", {"x": x, "y": kit.act([x]), "z": kit.act()})
    middle = make_reactor("Middle", {"i": compose(inner), "m": kit.act()})
    a = kit.act()
    return make_reactor("Outer", {"a": a, "k": compose(middle, after=[a]), "b": kit.act()}, **options)


def _element(kit: Kit, fails: int = 0) -> Any:
    e = kit.act()
    return make_reactor("Element", {"e": e, "f": kit.act([e], fails=fails)}, {"n": int})


def mapped(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    m = map_each(_element(kit), over=value([0, 1, 2]), item="n", concurrency=2, after=[a])
    return make_reactor("Mapped", {"a": a, "m": m, "z": kit.act([m])}, **options)


def collecting(kit: Kit, **options: Any) -> Any:
    m = map_each(_element(kit, fails=1), over=value([0, 1]), item="n", concurrency=1, atomic=False)
    return make_reactor("Collecting", {"m": m, "z": kit.act([m]), "w": kit.act(slow=20)}, **options)


def retrying(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    b = kit.act([a], fails=2, retries=Retry(3, base_delay=3, backoff="fixed"))
    return make_reactor("Retrying", {"a": a, "b": b, "c": kit.act()}, **options)


def listened(kit: Kit, **options: Any) -> Any:
    inner = make_reactor("Inner", {"x": kit.act(), "y": kit.act()})
    a = kit.act()
    return make_reactor("Listened", {"a": a, "k": compose(inner, after=[a])}, middlewares=[Hooks()], **options)


def listened_failing(kit: Kit, **options: Any) -> Any:
    a, m = kit.act(), map_each(_element(kit, fails=1), over=value([0, 1]), item="n", concurrency=1, atomic=False)
    made = {"a": a, "m": m, "z": kit.act([m], fails=1), "w": kit.act(fails=1, retries=Retry(2, base_delay=2))}
    return make_reactor("ListenedFailing", made, middlewares=[Hooks()], **options)


def bounded(kit: Kit, **options: Any) -> Any:
    inner = make_reactor("Inner", {"x": kit.act(), "y": kit.act(), "z": kit.act()}, max_concurrency=2)
    made = {"k": compose(inner), "a": kit.act(), "b": kit.act(fails=1, retries=Retry(2, base_delay=2))}
    return make_reactor("Bounded", made, max_concurrency=1, **options)


def failing(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    x = kit.act()
    inner = make_reactor("Inner", {"x": x, "y": kit.act([x], fails=1), "z": kit.act(slow=3)})
    return make_reactor("Failing", {"a": a, "k": compose(inner, after=[a]), "b": kit.act(slow=9)}, **options)


def failing_fast(kit: Kit, **options: Any) -> Any:
    return failing(kit, on_failure="cancel", **options)


def expiring(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    inner = make_reactor("Inner", {"x": kit.act(slow=100), "y": kit.act()}, deadline=9)
    return make_reactor("Expiring", {"a": a, "k": compose(inner, after=[a])}, **options)


def expired(kit: Kit, **options: Any) -> Any:
    a = kit.act()
    return make_reactor("Expired", {"a": a, "b": kit.act([a], slow=100)}, deadline=9, **options)


def threaded(kit: Kit, **options: Any) -> Any:
    a = kit.in_thread()
    return make_reactor("Threaded", {"a": a, "b": kit.act([a]), "c": kit.in_thread()}, **options)


SHAPES: list[Callable[..., type[Reactor[Any]]]] = [
    chain,
    diamond,
    composed,
    mapped,
    collecting,
    retrying,
    listened,
    listened_failing,
    bounded,
    failing,
    failing_fast,
    expiring,
    expired,
]
GOOD = {chain, diamond, composed, mapped, collecting, retrying, listened, bounded, threaded}
natively = pytest.mark.parametrize("shape", [pytest.param(each, id=each.__name__) for each in SHAPES])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def check(kit: Kit, shape: Any, outcome: Any, *, hit: bool, where: str) -> None:
    """The ledger after a run."""
    ledger = kit.ledger
    assert all(count == 1 for count in ledger.calls.values()), f"{where}: {ledger.calls}"
    twice = {call.partition(":")[2] for call in ledger.calls}
    assert len(twice) == len(ledger.calls), f"{where}: both undone and compensated: {ledger.calls}"
    if hit or shape not in GOOD:
        assert not ledger.stands, f"{where}: left behind {ledger.stands}; {ledger.calls}"
    else:
        assert ledger.stands, where
    if not hit:
        assert isinstance(outcome, Success if shape in GOOD else Failure), (where, outcome)
        assert not getattr(outcome, "rollback_failures", [])


async def play(cls: Any) -> Any:
    async with Runtime(Settings(clock=TurnClock())):
        return await cls.run()


async def _native(kit: Kit, cls: Any, waits: Sequence[int], where: str) -> tuple[bool, Any]:
    """Cancel the task after so many turns, then again after so many more; whether it was hit, and the outcome."""
    before = asyncio.all_tasks()
    task = asyncio.create_task(play(cls))
    hit = False
    for count in waits:
        await turns(count)
        hit = task.cancel() or hit
    await asyncio.wait({task}, timeout=5)
    assert task.done(), f"{where}: it hangs"
    await turns(2)
    left = asyncio.all_tasks() - before - {task}
    assert not left, f"{where}: tasks are left: {left}"
    if hit:
        assert task.cancelled(), f"{where}: the cancellation did not reach the caller: {task!r}"
        return True, None
    return False, task.result()


async def _everywhere(shape: Any, hits: Callable[[Kit, Any, int, str], Any], **options: Any) -> None:
    for count in range(MOST_TURNS):
        kit = Kit()
        where = f"{shape.__name__} after {count} turns"
        hit, outcome = await hits(kit, shape(kit, **options), count, where)
        check(kit, shape, outcome, hit=hit, where=where)
        if not hit:
            assert count > 5
            return
    raise AssertionError("the run takes more turns than expected")


@natively
async def test_cancelled_once(shape: Any) -> None:
    await _everywhere(shape, lambda kit, cls, count, where: _native(kit, cls, [count], where))


@natively
@pytest.mark.parametrize("gap", [1, 2, 3, 5, 9])
async def test_cancelled_twice(shape: Any, gap: int) -> None:
    await _everywhere(shape, lambda kit, cls, count, where: _native(kit, cls, [count, gap], where))


@natively
async def test_cancelled_again_and_again(shape: Any) -> None:
    await _everywhere(shape, lambda kit, cls, count, where: _native(kit, cls, [count, *[1] * 40], where))


@every_shape
async def test_an_anyio_scope_is_cancelled(shape: Any) -> None:
    async def scoped(kit: Kit, cls: Any, count: int, where: str) -> tuple[bool, Any]:
        outcome, ended = None, False
        pacer: asyncio.Task[None] | None = None
        with anyio.CancelScope() as scope:
            pacer = asyncio.create_task(_after(count, scope.cancel))
            outcome = await play(cls)
            ended = True
        assert pacer is not None
        late = pacer.done() and ended
        await pacer
        assert ended or scope.cancelled_caught, f"{where}: neither ended nor cancelled"
        if late and shape in GOOD and isinstance(outcome, Success):
            assert kit.ledger.stands, f"{where}: the caller has a Success, yet its effects are gone"
            check(kit, shape, outcome, hit=False, where=where)
            _forget(kit)
            return True, None
        return not ended or (pacer.done() and late), outcome

    await _everywhere(shape, scoped)


def _forget(kit: Kit) -> bool:
    kit.ledger.stands.clear()
    return True


async def _after(count: int, then: Callable[[], object]) -> None:
    await turns(count)
    then()


@natively
async def test_a_timeout_around_the_run_expires(shape: Any) -> None:
    async def timed(kit: Kit, cls: Any, count: int, where: str) -> tuple[bool, Any]:
        outcome, expired = None, False
        loop = asyncio.get_running_loop()
        pacer = None
        try:
            async with asyncio.timeout(None) as limit:
                pacer = asyncio.create_task(_after(count, lambda: limit.reschedule(loop.time())))
                outcome = await play(cls)
                pacer.cancel()
        except TimeoutError:
            expired = True
        assert pacer is not None
        await asyncio.wait({pacer})
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0, where
        return expired, outcome

    await _everywhere(shape, timed)


@pytest.mark.parametrize("shape", [chain, diamond, composed, mapped, listened], ids=lambda shape: shape.__name__)
async def test_aborted_runs_undo_nothing(shape: Any) -> None:
    """Shapes in which nothing fails by itself: what was done stays."""
    for count in range(MOST_TURNS):
        kit = Kit()
        hit, _ = await _native(kit, shape(kit, on_cancel="abort"), [count], f"{shape.__name__} after {count}")
        assert not kit.ledger.calls
        if not hit:
            return


async def test_blocking_bodies() -> None:
    """The loop turns freely while a thread works, so only the first turns, and some moments, are tried."""
    for count in [*range(25), 100, 200, 400, 800]:
        kit = Kit()
        where = f"threaded after {count} turns"
        hit, outcome = await _native(kit, threaded(kit), [count], where)
        check(kit, threaded, outcome, hit=hit, where=where)
