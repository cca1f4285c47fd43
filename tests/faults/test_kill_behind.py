"""The same kills under the levels that write behind: bodies may run again, what is stored is kept or undone."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.kit import Field
from tests.faults.test_kill import CONCURRENT, POINTS, SEQUENTIAL

LEVELS = ("batched", "exit")
REACTORS = {**SEQUENTIAL, **CONCURRENT}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", REACTORS)
async def test_killed_anywhere(field: Field, name: str, level: str) -> None:
    """Whoever goes on, at the same level, comes to the same end; it may repeat each body, but no rollback action."""
    field.base["durability"] = level
    ids, expected = [], []
    for points in POINTS:
        ids += await field.kill_everywhere(points, reactor=name)
        expected = await field.ledger.lines(ids[-1])
    bodies = sum(line.startswith("do:") for line in expected)
    await field.check_all(ids, expected, REACTORS[name], in_flight=bodies + 1, cut_short=name == "Undecided")
    for run_id in ids:
        back = Counter(line for line in await field.ledger.lines(run_id) if not line.startswith("do:"))
        assert (back - Counter(expected)).total() <= 1, run_id  # the one that was in flight


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("points", POINTS)
async def test_killed_while_a_cancelled_run_rolls_back(field: Field, points: str, level: str) -> None:
    """Once the rollback has begun all that had been done is known, and is taken back."""
    field.base["durability"] = level
    ids = await field.kill_everywhere(points, reactor="Cancelled", what="cancel")
    expected = await field.ledger.lines(ids[-1])
    assert expected == ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a"]
    begun = [run_id for run_id in ids if "comp:c" in await field.ledger.lines(run_id)]
    await field.give_up([run_id for run_id in ids if run_id not in begun])
    await field.check_all(begun, expected, "cancelled")


@pytest.mark.parametrize("level", LEVELS)
async def test_killed_when_its_deadline_has_passed(field: Field, level: str) -> None:
    field.base["durability"] = level
    ids = []
    for points in POINTS:
        ids += await field.kill_everywhere(points, reactor="Late")
    expected = await field.ledger.lines(ids[-1])
    assert expected == ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a"]
    begun = [run_id for run_id in ids if "comp:c" in await field.ledger.lines(run_id)]
    await field.give_up([run_id for run_id in ids if run_id not in begun])
    await field.check_all(begun, expected, "failed", cut_short=True)
