"""A process is killed at every point of its runs; another one brings them to the same end."""

from __future__ import annotations

import pytest

from tests.faults.kit import Field

POINTS = ("before", "after", "line")
# Status, and how many bodies may be in flight at a time.
SEQUENTIAL = {
    "Chain": "completed",
    "Timed": "completed",
    "ChainFails": "failed",
    "Composed": "completed",
    "ComposedFailsInside": "failed",
    "ComposedFailsAfter": "failed",
    "Mapped": "completed",
    "MappedFails": "failed",
    "MappedFailsAfter": "failed",
    "MappedLoosely": "completed",
    "MappedLooselyDeep": "completed",
    "Retried": "completed",
    "RetriedFails": "failed",
    "Halts": "halted",
    "WithClass": "failed",
}
CONCURRENT = {"Diamond": "completed", "DiamondFails": "failed", "MappedWide": "completed", "Undecided": "failed"}


async def _killed_everywhere(field: Field, name: str, status: str, in_flight: int) -> None:
    ids, expected = [], []
    for points in POINTS:
        ids += await field.kill_everywhere(points, reactor=name)
        expected = await field.ledger.lines(ids[-1])
    await field.check_all(ids, expected, status, in_flight=in_flight, cut_short=name == "Undecided")


@pytest.mark.parametrize("name", SEQUENTIAL)
async def test_killed_anywhere(field: Field, name: str) -> None:
    await _killed_everywhere(field, name, SEQUENTIAL[name], 1)


@pytest.mark.parametrize("name", CONCURRENT)
async def test_killed_anywhere_with_several_in_flight(field: Field, name: str) -> None:
    await _killed_everywhere(field, name, CONCURRENT[name], 3)


@pytest.mark.parametrize("points", POINTS)
async def test_killed_while_a_cancelled_run_rolls_back(field: Field, points: str) -> None:
    """Until the cancellation is stored, nobody else knows of it: then the run goes forward, all of it."""
    ids = await field.kill_everywhere(points, reactor="Cancelled", what="cancel")
    expected = await field.ledger.lines(ids[-1])
    assert expected == ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a"]
    begun = [run_id for run_id in ids if "comp:c" in await field.ledger.lines(run_id)]
    others = [run_id for run_id in ids if run_id not in begun]
    await field.give_up(others)
    await field.check_all(begun, expected, "cancelled")


async def test_killed_when_its_deadline_has_passed(field: Field) -> None:
    ids = []
    for points in POINTS:
        ids += await field.kill_everywhere(points, reactor="Late")
    expected = await field.ledger.lines(ids[-1])
    assert expected == ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a"]
    await field.check_all(ids, expected, "failed", cut_short=True)


@pytest.mark.parametrize("name", ["Composed", "Mapped", "Halts", "Chain"])
async def test_killed_while_it_undoes_a_run_that_had_ended(field: Field, name: str) -> None:
    async def prepare(run_id: str) -> None:
        assert await field.victim(run_id, reactor=name) == 0

    ids = []
    for points in POINTS:
        ids += await field.kill_everywhere(points, prepare, reactor=name, what="undo")
    expected = await field.ledger.lines(ids[-1])
    before = [line for line in expected if line.startswith("do:")]
    assert [f"undo:{line[3:]}" for line in reversed(before) if line != "do:b" or name != "Halts"] == expected[
        len(before) :
    ]
    begun = [run_id for run_id in ids if await field.ledger.lines(run_id) != before]
    others = [run_id for run_id in ids if run_id not in begun]
    await field.settle(others)
    await field.check_all(begun, expected, "cancelled")
