"""Each primitive's scripts against a plain model, step by step, over random sequences of what processes may do."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioreactor import OutOfTurn, Period, RateLimit, RateLimited, Semaphore, SemaphoreUnavailable
from aioreactor.coordination import orders, periods, rates, slots
from aioreactor.coordination.calendars import Bucket
from aioreactor.coordination.desk import Desk
from aioreactor.coordination.orders import Position
from aioreactor.coordination.rates import Spent, Windows
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Slot
from aioreactor.store.calls import Value
from tests.integration.coordination.kit import Place, turns

DEEP = os.environ.get("AIOREACTOR_FAULTS") == "deep"
EXAMPLES = settings(
    max_examples=1000 if DEEP else 60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_keys = itertools.count()
Step = TypeVar("Step")


def steps_of(draw: Callable[[random.Random], Step]) -> st.SearchStrategy[list[Step]]:
    """Steps by dice: hypothesis' own lists repeat themselves, and seldom get far. It still finds a shorter list."""

    def made(seed: int, length: int) -> list[Step]:
        dice = random.Random(seed)
        return [draw(dice) for _ in range(length)]

    return st.builds(made, st.integers(0, 2**32), st.integers(10, 60))


# ---------------------------------------------------------------------- slots


class SlotModel:
    """Who holds and who waits, as anybody would write it down."""

    def __init__(self) -> None:
        self.holders: set[str] = set()
        self.expired: set[str] = set()
        self.queue: list[str] = []
        self.dead: set[str] = set()
        self.limit = 1

    def settle(self, limit: int) -> None:
        while self.queue and len(self.holders) < limit:
            first = self.queue.pop(0)
            if first in self.dead:
                self.dead.remove(first)
            else:
                self.holders.add(first)

    def take(self, who: str, limit: int, stay: bool) -> str:
        self.expired = set()
        if who in self.holders:
            return "TAKEN"
        self.limit = limit
        if stay:
            self.dead.discard(who)
            if who not in self.queue:
                self.queue.append(who)
        self.settle(limit)
        if who not in self.holders and not stay and len(self.holders) < limit:
            self.holders.add(who)
        return "TAKEN" if who in self.holders else "WAITS" if stay else "REFUSED"

    def release(self, who: str) -> str:
        held = who in self.holders | self.expired
        left = who in self.queue
        self.holders.discard(who)
        self.expired.discard(who)
        self.dead.discard(who)
        if self.queue:
            self.queue = [each for each in self.queue if each != who]
            self.expired = set()
            self.settle(self.limit)
        return "RELEASED" if held else "LEFT" if left else "NOTHING"

    def renew(self, who: str) -> str:
        return "HELD" if who in self.holders else "LOST"

    def expire(self, who: str) -> None:
        if who in self.holders:
            self.holders.remove(who)
            self.expired.add(who)

    def die(self, who: str) -> None:
        if who in self.queue:
            self.dead.add(who)


class SlotReality:
    """The same through the scripts."""

    def __init__(self, place: Place, key: str) -> None:
        self.place, self.key = place, key
        self.desk = place.coordinator.desk()
        self.names = self.desk.keys.slots("semaphore", key)
        self.fences: list[int] = []

    async def take(self, who: str, limit: int, stay: bool) -> str:
        args: list[Value] = [who, limit, 600_000, 600_000 if stay else 0, 600_000, 0, "nobody", "label of\n" + who]
        reply = await self.desk.call("slot_take", self.names, args)
        if reply.word == "WAITS":
            queue = await self.place.waiting(self.key, "semaphore")
            assert queue[reply.values[1]] == who
        return reply.word

    async def release(self, who: str) -> str:
        return (await self.desk.call("slot_release", self.names, [who])).word

    async def renew(self, who: str) -> str:
        return (await self.desk.call("slot_renew", self.names[:2], [who, 600_000])).word

    async def expire(self, who: str) -> None:
        await self.place.do("ZADD", self.names.holders, "XX", 1, who)

    async def die(self, who: str) -> None:
        row = await self.place.do("HGET", self.names.waiters, who)
        if row is not None:
            await self.place.do("HSET", self.names.waiters, who, b"1 " + row.split(b" ", 1)[1])

    async def check(self, model: SlotModel) -> None:
        scores = await self.place.do("ZRANGE", self.names.holders, 0, -1, "WITHSCORES")
        found = {token.decode(): float(score) for token, score in zip(scores[::2], scores[1::2], strict=True)}
        assert {who for who, score in found.items() if score > 1} == model.holders
        assert await self.place.waiting(self.key, "semaphore") == model.queue
        facts = await self.place.do("HGETALL", self.names.facts)
        fields = dict(zip(facts[::2], facts[1::2], strict=True))
        named = {field[2:].decode() for field in fields if field.startswith(b"t:")}
        assert named == set(found)
        waiters = {token.decode() for token in await self.place.do("HKEYS", self.names.waiters)}
        assert waiters == set(model.queue)
        self.fences.append(int(fields.get(b"fence", 0)))
        assert self.fences == sorted(self.fences)
        mine = [int(fields[b"t:" + who.encode()].split()[0]) for who in model.holders]
        assert len(set(mine)) == len(mine)


