"""`Lock` alone, on a real server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aioreactor import LeaseLost, Lock, LockUnavailable, Runtime, Settings, StoreRequired
from aioreactor.coordination import slots
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.desk import RECHECK
from aioreactor.coordination.scopes import Scope, current_scope, within
from aioreactor.coordination.slots import Entry, Line, Slot
from aioreactor.definition import ports
from aioreactor.embedded import EmbeddedServer
from aioreactor.store.errors import StoreClosed, StoreUnavailable
from tests.integration.coordination.kit import Inside, LoseReply, Place, every_turn, turns
from tests.told import events_told


async def enter(coordinator: Coordinator, key: str, **options: Any) -> Entry:
    """As a body of another owner."""
    lock = Lock(key, **options)
    return await slots.enter(coordinator.desk(), Slot.of(lock, key), Scope(), wait=lock.wait, label="other")


# ---------------------------------------------------------------------- one at a time


async def test_another_owner_is_refused_and_its_body_does_not_run(place: Place) -> None:
    other = await place.elsewhere()
    async with Lock("a") as held:
        assert (held.key, held.lost) == ("a", None)
        await held.check()
        with pytest.raises(LockUnavailable, match="lock 'a' is held by another owner") as caught:
            await enter(other, "a")
        assert (caught.value.key, caught.value.retry_after) == ("a", None)
        await (await enter(other, "b")).leave()
    await (await enter(other, "a")).leave()
    assert place.facts() == ["acquired", "released"]


async def test_it_is_given_back_however_the_body_ends(place: Place) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Lock("a"):
            assert len(await place.holders("a")) == 1
            raise ZeroDivisionError
    assert await place.holders("a") == []

    async def body() -> None:
        async with Lock("a"):
            entered.set()
            await asyncio.Event().wait()

    entered = asyncio.Event()
    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await place.holders("a") == []


async def test_without_a_store_nothing_runs() -> None:
    async with Runtime(Settings(redis_url=None)):
        with pytest.raises(StoreRequired, match=r"Lock\('a'\)"):
            async with Lock("a"):
                raise AssertionError
        with pytest.raises(StoreRequired):
            ports.launcher().coordinator()


async def test_a_store_that_cannot_be_reached_lets_nobody_in(place: Place) -> None:
    async with place.another(redis_url="redis://127.0.0.1:1", store_retry_for=0.1):
        with pytest.raises(StoreUnavailable):
            async with Lock("a", wait=1):
                raise AssertionError
    async with place.another() as runtime:
        assert runtime.durable is not None
        await runtime.durable.client.aclose()
        with pytest.raises(StoreClosed):
            async with Lock("a"):
                raise AssertionError


def test_a_lease_below_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="the shortest lease is 1 s"):
        Lock("a", ttl=0.9)


async def test_a_computed_key_needs_inputs(place: Place) -> None:
    with pytest.raises(ValueError, match="alone it needs a text"):
        async with Lock(lambda i: "a"):
            raise AssertionError


@pytest.mark.parametrize("key", ["a:b", "{x}", "}{", "a\nb", "*", "ключ", "a}:lock", " "])
async def test_no_key_leaves_its_slot_or_name_space(place: Place, key: str) -> None:
    async with Lock(key):
        made = [name.decode() for name in await place.do("KEYS", f"{place.prefix}:*")]
        assert sorted(made) == sorted(place.keys.slots("lock", key)[:2])
        for name in made:
            assert name.startswith(f"{place.prefix}:c:{{")
            assert name.count("{") == name.count("}") == 1
        other = await place.elsewhere()
        await (await enter(other, key + "x")).leave()
        with pytest.raises(LockUnavailable):
            await enter(other, key)


async def test_a_key_that_is_too_long_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="1 to 500 characters"):
        async with Lock("k" * 501):
            raise AssertionError


async def test_the_fencing_token_only_grows(place: Place) -> None:
    tokens = []
    for _ in range(5):
        async with Lock("a") as held:
            tokens.append(held.token)
    await place.do("DEL", place.keys.slots("lock", "a").facts)
    async with Lock("a") as held:
        tokens.append(held.token)
    await place.do("HSET", place.keys.slots("lock", "a").facts, "fence", 2**52)  # the clock was set back
    async with Lock("a") as held:
        tokens.append(held.token)
    assert tokens == sorted(set(tokens))
    assert tokens[-1] == 2**52 + 1


# ---------------------------------------------------------------------- scopes


async def test_nested_in_one_task_it_is_entered_again(place: Place) -> None:
    lock, other = Lock("a"), await place.elsewhere()
    async with lock as outer:
        async with lock as inner, Lock("a", ttl=5) as innermost:
            assert outer.token == inner.token == innermost.token
            assert len(await place.holders("a")) == 1
        with pytest.raises(LockUnavailable):
            await enter(other, "a")
    await (await enter(other, "a")).leave()
    assert place.facts() == ["acquired", "released"]


async def test_tasks_of_a_body_take_turns_under_its_hold(place: Place) -> None:
    inside = Inside()

    async def child(name: int) -> None:
        async with Lock("a", wait=5):
            await inside.visit(name)
            async with Lock("a"):
                await turns(2)

    async with Lock("a"):
        await asyncio.gather(*(child(name) for name in range(6)))
        async with Lock("a"):
            # The nested hold is in there, and a sibling of it would not wait.
            with pytest.raises(LockUnavailable):
                await asyncio.create_task(sibling())
    assert (inside.most, inside.order) == (1, list(range(6)))
    assert place.facts() == ["acquired", "released"]


async def sibling() -> None:
    here = current_scope()
    assert here is not None
    with within(here.parent):
        async with Lock("a"):
            raise AssertionError


async def test_a_hold_outlives_the_outer_body_while_a_task_is_inside(place: Place) -> None:
    go = asyncio.Event()

    async def child() -> None:
        async with Lock("a"):
            entered.set()
            await go.wait()

    entered = asyncio.Event()
    async with Lock("a"):
        task = asyncio.create_task(child())
        await entered.wait()
    assert len(await place.holders("a")) == 1
    go.set()
    await task
    assert await place.holders("a") == []


async def test_what_runs_in_nobodys_scope_is_another_owner(place: Place) -> None:
    async with Lock("a"):
        with within(None), pytest.raises(LockUnavailable):
            async with Lock("a"):
                raise AssertionError
    with within(Scope()):
        async with Lock("a"):
            pass


async def test_one_declaration_serves_many_tasks(place: Place) -> None:
    inside, lock = Inside(), Lock("a", wait=20)

    async def one(name: int) -> None:
        async with lock:
            await inside.visit(name)

    await asyncio.gather(*(one(name) for name in range(20)))
    assert (inside.most, sorted(inside.order)) == (1, list(range(20)))
    assert lock._entered == []


async def test_it_can_be_left_in_another_task_and_out_of_order(place: Place) -> None:
    first, second = Lock("a"), Lock("b")
    await asyncio.create_task(first.__aenter__())
    assert len(await place.holders("a")) == 1
    await asyncio.create_task(first.__aexit__(None, None, None))
    assert await place.holders("a") == []
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    async with second:  # still its own
        assert (await place.holders("a"), len(await place.holders("b"))) == ([], 1)
    await second.__aexit__(None, None, None)
    assert await place.holders("b") == []
    async with Lock("a", wait=0):
        pass


# ---------------------------------------------------------------------- waiting


async def test_first_come_first_served_over_two_processes(place: Place) -> None:
    other, inside = await place.elsewhere(), Inside()
    entered = []

    async def wait(coordinator: Coordinator, name: int) -> None:
        entry = await enter(coordinator, "a", wait=30)
        entered.append(entry.lease.fence)
        await inside.visit(name)
        await entry.leave()

    async with Lock("a"):
        tasks = []
        for name in range(12):
            tasks.append(asyncio.create_task(wait(other if name % 2 else place.coordinator, name)))
            await place.until_waiting("a", name + 1)
    await asyncio.gather(*tasks)
    assert (inside.most, inside.order) == (1, list(range(12)))
    assert entered == sorted(set(entered))


async def test_nobody_overtakes_those_in_line(place: Place) -> None:
    async with Lock("a"):
        first = asyncio.create_task(enter(await place.elsewhere(), "a", wait=30))
        await place.until_waiting("a", 1)
        await place.lapse("a")
        with pytest.raises(LockUnavailable):
            await enter(place.coordinator, "a")  # it found the lock free, and gave it to the first in line
        entry = await first
    await entry.leave()


async def test_a_hand_over_needs_no_asking_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = LoseReply("nothing")
    monkeypatch.setattr(slots, "RECHECK", 1000.0)
    async with place.another(hook) as runtime:
        held = await enter(place.coordinator, "a")
        warm = asyncio.create_task(enter(runtime.coordinator(), "a", ttl=600, wait=30))
        await place.until_waiting("a", 1)
        await held.leave()
        await (await warm).leave()
        held, before = await enter(place.coordinator, "a"), len(hook.seen)
        task = asyncio.create_task(enter(runtime.coordinator(), "a", ttl=600, wait=30))
        await place.until_waiting("a", 1)
        await held.leave()
        entry = await task
        assert hook.seen[before:].count("slot_take") <= 2  # the first try, and standing in line
        assert "slot_renew" not in hook.seen[before:]
        await entry.leave()


async def test_a_lost_message_is_made_good(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    other = await place.elsewhere()
    monkeypatch.setattr(slots, "RECHECK", 0.05)
    async with Lock("a"):
        monkeypatch.setattr(type(other.desk().inbox), "hear", lambda self, message: lost.append(message))
        lost: list[bytes] = []
        task = asyncio.create_task(enter(other, "a", wait=30))
        await place.until_waiting("a", 1)
    entry = await task
    assert len(lost) >= 1
    await entry.leave()


async def test_a_new_connection_makes_waiters_ask(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "RECHECK", 1000.0)
    held = await enter(place.coordinator, "a", ttl=600)
    other = await place.elsewhere()
    task = asyncio.create_task(enter(other, "a", ttl=600, wait=30))
    await place.until_waiting("a", 1)
    await place.do("CLIENT", "KILL", "TYPE", "pubsub")
    await held.leave()
    async with asyncio.timeout(20):
        entry = await task
    await entry.leave()


async def test_a_holder_that_died_is_succeeded_when_its_lease_ends(place: Place) -> None:
    dead = await enter(place.coordinator, "a", ttl=1)
    place.coordinator.desk().renewer.drop(dead.lease)
    began = time.monotonic()
    entry = await enter(await place.elsewhere(), "a", wait=20)
    assert time.monotonic() - began < RECHECK
    assert entry.lease.fence > dead.lease.fence
    await entry.leave()


async def test_who_gives_up_waiting_leaves_the_line(place: Place) -> None:
    other = await place.elsewhere()
    async with Lock("a"):
        with pytest.raises(LockUnavailable):
            await enter(other, "a", wait=0.05)
        assert await place.waiting("a") == []
        task = asyncio.create_task(enter(other, "a", wait=30))
        await place.until_waiting("a", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await place.waiting("a") == []


async def test_a_dead_waiter_is_passed_by(place: Place) -> None:
    other = await place.elsewhere()
    async with Lock("a"):
        dead = Line(other.desk(), Slot.of(Lock("a"), "a"), "dead-1", "dead")
        assert await dead.ask(stay=True) is None
        await place.deaden("a")
        task = asyncio.create_task(enter(other, "a", wait=30))
        await place.until_waiting("a", 2)
    entry = await task
    assert await place.waiting("a") == []
    await entry.leave()


async def test_one_in_line_that_nobody_listens_for_is_passed_by_and_keeps_its_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RECHECK", 1000.0)
    deaf, other = await place.elsewhere(), await place.elsewhere()
    await deaf.desk().inbox.open()
    held = await enter(place.coordinator, "a", ttl=600)
    first = asyncio.create_task(enter(deaf, "a", ttl=600, wait=30))
    await place.until_waiting("a", 1)
    deaf.desk().inbox._pushes.detach(deaf.desk().inbox.channel, deaf.desk().inbox)
    second = asyncio.create_task(enter(other, "a", ttl=600, wait=30))
    await place.until_waiting("a", 2)

    async def nobody_listens() -> bool:
        _, number = await place.do("PUBSUB", "NUMSUB", deaf.desk().inbox.channel)
        return bool(number == 0)

    await place.until(nobody_listens)
    await held.leave()
    entry = await second
    assert len(await place.waiting("a")) == 1
    deaf.desk().inbox._pushes.attach(deaf.desk().inbox.channel, deaf.desk().inbox)  # it is back: it hears, and asks
    await entry.leave()
    await (await first).leave()


async def test_a_receiver_that_slept_asks_before_it_goes_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    other = await place.elsewhere()
    inbox, hook = other.desk().inbox, list[bytes]()
    original = type(inbox).hear

    def hear(message: bytes) -> None:
        time.sleep(1.1)  # its process stands still; the lease that it was given ends
        hook.append(message)
        original(inbox, message)

    monkeypatch.setattr(type(inbox), "hear", lambda self, message: hear(message))
    held = await enter(place.coordinator, "a")
    task = asyncio.create_task(enter(other, "a", ttl=1, wait=30))
    await place.until_waiting("a", 1)
    await held.leave()
    entry = await task
    assert len(hook) == 1
    assert entry.lease.fence > int(hook[0].split()[1])  # another one than that of the message
    assert await place.holders("a") == [entry.lease.token]
    await entry.leave()


async def test_a_late_message_of_what_is_over_lets_nobody_in(place: Place) -> None:
    other = await place.elsewhere()
    async with Lock("a"):
        task = asyncio.create_task(enter(other, "a", wait=30))
        await place.until_waiting("a", 1)
        (token,) = await place.waiting("a")
        fence = int(await place.do("HGET", place.keys.slots("lock", "a").facts, "fence"))
        await place.until(lambda: _expected(other, token))
        for number in (0, fence - 1, fence):
            other.desk().inbox.hear(f"{token} {number}".encode())
            # It asks, and is told to wait.
            await asyncio.sleep(0.02)
            assert not task.done()
    await (await task).leave()


async def _expected(coordinator: Coordinator, token: str) -> bool:
    return token in coordinator.desk().inbox._waiters


# ---------------------------------------------------------------------- cut off


@pytest.mark.parametrize("wait", [0, 30])
@pytest.mark.parametrize("taken", [False, True])
async def test_an_acquire_that_is_cut_off_at_any_moment_holds_nothing(place: Place, wait: float, taken: bool) -> None:
    other = await place.elsewhere()
    for number in every_turn():
        holder = await enter(other, "a") if taken else None
        task = asyncio.create_task(enter(place.coordinator, "a", wait=wait))
        await turns(number)
        release = asyncio.create_task(holder.leave()) if holder is not None else None
        await turns(number // 2)
        done = task.done()
        task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if release is not None:
            await release
        if isinstance(found, Entry):
            await found.leave()
        assert await place.holders("a") == await place.waiting("a") == []
        if done and number > 20:
            break


async def test_a_release_that_is_cut_off_at_any_moment_is_done(place: Place) -> None:
    for number in every_turn():
        entry = await enter(place.coordinator, "a")
        task = asyncio.create_task(entry.leave())
        await turns(number)
        done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if task.cancelled() and number == 0:
            await entry.leave()  # the task had not begun
        assert await place.holders("a") == []
        if done:
            break


@pytest.mark.parametrize("script", ["slot_take", "slot_release"])
@pytest.mark.parametrize("before", [False, True])
async def test_a_lost_reply_changes_nothing(place: Place, script: str, before: bool) -> None:
    async with place.another(LoseReply(script, before=before)):
        async with Lock("a") as held:
            assert len(await place.holders("a")) == 1
            await held.check()
        assert await place.holders("a") == []


# ---------------------------------------------------------------------- lost


async def test_a_lost_hold_cancels_the_body(place: Place) -> None:
    steps = []
    with pytest.raises(LeaseLost, match="the hold of 'a' was lost") as caught:
        async with Lock("a", ttl=1):
            await place.coordinator.force_release("a")
            steps.append("in")
            try:
                await asyncio.sleep(60)
            finally:
                steps.append("cut off")
    assert (caught.value.key, steps) == ("a", ["in", "cut off"])
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert place.facts() == ["acquired", "lost"]


async def test_nested_holds_are_lost_together_and_once(place: Place) -> None:
    with pytest.raises(LeaseLost):
        async with Lock("a", ttl=1), Lock("b"), Lock("a"):
            await place.do("DEL", place.keys.slots("lock", "a").holders)
            await asyncio.sleep(60)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await place.holders("b") == []


async def test_on_lost_warn_goes_on(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with Lock("a", ttl=1, on_lost="warn") as held:
        await place.lapse("a")

        async def told() -> bool:
            return held.lost is not None

        await place.until(told)
        with pytest.raises(LeaseLost, match="its time was over"):
            await held.check()
    assert events_told(caplog) == ["hold_lost"]


async def test_a_cancellation_from_outside_stays_one(place: Place) -> None:
    async def body() -> None:
        async with Lock("a", ttl=1) as held:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                assert held.lost is not None
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                raise

    task = asyncio.create_task(body())
    await turns(50)
    await place.until(lambda: _held(place))
    await place.lapse("a")
    with pytest.raises(asyncio.CancelledError):
        await task


async def _held(place: Place) -> bool:
    return len(await place.holders("a")) == 1


async def test_a_body_that_ends_before_it_is_told_is_not_cancelled(place: Place) -> None:
    async with Lock("a", ttl=1):
        await place.lapse("a")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_loop_that_stood_still_finds_out(place: Place) -> None:
    with pytest.raises(LeaseLost):
        async with Lock("a", ttl=1) as held:
            time.sleep(1.1)
            await held.check()
            raise AssertionError
    with pytest.raises(LeaseLost):
        async with Lock("a", ttl=1):
            time.sleep(1.1)
            await asyncio.sleep(60)


async def test_it_is_kept_for_longer_than_its_time(place: Place) -> None:
    other = await place.elsewhere()
    async with Lock("a", ttl=1) as held:
        entry = held.entry.lease
        before = entry.trusted_until
        while time.monotonic() < before + 0.5:
            with pytest.raises(LockUnavailable):
                await enter(other, "a")
            await asyncio.sleep(0.1)
        assert entry.trusted_until > before
        await held.check()


async def test_without_auto_extend_it_ends_and_tells(place: Place) -> None:
    began = time.monotonic()
    with pytest.raises(LeaseLost):
        async with Lock("a", ttl=1, auto_extend=False) as held:
            await held.check()
            await asyncio.sleep(60)
    assert 0.9 < time.monotonic() - began < 20


async def test_a_server_that_forgot_everything(server: EmbeddedServer) -> None:
    with EmbeddedServer.start() as own:
        async with Place(own.url) as place:
            with pytest.raises(LeaseLost, match="forgot"):
                async with Lock("a", ttl=1):
                    await place.do("FLUSHALL")
                    await asyncio.sleep(60)


async def test_a_server_that_is_away_ends_trust_in_time(server: EmbeddedServer) -> None:
    trusted = 0.0
    with EmbeddedServer.start() as own:
        async with Place(own.url) as place, place.another(store_retry_for=0.2) as runtime:
            await runtime.coordinator().inspect("a")
            with pytest.raises(LeaseLost, match="did not renew it in time"):
                async with Lock("a", ttl=1) as held:
                    trusted = held.entry.lease.trusted_until
                    own.stop()
                    await asyncio.sleep(60)
            assert time.monotonic() < trusted + 5
