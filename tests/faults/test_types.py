"""What a worker's steps return is what their caller reads, value and type; what cannot be kept is taken back."""

from __future__ import annotations

from typing import Any

import pytest

from aioreactor import Failure, PayloadTooLarge, SerializationError, Success, runs
from aioreactor.store.codec_compare import difference
from tests.faults.kit import Field, Zygote
from tests.faults.typed import UNKEPT, VALUES, Typed


def wrong(results: Any) -> dict[str, str]:
    """Which of the samples did not come back, and how."""
    found = {}
    for name, (what, _, value) in VALUES.items():
        back = results[name]
        problem = difference(value, back)
        if problem is not None or type(back) is not type(value):
            found[what] = problem or f"{type(value)} came back as {type(back)}"
    return found


async def test_values_of_every_type_come_back_from_a_worker(ward: Field, clinic: list[Zygote]) -> None:
    async with ward.worker(clinic[0]):
        handle = await Typed.with_options(run_id="x", queue=ward.queue()).enqueue()
        outcome = await handle.result(30)
    assert isinstance(outcome, Success)
    assert len(VALUES) > 80
    assert wrong(outcome.results) == {}
    assert wrong((await runs.find("x")).results) == {}


@pytest.mark.parametrize("name", UNKEPT)
async def test_what_cannot_be_kept_fails_its_step_and_is_taken_back(
    ward: Field, clinic: list[Zygote], name: str
) -> None:
    async with ward.worker(clinic[0]):
        handle = await UNKEPT[name].with_options(run_id="x", queue=ward.queue()).enqueue()
        outcome = await handle.result(30)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, PayloadTooLarge if name == "TooLarge" else SerializationError)
    assert (outcome.status, outcome.step) == ("failed", "b")
    assert await ward.ledger.lines("x") == ["do:a", "do:b", "comp:b", "undo:a"]
    found = await runs.find("x")
    assert list(found.results) == ["a"]
