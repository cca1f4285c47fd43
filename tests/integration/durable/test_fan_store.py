"""What the store keeps of a fan-out: dealt within the window, settled once, dealt again, rolled back in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator

import pytest

from aioreactor.store.client import StoreClient
from aioreactor.store.fans import RUN, Dealt, FanStore, Settled
from tests.integration.durable.kit import Place

TTL = 30_000


class Loses:
    """The reply to one kind of script is lost, once: it was applied, and is sent again."""

    def __init__(self, script: str) -> None:
        self.script, self.lost = script, 0

    def before_send(self, call: object) -> None:
        pass

    def after_reply(self, call: object, reply: object) -> None:
        if getattr(call, "name", "") == self.script and not self.lost:
            self.lost += 1
            raise ConnectionResetError("the reply is lost")


class Yard:
    def __init__(self, place: Place) -> None:
        self.place, self.fans, self.space = place, place.store.fans, place.store.space

    async def begin(self, items: int, *, window: int = 4, atomic: bool = True, ended: bool = True) -> None:
        await self.place.do("HSET", self.space.run("r"), "status", "running", "token", "", "queue", "q", "undos", 0)
        fed = await self.fans.open("r", "m", atomic=atomic, window=window, chunk=2, keep=True, shared=b"shared")
        assert fed.opened
        chunks = {i: b"chunk%d" % i for i in range(-(-items // 2))}
        assert (await self.fans.feed("r", "m", fed, items, chunks, cursor=b"c", ended=ended)).fed == items

    async def claim(self, token: str, wanted: int) -> Dealt:
        dealt = await self.fans.claim("r", "m", token, ttl_ms=TTL, wanted=wanted)
        assert dealt is not None
        return dealt

    async def settle(self, token: str, *what: str, wanted: int = 0) -> Dealt:
        """``what``: a kind and a number each, as in ``s3``."""
        settled = [Settled(int(each[1:]), each[0], b"record" + each[1:].encode()) for each in what]
        dealt = await self.fans.settle("r", "m", token, settled, ttl_ms=TTL, wanted=wanted)
        assert dealt is not None
        return dealt

    async def lapse(self, token: str) -> None:
        fan, _, _ = self.space.fan("r")
        await self.place.do("HSET", fan, f"m\nlease:{token}", 1)

    async def number(self, name: str) -> int:
        row = await self.fans.look("r", "m")
        assert row is not None
        return row.number(name)


@pytest.fixture
async def yard(place: Place) -> AsyncIterator[Yard]:
    yield Yard(place)
    await place.do("DEL", place.store.space.run("r"), *place.store.space.fan("r"))


async def test_dealt_in_order_within_the_window(yard: Yard) -> None:
    await yard.begin(6)
    first = await yard.claim("a", 3)
    assert (first.indexes, first.more, first.shared) == ((0, 1, 2), 1, b"shared")
    assert first.items == {0: b"chunk0", 1: b"chunk1"}
    second = await yard.claim("b", 3)
    assert (second.indexes, second.more) == ((3,), 0)
    assert (await yard.claim("b", 3)).indexes == ()
    more = await yard.settle("a", "s1", "s0", wanted=5)
    assert (more.indexes, more.more, more.refused) == ((4, 5), 0, ())
    assert not more.again


async def test_what_is_left_for_others_is_told_to_who_wants_nothing(yard: Yard) -> None:
    await yard.begin(6, window=2)
    await yard.claim("a", 2)
    assert await yard.fans.detach("r", "m", "a", 0)
    assert (await yard.settle(RUN, "s0")).more == 1
    assert (await yard.settle("a", "s1")).more == 2
    assert await yard.fans.leave("r", "m", "a") == 2


async def test_settled_once_whoever_says_so(yard: Yard) -> None:
    await yard.begin(2)
    await yard.claim("a", 2)
    assert (await yard.settle("a", "s0")).refused == ()
    assert (await yard.settle("a", "s0")).refused == ()
    assert (await yard.settle("b", "s1")).refused == (1,)
    assert await yard.number("settled") == 1
    last = await yard.settle("a", "k1")
    assert (last.over, last.wake) == (True, "q")
    assert (await yard.settle("a", "k1")).wake is None
    assert [await yard.number(name) for name in ("settled", "ok", "skipped")] == [2, 1, 1]


@pytest.mark.parametrize("script", ["fan_claim", "fan_settle", "fan_feed", "fan_detach", "fan_leave", "fan_open"])
async def test_a_lost_reply_changes_nothing(place: Place, yard: Yard, script: str) -> None:
    loses = Loses(script)
    client = StoreClient(place.url, hook=loses)
    yard.fans = FanStore(client, place.store.space)
    try:
        if script == "fan_open":
            await place.do("HSET", yard.space.run("r"), "status", "running", "token", "", "queue", "q")
            fed = await yard.fans.open("r", "m", atomic=True, window=4, chunk=2, keep=True, shared=b"shared")
            await yard.fans.feed("r", "m", fed, 3, {0: b"chunk0", 1: b"chunk1"}, cursor=b"c", ended=True)
        elif script == "fan_feed":
            await place.do("HSET", yard.space.run("r"), "status", "running", "token", "", "queue", "q")
            fed = await yard.fans.open("r", "m", atomic=True, window=4, chunk=2, keep=True, shared=b"shared")
            told = await yard.fans.feed("r", "m", fed, 3, {0: b"chunk0", 1: b"chunk1"}, cursor=b"c", ended=True)
            assert (told.fed, told.ended) == (3, True)
        else:
            await yard.begin(3)
        dealt = list((await yard.claim("a", 2)).indexes)
        assert await yard.fans.detach("r", "m", "a", dealt[-1])
        await yard.settle(RUN, f"s{dealt[-1]}")
        await yard.fans.leave("r", "m", "a")
        while (more := await yard.claim("b", 3)).indexes:
            await yard.settle("b", *(f"s{index}" for index in more.indexes))
        row = await yard.fans.look("r", "m")
        assert row is not None
        assert (loses.lost, row.number("settled"), row.number("ok"), row.values["over"]) == (1, 3, 3, "1")
    finally:
        await client.aclose(drain=0)


async def test_what_a_dead_session_had_is_dealt_again(yard: Yard) -> None:
    await yard.begin(4)
    assert (await yard.claim("a", 3)).indexes == (0, 1, 2)
    await yard.settle("a", "s1")
    assert await yard.fans.detach("r", "m", "a", 2)
    await yard.lapse("a")
    again = await yard.claim("b", 5)
    assert (again.indexes, again.again) == ((0, 3), frozenset({0}))
    assert (await yard.settle("a", "s0")).refused == (0,)
    assert await yard.fans.extend("r", "m", "c", TTL) is None
    assert not await yard.fans.detach("r", "m", "a", 0)
    assert await yard.fans.detach("r", "m", "a", 2)
    await yard.settle("b", "s0", "s3")
    assert (await yard.settle(RUN, "s2")).over


async def test_a_session_that_was_taken_from_is_none_any_more(yard: Yard) -> None:
    await yard.begin(2)
    await yard.claim("a", 1)
    await yard.lapse("a")
    assert await yard.fans.extend("r", "m", "a", TTL) == ""  # nobody has taken anything from it yet
    await yard.lapse("a")
    assert (await yard.claim("b", 1)).indexes == (0,)
    assert await yard.fans.extend("r", "m", "a", TTL) is None
    assert (await yard.claim("b", 1)).indexes == (1,)


@pytest.mark.parametrize("seed", range(3))
async def test_the_window_is_never_exceeded(yard: Yard, seed: int) -> None:
    dice = random.Random(seed)
    await yard.begin(40, window=5)
    held: dict[str, set[int]] = {}
    settled: list[int] = []
    for number in itertools.count():
        token = f"t{dice.randrange(4)}"
        mine = held.setdefault(token, set())
        match dice.randrange(4):
            case 0:
                mine |= set((await yard.claim(token, dice.randrange(1, 6))).indexes)
            case 1 if mine:
                index = mine.pop()
                await yard.settle(token, f"s{index}")
                settled.append(index)
            case 2 if mine:
                index = mine.pop()
                dealt = await yard.settle(token, f"s{index}", wanted=dice.randrange(3))
                settled.append(index)
                mine |= set(dealt.indexes)
            case 3 if dice.random() < 0.3:
                await yard.fans.leave("r", "m", token)
                mine.clear()
        assert sum(map(len, held.values())) <= 5
        assert await yard.number("given") - await yard.number("settled") <= 5
        if len(settled) == 40:
            break
        assert number < 2000
    assert sorted(settled) == list(range(40))
    assert await yard.number("settled") == 40


async def test_a_source_read_twice_is_fed_once(yard: Yard) -> None:
    await yard.begin(4, ended=False)
    before = await yard.fans.open("r", "m", atomic=True, window=4, chunk=2, keep=True, shared=b"other")
    assert (before.fed, before.cursor, before.ended, before.opened) == (4, b"c", False, False)
    after = await yard.fans.feed("r", "m", before, 2, {2: b"chunk2"}, cursor=b"d", ended=True)
    stale = await yard.fans.feed("r", "m", before, 2, {2: b"other"}, cursor=b"e", ended=False)
    assert stale == after
    assert await yard.fans.chunk("r", "m", 2) == b"chunk2"


async def test_a_source_that_is_to_be_read_on_is_asked_for_once(yard: Yard) -> None:
    await yard.begin(4, ended=False)
    assert (await yard.claim("a", 2)).wake == "q"
    assert (await yard.claim("a", 2)).wake is None
    before = await yard.fans.open("r", "m", atomic=True, window=4, chunk=2, keep=True, shared=b"")
    await yard.fans.feed("r", "m", before, 1, {2: b"x"}, cursor=b"d", ended=False)
    assert (await yard.settle("a", "s0")).wake == "q"


async def test_the_first_failure_dooms_an_atomic_one(yard: Yard) -> None:
    await yard.begin(6)
    await yard.claim("a", 3)
    doomed = await yard.settle("a", "f1", wanted=3)
    assert (doomed.indexes, doomed.doomed, doomed.over) == ((), True, False)
    last = await yard.settle("a", "f2", "S0", wanted=3)
    assert (last.over, last.wake) == (True, "q")
    row = await yard.fans.look("r", "m")
    assert row is not None
    assert (row.indexes("failures"), row.indexes("owed"), row.number("given")) == ([1, 2], [], 3)


async def test_one_that_collects_goes_on(yard: Yard) -> None:
    await yard.begin(6, atomic=False)
    await yard.claim("a", 3)
    dealt = await yard.settle("a", "f1", "F2", wanted=3)
    assert (dealt.indexes, dealt.doomed) == ((3, 4, 5), False)
    row = await yard.fans.look("r", "m")
    assert row is not None
    assert (row.number("failed"), row.indexes("failures"), row.indexes("owed")) == (2, [], [2])


async def test_stopped_from_outside(yard: Yard) -> None:
    await yard.begin(6)
    await yard.claim("a", 3)
    assert await yard.fans.detach("r", "m", "a", 1)
    assert await yard.fans.doom("r", "m", "stopped", cut="rollback") == (3, (1,))
    assert await yard.fans.extend("r", "m", "a", TTL) == "rollback"
    assert await yard.fans.doom("r", "m", "again", cut="stop") == (3, (1,))
    assert await yard.fans.extend("r", "m", "a", TTL) == "rollback"
    await yard.lapse("a")
    again = await yard.claim("b", 6)
    assert (again.indexes, again.again, again.doomed) == ((0, 2), frozenset({0, 2}), True)
    await yard.settle("b", "f0", "s2")
    assert (await yard.settle(RUN, "f1")).over


async def test_back_from_the_highest_index_within_the_window(yard: Yard) -> None:
    await yard.begin(7, window=2, atomic=False)
    for _ in range(4):
        dealt = await yard.claim("a", 2)
        await yard.settle(
            "a", *(f"{'F' if index == 4 else 's' if index == 1 else 'S'}{index}" for index in dealt.indexes)
        )
    assert await yard.fans.back("r", "m") == (False, [])
    gone: list[int] = []
    kept: Dealt | None = None
    while (back := await yard.fans.claim_back("r", "m", "b", ttl_ms=TTL, wanted=5)) is not None and back.indexes:
        assert len(back.indexes) <= 2
        assert [record[:1] for record in back.records] == [b"S"] * len(back.indexes)
        gone += back.indexes
        rows = [(index, b"s", b"bad" if index == 3 else b"") for index in back.indexes]
        kept = await yard.fans.settle_back("r", "m", "b", rows, ttl_ms=TTL)
    assert kept is not None
    assert gone == [6, 5, 3, 2, 0]
    assert (kept.over, kept.wake) == (True, "q")
    assert await yard.fans.back("r", "m") == (True, [3])
    assert await yard.fans.reports("r", "m", [3]) == [b"bad"]
    assert await yard.fans.claim_back("r", "m", "b", ttl_ms=TTL, wanted=5) is None
    await yard.place.do("HSET", yard.space.run("r"), "undos", 1)
    assert await yard.fans.back("r", "m") == (False, [])
    later = await yard.fans.claim_back("r", "m", "c", ttl_ms=TTL, wanted=5)
    assert later is not None
    assert later.indexes == (4,)  # what was owed of one that failed is tried by an undo by hand


async def test_back_again_after_a_dead_session(yard: Yard) -> None:
    await yard.begin(3)
    await yard.claim("a", 3)
    await yard.settle("a", "S0", "S1", "S2")
    await yard.fans.back("r", "m")
    first = await yard.fans.claim_back("r", "m", "b", ttl_ms=TTL, wanted=2)
    assert first is not None
    assert (first.indexes, first.more) == ((2, 1), 1)
    await yard.lapse("b")
    again = await yard.fans.claim_back("r", "m", "c", ttl_ms=TTL, wanted=3)
    assert again is not None
    assert again.indexes == (2, 1, 0)
    late = await yard.fans.settle_back("r", "m", "b", [(2, b"s", b"")], ttl_ms=TTL)
    assert late is not None
    assert late.refused == (2,)
    kept = await yard.fans.settle_back("r", "m", "c", [(index, b"s", b"") for index in (0, 1, 2)], ttl_ms=TTL)
    assert kept is not None
    assert (kept.over, await yard.number("came_back"), await yard.number("undone")) == (True, 3, 3)


async def test_nothing_to_take_back_is_over_at_once(yard: Yard) -> None:
    await yard.begin(3)
    await yard.claim("a", 3)
    await yard.settle("a", "s0", "s1", "s2")
    assert await yard.fans.back("r", "m") == (False, [])
    dealt = await yard.fans.claim_back("r", "m", "b", ttl_ms=TTL, wanted=3)
    assert dealt is not None
    assert (dealt.indexes, dealt.more, dealt.wake) == ((), 0, "q")
    assert await yard.fans.back("r", "m") == (True, [])
