"""Processes are killed at any command while units are sent, carried out, awaited and told of."""

from __future__ import annotations

from collections import Counter

import pytest

from aioreactor import Failure, Success, runs
from aioreactor.snapshots import RunSnapshot
from aioreactor.store.records import TERMINAL
from tests.faults.kit import DEEP, KILLED, RANDOM, SEED, Field, Zygote

FORWARD = ["do:a", "do:read", "do:last"]
EXPECTED = {
    "Sends": ("completed", FORWARD),
    "SendsFails": ("failed", [*FORWARD, "comp:last", "undo:read", "undo:a"]),
}


async def checked(ward: Field, snapshot: RunSnapshot, status: str, expected: list[str]) -> list[str]:
    """What a run and its units did: the same effects as undisturbed, at most one of them twice; gives their ids."""
    units = await runs.list(parent=snapshot.run_id)
    assert sorted(unit.run_id for unit in units) == sorted(snapshot.children)
    assert [unit.status for unit in units] == ["completed", "completed"]
    lines = await ward.ledger.lines(snapshot.run_id)
    order = list(dict.fromkeys(lines))
    assert (snapshot.status, order) == (status, expected)
    for unit in units:
        mine = await ward.ledger.lines(unit.run_id)
        assert list(dict.fromkeys(mine)) == (["do:mail"] if "[" in unit.reactor else ["do:x", "do:y"])
        lines += mine
    repeated = Counter(lines) - Counter([*expected, "do:mail", "do:x", "do:y"])
    assert repeated.total() <= 2, lines  # parent and unit may both have been at work
    told = Counter(str(entry) for entry in snapshot.trace.only("dispatch", "settle"))
    assert told == Counter(["dispatch:child", "dispatch:mail", "settle:child", "settle:mail"])
    outcome = snapshot.outcome
    assert isinstance(outcome, Failure if status == "failed" else Success)
    assert snapshot.results["read"] == ["y!", "mailed a!"]
    return [snapshot.run_id, *snapshot.children]


async def over(ward: Field, run_id: str) -> bool:
    """Whether a run and its units have ended."""
    found = [await runs.find(run_id), *await runs.list(parent=run_id)]
    return all(run.status in TERMINAL for run in found)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", EXPECTED)
async def test_a_worker_dies_at_any_command(ward: Field, clinic: list[Zygote], name: str, moment: str) -> None:
    """It does all of it: parent, units, and parent again; another worker comes to the same end."""
    status, expected = EXPECTED[name]
    made: list[str] = []
    number = RANDOM.randrange(1 if DEEP else 23)
    while True:
        run_id, queue = f"{name}-{moment}-{number}", f"-{name}-{moment}-{number}"
        await ward.enqueue(name, run_id, queue)
        serves = {"queue": ward.queue(queue), "default_queue": ward.queue(queue)}
        code = await ward.victim("", what="work", burst=True, **serves, **{moment: number})
        if not await over(ward, run_id):  # it lives, handed back at the end of a burst, or left by one that was killed
            async with ward.worker(clinic[0], **serves):
                await ward.ended([run_id])
        snapshot = await runs.find(run_id)
        where = f"seed {SEED}, command {number}"
        try:
            made += await checked(ward, snapshot, status, expected)
        except AssertionError as error:
            raise AssertionError(where) from error
        if code == 0:
            break
        assert code == KILLED, where
        number += 1 if DEEP else 23
    assert number > 30
    await ward.delete(made)
    await ward.assert_nothing_is_left()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_caller_dies_at_any_command(ward: Field, clinic: list[Zygote], moment: str) -> None:
    """A worker carries out its units, and then the run itself."""
    status, expected = EXPECTED["SendsFails"]
    made: list[str] = []
    number = RANDOM.randrange(1 if DEEP else 19)
    async with ward.worker(clinic[0], default_queue=ward.queue()):
        while True:
            run_id = f"caller-{moment}-{number}"
            code = await ward.victim(run_id, reactor="SendsFails", default_queue=ward.queue(), **{moment: number})
            found = await ward.ended([run_id])
            for snapshot in found.values():
                await ward.ended(list(snapshot.children))
                try:
                    made += await checked(ward, await runs.find(run_id), status, expected)
                except AssertionError as error:
                    raise AssertionError(f"seed {SEED}, command {number}") from error
            if code == 0:
                break
            assert code == KILLED, number
            number += 1 if DEEP else 19
    assert len(made) >= 3
    await ward.delete(made)
    await ward.assert_nothing_is_left()
