"""A process is killed at every point at which it pauses a run, answers it, or cancels it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from aioreactor import AlreadyResumed, Paused, runs, sweep
from aioreactor.store.records import TERMINAL
from tests.faults.kit import Field
from tests.faults.test_kill import POINTS

DONE = ["do:a", "do:b", "do:c"]
UNDONE = ["do:a", "undo:a"]


async def moved_on(field: Field, ids: list[str]) -> list[str]:
    """Go on with whatever somebody has to move on; gives those that are paused then, for nobody to take."""
    assert field.runtime.durable is not None
    store, paused = field.runtime.durable.store, []
    for run_id in ids:
        for _ in range(10):
            row = await store.peek(run_id)
            if row is None or not row.is_owed:
                break
            await field.do("HSET", store.space.run(run_id), "updated_ms", 1, "due_ms", 0)
            if row.lease_ms:
                await field.lapse([run_id])
            await field.make_due()
            await sweep(1000)
        else:
            raise AssertionError(f"{run_id} does not come to rest")
        if row is not None and row.status == "paused":
            paused.append(run_id)
        else:
            assert row is None or row.status in TERMINAL
    return paused


async def prepared(field: Field, run_id: str, reactor: str = "Approved") -> None:
    assert await field.victim(run_id, reactor=reactor) == 0
    assert isinstance((await runs.find(run_id)).outcome, Paused)


@pytest.mark.parametrize("points", POINTS)
async def test_killed_while_it_pauses(field: Field, points: str) -> None:
    ids = await field.kill_everywhere(points, reactor="Approved")
    paused = await moved_on(field, ids)
    assert ids[-1] in paused
    for run_id in paused:
        snapshot = await runs.find(run_id)
        assert [each.name for each in snapshot.interrupts] == ["ok"]
        assert await runs.resume(run_id, payload="yes") is not None
        assert len((await runs.find(run_id)).trace.only("interrupt")) == 1
    await field.check_all(ids, DONE, "completed")


async def answered_by_many(run_id: str, number: int) -> set[str]:
    """So many answer at once; gives those payloads that were accepted, the others were told that one was before."""
    payloads = [f"from survivor {each}" for each in range(number)]
    found = await asyncio.gather(*(runs.resume(run_id, "ok", each) for each in payloads), return_exceptions=True)
    lost = [each for each in found if isinstance(each, BaseException)]
    assert Counter(map(type, lost)) in ({}, {AlreadyResumed: len(lost)})
    return {payload for payload, each in zip(payloads, found, strict=True) if not isinstance(each, BaseException)}


@pytest.mark.parametrize(
    ("points", "reactor"), [*((each, "Approved") for each in POINTS), ("before", "Behind"), ("after", "Behind")]
)
async def test_killed_while_it_answers(field: Field, points: str, reactor: str) -> None:
    """The answer was accepted, or it was not; of many more that come then, one wins in all, and the run goes on once.

    ``Behind``: whoever answers enqueues the run, and may die before that.
    """
    order = {"reactor": reactor, "what": "resume"}
    ids = await field.kill_everywhere(points, lambda run_id: prepared(field, run_id, reactor), **order)
    paused = await moved_on(field, ids)
    assert ids[-1] not in paused
    won = {run_id: await answered_by_many(run_id, 200 if run_id == ids[0] else 20) for run_id in ids}
    await moved_on(field, ids)
    for run_id in ids:
        assert len(won[run_id]) == (run_id in paused), run_id
        snapshot = await runs.find(run_id)
        assert snapshot.results["ok"] in (won[run_id] or {"from the victim"})
        assert len(snapshot.trace.only("resume")) == 1
    await field.check_all(ids, DONE, "completed")
    await field.do("DEL", "arq:queue")  # those who answered have rung, and no worker is here


@pytest.mark.parametrize("points", POINTS)
async def test_killed_while_it_cancels(field: Field, points: str) -> None:
    """The cancel was accepted, or it was not; the run is rolled back once."""
    order = {"reactor": "Approved", "what": "call off"}
    ids = await field.kill_everywhere(points, lambda run_id: prepared(field, run_id), **order)
    paused = await moved_on(field, ids)
    assert ids[-1] not in paused
    for run_id in paused:
        await runs.cancel(run_id, "by somebody else")
    for run_id in ids:
        outcome = (await runs.find(run_id)).outcome
        assert outcome is not None
        reason = "by somebody else" if run_id in paused else "by the victim"
        assert outcome.error.reason == reason  # type: ignore[union-attr]
    await field.check_all(ids, UNDONE, "cancelled")
