"""How far a run is: steps, maps here and in workers, and what bodies say; from any process, while it goes on."""

from __future__ import annotations

import asyncio

import pytest

from aioreactor import (
    Context,
    Failure,
    MapResults,
    Reactor,
    RunNotFound,
    Success,
    interrupt,
    map_each,
    result,
    runs,
    step,
    value,
)
from aioreactor.engine.events import ElementFinished, ProgressReported
from aioreactor.progress import MapProgress, StepReport
from aioreactor.runtime import Runtime
from aioreactor.settings import Settings
from tests.integration.durable.kit import Gate, Place
from tests.integration.durable.test_background import place, working

__all__ = ["place"]
gates: dict[str, Gate] = {}


class Numbers(Reactor[int], name="progress.Numbers"):
    count: int

    @step
    async def load(self, count: int) -> list[int]:
        return list(range(count))

    @map_each(over=result(load), fan_out=True, atomic=False)
    async def each(self, number: int, ctx: Context) -> int:
        if number == 3:
            raise ValueError("three")
        if number >= 4:
            await gates["each"](ctx)
        return number

    @step
    async def total(self, each: MapResults[int], ctx: Context) -> int:
        ctx.progress(1, 2, "summing")
        await gates["total"](ctx)
        return sum(each.values())

    returns = total


class Inline(Reactor, name="progress.Inline"):
    @map_each(over=value([1, 2, 3]), concurrency=1)
    async def each(self, number: int, ctx: Context) -> int:
        if number == 2:
            await gates["each"](ctx)
        return number


async def test_a_fan_out_and_what_bodies_say_are_seen_while_they_go_on(place: Place) -> None:
    gates.update(each=Gate(), total=Gate())
    async with working(place):
        handle = await Numbers.enqueue(count=6)
        await gates["each"].reached.wait()
        async with asyncio.timeout(20):
            while (await handle.progress()).done < 4:
                await asyncio.sleep(0.005)
        found = await handle.progress()
        assert (found.total, found.started, found.done, found.failed) == (6, 6, 4, 1)
        assert (found.steps, found.steps_done, found.status) == (3, 1, "running")
        assert found.rate > 0
        assert found.remaining is not None
        assert str(found) == "running: 1/3 steps, each 4/6 (1 failed)"
        gates["each"].open.set()
        await gates["total"].reached.wait()
        async with asyncio.timeout(20):
            while not (await handle.progress()).reported:
                await asyncio.sleep(0.005)
        found = await handle.progress()
        assert found.reported == (StepReport("total", 1, 2, "summing"),)
        assert (found.maps[0].done, found.maps[0].remaining, found.steps_done) == (6, 0.0, 2)
        gates["total"].open.set()
        outcome = await handle.result(timeout=20)
    assert isinstance(outcome, Success)
    assert outcome.value == 0 + 1 + 2 + 4 + 5
    assert (await runs.progress(handle.run_id)).steps_done == 3


async def test_an_inline_map_counts_here_and_in_the_store(place: Place) -> None:
    gates["each"] = Gate()
    handle = await Inline.spawn()
    await gates["each"].reached.wait()
    found = await handle.progress()
    assert found.maps == (MapProgress("each", None, 2, 1),)
    assert found.total is None
    gates["each"].open.set()
    await handle.result(timeout=20)
    assert (await runs.progress(handle.run_id)).maps == (MapProgress("each", 3, 3, 3),)


async def test_a_volatile_run_tells_too() -> None:
    gates["each"] = Gate()
    async with Runtime(Settings()):
        handle = await Inline.spawn()
        await gates["each"].reached.wait()
        assert (await handle.progress()).maps == (MapProgress("each", None, 2, 1),)
        gates["each"].open.set()
        await handle.result(timeout=20)
        assert (await handle.progress()).steps_done == 1


async def test_nobody_has_no_progress(place: Place) -> None:
    with pytest.raises(RunNotFound):
        await runs.progress("nobody")


