"""What all elements of a fan-out have in common: known to each of them, a secret to its reader, and kept once."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from aioreactor import Failure, MapResults, Reactor, Redact, from_input, map_each, redaction, step
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import place, working

__all__ = ["place"]
SECRET = "hunter2-and-more"
seen: list[MapResults[Any]] = []


class Keys(Reactor[int], name="common.Keys"):
    numbers: list[int]
    holders: list[dict[str, int]]
    token: Annotated[str, Redact]

    @map_each(over=from_input("numbers"), fan_out=True, atomic=False)
    async def each(self, number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} cannot open {self.token}")
        return number + len(self.holders)

    @each.undo
    async def shut(self, number: int) -> None:
        raise RuntimeError(f"{number} cannot shut {self.token}")

    @step
    async def fails(self, each: MapResults[int]) -> int:
        seen.append(each)
        raise ValueError("all is to be undone")

    returns = fails


async def test_a_secret_that_is_common_to_all_shows_in_none(place: Place) -> None:
    seen.clear()
    given = {"numbers": list(range(20)), "holders": [{"holder": n} for n in range(300)], "token": SECRET}
    async with working(place):
        handle = await Keys.enqueue(**given)
        outcome = await handle.result(20)
    assert isinstance(outcome, Failure)
    [results] = seen
    assert results.values() == [number + 300 for number in range(0, 20, 2)]
    told = [str(failure.error) for _, failure in results.failures()]
    assert told == [f"{number} cannot open [redacted]" for number in range(1, 20, 2)]
    assert {tuple(failure.inputs.items())[-1] for _, failure in results.failures()} == {("token", "[redacted]")}
    left = [entry.message for entry in outcome.rollback_failures]
    assert sorted(left) == sorted(f"RuntimeError: {number} cannot shut [redacted]" for number in range(0, 20, 2))
    _, out, _ = place.store.space.fan(handle.run_id)
    assert max(len(record) for record in await place.do("HVALS", out)) < 2_000  # what is common is 300 times as long


async def test_it_is_not_searched_for_each_element(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = 0
    inside = redaction._inside

    def looking(value: Any) -> Any:
        nonlocal walked
        walked += isinstance(value, dict) and "holder" in value
        return inside(value)

    monkeypatch.setattr(redaction, "_inside", looking)
    holders = [{"holder": number} for number in range(500)]
    async with working(place):
        handle = await Keys.enqueue(numbers=list(range(0, 400, 2)), holders=holders, token=SECRET)
        await handle.result(20)
    assert 500 <= walked < 500 * 60  # of every run and session, not of 200 elements that are executed and rolled back
