"""A process is killed at every point at which it pauses a run, answers it, or cancels it."""

from __future__ import annotations

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


async def prepared(field: Field, run_id: str) -> None:
    assert await field.victim(run_id, reactor="Approved") == 0
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


@pytest.mark.parametrize("points", POINTS)
async def test_killed_while_it_answers(field: Field, points: str) -> None:
    """The answer was accepted, or it was not; the run goes on once."""
    ids = await field.kill_everywhere(points, lambda run_id: prepared(field, run_id), reactor="Approved", what="resume")
    paused = await moved_on(field, ids)
    assert ids[-1] not in paused
    for run_id in ids:
        if run_id in paused:
            await runs.resume(run_id, "ok", "from somebody else")
        else:
            with pytest.raises(AlreadyResumed):
                await runs.resume(run_id, "ok", "from somebody else")
        snapshot = await runs.find(run_id)
        assert snapshot.results["ok"] == ("from somebody else" if run_id in paused else "from the victim")
        assert len(snapshot.trace.only("resume")) == 1
    await field.check_all(ids, DONE, "completed")


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
