"""How much of a worker and of the server a map that fans out may take: never all, nothing for longer than needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest

from aioreactor import FanOut, MapResults, Page, Reactor, Success, from_input, map_each, result, runs, step
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import place, working

__all__ = ["place"]
PATIENCE = 20
"""Seconds; well below those after which a run looks at its fan-outs by itself, so that a lost ring is a failure."""


class Crowd:
    """Who is inside a body, and how many were at the same time."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = {"element": 0, "run": 0}
        self.most = {"element": 0, "run": 0, "all": 0}
        self._changed = asyncio.Event()

    @contextmanager
    def one_more(self, kind: str) -> Iterator[None]:
        self.inside[kind] += 1
        self.most[kind] = max(self.most[kind], self.inside[kind])
        self.most["all"] = max(self.most["all"], sum(self.inside.values()))
        self._changed.set()
        try:
            yield
        finally:
            self.inside[kind] -= 1

    async def until(self, kind: str, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.inside[kind] < number:
                self._changed.clear()
                await self._changed.wait()


crowd: Crowd


@pytest.fixture(autouse=True)
def nobody_is_there() -> None:
    global crowd
    crowd = Crowd()


class Waits(Reactor[int], name="room.Waits"):
    count: int

    @step
    async def numbers(self, count: int) -> list[int]:
        return list(range(count))

    @map_each(over=result(numbers), fan_out=FanOut(chunk=5))
    async def each(self, number: int) -> int:
        with crowd.one_more("element"):
            await crowd.open.wait()
        return number

    @step
    async def total(self, each: MapResults[int]) -> int:
        return sum(each.values())

    returns = total


class Passes(Reactor[int], name="room.Passes"):
    numbers: list[int]

    @map_each(over=from_input("numbers"), fan_out=FanOut(batch_size=5))
    async def each(self, number: int) -> int:
        with crowd.one_more("element"):
            for _ in range(number % 7):
                await asyncio.sleep(0)
        return number

    @step
    async def total(self, each: MapResults[int]) -> int:
        return sum(each.values())

    returns = total


class Small(Reactor[int], name="room.Small"):
    number: int

    @step
    async def only(self, number: int) -> int:
        with crowd.one_more("run"):
            for _ in range(number % 5):
                await asyncio.sleep(0)
        return number

    returns = only


class Pages(Reactor[int], name="room.Pages"):
    total: int

    async def pages(self, cursor: int | None, limit: int, total: int) -> Page[int]:
        first = cursor or 0
        stop = min(first + limit, total)
        return Page(range(first, stop), stop if stop < total else None)

    @map_each(over=pages, fan_out=FanOut(batch_size=100))
    async def each(self, number: int) -> None:
        pass

    @step
    async def count(self, each: MapResults[None]) -> int:
        return each.succeeded

    returns = count


@pytest.fixture
def turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a session takes new elements: there are many sessions, or few that grow."""
    seconds: float = request.param
    monkeypatch.setattr("aioreactor.durable.session.TURN", seconds)
    return seconds


@pytest.mark.parametrize("turn", [0.0, 1000.0], indirect=True)
async def test_while_elements_fill_a_worker_other_runs_go_through_it(place: Place, turn: float) -> None:
    async with working(place, worker_options={"max_concurrency": 8}):
        handles = [await Waits.enqueue(count=30) for _ in range(2)]
        await crowd.until("element", 7)
        for number in range(5):
            small = await Small.enqueue(number=number)
            assert (await small.result(PATIENCE)).unwrap() == number
        assert crowd.inside == {"element": 7, "run": 0}
        crowd.open.set()
        for handle in handles:
            assert (await handle.result(PATIENCE)).unwrap() == sum(range(30))
    assert crowd.most["element"] == 7


async def test_workers_share_a_map(place: Place) -> None:
    async with AsyncExitStack() as workers:
        for _ in range(2):
            await workers.enter_async_context(working(place, worker_options={"max_concurrency": 8}))
        handle = await Waits.enqueue(count=30)
        await crowd.until("element", 14)
        crowd.open.set()
        assert (await handle.result(PATIENCE)).unwrap() == sum(range(30))
    assert crowd.most["element"] == 14


async def test_one_that_starts_later_gets_what_the_others_have_no_room_for(place: Place) -> None:
    async with working(place, worker_options={"max_concurrency": 8}):
        handle = await Waits.enqueue(count=30)
        await crowd.until("element", 7)
        async with working(place, worker_options={"max_concurrency": 8}):
            await crowd.until("element", 14)
            crowd.open.set()
            assert (await handle.result(PATIENCE)).unwrap() == sum(range(30))
    assert crowd.most["element"] == 14


@pytest.mark.parametrize("turn", [0.0, 1.0], indirect=True)
async def test_elements_and_runs_together_are_never_more_than_a_worker_may_have(place: Place, turn: float) -> None:
    async with working(place, worker_options={"max_concurrency": 4}):
        maps = [await Passes.enqueue(numbers=list(range(60))) for _ in range(2)]
        small = await Small.enqueue_many({"number": number} for number in range(40))
        outcomes = await asyncio.gather(*(handle.result(PATIENCE) for handle in [*maps, *small]))
    assert [outcome.unwrap() for outcome in outcomes] == [sum(range(60))] * 2 + list(range(40))
    assert crowd.most["element"] <= 3
    assert crowd.most["all"] <= 4


@pytest.mark.parametrize("turn", [0.0], indirect=True)
async def test_whoever_makes_room_in_the_window_after_its_turn_has_others_told(place: Place, turn: float) -> None:
    """No session finds more than the window at its end, so that what settles later is all that tells of the rest."""
    async with working(place, worker_options={"max_concurrency": 100}):
        handle = await Passes.enqueue(numbers=list(range(200)))
        outcome = await handle.result(PATIENCE)
    assert outcome.unwrap() == sum(range(200))
    assert crowd.most["element"] <= 5


# ---------------------------------------------------------------------- what is kept


async def fields_of(place: Place, run_id: str) -> list[list[str]]:
    """The names in each of the three keys of a fan-out."""
    found = []
    for key in place.store.space.fan(run_id):
        found.append([name.decode().rpartition("\n")[2] for name in await place.do("HKEYS", key)])
    return found


async def test_items_go_when_their_elements_have_settled_and_nothing_is_kept_of_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    feed = place.store.fans.__class__.feed

    async def feeding(self: Any, run_id: str, path: str, *more: Any, **options: Any) -> Any:
        fan, out, _ = await fields_of(place, run_id)
        seen.append(sum(name.startswith("i:") for name in fan))
        assert out == []
        return await feed(self, run_id, path, *more, **options)

    monkeypatch.setattr("aioreactor.store.fans.FanStore.feed", feeding)
    async with working(place):
        handle = await Pages.enqueue(total=1990)
        outcome = await handle.result(PATIENCE)
    assert outcome.unwrap() == 1990
    assert len(seen) == 20
    assert max(seen) <= 5, seen  # two windows of 100, in chunks of 64, one of them begun
    fan, out, busy = await fields_of(place, handle.run_id)
    assert [name for name in fan if name[:2] in ("i:", "n:") or name.startswith("lease:")] == []
    assert (out, busy) == ([], [])
    await runs.delete(handle.run_id)
    assert [key for key in await place.do("KEYS", f"{place.prefix}:*") if handle.run_id.encode() in key] == []


async def test_a_source_of_whole_chunks_leaves_nothing_either(place: Place) -> None:
    async with working(place):
        handle = await Pages.enqueue(total=256)
        assert isinstance(await handle.result(PATIENCE), Success)
    fan, out, busy = await fields_of(place, handle.run_id)
    assert [name for name in fan if name[:2] in ("i:", "n:")] == []
    assert (out, busy) == ([], [])
