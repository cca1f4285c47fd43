"""Those who save in one iteration share a write, which the first of them makes, and which goes on without that one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aioreactor.engine.ports import Checkpoint
from aioreactor.errors import OwnershipLost
from aioreactor.store.answers import Created
from aioreactor.store.claim import Claim
from aioreactor.store.journal import RunJournal
from aioreactor.store.leases import Hold
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import NewRun
from tests.integration.durable.kit import Place, every_turn


class Ours:
    """A hold that asks nobody."""

    def __init__(self) -> None:
        self.asked = 0

    async def check(self) -> None:
        self.asked += 1

    def release(self) -> None:
        pass

    def answered(self) -> None:
        pass


async def begun(place: Place, run_id: str) -> tuple[RunJournal, Ours]:
    made = await place.store.create(run_id, NewRun(reactor="R"), hold_ms=30_000)
    assert isinstance(made, Created)
    hold = Ours()
    claim = cast("Claim", made.claim)
    return RunJournal(place.store, claim, cast("Hold", hold), PlanCodec(), _nothing, retention_ms=1000), hold


def _nothing(outcome: Any) -> bytes:
    return b""


def said(text: str) -> Checkpoint:
    """A checkpoint with one trace entry."""
    return Checkpoint([], [(0.0, "note", text, 1, "")], "running", None, {})


async def kept(place: Place, run_id: str) -> list[str]:
    record = await place.store.read(run_id)
    assert record is not None
    return [PlanCodec().entry_back(entry)[2] for entry in record.trace]


async def ended(place: Place, journal: RunJournal) -> None:
    await place.store.close(journal.claim, "completed", b"", retention_ms=1000)


async def test_those_of_one_iteration_share_a_write(place: Place) -> None:
    journal, hold = await begun(place, "r")
    ver = journal.claim.ver
    await asyncio.gather(*(journal.save(said(f"{number}")) for number in range(20)))
    assert await kept(place, "r") == [f"{number}" for number in range(20)]
    assert (journal.claim.ver, hold.asked) == (ver + 1, 2)  # before the write, and after its answer
    await ended(place, journal)


async def test_whoever_is_cancelled_all_is_kept_before_the_others_go_on(place: Place) -> None:
    for turns in every_turn():
        run_id = f"r{turns}"
        journal, _ = await begun(place, run_id)
        first, second = (asyncio.create_task(journal.save(said(text))) for text in ("first", "second"))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = first.done()
        first.cancel()
        await second
        found = await kept(place, run_id)
        assert found == (["first", "second"] if turns else ["second"]), turns
        await asyncio.wait({first})
        assert first.cancelled() is not is_over
        await journal.save(said("third"))
        assert await kept(place, run_id) == [*found, "third"]
        await ended(place, journal)
        if is_over:
            return


async def test_all_are_told_that_it_is_not_theirs_any_more(place: Place) -> None:
    journal, _ = await begun(place, "r")
    await place.lapse("r")
    taken = await place.store.take("r", ["running"], ttl_ms=30_000)
    assert isinstance(taken, Claim)
    told = await asyncio.gather(*(journal.save(said(text)) for text in "abc"), return_exceptions=True)
    assert [type(error) for error in told] == [OwnershipLost] * 3
    with pytest.raises(OwnershipLost):
        await journal.save(said("d"))
    assert await kept(place, "r") == []
    await place.store.close(taken, "completed", b"", retention_ms=1000)


async def test_all_are_told_also_when_the_first_has_gone(place: Place) -> None:
    for turns in every_turn():
        run_id = f"r{turns}"
        journal, _ = await begun(place, run_id)
        await place.lapse(run_id)
        taken = await place.store.take(run_id, ["running"], ttl_ms=30_000)
        assert isinstance(taken, Claim)
        first, second = (asyncio.create_task(journal.save(said(text))) for text in ("first", "second"))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = first.done()
        first.cancel()
        told = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(told[1], OwnershipLost)
        assert await kept(place, run_id) == []
        await place.store.close(taken, "completed", b"", retention_ms=1000)
        if is_over:
            return
