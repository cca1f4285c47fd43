"""The same kills under the levels that write behind: bodies may run again, what is stored is kept or undone."""

from __future__ import annotations

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