SLOT_NAMES = ["take", "take", "take", "take", "release", "release", "renew", "expire", "die"]


def slot_step(dice: random.Random) -> tuple[str, int, int, bool]:
    return dice.choice(SLOT_NAMES), dice.randrange(6), dice.randint(1, 3), dice.random() < 0.7


@EXAMPLES
@given(steps=steps_of(slot_step))
async def test_slots(place: Place, steps: list[Any]) -> None:
    model, reality = SlotModel(), SlotReality(place, f"k{next(_keys)}")
    for name, actor, *options in steps:
        more = options if name == "take" else []
        expected = getattr(model, name)(f"a{actor}", *more)
        assert await getattr(reality, name)(f"a{actor}", *more) == expected, (name, actor, more)
        await reality.check(model)
    for actor in range(6):
        await reality.release(f"a{actor}")


# ---------------------------------------------------------------------- rates


def rate_step(dice: random.Random) -> tuple[str, int, str]:
    if dice.random() < 0.3:
        return "restore", dice.randrange(9), ""
    return "spend", dice.randint(1, 3), dice.choice(["both", "year", "month"])


@EXAMPLES
@given(
    algorithm=st.sampled_from(["fixed", "sliding", "gcra"]),
    steps=steps_of(rate_step),
)
async def test_rates(place: Place, algorithm: Any, steps: list[tuple[str, int, str]]) -> None:
    key, desk = f"k{next(_keys)}", place.coordinator.desk()
    limits = {"both": {"year": 9, "month": 6}, "year": {"year": 9}, "month": {"month": 6}}
    count, spent = {"year": 0, "month": 0}, list[tuple[Spent, dict[str, int], int]]()
    lengths = {365 * 86400.0: "year", 30 * 86400.0: "month"}
    for name, number, which in steps:
        if name == "restore":
            if number < len(spent):
                each, windows, cost = spent[number]
                again = await each.restore()
                assert again == bool(windows)
                for window in windows:
                    count[window] -= cost
                windows.clear()
            continue
        windows = dict(limits[which])
        limit = RateLimit(key, limits=windows, cost=number, algorithm=algorithm)
        fits = all(count[window] + number <= most for window, most in windows.items())
        try:
            done = await rates.spend(desk, Windows.of(limit, key, {}))
        except RateLimited as error:
            full = count[error.window] + number > error.limit
            assert (fits, full) == (False, True)
        else:
            assert fits
            for window in windows:
                count[window] += number
            spent.append((done, windows, number))
        report = await place.coordinator.inspect(key)
        assert {lengths[each.window]: each.used for each in report.counters} == {w: n for w, n in count.items() if n}


def spender_step(dice: random.Random) -> tuple[str, int, int]:
    return dice.choice(["spend", "spend", "restore"]), dice.randrange(4), dice.randint(1020, 1030)


@EXAMPLES
@given(algorithm=st.sampled_from(["fixed", "sliding", "gcra"]), steps=steps_of(spender_step))
async def test_rates_of_whoever_asks_in_several_processes(
    place: Place, algorithm: Any, steps: list[tuple[str, int, int]]
) -> None:
    key, desk = f"k{next(_keys)}", place.coordinator.desk()
    windows = Windows.of(RateLimit(key, limits={"year": 3}, algorithm=algorithm), key, {})
    owners = dict[str, int]()
    for name, number, fence in steps:
        who = rates.Spender(f"s{number}", fence)
        if name == "restore":
            gives = owners.get(who.name) == fence
            assert await Spent(desk, windows, who).restore() == gives
            if gives:
                del owners[who.name]
        elif who.name in owners or len(owners) < 3:
            await rates.spend(desk, windows, spender=who)
            owners[who.name] = max(owners.get(who.name, 0), fence)
        else:
            with pytest.raises(RateLimited):
                await rates.spend(desk, windows, spender=who)
        counters = (await place.coordinator.inspect(key)).counters
        assert [each.used for each in counters if each.used] == [len(owners)] * bool(owners)


