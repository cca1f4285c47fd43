"""What units need of a store: a run that waits is made due, and what nobody has taken is ended, in one step each."""

from __future__ import annotations

import asyncio

import pytest

from aioreactor.store.answers import Created, Exists, Query, Refused
from aioreactor.store.claim import Claim
from aioreactor.store.keys import parent_in, run_id_for_unit
from aioreactor.store.records import Changes, NewRun

from .kit import LONG, NEW, Crash, Kit, RedisKit, held, row_of

CHILD = NewRun(reactor="shop.Mail", parent="r", listed=False, queue="slow")


def waiting(claim: Claim, what: str = "unit 'mail', until tomorrow") -> Changes:
    return Changes(rest=f"{claim.fence} {what}")


async def park(kit: Kit, what: str = "unit 'mail', until tomorrow", queue: str = "") -> None:
    claim = await held(kit, new=NewRun(reactor="shop.Order", queue=queue))
    await kit.store.release(claim, waiting(claim, what), due_ms=LONG)


async def take(kit: Kit, run_id: str = "r") -> Claim:
    claim = await kit.store.take(run_id, ["running", "pending"], ttl_ms=LONG, status="running")
    assert isinstance(claim, Claim)
    return claim


# ---------------------------------------------------------------------- waking


async def test_a_run_that_waits_for_a_unit_is_made_due_and_its_queue_is_told(kit: Kit) -> None:
    await park(kit, queue="fast")
    assert await kit.store.wake("r") == "fast"
    assert (await row_of(kit)).due_ms == 0
    assert await kit.store.wake("r") == "fast"  # a repeat says the same


@pytest.mark.parametrize("what", ["the next attempt of step 'unit x', due tomorrow", "a worker", ""])
async def test_a_run_that_waits_for_something_else_is_left_alone(kit: Kit, what: str) -> None:
    await park(kit, what)
    before = await row_of(kit)
    assert await kit.store.wake("r") is None
    assert (await row_of(kit)).due_ms == before.due_ms > 0


async def test_who_is_unknown_or_over_is_not_woken(kit: Kit) -> None:
    assert await kit.store.wake("nobody") is None
    claim = await held(kit)
    await kit.store.close(claim, "completed", b"o", retention_ms=LONG)
    keys = await kit.keys()
    assert await kit.store.wake("r") is None
    assert await kit.keys() == keys


async def test_one_that_is_being_let_go_is_due_when_it_is(kit: Kit) -> None:
    claim = await held(kit)
    assert await kit.store.wake("r") is None
    await kit.store.release(claim, waiting(claim), due_ms=LONG)
    assert (await row_of(kit)).due_ms == 0
    again = await take(kit)
    await kit.store.release(again, waiting(again), due_ms=LONG)  # the mark was for that time only
    row = await row_of(kit)
    assert row.due_ms - row.updated_ms == LONG


async def test_who_takes_it_has_heard(kit: Kit) -> None:
    claim = await held(kit)
    assert await kit.store.wake("r") is None
    await kit.expire_lease("r")
    claim = await take(kit)
    await kit.store.release(claim, waiting(claim), due_ms=LONG)
    assert (await row_of(kit)).due_ms > 0


async def test_the_end_of_a_unit_wakes_its_parent(kit: Kit) -> None:
    await park(kit, queue="fast")
    claim = await held(kit, "u", CHILD)
    await kit.store.close(claim, "failed", b"o", retention_ms=LONG)
    assert claim.woke == ("r", "fast")
    assert (await row_of(kit)).due_ms == 0


async def test_an_end_that_interests_nobody_wakes_nobody(kit: Kit) -> None:
    parent = await held(kit)
    claim = await held(kit, "u", CHILD)
    await kit.store.close(claim, "completed", b"o", retention_ms=LONG)
    assert claim.woke is None
    alone = await held(kit, "a", NEW)
    await kit.store.close(alone, "completed", b"o", retention_ms=LONG)
    assert alone.woke is None
    await kit.store.close(parent, "completed", b"o", retention_ms=LONG)


async def test_a_parked_parent_is_stalled_once_it_was_woken_and_nobody_came(kit: Kit) -> None:
    await park(kit)
    await kit.rest("r")
    await kit.make_due()
    assert await kit.store.stalled() == []
    await kit.store.wake("r")
    await kit.make_due()
    assert [row.run_id for row in await kit.store.stalled()] == ["r"]


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_process_that_dies_while_it_tells_leaves_that_to_the_sweeper(redis_kit: RedisKit, point: str) -> None:
    await park(redis_kit)
    claim = await held(redis_kit, "u", CHILD)
    getattr(redis_kit.faults, point)["run_wake"] = Crash()
    with pytest.raises(Crash):
        await redis_kit.store.close(claim, "completed", b"o", retention_ms=LONG)
    assert (await row_of(redis_kit, "u")).status == "completed"
    await redis_kit.make_due()
    await redis_kit.store.stalled()
    assert (await row_of(redis_kit)).due_ms == 0
    listed = await redis_kit.store.page(Query(parent="r", status="completed"))
    assert [row.run_id for row in listed.rows] == ["u"]
    assert redis_kit.faults.seen.count("run_wake") == 2
    await redis_kit.make_due()
    await redis_kit.store.stalled()  # the ended one is not looked at any more
    assert redis_kit.faults.seen.count("run_wake") == 2


