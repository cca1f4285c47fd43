"""Many runs enqueued by one call: all or none when inputs are wrong, in order, and few scripts whatever the number."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioreactor import (
    InputValidationError,
    Reactor,
    RunHandle,
    Runtime,
    SerializationError,
    Settings,
    StoreRequired,
    Success,
    runs,
    step,
)
from aioreactor.jobs import payload
from aioreactor.store.calls import Call
from aioreactor.store.errors import StoreError
from tests.integration.durable.kit import Place


class Doubles(Reactor[int]):
    number: int
    label: str = "none"

    @step
    async def doubled(self, number: int) -> int:
        return 2 * number

    returns = doubled

    def validate(self) -> dict[str, str] | None:
        return {"label": "is not for odd numbers"} if self.label == "even" and self.number % 2 else None


class TakesAnything(Reactor[int]):
    thing: Any

    @step
    async def one(self) -> int:
        return 1

    returns = one


class Counts:
    """What is sent; and what is to fail."""

    def __init__(self, *failing: str) -> None:
        self.sent: Counter[str] = Counter()
        self.failing = failing

    def before_send(self, call: Call) -> None:
        self.sent[call.name] += 1
        if call.name in self.failing:
            raise StoreError(f"no {call.name}")

    def after_reply(self, call: Call, reply: Any) -> None:
        pass


async def jobs_in(place: Place, queue: str) -> list[tuple[int, list[str]]]:
    """Due time and runs of every job."""
    found = []
    for job_id, score in zip(*[iter(await place.do("ZRANGE", queue, 0, -1, "WITHSCORES"))] * 2, strict=True):
        job = payload.loads_plain(await place.do("GET", payload.job_key(job_id.decode())))
        found.append((int(score), payload.run_ids_in(job["a"], job["k"]) or []))
    return found


async def finish(place: Place, handles: list[RunHandle[int]]) -> None:
    durable = place.runtime.durable
    assert durable is not None
    for handle in handles:
        await durable.carry_on(handle.run_id, "test")


@pytest.fixture
def queue(place: Place) -> str:
    return f"{place.prefix}-queue"


async def test_each_input_becomes_a_run_and_all_are_rung_for_once(place: Place, queue: str) -> None:
    async with place.another(queue=queue):
        handles = await Doubles.enqueue_many({"number": number} for number in range(40))
        assert [await handle.status() for handle in handles] == ["pending"] * 40
        rung = [run_id for _, some in await jobs_in(place, queue) for run_id in some]
        assert sorted(rung) == sorted(handle.run_id for handle in handles)
        assert len(set(rung)) == 40
        await finish(place, handles)
        assert [await handle.result(10) for handle in handles] == [Success(2 * number) for number in range(40)]


async def test_when_some_are_invalid_none_is_stored_and_each_mistake_is_named(place: Place, queue: str) -> None:
    inputs: list[dict[str, Any]] = [
        {"number": 0},
        {"number": "x"},
        {"number": 3, "label": "even"},
        {"number": 4, "bad": 1},
        {},
    ]
    async with place.another(queue=queue):
        with pytest.raises(InputValidationError) as caught:
            await Doubles.enqueue_many(inputs)
    assert list(caught.value.field_errors) == ["[1].number", "[2].label", "[3].bad", "[4].number"]
    assert caught.value.field_errors["[4].number"] == ["is required"]
    assert await place.do("KEYS", f"{place.prefix}*") == []


async def test_when_one_cannot_be_stored_none_is(place: Place, queue: str) -> None:
    async with place.another(queue=queue):
        with pytest.raises(SerializationError) as caught:
            await TakesAnything.enqueue_many([{"thing": 1}, {"thing": object()}])
    assert caught.value.__notes__ == ["in the inputs at index 1"]
    assert await place.do("KEYS", f"{place.prefix}*") == []


async def test_none_is_none(place: Place, queue: str) -> None:
    async with place.another(queue=queue):
        assert await Doubles.enqueue_many([]) == []
    assert await place.do("KEYS", f"{place.prefix}*") == []


@pytest.mark.parametrize(("number", "slices"), [(3, 1), (1300, 3)])
async def test_scripts_besides_the_creations_do_not_grow_with_the_number(
    place: Place, queue: str, number: int, slices: int
) -> None:
    counts = Counts()
    async with place.another(counts, queue=queue) as runtime:
        handles = await Doubles.enqueue_many({"number": each} for each in range(number))
        assert counts.sent == {"live_expect": slices, "run_create": number, "index_put": slices, "jobs_ring": 1}
        assert runtime.durable is not None
        listed, cursor = [], ""
        while True:
            page = await runs.list(limit=1000, cursor=cursor)
            listed += [run.run_id for run in page]
            if not (cursor := page.cursor):
                break
        assert sorted(listed) == sorted(handle.run_id for handle in handles)
        for handle in handles:
            await runs.delete(handle.run_id)


async def test_options_are_for_all_of_them(place: Place) -> None:
    other = f"{place.prefix}-slow"
    begun = datetime.now(UTC)
    launch = Doubles.with_options(queue=other, delay=3600, tags=["night"])
    async with place.another():
        handles = await launch.enqueue_many([{"number": 1}, {"number": 2}])
        jobs = await jobs_in(place, other)
        assert sorted(run_id for _, some in jobs for run_id in some) == sorted(handle.run_id for handle in handles)
        assert all(score >= (begun + timedelta(seconds=3590)).timestamp() * 1000 for score, _ in jobs)
        assert {run.tags for run in await runs.list(tag="night")} == {("night",)}
        for handle in handles:
            await runs.delete(handle.run_id)


@pytest.mark.parametrize("option", [{"run_id": "r"}, {"idempotency_key": "k"}])
async def test_what_names_one_run_is_refused(place: Place, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"enqueue_many\(\) starts any number"):
        await Doubles.with_options(**option).enqueue_many([{"number": 1}])
    assert await place.do("KEYS", f"{place.prefix}*") == []


async def test_an_invocation_has_its_inputs_already() -> None:
    with pytest.raises(TypeError, match="has its inputs already"):
        await Doubles(number=1).enqueue_many([{"number": 2}])


async def test_there_has_to_be_a_store() -> None:
    async with Runtime(Settings(redis_url=None)):
        with pytest.raises(StoreRequired, match="enqueue_many"):
            await Doubles.enqueue_many([{"number": 1}])


async def test_those_that_nobody_could_ring_for_are_found_by_the_sweeper(place: Place, queue: str) -> None:
    async with place.another(Counts("jobs_ring"), queue=queue) as runtime:
        with pytest.raises(StoreError, match="no jobs_ring"):
            await Doubles.enqueue_many([{"number": 1}, {"number": 2}])
        created = [run.run_id for run in await runs.list()]
        assert len(created) == 2
        for run_id in created:
            await place.lapse(run_id)
        assert runtime.durable is not None
        assert sorted(await runtime.durable.stalled(10)) == sorted(created)
        for run_id in created:
            await runs.delete(run_id)