# ---------------------------------------------------------------------- periods


@EXAMPLES
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=12, max_size=50))
async def test_periods(place: Place, steps: list[tuple[bool, int]]) -> None:
    key, desk, marked = f"k{next(_keys)}", place.coordinator.desk(), None
    now = (await periods.check(desk, Period(key, "year"), key)).bucket
    length = now.end - now.start
    for marks, off in steps:
        bucket = Bucket(now.start + off * length, now.end + off * length)
        if marks:
            claim = periods.Claim(key, "year:UTC", bucket, True)
            assert await periods.mark(desk, claim, f"by {off}") == (marked is None or off > marked)
            marked = off if marked is None else max(marked, off)
        else:
            found = await periods.check(desk, Period(key, "year"), key)
            assert (found.first, found.bucket) == (marked is None or marked < 0, now)


# ---------------------------------------------------------------------- ordered locks


class OrderModel:
    """A line of people."""

    def __init__(self) -> None:
        self.epoch = self.handed_out = 0
        self.line: list[int] = []
        self.of: dict[str, tuple[int, int]] = {}
        self.dead: set[int] = set()
        self.failed = 0

    def here(self, who: str) -> int:
        """The position of one that is in line; 0: passed; -1: of an epoch that is over."""
        epoch, number = self.of[who]
        if epoch != self.epoch or not self.line:
            return -1
        return number if number in self.line else 0

    def assign(self, who: str) -> tuple[int, int]:
        if who in self.of and self.here(who) > 0:
            return self.of[who]
        if not self.line:
            self.epoch += 1
            self.handed_out = self.failed = 0
            self.dead = set()
        self.handed_out += 1
        self.line.append(self.handed_out)
        self.of[who] = (self.epoch, self.handed_out)
        return self.of[who]

    def bury(self) -> None:
        while self.line and self.line[0] in self.dead:
            self.line.pop(0)

    def turn(self, who: str, strict: bool) -> str:
        number = self.here(who)
        if number <= 0:
            return "stale_epoch" if number else "passed_over"
        self.dead.discard(number)
        self.bury()
        if strict and 0 < self.failed < number:
            return "ordered_chain_failed"
        return "TURN" if self.line[0] == number else "waiting"

    def beat(self, who: str) -> bool:
        number = self.here(who)
        self.dead.discard(number)
        return number > 0

    def finish(self, who: str, failed: bool) -> bool:
        number = self.here(who)
        if number <= 0:
            return False
        if failed and not self.failed:
            self.failed = number
        self.line.remove(number)
        self.bury()
        return True

    def die(self, who: str) -> None:
        if self.here(who) > 0:
            self.dead.add(self.here(who))

    def skip(self, who: str) -> int | None:
        self.bury()
        skipped = self.line.pop(0) if self.line else None
        self.bury()
        return skipped

    def reset(self, who: str) -> int:
        dropped, self.line = len(self.line), []
        return dropped