async def test_elements_are_listed_under_their_run_and_found_by_their_ids(place: Place) -> None:
    gates.update(each=Gate(), total=Gate())
    for gate in gates.values():
        gate.open.set()
    async with working(place):
        handle = await Numbers.enqueue(count=5)
        await handle.result(timeout=20)
    assert [each.run_id for each in await runs.list()] == [handle.run_id]
    first = await runs.list(parent=handle.run_id, limit=2)
    rest = await runs.list(parent=handle.run_id, limit=10, cursor=first.cursor)
    listed = [*first, *rest]
    assert [each.run_id for each in listed] == [f"{handle.run_id}/each[{index}]" for index in (4, 3, 2, 1, 0)]
    assert [each.status for each in listed] == ["completed", "failed", "completed", "completed", "completed"]
    assert [each.run_id for each in await runs.list(parent=handle.run_id, status="failed")] == [listed[1].run_id]
    assert rest.cursor == ""
    failed, good = await runs.find(listed[1].run_id), await runs.find(listed[2].run_id)
    assert isinstance(failed.outcome, Failure)
    assert (failed.outcome.message, failed.outcome.step, failed.parent) == ("three", "each[3]", handle.run_id)
    assert isinstance(good.outcome, Success)
    assert (good.outcome.value, good.outcome.run_id, good.reactor) == (2, listed[2].run_id, "progress.Numbers[each]")
    with pytest.raises(RunNotFound):
        await runs.find(f"{handle.run_id}/each[5]")
    with pytest.raises(RunNotFound):
        await runs.find(f"{handle.run_id}/nothing[0]")


async def test_a_fork_takes_over_the_results_of_a_fan_out(place: Place) -> None:
    gates.update(each=Gate(), total=Gate())
    for gate in gates.values():
        gate.open.set()
    async with working(place):
        first = await Numbers.enqueue(count=5)
        await first.result(timeout=20)
        handle = await runs.fork(first.run_id, from_step="total")
        await runs.delete(first.run_id)
        outcome = await handle.result(timeout=20)
    assert isinstance(outcome, Success)
    assert (outcome.value, outcome.trace.only("run", "settle")[0].path) == (7, "total")
    assert [str(each) for each in outcome.trace.only("run", "settle")] == ["run:total"]
    assert outcome.results["each"].values() == [0, 1, 2, 4]
    assert (await runs.progress(handle.run_id)).done == 5


class Large(Reactor[int], name="progress.Large"):
    @step
    async def load(self) -> list[str]:
        return ["x" * 700] * 20

    @map_each(over=result(load), fan_out=True)
    async def each(self, text: str) -> int:
        return len(text)

    @step
    async def total(self, each: MapResults[int]) -> int:
        return sum(each.values())

    returns = total


class TooLarge(Reactor, name="progress.TooLarge"):
    @step
    async def load(self) -> list[str]:
        return ["x" * 1500]

    @map_each(over=result(load), fan_out=True)
    async def each(self, text: str) -> int:
        return len(text)


async def test_a_list_that_is_dealt_may_be_larger_than_one_value_and_each_item_may_not(place: Place) -> None:
    async with place.another(max_value_bytes=1024), working(place, max_value_bytes=1024):
        outcome = await (await Large.enqueue()).result(timeout=20)
        refused = await (await TooLarge.enqueue()).result(timeout=20)
    assert outcome.unwrap() == 14_000
    assert isinstance(refused, Failure)
    assert (refused.step, refused.error_type) == ("each", "aioreactor.errors.PayloadTooLarge")


