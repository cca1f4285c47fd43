"""Connections break and callers die at every point of every write: each is applied once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioreactor.embedded import EmbeddedServer
from aioreactor.errors import OwnershipLost
from aioreactor.store.answers import Accepted, Created, Missing, Query
from aioreactor.store.claim import Claim
from aioreactor.store.errors import ReplyError, StoreUnavailable
from aioreactor.store.records import Changes, NewRun
from aioreactor.trace import Status

from .kit import LONG, NEW, WRITES, Crash, RedisKit, held, record_of, row_of, twin

CHANGES = Changes(steps={"a": b"1"}, trace=[b"t"], status="rolling_back")

OPERATIONS: dict[str, tuple[str, Callable[[RedisKit, Claim], Awaitable[Any]]]] = {
    "save": ("run_save", lambda kit, claim: kit.store.save(claim, CHANGES)),
    "release": ("run_release", lambda kit, claim: kit.store.release(claim, Changes(status="paused", trace=[b"t"]))),
    "close": ("run_close", lambda kit, claim: kit.store.close(claim, "failed", b"o", CHANGES, retention_ms=LONG)),
    "extend": ("lease_extend", lambda kit, claim: kit.store.extend(claim)),
    "ask": ("request_push", lambda kit, claim: kit.store.ask("r", b"body")),
    "create": ("run_create", lambda kit, claim: kit.store.create("new", NEW, hold_ms=LONG)),
    "create pending": ("run_create", lambda kit, claim: kit.store.create("new", NEW)),
    "take": ("lease_take", lambda kit, claim: kit.store.take("idle", ["pending"], ttl_ms=LONG, status="running")),
    "delete": ("run_delete", lambda kit, claim: kit.store.delete("idle")),
}


async def _state(kit: RedisKit) -> dict[str, object]:
    """All that is stored, without what differs between two equal stories: moments, tokens, ids."""
    varying = {"created_ms", "updated_ms", "ended_ms", "lease_ms", "token", "write", "created_by"}
    found: dict[str, object] = {}
    for key in await kit.keys():
        name = key.removeprefix(kit.prefix)
        kind = await kit.do("TYPE", key)
        if kind == b"hash":
            flat = await kit.do("HGETALL", key)
            pairs = {f.decode(): v for f, v in zip(flat[::2], flat[1::2], strict=True) if f.decode() not in varying}
            if name.endswith(":requests"):
                found[name] = sorted(pairs.values())
            elif name.endswith(":rows"):
                found[name] = {f: v.split(b" ", 1)[1] for f, v in pairs.items()}
            else:
                found[name] = pairs
        elif kind == b"list":
            found[name] = await kit.do("LRANGE", key, 0, -1)
        else:
            found[name] = sorted(await kit.do("ZRANGE", key, 0, -1))
        found[name + " expires"] = await kit.do("PTTL", key) > 0
    return found


async def _story(kit: RedisKit, name: str, lose: Callable[[RedisKit, str], None]) -> dict[str, object]:
    script, operation = OPERATIONS[name]
    claim = await held(kit)
    await kit.store.create("idle", NEW)
    lose(kit, script)
    await operation(kit, claim)
    return await _state(kit)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_lost_reply_changes_nothing(server: EmbeddedServer, name: str) -> None:
    lost = RedisKit(server.url)
    plain = RedisKit(server.url)

    def lose(kit: RedisKit, script: str) -> None:
        kit.faults.after[script] = ConnectionResetError("after")

    if name == "delete":  # nothing is left that could remember
        lost_state = await _story(lost, name, lose)
    else:
        lost_state = await _story(lost, name, lose)
        assert not lost.faults.after, "the reply was not lost"
    plain_state = await _story(plain, name, lambda kit, script: None)
    assert lost_state == plain_state
    await lost.aclose()
    await plain.aclose()


async def test_a_repeat_answers_like_the_first(redis_kit: RedisKit) -> None:
    kit = redis_kit
    kit.faults.after["run_create"] = ConnectionResetError()
    created = await kit.store.create("r", NEW, hold_ms=LONG)
    assert isinstance(created, Created)
    claim = created.claim
    assert claim is not None
    kit.faults.after["run_save"] = ConnectionResetError()
    await kit.store.save(claim, CHANGES)
    kit.faults.after["request_push"] = ConnectionResetError()
    accepted = await kit.store.ask("r", b"", request_id="k")
    assert isinstance(accepted, Accepted)
    kit.faults.after["run_release"] = ConnectionResetError()
    await kit.store.release(claim)
    kit.faults.after["lease_take"] = ConnectionResetError()
    again = await kit.store.take("r", ["rolling_back"], ttl_ms=LONG)
    assert isinstance(again, Claim)
    assert again.fence == 2
    kit.faults.after["run_close"] = ConnectionResetError()
    await kit.store.close(again, "cancelled", b"")
    assert not kit.faults.after
    assert (await record_of(kit)).trace == [b"t"]


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_save_that_was_cut_off_is_written_before_the_next_and_once(redis_kit: RedisKit, point: str) -> None:
    kit = redis_kit
    claim = await held(kit)
    getattr(kit.faults, point)["run_save"] = Crash()
    with pytest.raises(Crash):
        await kit.store.save(claim, Changes(trace=[b"1"], steps={"a": b"1"}))
    await kit.store.save(claim, Changes(trace=[b"2"], steps={"a": b"2"}))
    await kit.store.close(claim, "completed", b"", Changes(trace=[b"3"]))
    record = await record_of(kit)
    assert record.trace == [b"1", b"2", b"3"]
    assert record.steps == {"a": b"2"}
    assert record.row.ver == 4


async def test_a_save_whose_caller_is_cancelled_is_not_lost(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    tasks = [asyncio.create_task(kit.store.save(claim, Changes(trace=[b"%d" % i]))) for i in range(5)]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await kit.store.save(claim, Changes(trace=[b"last"]))
    assert (await record_of(kit)).trace == [*(b"%d" % i for i in range(5)), b"last"]


@pytest.mark.parametrize("point", ["before", "after"])
async def test_an_end_that_was_cut_off_is_asked_for_again(redis_kit: RedisKit, point: str) -> None:
    kit = redis_kit
    claim = await held(kit)
    getattr(kit.faults, point)["run_close"] = Crash()
    with pytest.raises(Crash):
        await kit.store.close(claim, "completed", b"out", Changes(trace=[b"t"]))
    await kit.store.close(claim, "completed", b"out", Changes(trace=[b"t"]))
    record = await record_of(kit)
    assert (record.row.status, record.row.outcome, record.trace) == ("completed", b"out", [b"t"])
    with pytest.raises(OwnershipLost, match="by this execution itself"):
        await kit.store.save(claim, Changes())


async def test_a_pause_that_was_cut_off_is_not_taken_for_an_end(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    kit.faults.before["run_release"] = Crash()
    with pytest.raises(Crash):
        await kit.store.release(claim, Changes(status="paused"))
    with pytest.raises(OwnershipLost):
        await kit.store.close(claim, "failed", b"")
    assert (await row_of(kit)).status == "paused"


async def test_a_repeat_that_comes_after_a_take_over_changes_nothing(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    kit.faults.after["run_save"] = Crash()
    with pytest.raises(Crash):
        await kit.store.save(claim, CHANGES)
    await kit.expire_lease("r")
    assert isinstance(await kit.store.take("r", ["rolling_back"], ttl_ms=LONG), Claim)
    before = {key: value for key, value in (await kit.dump()).items() if ":index" not in key}
    with pytest.raises(OwnershipLost):
        await kit.store.save(claim, Changes(trace=[b"z"]))  # the repeat is answered, the new one refused
    after = await kit.dump()
    assert {key: after[key] for key in before} == before
    # What died before it could list the run has done so now.
    assert [row.run_id for row in (await kit.store.page(Query(status="rolling_back"))).rows] == ["r"]


async def test_a_kept_save_is_refused_like_any_other_after_a_take_over(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    kit.faults.before["run_save"] = Crash()
    with pytest.raises(Crash):
        await kit.store.save(claim, CHANGES)
    await kit.expire_lease("r")
    assert isinstance(await kit.store.take("r", ["running"], ttl_ms=LONG), Claim)
    before = await kit.dump()
    with pytest.raises(OwnershipLost):
        await kit.store.save(claim, Changes(trace=[b"z"]))
    assert await kit.dump() == before


async def test_changes_that_the_store_refuses_are_dropped_and_the_next_go_on(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    await kit.do("RENAME", kit.store.space.run("r"), f"{kit.prefix}:{{r}}:hidden")
    await kit.do("SET", kit.store.space.run("r"), "not a hash")
    with pytest.raises(ReplyError):
        await kit.store.save(claim, Changes(trace=[b"1"]))
    await kit.do("RENAME", f"{kit.prefix}:{{r}}:hidden", kit.store.space.run("r"))
    await kit.store.save(claim, Changes(trace=[b"2"]))
    assert (await record_of(kit)).trace == [b"2"]


async def test_scripts_are_loaded_again(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    await kit.store.save(claim, CHANGES)
    await kit.do("SCRIPT", "FLUSH")
    await kit.store.save(claim, CHANGES)
    assert (await record_of(kit)).trace == [b"t", b"t"]


async def test_a_store_that_is_away_does_not_lose_what_it_was_given(
    redis_kit: RedisKit, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = redis_kit
    claim = await held(kit)
    lost = ConnectionResetError("away")

    class Away(dict[str, BaseException]):
        def pop(self, key: str, *default: Any) -> Any:
            raise lost

        def __contains__(self, key: object) -> bool:
            return key == "run_save"

    kit.client._retry_for = 0.05
    kit.faults.before = Away()
    with pytest.raises(StoreUnavailable):
        await kit.store.save(claim, Changes(trace=[b"1"]))
    kit.faults.before = {}
    kit.client._retry_for = 5.0
    await kit.store.save(claim, Changes(trace=[b"2"]))
    assert (await record_of(kit)).trace == [b"1", b"2"]


# ---------------------------------------------------------------------- between record and index


@pytest.mark.parametrize("hold_ms", [None, LONG])
async def test_a_run_whose_creator_died_at_once_is_found(redis_kit: RedisKit, hold_ms: int | None) -> None:
    kit = redis_kit
    kit.faults.before["index_put"] = Crash()
    with pytest.raises(Crash):
        await kit.store.create("r", NewRun(reactor="A", tags=("t",)), hold_ms=hold_ms)
    assert (await kit.store.page()).rows == []
    await kit.rest("r")
    if hold_ms:
        await kit.expire_lease("r")
    await kit.make_due()
    assert [row.run_id for row in await kit.store.stalled()] == ["r"]
    assert [row.run_id for row in (await kit.store.page(Query(tag="t"))).rows] == ["r"]


async def test_an_intention_that_came_to_nothing_is_forgotten(redis_kit: RedisKit) -> None:
    kit = redis_kit
    kit.faults.before["run_create"] = Crash()
    with pytest.raises(Crash):
        await kit.store.create("r", NEW)
    assert await kit.keys() == [kit.store.space.live()]
    await kit.make_due()
    assert await kit.store.stalled() == []
    assert await kit.keys() == []


async def test_attaching_to_an_ended_run_leaves_no_work_for_ever(redis_kit: RedisKit) -> None:
    kit = redis_kit
    await kit.store.close(await held(kit), "failed", b"", retention_ms=LONG)
    await kit.store.create("r", NEW)
    await kit.make_due()
    assert await kit.store.stalled() == []
    assert await kit.do("ZCARD", kit.store.space.live()) == 0
    assert await kit.do("ZCARD", kit.store.space.expiring()) == 1


@pytest.mark.parametrize("status", ["paused", "completed"])
async def test_a_status_that_the_index_missed_is_mended(redis_kit: RedisKit, status: Status) -> None:
    kit = redis_kit
    claim = await held(kit)
    kit.faults.before["index_put"] = Crash()
    with pytest.raises(Crash):
        if status == "paused":
            await kit.store.release(claim, Changes(status="paused"))
        else:
            await kit.store.close(claim, "completed", b"", retention_ms=LONG)
    assert [row.run_id for row in (await kit.store.page(Query(status="running"))).rows] == []
    assert [row.run_id for row in (await kit.store.page(Query(status=status))).rows] == ["r"]
    assert await kit.do("ZCARD", kit.store.space.live()) == 0


async def test_a_late_writer_of_the_index_changes_nothing(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    row = await row_of(kit)
    await kit.store.save(claim, Changes(status="rolling_back"))
    before = await kit.dump()
    await kit.store._index.put_row(row, idle_ms=1, expire_in_ms=1)
    assert await kit.dump() == before


async def test_what_a_list_meets_and_is_gone_leaves_the_index(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    await kit.store.close(claim, "failed", b"", retention_ms=LONG)
    await kit.expire_record("r")
    assert (await kit.store.page()).rows == []
    assert await kit.keys() == []


async def test_repair_removes_what_has_expired(redis_kit: RedisKit) -> None:
    kit = redis_kit
    for i in range(5):
        await kit.store.close(await held(kit, f"r{i}"), "failed", b"", retention_ms=LONG)
        if i < 4:
            await kit.expire_record(f"r{i}")
    await kit.make_due("expiring")
    repaired = await kit.store.repair(3)
    assert repaired.dropped >= 3
    while repaired.dropped:
        await kit.make_due("expiring")
        repaired = await kit.store.repair(3)
    assert [row.run_id for row in (await kit.store.page()).rows] == ["r4"]
    assert await kit.do("ZRANGE", kit.store.space.expiring(), 0, -1) == [b"r4"]
    await kit.expire_record("r4")
    await kit.make_due("expiring")
    await kit.store.repair()
    assert await kit.keys() == []


async def test_repair_finds_what_nobody_looks_for(redis_kit: RedisKit) -> None:
    """Records that a failover lost, and entries that say something else than their record."""
    kit = redis_kit
    for i in range(300):
        await kit.store.create(f"r{i}", NEW)
    for i in range(290):
        await kit.do("DEL", *kit.store.space.of_run(f"r{i}"))
    await kit.do("HSET", kit.store.space.run("r299"), "status", "paused")
    renewed = 0
    for _ in range(100):
        renewed += (await kit.store.repair(50)).renewed
        if len(await kit.do("HGETALL", kit.store.space.rows())) == 20 and renewed:
            break
    assert {row.run_id for row in (await kit.store.page()).rows} == {f"r{i}" for i in range(290, 300)}
    assert [row.run_id for row in (await kit.store.page(Query(status="paused"))).rows] == ["r299"]
    assert renewed == 1


async def test_dropping_a_run_from_the_index_does_not_hit_its_successor(redis_kit: RedisKit) -> None:
    kit = redis_kit
    await held(kit)
    seen = (await kit.do("HGET", kit.store.space.rows(), "r")).decode()
    await kit.do("DEL", *kit.store.space.of_run("r"))
    await held(kit, new=NewRun(reactor="B"))
    assert not await kit.store._index.drop("r", seen)
    assert [row.reactor for row in (await kit.store.page()).rows] == ["B"]


async def test_an_index_that_is_away_does_not_fail_the_write(
    redis_kit: RedisKit, caplog: pytest.LogCaptureFixture
) -> None:
    kit = redis_kit
    claim = await held(kit)
    await kit.do("DEL", kit.store.space.rows())
    await kit.do("SET", kit.store.space.rows(), "not a hash")
    await kit.store.save(claim, Changes(status="rolling_back"))
    assert "not listed" in caplog.text
    await kit.do("DEL", kit.store.space.rows())
    await kit.expire_lease("r")
    await kit.make_due()
    await kit.store.stalled()
    assert [row.run_id for row in (await kit.store.page(Query(status="rolling_back"))).rows] == ["r"]


async def test_a_thousand_runs_of_one_moment_are_paged(redis_kit: RedisKit) -> None:
    kit = redis_kit
    await asyncio.gather(*(kit.store.create(f"r{i}", NEW) for i in range(2_500)))
    for label in ("all", "top"):
        key = kit.store.space.listing(label)
        args = [each for i in range(2_500) for each in (1_790_000_000_000, f"r{i}")]
        await kit.do("ZADD", key, *args)
    found, cursor = [], ""
    while True:
        page = await kit.store.page(limit=900, cursor=cursor)
        found += [row.run_id for row in page.rows]
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(found) == sorted(f"r{i}" for i in range(2_500))


async def test_a_list_that_finds_little_comes_to_an_end(redis_kit: RedisKit) -> None:
    """Two large lists without a common member: each call looks at a part of one, and says where it stopped."""
    kit = redis_kit
    for i, (tag, reactor) in enumerate([("t", "A"), ("u", "B")]):
        args = [each for j in range(3_000) for each in (1_790_000_000_000 + j, f"{i}-{j}")]
        for label in (f"tag:{tag}", f"reactor:{reactor}", "top"):
            await kit.do("ZADD", kit.store.space.listing(label), *args)
    page = await kit.store.page(Query(tag="t", reactor="B"))
    assert (page.rows, page.cursor) == ([], "")
    assert kit.faults.seen.count("index_page") == 3
    for key in await kit.keys():
        await kit.do("DEL", key)


@pytest.mark.parametrize("name", WRITES)
async def test_a_token_that_was_never_given_is_refused(redis_kit: RedisKit, name: str) -> None:
    claim = await held(redis_kit)
    stranger = twin(claim)
    stranger.token = "0" * 20
    before = await redis_kit.dump()
    with pytest.raises(OwnershipLost):
        await WRITES[name](redis_kit.store, stranger)
    assert await redis_kit.dump() == before


async def test_deleting_twice_is_the_same(redis_kit: RedisKit) -> None:
    await redis_kit.store.create("r", NEW)
    redis_kit.faults.after["run_delete"] = ConnectionResetError()
    await redis_kit.store.delete("r")
    assert await redis_kit.keys() == []
    assert await redis_kit.store.take("r", ["pending"], ttl_ms=LONG) == Missing()