class OrderReality:
    """The same through the scripts."""

    def __init__(self, place: Place, key: str) -> None:
        self.place, self.key = place, key
        self.desk = place.coordinator.desk()
        self.of: dict[str, Position] = {}
        self.epochs: list[str] = []

    async def assign(self, who: str) -> tuple[int, int]:
        found = await orders.assign(self.desk, self.key, 600, token=who, label=who)
        if found.epoch not in self.epochs:
            self.epochs.append(found.epoch)
        self.of[who] = found
        return self.epochs.index(found.epoch) + 1, found.number

    async def turn(self, who: str, strict: bool) -> str:
        try:
            mine = await orders.take_turn(self.desk, self.of[who], Scope(), strict=strict, wait=0)
        except OutOfTurn as error:
            return error.reason
        mine.drop()
        return "TURN"

    async def beat(self, who: str) -> bool:
        return not await orders.beat(self.desk, self.of[who])

    async def finish(self, who: str, failed: bool) -> bool:
        return await orders.finish(self.desk, self.of[who], failed=failed)

    async def die(self, who: str) -> None:
        position = self.of[who]
        _, seats, state = self.desk.keys.order(self.key)
        row = await self.place.do("HGET", seats, position.number)
        if row is not None and await self.place.do("HGET", state, "epoch") == position.epoch.encode():
            await self.place.do("HSET", seats, position.number, b"1 " + row.split(b" ", 1)[1])

    async def skip(self, who: str) -> int | None:
        return await self.place.coordinator.skip(self.key)

    async def reset(self, who: str) -> int:
        return await self.place.coordinator.reset(self.key)

    async def check(self, model: OrderModel) -> None:
        report = (await self.place.coordinator.inspect(self.key)).order
        if not model.line:
            assert report is None
            assert [await self.place.do("EXISTS", name) for name in self.desk.keys.order(self.key)] == [0, 0, 0]
            return
        assert report is not None
        assert [place.number for place in report.places] == model.line
        assert (report.handed_out, report.first_failed or 0) == (model.handed_out, model.failed)
        names = {who.encode() for who, (epoch, number) in model.of.items() if model.here(who) > 0}
        fields = await self.place.do("HKEYS", self.desk.keys.order(self.key)[1])
        assert {field[2:] for field in fields if field.startswith(b"t:")} == names


ORDER_NAMES = [
    "assign",
    "assign",
    "assign",
    "assign",
    "turn",
    "turn",
    "turn",
    "finish",
    "finish",
    "finish",
    "beat",
    "die",
    "die",
    "skip",
    "reset",
]


def order_step(dice: random.Random) -> tuple[str, int, bool]:
    return dice.choice(ORDER_NAMES), dice.randrange(6), dice.random() < 0.5


@EXAMPLES
@given(steps=steps_of(order_step))
async def test_ordered_locks(place: Place, steps: list[Any]) -> None:
    model, reality = OrderModel(), OrderReality(place, f"k{next(_keys)}")
    for name, actor, flag in steps:
        who, more = f"a{actor}", [flag] if name in {"turn", "finish"} else []
        if who not in model.of and name not in {"assign", "skip", "reset"}:
            continue
        expected = getattr(model, name)(who, *more)
        assert await getattr(reality, name)(who, *more) == expected, (name, who, more)
        await reality.check(model)
    await reality.reset("")


# ---------------------------------------------------------------------- the client, with everything cut off


@EXAMPLES
@given(
    limit=st.integers(1, 3),
    plans=st.lists(
        st.tuples(st.booleans(), st.sampled_from([0, 0.02, 20]), st.integers(0, 12), st.none() | st.integers(0, 60)),
        min_size=3,
        max_size=12,
    ),
)
async def test_bodies_that_come_go_and_are_cancelled(
    place: Place, limit: int, plans: list[tuple[bool, float, int, int | None]]
) -> None:
    """Never more inside than may be; and whoever was cut off wherever, all are served and nothing stays."""
    key, other = f"k{next(_keys)}", await place.elsewhere()
    inside, most, ended = 0, 0, list[str]()

    async def body(desk: Desk, wait: float, stays: int) -> None:
        nonlocal inside, most
        slot = Slot.of(Semaphore(key, limit), key)
        try:
            entry = await slots.enter(desk, slot, Scope(), wait=wait)
        except SemaphoreUnavailable:
            ended.append("refused")
            return
        try:
            inside += 1
            most = max(most, inside)
            await turns(stays)
        finally:
            inside -= 1
            await entry.leave()
        ended.append("served")

    async def cut(task: asyncio.Task[None], after: int) -> None:
        await turns(after)
        task.cancel()

    tasks: list[asyncio.Task[Any]] = []
    cuts: list[asyncio.Task[Any]] = []
    for here, wait, stays, after in plans:
        desk = place.coordinator.desk() if here else other.desk()
        task = asyncio.create_task(body(desk, wait, stays))
        tasks.append(task)
        if after is not None:
            cuts.append(asyncio.create_task(cut(task, after)))
    async with asyncio.timeout(60):
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*cuts)
    wrong = [each for each in found if each is not None and not isinstance(each, asyncio.CancelledError)]
    assert wrong == []
    assert most <= limit
    patient = [task for task, plan in zip(tasks, plans, strict=True) if plan[1] == 20 and not task.cancelled()]
    assert len(ended) == sum(not task.cancelled() for task in tasks) >= len(patient)
    assert await place.holders(key, "semaphore") == await place.waiting(key, "semaphore") == []
