"""What every run store does. Each test runs on the volatile one, on a server, and on a cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aioreactor.errors import OwnershipLost, RunNotFound
from aioreactor.store.answers import Accepted, Created, Exists, Held, Missing, Query, Refused
from aioreactor.store.claim import Claim
from aioreactor.store.keys import run_id_for_key
from aioreactor.store.records import STATUSES, TERMINAL, Changes, NewRun
from aioreactor.trace import Status

from .kit import LONG, NEW, WRITES, Kit, RedisKit, held, record_of, row_of, twin


async def take(kit: Kit, run_id: str = "r", *allowed: Status, **options: Any) -> Claim:
    taken = await kit.store.take(run_id, allowed or ("running",), ttl_ms=LONG, **options)
    assert isinstance(taken, Claim), taken
    return taken


# ---------------------------------------------------------------------- create


async def test_a_new_run_is_pending_and_held_by_nobody(kit: Kit) -> None:
    new = NewRun(
        reactor="shop.Order", inputs=b"in", version="v1", fingerprint="f1", parent="p", tags=("eu", "vip"),
        deadline_ms=5000, steps={"a": b"1"}, trace=[b"t"], state=b"s", seq=3,
    )  # fmt: skip
    created = await kit.store.create("r", new)
    assert isinstance(created, Created)
    assert created.claim is None
    record = await record_of(kit)
    row = record.row
    assert (row.status, row.ver, row.fence, row.owner, row.lease_left_ms) == ("pending", 1, 0, "", 0)
    assert (row.reactor, row.version, row.fingerprint, row.parent) == ("shop.Order", "v1", "f1", "p")
    assert (row.tags, row.inputs, row.state, row.seq) == (("eu", "vip"), b"in", b"s", 3)
    assert row.created_ms == row.updated_ms == created.created_ms
    assert row.deadline_ms == row.created_ms + 5000
    assert (record.steps, record.trace, record.requests) == ({"a": b"1"}, [b"t"], [])


async def test_a_run_is_created_once(kit: Kit) -> None:
    await held(kit)
    again = await kit.store.create("r", NEW)
    assert isinstance(again, Exists)
    assert (again.status, again.ver, again.same_inputs) == ("running", 1, True)
    assert 0 < again.lease_left_ms <= LONG
    other = await kit.store.create("r", NewRun(reactor="shop.Order", inputs=b"other"))
    assert isinstance(other, Exists)
    assert not other.same_inputs
    assert (await row_of(kit, "r", "inputs")).inputs == b"in"


async def test_of_many_concurrent_creators_one_wins(kit: Kit) -> None:
    run_id = run_id_for_key("shop.Order", "key")
    made = await asyncio.gather(*(kit.store.create(run_id, NEW, hold_ms=LONG) for _ in range(20)))
    assert sum(isinstance(each, Created) for each in made) == 1
    assert all(each.same_inputs for each in made if isinstance(each, Exists))


async def test_an_ended_run_makes_room_only_if_its_status_is_named(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.ask("r", b"body")
    await kit.store.save(claim, Changes(steps={"a": b"1"}, trace=[b"t"], failure=b"f"))
    await kit.store.close(claim, "failed", b"out", retention_ms=1000)
    assert isinstance(await kit.store.create("r", NEW, replace=["halted"]), Exists)
    anew = await kit.store.create("r", NEW, hold_ms=LONG, replace=["halted", "failed"])
    assert isinstance(anew, Created)
    assert anew.claim is not None
    record = await record_of(kit)
    assert (record.steps, record.trace, record.requests) == ({}, [], [])
    assert (record.row.status, record.row.failure, record.row.outcome) == ("running", b"", b"")
    assert record.row.fence == 2, "fences go on"
    assert record.row.ver > claim.ver, "so do versions"
    await kit.store.save(anew.claim, Changes())
    assert [row.status for row in (await kit.store.page(Query(status="failed"))).rows] == []


async def test_many_are_created_at_once_each_as_if_alone(kit: Kit) -> None:
    await kit.store.close(await held(kit, "done"), "failed", b"out")
    await held(kit, "lives")
    inputs = {f"m{number}": NewRun(reactor="shop.Order", inputs=b"%d" % number) for number in range(1100)}
    made = await kit.store.create_many([("lives", NEW), *inputs.items(), ("done", NEW)], replace=["failed"])
    assert [type(each) for each in made] == [Exists, *[Created] * 1101]
    assert [each.run_id for each in made] == ["lives", *inputs, "done"]
    assert all(each.claim is None for each in made if isinstance(each, Created))
    row = await row_of(kit, "m1099", "inputs")
    assert (row.status, row.inputs, row.fence) == ("pending", b"1099", 0)
    assert (await row_of(kit, "done")).status == "pending"
    found: list[str] = []
    cursor = ""
    while not found or cursor:
        page = await kit.store.page(Query(status="pending"), limit=1000, cursor=cursor)
        found, cursor = [*found, *(row.run_id for row in page.rows)], page.cursor
    assert sorted(found) == sorted([*inputs, "done"])


async def test_when_one_of_many_cannot_be_created_none_is(kit: Kit) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await kit.store.create_many([("r", NEW), ("s", NewRun(reactor="shop.Order", deadline_ms=0))])
    with pytest.raises(ValueError, match="does not end"):
        await kit.store.create_many([("r", NEW)], replace=["running"])
    assert await kit.store.create_many([]) == []
    assert await kit.store.peek("r") is None


async def test_a_living_run_never_makes_room(kit: Kit) -> None:
    await kit.store.create("r", NEW)
    assert isinstance(await kit.store.create("r", NEW, replace=list(TERMINAL)), Exists)
    with pytest.raises(ValueError, match="does not end"):
        await kit.store.create("r", NEW, replace=["running"])


IDS = ["{a}", "}{", "a:run", ":index", "a\nb", "a b", "ü€😀", "%7B", "{", "..", "x" * 200, "*", "a{b}c", "\x00"]


async def test_ids_of_users_stay_apart(kit: Kit) -> None:
    """Whatever is in an id, it names one run, and no key outside its own slot."""
    for run_id in IDS:
        claim = await held(kit, run_id)
        await kit.store.save(claim, Changes(steps={run_id: run_id.encode()}))
        assert isinstance(await kit.store.ask(run_id, run_id.encode(), request_id=run_id), Accepted)
    for run_id in IDS:
        record = await record_of(kit, run_id)
        assert record.steps == {run_id: run_id.encode()}
        assert [(r.id, r.body) for r in record.requests] == [(run_id, run_id.encode())]
    assert {row.run_id for row in (await kit.store.page(limit=100)).rows} == set(IDS)
    for run_id in IDS:
        assert await kit.store.delete(run_id, force=True) is True
    assert await kit.keys() == []


@pytest.mark.parametrize("run_id", ["", "x" * 201, "\ud800"])
async def test_what_cannot_be_an_id_is_refused_before_anything_is_sent(kit: Kit, run_id: str) -> None:
    for call in (
        kit.store.create(run_id, NEW),
        kit.store.peek(run_id),
        kit.store.delete(run_id),
        kit.store.read(run_id),
    ):
        with pytest.raises(ValueError):
            await call
    assert await kit.keys() == []


@pytest.mark.parametrize(
    "new", [NewRun(reactor=""), NewRun(reactor="r", tags=("",)), NewRun(reactor="r", parent="x" * 201),
            NewRun(reactor="r", deadline_ms=0)]
)  # fmt: skip
async def test_a_run_that_could_not_be_listed_is_refused(kit: Kit, new: NewRun) -> None:
    with pytest.raises(ValueError):
        await kit.store.create("r", new)
    assert await kit.keys() == []


# ---------------------------------------------------------------------- take


async def test_a_worker_claims_a_pending_run(kit: Kit) -> None:
    await kit.store.create("r", NEW)
    claim = await take(kit, "r", "pending", "running", status="running", owner="w1")
    row = await row_of(kit)
    assert (row.status, row.owner, row.fence, row.ver) == ("running", "w1", 1, claim.ver)
    assert 0 < row.lease_left_ms <= LONG
    assert claim.trusted
    record = await kit.store.load(claim)
    assert record.row.inputs == b"in"


async def test_a_held_run_is_not_taken(kit: Kit) -> None:
    await held(kit)
    taken = await kit.store.take("r", STATUSES, ttl_ms=LONG, status="running")
    assert isinstance(taken, Held)
    assert taken.owner == "test"
    assert 0 < taken.ms_left <= LONG


async def test_of_many_takers_one_wins(kit: Kit) -> None:
    await kit.store.create("r", NEW)
    taken = await asyncio.gather(*(kit.store.take("r", ["pending"], ttl_ms=LONG, status="running") for _ in range(20)))
    assert sum(isinstance(each, Claim) for each in taken) == 1


async def test_taking_is_refused_for_other_statuses_and_missing_runs(kit: Kit) -> None:
    await kit.store.create("r", NEW)
    assert await kit.store.take("r", ["paused"], ttl_ms=LONG) == Refused("pending")
    assert await kit.store.take("no", ["paused"], ttl_ms=LONG) == Missing()
    with pytest.raises(ValueError, match="what becomes of it"):
        await kit.store.take("r", ["failed"], ttl_ms=LONG)
    with pytest.raises(ValueError, match="ends a run"):
        await kit.store.take("r", ["running"], ttl_ms=LONG, status="failed")


async def test_a_lease_that_is_past_can_be_taken_over(kit: Kit) -> None:
    old = await held(kit)
    await kit.expire_lease("r")
    new = await take(kit)
    assert new.fence == old.fence + 1
    await kit.store.save(new, Changes(steps={"a": b"1"}))
    with pytest.raises(OwnershipLost, match="taken over"):
        await kit.store.save(old, Changes(steps={"a": b"2"}))
    assert (await record_of(kit)).steps == {"a": b"1"}


@pytest.mark.parametrize("write", ["save", "extend", "release", "close", "load"])
async def test_a_lease_that_is_past_and_that_nobody_took_is_still_its_holders(kit: Kit, write: str) -> None:
    claim = await held(kit)
    await kit.expire_lease("r")
    await WRITES[write](kit.store, claim)
    if write in {"save", "extend"}:
        assert (await row_of(kit)).lease_left_ms > 0


# ---------------------------------------------------------------------- write


async def test_a_checkpoint_writes_what_changed_and_nothing_else(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.save(claim, Changes(steps={"a": b"1", "b": b"2"}, trace=[b"x", b"y"]))
    await kit.store.save(claim, Changes(steps={"b": b"3", "c": b""}, dropped=["a"], trace=[b"z"], state=b"s", seq=7))
    await kit.store.save(claim, Changes(failure=b"f", served=2, version="v2", fingerprint="f2", status="rolling_back"))
    record = await kit.store.load(claim)
    assert record.steps == {"b": b"3", "c": b""}
    assert record.trace == [b"x", b"y", b"z"]
    row = record.row
    assert (row.state, row.seq, row.failure, row.served) == (b"s", 7, b"f", 2)
    assert (row.version, row.fingerprint, row.status) == ("v2", "f2", "rolling_back")
    assert row.ver == claim.ver == 4


async def test_a_checkpoint_may_be_large(kit: Kit) -> None:
    claim = await held(kit)
    steps = {f"s{i}": b"%d" % i for i in range(9_001)}
    await kit.store.save(claim, Changes(steps=steps, trace=[b"%d" % i for i in range(9_001)]))
    await kit.store.save(claim, Changes(dropped=list(steps)[1:], trace=[b"last"]))
    record = await record_of(kit)
    assert record.steps == {"s0": b"0"}
    assert record.trace == [*(b"%d" % i for i in range(9_001)), b"last"]


async def test_writes_of_one_claim_are_applied_in_the_order_of_the_calls(kit: Kit) -> None:
    claim = await held(kit)
    await asyncio.gather(*(kit.store.save(claim, Changes(trace=[b"%d" % i])) for i in range(50)))
    assert (await record_of(kit)).trace == [b"%d" % i for i in range(50)]


async def test_a_copy_of_a_claim_is_refused_once_the_other_has_written(kit: Kit) -> None:
    claim = await held(kit)
    copy = twin(claim)
    await kit.store.save(claim, Changes())
    with pytest.raises(OwnershipLost, match="same token"):
        await kit.store.save(copy, Changes(trace=[b"z"]))
    assert (await record_of(kit)).trace == []


async def test_only_close_ends_a_run(kit: Kit) -> None:
    claim = await held(kit)
    with pytest.raises(ValueError, match="ends a run"):
        await kit.store.save(claim, Changes(status="failed"))
    with pytest.raises(ValueError, match="ends a run"):
        await kit.store.release(claim, Changes(status="completed"))
    with pytest.raises(ValueError, match="does not end"):
        await kit.store.close(claim, "paused", b"")
    with pytest.raises(ValueError, match="at least 1"):
        await kit.store.close(claim, "failed", b"", retention_ms=0)
    await kit.store.save(claim, Changes())


async def test_a_paused_run_is_let_go_and_taken_again(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.release(claim, Changes(status="paused", steps={"a": b"1"}, trace=[b"t"]))
    record = await record_of(kit)
    assert (record.row.status, record.row.owner, record.row.lease_ms) == ("paused", "", 0)
    assert (record.steps, record.trace) == ({"a": b"1"}, [b"t"])
    again = await take(kit, "r", "paused", status="running")
    assert (await kit.store.load(again)).row.status == "running"


async def test_a_handed_off_run_stays_running(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.release(claim)
    assert (await row_of(kit)).status == "running"
    await take(kit)


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_a_closed_run_has_its_outcome_and_changes_no_more(kit: Kit, status: Status) -> None:
    claim = await held(kit)
    await kit.store.close(claim, status, b"out", Changes(steps={"a": b"1"}, trace=[b"t"]), retention_ms=LONG)
    record = await record_of(kit)
    row = record.row
    assert (row.status, row.outcome, row.owner, row.lease_ms) == (status, b"out", "", 0)
    assert row.ended
    assert row.ended_ms == row.updated_ms
    assert record.steps == {"a": b"1"}
    for write in WRITES.values():
        for each in (claim, twin(claim)):
            with pytest.raises(OwnershipLost):
                await write(kit.store, each)
    after = await record_of(kit)
    assert (after.row.ver, after.steps, after.trace) == (row.ver, record.steps, record.trace)
    assert await kit.store.take("r", ["running"], ttl_ms=LONG) == Refused(status)


async def test_an_ended_run_goes_when_its_retention_is_over_and_a_paused_one_never(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.save(claim, Changes(steps={"a": b"1"}, trace=[b"t"]))
    await kit.store.ask("r", b"body")
    await kit.store.close(claim, "completed", b"", retention_ms=LONG)
    await kit.expire_record("r")
    assert await kit.store.peek("r") is None
    assert await kit.store.read("r") is None
    assert isinstance(await kit.store.create("r", NEW), Created)


async def test_an_ended_run_that_is_taken_up_again_expires_no_more(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.save(claim, Changes(steps={"a": b"1"}, trace=[b"t"]))
    await kit.store.close(claim, "completed", b"out", retention_ms=LONG)
    undo = await take(kit, "r", "completed", "failed", status="rolling_back")
    with pytest.raises(AssertionError):
        await kit.expire_record("r")
    record = await kit.store.load(undo)
    assert (record.row.status, record.row.outcome, record.row.ended_ms) == ("rolling_back", b"", 0)
    assert record.steps == {"a": b"1"}
    await kit.store.close(undo, "cancelled", b"undone", retention_ms=LONG)
    await kit.expire_record("r")


# ---------------------------------------------------------------------- fence


@pytest.mark.parametrize("name", WRITES)
async def test_whoever_slept_can_do_no_harm(kit: Kit, name: str) -> None:
    """Another one has taken the run: each write of the old holder is refused and leaves every key as it was."""
    old = await held(kit)
    await kit.store.save(old, Changes(steps={"a": b"1"}, trace=[b"t"]))
    await kit.expire_lease("r")
    new = await take(kit)
    await kit.store.save(new, Changes(steps={"a": b"2"}))
    before = await _everything(kit)
    for ver in range(8):
        with pytest.raises(OwnershipLost):
            await WRITES[name](kit.store, twin(old, ver))
    with pytest.raises(OwnershipLost):
        await WRITES[name](kit.store, old)
    assert isinstance(await kit.store.delete("r"), Held)
    assert await _everything(kit) == before
    assert not old.trusted
    await kit.store.save(new, Changes(steps={"a": b"3"}))


@pytest.mark.parametrize("name", WRITES)
async def test_a_deleted_run_is_not_written_back(kit: Kit, name: str) -> None:
    claim = await held(kit)
    await kit.store.delete("r", force=True)
    with pytest.raises(OwnershipLost, match="deleted"):
        await WRITES[name](kit.store, claim)
    assert await kit.keys() == []


@pytest.mark.parametrize("name", WRITES)
async def test_a_released_claim_is_over(kit: Kit, name: str) -> None:
    claim = await held(kit)
    await kit.store.release(claim)
    for each in (claim, twin(claim)):
        with pytest.raises(OwnershipLost):
            await WRITES[name](kit.store, each)
    await take(kit)


async def _everything(kit: Kit) -> object:
    if isinstance(kit, RedisKit):
        return await kit.dump()
    run = kit.store._runs["r"]
    return {name: str(value) for name, value in vars(run).items()}


# ---------------------------------------------------------------------- requests


async def test_requests_reach_the_holder_in_order_and_are_served_once(kit: Kit) -> None:
    claim = await held(kit)
    for body in (b"one", b"two"):
        accepted = await kit.store.ask("r", body)
        assert isinstance(accepted, Accepted)
        assert accepted.lease_left_ms > 0
    await kit.store.save(claim, Changes())
    assert claim.asked == 2
    record = await kit.store.load(claim)
    assert [(r.number, r.body) for r in record.waiting] == [(1, b"one"), (2, b"two")]
    await kit.store.save(claim, Changes(served=2, trace=[b"served"]))
    await kit.store.ask("r", b"three")
    await kit.store.extend(claim)
    assert claim.asked == 3
    assert [r.body for r in (await kit.store.load(claim)).waiting] == [b"three"]


async def test_the_first_request_of_an_id_counts(kit: Kit) -> None:
    await held(kit)
    first = await kit.store.ask("r", b"x\ny", request_id="k")
    again = await kit.store.ask("r", b"x\ny", request_id="k")
    other = await kit.store.ask("r", b"other", request_id="k")
    assert [isinstance(a, Accepted) and (a.number, a.first, a.same) for a in (first, again, other)] == [
        (1, True, True), (1, False, True), (1, False, False),
    ]  # fmt: skip
    assert [r.body for r in (await record_of(kit)).requests] == [b"x\ny"]


async def test_requests_are_refused_by_status(kit: Kit) -> None:
    claim = await held(kit)
    assert await kit.store.ask("r", b"", allowed=["paused"]) == Refused("running")
    await kit.store.close(claim, "completed", b"")
    assert await kit.store.ask("r", b"", allowed=list(STATUSES)) == Refused("completed")
    assert await kit.store.ask("no", b"") == Missing()


async def test_a_request_rings(kit: Kit) -> None:
    await held(kit)
    async with kit.store.requests("r") as bell:
        while await bell.wait(0):
            pass
        await kit.store.ask("r", b"")
        assert await bell.wait(5)


# ---------------------------------------------------------------------- waiting


@pytest.mark.parametrize("end", ["close", "pause"])
async def test_whoever_waits_is_told(kit: Kit, end: str) -> None:
    claim = await held(kit)
    until: frozenset[Status] = TERMINAL.union(("paused",))
    waiting = [asyncio.create_task(kit.store.wait_done("r", 20, until=until)) for _ in range(10)]
    await asyncio.sleep(0)
    await kit.store.save(claim, Changes())
    if end == "close":
        await kit.store.close(claim, "completed", b"out")
    else:
        await kit.store.release(claim, Changes(status="paused"))
    async with asyncio.timeout(4):  # before anybody looks unasked
        rows = await asyncio.gather(*waiting)
    assert {row.status for row in rows} == {"completed" if end == "close" else "paused"}
    assert {row.outcome for row in rows} == {b"out" if end == "close" else b""}


async def test_waiting_for_an_ended_run_returns_at_once(kit: Kit) -> None:
    await kit.store.close(await held(kit), "failed", b"out")
    assert (await kit.store.wait_done("r", 0.5)).outcome == b"out"


async def test_waiting_ends_with_the_time_or_the_run(kit: Kit) -> None:
    with pytest.raises(RunNotFound):
        await kit.store.wait_done("no")
    await held(kit)
    with pytest.raises(TimeoutError):
        await kit.store.wait_done("r", 0.01)
    waiting = asyncio.create_task(kit.store.wait_done("r", 20))
    await asyncio.sleep(0)
    await kit.store.delete("r", force=True)
    async with asyncio.timeout(4):
        with pytest.raises(RunNotFound):
            await waiting


# ---------------------------------------------------------------------- lists


async def _ids(kit: Kit, limit: int = 50, **query: Any) -> list[str]:
    page = await kit.store.page(Query(**query), limit=limit)
    assert page.cursor == ""
    return [row.run_id for row in page.rows]


async def test_runs_are_listed_by_what_they_are(kit: Kit) -> None:
    await kit.store.create("a", NewRun(reactor="A", tags=("t1", "{x}\n")))
    await kit.store.create("b", NewRun(reactor="B", tags=("t1",)))
    await held(kit, "c", NewRun(reactor="A", tags=("t2",)))
    await kit.store.create("a0", NewRun(reactor="E", parent="a", listed=False, tags=("t1",)))
    await kit.store.create("a1", NewRun(reactor="A", parent="a"))
    assert set(await _ids(kit)) == {"a1", "c", "b", "a"}
    assert set(await _ids(kit, elements=True)) == {"a1", "a0", "c", "b", "a"}
    assert set(await _ids(kit, reactor="A")) == {"a1", "c", "a"}
    assert await _ids(kit, reactor="A", status="running") == ["c"]
    assert set(await _ids(kit, tag="t1")) == {"b", "a"}
    assert await _ids(kit, tag="{x}\n") == ["a"]
    assert set(await _ids(kit, parent="a")) == {"a1", "a0"}
    assert await _ids(kit, reactor="none") == []
    rows = (await kit.store.page(Query(reactor="A", status="running"))).rows
    assert (rows[0].reactor, rows[0].tags, rows[0].inputs) == ("A", ("t2",), b"")
    with pytest.raises(ValueError, match="no status"):
        await kit.store.page(Query(status=cast("Any", "lost")))


async def test_a_list_follows_the_status(kit: Kit) -> None:
    claim = await held(kit)
    seen = []
    for change in ("rolling_back", "paused"):
        if change == "paused":
            await kit.store.release(claim, Changes(status="paused"))
        else:
            await kit.store.save(claim, Changes(status=change))
        seen.append([status for status in sorted(STATUSES) if await _ids(kit, status=status)])
    claim = await take(kit, "r", "paused", status="running")
    seen.append([status for status in sorted(STATUSES) if await _ids(kit, status=status)])
    await kit.store.close(claim, "completed", b"")
    seen.append([status for status in sorted(STATUSES) if await _ids(kit, status=status)])
    assert seen == [["rolling_back"], ["paused"], ["running"], ["completed"]]


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_give_each_run_once_newest_first(kit: Kit, limit: int) -> None:
    await asyncio.gather(*(kit.store.create(f"r{i}", NEW) for i in range(20)))
    found, cursor = [], ""
    while True:
        page = await kit.store.page(limit=limit, cursor=cursor)
        assert len(page.rows) <= limit
        found += page.rows
        await kit.store.create(f"new{len(found)}", NEW)  # does not disturb the pages that follow
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(row.run_id for row in found) == sorted(f"r{i}" for i in range(20))
    assert [row.created_ms for row in found] == sorted((row.created_ms for row in found), reverse=True)


async def test_pages_go_on_where_a_run_was_deleted(kit: Kit) -> None:
    await asyncio.gather(*(kit.store.create(f"r{i}", NEW) for i in range(10)))
    everything = [row.run_id for row in (await kit.store.page()).rows]
    first = await kit.store.page(limit=4)
    await kit.store.delete(first.rows[-1].run_id)
    rest = await kit.store.page(cursor=first.cursor)
    assert [row.run_id for row in rest.rows] == everything[4:]


async def test_a_list_may_begin_at_a_time(kit: Kit) -> None:
    await kit.store.create("old", NEW)
    created = await kit.store.create("new", NEW)
    assert isinstance(created, Created)
    row = await row_of(kit, "old")
    assert "new" in await _ids(kit, since_ms=created.created_ms)
    assert await _ids(kit, since_ms=created.created_ms + 1) == []
    assert set(await _ids(kit, since_ms=row.created_ms)) == {"old", "new"}


@pytest.mark.parametrize("cursor", ["x", "1", ":", "-1:a", "1e3:a", "٣:a"])
async def test_a_cursor_that_is_none_is_refused(kit: Kit, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await kit.store.page(cursor=cursor)
    with pytest.raises(ValueError):
        await kit.store.page(limit=0)


# ---------------------------------------------------------------------- delete, mend


async def test_a_deleted_run_leaves_nothing(kit: Kit) -> None:
    for run_id in ("a", "b", "c", "d"):
        claim = await held(kit, run_id, NewRun(reactor="A", tags=("t",), parent="p"))
        await kit.store.save(claim, Changes(steps={"a": b"1"}, trace=[b"t"], status="rolling_back"))
        await kit.store.ask(run_id, b"body")
        if run_id == "b":
            await kit.store.release(claim, Changes(status="paused"))
        if run_id == "c":
            await kit.store.close(claim, "failed", b"", retention_ms=LONG)
        if run_id == "d":
            await kit.expire_lease(run_id)
    assert isinstance(await kit.store.delete("a"), Held)
    assert await kit.store.delete("a", force=True) is True
    assert [await kit.store.delete(run_id) for run_id in ("b", "c", "d", "a", "no")] == [True, True, True, False, False]
    assert await kit.keys() == []


async def test_a_run_that_nobody_moves_on_is_stalled(kit: Kit) -> None:
    await kit.store.create("pending", NEW)
    lapsed, alive, freed, paused, ended = [
        await held(kit, run_id) for run_id in ("lapsed", "alive", "freed", "paused", "ended")
    ]
    await kit.store.save(lapsed, Changes(status="rolling_back"))
    await kit.expire_lease("lapsed")
    await kit.store.release(freed)
    await kit.store.release(paused, Changes(status="paused"))
    await kit.store.close(ended, "completed", b"")
    await kit.make_due()
    first = await kit.store.stalled()
    assert [(row.run_id, row.status) for row in first] == [("lapsed", "rolling_back")]
    assert await kit.store.stalled() == [], "once per loss"
    await kit.make_due()
    for run_id in ("pending", "freed"):
        await kit.rest(run_id)
    assert {row.run_id for row in await kit.store.stalled()} == {"lapsed", "pending", "freed"}
    await kit.store.save(lapsed, Changes())
    await kit.make_due()
    assert {row.run_id for row in await kit.store.stalled()} == {"pending", "freed"}
    assert alive.trusted


async def test_a_run_that_is_roused_is_due_now(kit: Kit) -> None:
    await kit.store.release(await held(kit, "parked"), due_ms=LONG)
    before = await row_of(kit, "parked")
    assert [await kit.store.rouse("parked") for _ in range(2)] == [True, False]
    after = await row_of(kit, "parked")
    assert after.due_ms <= after.now_ms
    assert (after.ver, after.fence, after.status) == (before.ver, before.fence, before.status)
    await take(kit, "parked")


async def test_who_is_held_or_due_or_over_is_not_roused(kit: Kit) -> None:
    await held(kit, "held")
    await kit.store.release(await held(kit, "due"))
    await kit.store.close(await held(kit, "over"), "completed", b"")
    assert [await kit.store.rouse(run_id) for run_id in ("held", "due", "over", "no")] == [False] * 4
    assert await kit.store.peek("no") is None


async def test_coordination_is_kept_with_the_run(kit: Kit) -> None:
    created = await kit.store.create("r", NewRun(reactor="A", gates=b"in line"), hold_ms=LONG)
    assert isinstance(created, Created)
    assert created.claim is not None
    assert (await row_of(kit, "r")).gates == b"in line"
    await kit.store.save(created.claim, Changes(gates=b"admitted"))
    await kit.store.save(created.claim, Changes(trace=[b"t"]))
    assert (await record_of(kit, "r")).row.gates == b"admitted"


async def test_a_run_that_is_due_later_is_not_stalled_before(kit: Kit) -> None:
    await kit.store.create("delayed", NewRun(reactor="A", due_ms=LONG))
    await kit.store.release(await held(kit, "parked"), due_ms=LONG)
    await kit.store.release(await held(kit, "freed"))
    for run_id in ("delayed", "parked", "freed"):
        await kit.rest(run_id)
    await kit.make_due()
    assert [row.run_id for row in await kit.store.stalled()] == ["freed"]
    parked = await row_of(kit, "parked")
    assert parked.due_ms > parked.now_ms
    await take(kit, "parked")
    await kit.expire_lease("parked")
    await kit.make_due()
    assert {row.run_id for row in await kit.store.stalled()} == {"freed", "parked"}, "that time counts no more"
    with pytest.raises(ValueError, match="negative"):
        await kit.store.create("r", NewRun(reactor="A", due_ms=-1))


async def test_takeovers_without_progress_are_counted(kit: Kit) -> None:
    """From somebody who had not let the run go; a step that is written begins the count anew, a status does not."""

    async def lost(claim: Claim) -> Claim:
        await kit.expire_lease(claim.run_id)
        return await take(kit, claim.run_id, "running", "rolling_back")

    async def counted(claim: Claim) -> tuple[int, int]:
        return claim.recoveries, (await row_of(kit)).recoveries

    claim = await held(kit)
    assert await counted(claim) == (0, 0)
    claim = await lost(await lost(claim))
    assert await counted(claim) == (2, 2)
    await kit.store.save(claim, Changes(status="rolling_back", trace=[b"t"], failure=b"f"))
    claim = await lost(claim)
    assert await counted(claim) == (3, 3)
    await kit.store.release(claim)
    claim = await take(kit, "r", "rolling_back")
    assert await counted(claim) == (3, 3), "it was handed over"
    await kit.store.save(claim, Changes(steps={"a": b"1"}))
    assert await counted(await lost(claim)) == (1, 1)


@pytest.mark.parametrize("progress", [Changes(steps={"b": b"1"}), Changes(dropped=["a"])])
async def test_progress_and_an_end_count_takeovers_anew(kit: Kit, progress: Changes) -> None:
    claim = await held(kit)
    await kit.expire_lease("r")
    claim = await take(kit, "r", "running")
    await kit.store.release(claim, progress)
    assert (await row_of(kit)).recoveries == 0
    claim = await take(kit, "r", "running")
    await kit.expire_lease("r")
    claim = await take(kit, "r", "running")
    assert claim.recoveries == 1
    await kit.store.close(claim, "failed", b"", retention_ms=LONG)
    claim = await take(kit, "r", "failed", status="rolling_back")
    assert (claim.recoveries, (await row_of(kit)).recoveries) == (0, 0)


async def test_a_stalled_run_is_told_to_one_sweeper(kit: Kit) -> None:
    for i in range(10):
        await held(kit, f"r{i}")
        await kit.expire_lease(f"r{i}")
    await kit.make_due()
    found = await asyncio.gather(*(kit.store.stalled(4) for _ in range(5)))
    assert sorted(row.run_id for rows in found for row in rows) == [f"r{i}" for i in range(10)]
    assert max(map(len, found)) <= 4


async def test_blobs_are_read_only_when_named(kit: Kit) -> None:
    claim = await held(kit)
    await kit.store.save(claim, Changes(state=b"s", failure=b"f"))
    row = await row_of(kit, "r", "state")
    assert (row.inputs, row.state, row.failure) == (b"", b"s", b"")
    with pytest.raises(ValueError, match="no such blobs"):
        await kit.store.peek("r", "token")