async def test_what_a_map_that_fans_out_waits_for_is_explained(place: Place) -> None:
    gates.update(each=Gate(), total=Gate())
    gates["total"].open.set()
    async with working(place, park_after=0.05):
        handle = await Numbers.enqueue(count=6)
        await gates["each"].reached.wait()
        async with asyncio.timeout(20):
            while (found := (await runs.explain(handle.run_id)).reasons)[0].text.count("4 of 6") == 0:
                await asyncio.sleep(0.005)
        assert [(each.kind, each.path) for each in found[:1]] == [("elements", "each")]
        assert found[0].text == "waits for its elements, which are to settle: 4 of 6 have, 2 are under way"
        gates["each"].open.set()
        await handle.result(timeout=20)


class Asks(Reactor[str], name="progress.Asks"):
    number: int

    ask = interrupt(str)

    @step
    async def tell(self, ask: str, ctx: Context) -> str:
        await gates["tell"](ctx)
        return ask

    returns = tell


class AsksMany(Reactor, name="progress.AsksMany"):
    each = map_each(Asks, over=value([1, 2]), item="number", fan_out=True)


async def waiting_elements(place: Place, run_id: str) -> list[str]:
    async with asyncio.timeout(20):
        while len(found := await runs.list(parent=run_id, status="paused")) < 2:
            await asyncio.sleep(0.005)
    return [each.run_id for each in found]


async def test_elements_that_wait_go_with_their_run(place: Place) -> None:
    async with working(place):
        handle = await AsksMany.enqueue()
        elements = await waiting_elements(place, handle.run_id)
        async with asyncio.timeout(20):
            while (await runs.find(handle.run_id)).waits_for == "":
                await asyncio.sleep(0.005)
        await runs.delete(handle.run_id)
    for element in elements:
        with pytest.raises(RunNotFound):
            await runs.find(element)


async def test_an_element_that_outlives_its_run_is_cancelled_and_goes(place: Place) -> None:
    gates["tell"] = gate = Gate()
    async with working(place):
        handle = await AsksMany.enqueue()
        elements = await waiting_elements(place, handle.run_id)
        answer = asyncio.create_task(runs.resume(elements[0], "ask", "yes"))
        await gate.reached.wait()
        async with asyncio.timeout(20):
            while (await runs.find(handle.run_id)).waits_for == "":
                await asyncio.sleep(0.005)
        await runs.delete(handle.run_id)
        outcome = await answer
        assert (outcome.status, str(outcome.trace[-1])) == ("cancelled", "cancel:tell")
        async with asyncio.timeout(20):
            while await place.do("EXISTS", place.store.space.run(elements[0])):
                await asyncio.sleep(0.005)


class Listener:
    def __init__(self) -> None:
        self.elements: list[tuple[str, str, int, str]] = []
        self.progress: list[tuple[str, float, float | None]] = []

    def on_element_finish(self, event: ElementFinished) -> None:
        self.elements.append((event.run_id, event.path, event.index, event.outcome.status or "-"))

    def on_progress(self, event: ProgressReported) -> None:
        self.progress.append((event.path, event.done, event.total))


class Steps(Reactor[int], name="progress.Steps"):
    number: int

    @step
    async def first(self, number: int) -> int:
        return number

    @step
    async def second(self, first: int) -> int:
        return first + 1

    returns = second


class BothKinds(Reactor, name="progress.BothKinds"):
    light = map_each(Steps, over=value([1]), item="number", fan_out=True)

    @map_each(over=value([1, 2, 3]), fan_out=True, after=[light])
    async def plain(self, number: int) -> int:
        return number


async def test_who_listens_to_the_run_is_told_of_each_element_once_and_how_far_the_map_is(place: Place) -> None:
    listener = Listener()
    async with working(place, middlewares=(listener,)):
        handle = await BothKinds.enqueue()
        assert (await handle.result(timeout=20)).ok
    told = [(run_id == handle.run_id, path, index) for run_id, path, index, _ in listener.elements]
    assert told[0] == (True, "light", 0)
    assert sorted(told[1:]) == [(True, "plain", index) for index in range(3)]
    assert listener.progress[-1] == ("plain", 3, 3)