# ---------------------------------------------------------------------- withdrawing


async def test_what_nobody_has_taken_is_ended_and_who_waits_is_told(kit: Kit) -> None:
    assert isinstance(await kit.store.create("u", CHILD), Created)
    done = asyncio.create_task(kit.store.wait_done("u", 10))
    await asyncio.sleep(0)
    assert await kit.store.withdraw("u", b"called off", retention_ms=LONG) == "cancelled"
    row = await done
    assert (row.status, row.outcome, row.fence, row.ended_ms > 0) == ("cancelled", b"called off", 0, True)
    assert await kit.store.withdraw("u", b"again", retention_ms=LONG) == "cancelled"
    assert (await row_of(kit, "u", "outcome")).outcome == b"called off"
    assert await kit.store.take("u", ["pending", "running"], ttl_ms=LONG) == Refused("cancelled")
    listed = await kit.store.page(Query(parent="r", status="cancelled"))
    assert [found.run_id for found in listed.rows] == ["u"]
    await kit.make_due()
    assert await kit.store.stalled() == []
    await kit.expire_record("u")
    assert await kit.store.withdraw("u", b"gone") is None


async def test_what_was_taken_is_not(kit: Kit) -> None:
    await kit.store.create("u", CHILD)
    claim = await take(kit, "u")
    assert await kit.store.withdraw("u", b"x", retention_ms=LONG) == "running"
    await kit.store.release(claim, due_ms=LONG)  # it waits for its next attempt: it has started
    assert await kit.store.withdraw("u", b"x", retention_ms=LONG) == "running"
    await kit.store.close(await take(kit, "u"), "failed", b"o", retention_ms=LONG)
    assert await kit.store.withdraw("u", b"x", retention_ms=LONG) == "failed"
    assert (await row_of(kit, "u", "outcome")).outcome == b"o"


async def test_it_is_either_taken_or_ended(kit: Kit) -> None:
    for number in range(20):
        await kit.store.create(f"u{number}", CHILD)
        took, status = await asyncio.gather(
            kit.store.take(f"u{number}", ["pending"], ttl_ms=LONG, status="running"),
            kit.store.withdraw(f"u{number}", b"x", retention_ms=LONG),
        )
        assert isinstance(took, Claim) == (status == "running")
        if isinstance(took, Claim):
            await kit.store.close(took, "completed", b"", retention_ms=LONG)


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_withdrawal_whose_reply_was_lost_ends_it_once(redis_kit: RedisKit, point: str) -> None:
    await redis_kit.store.create("u", CHILD)
    getattr(redis_kit.faults, point)["run_withdraw"] = ConnectionResetError()
    assert await redis_kit.store.withdraw("u", b"x", retention_ms=LONG) == "cancelled"
    assert (await row_of(redis_kit, "u")).ver == 2


async def test_a_retention_has_to_be_positive(kit: Kit) -> None:
    await kit.store.create("u", CHILD)
    with pytest.raises(ValueError, match="at least 1"):
        await kit.store.withdraw("u", b"x", retention_ms=0)
    assert (await row_of(kit, "u")).status == "pending"
    await kit.store.delete("u")


# ---------------------------------------------------------------------- names


async def test_creating_a_unit_again_finds_it(kit: Kit) -> None:
    unit = run_id_for_unit("r", 17, "m[2].mail", independent=False)
    assert isinstance(await kit.store.create(unit, CHILD), Created)
    found = await kit.store.create(unit, CHILD)
    assert isinstance(found, Exists)
    assert (found.status, found.same_inputs) == ("pending", True)


def test_ids_of_units_differ_by_run_time_path_and_kind() -> None:
    ids = {
        run_id_for_unit(parent, created_ms, path, independent=independent)
        for parent in ("r", "r:1", "1")
        for created_ms in (1, 11)
        for path in ("a", "1:a", "a.b")
        for independent in (False, True)
    }
    assert len(ids) == 36
    assert all(each.isalnum() and each.isascii() for each in ids)


@pytest.mark.parametrize("parent", ["r", "k-1", "a b:{c}", "ü%"])
def test_the_parent_can_be_read_from_the_labels(parent: str) -> None:
    assert parent_in(NewRun(reactor="x", parent=parent, tags=("parent:no",)).labels()) == parent
    assert parent_in(NewRun(reactor="x", tags=("parent:no",)).labels()) == ""
