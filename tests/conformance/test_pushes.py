"""One connection hears for everybody in a loop; what it misses is made up for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from aioreactor.embedded import EmbeddedServer
from aioreactor.store import pushes
from aioreactor.store.errors import StoreClosed
from aioreactor.store.pushes import Bell
from aioreactor.store.records import Changes

from .kit import RedisKit, held


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(20):
        yield


async def _subscribers(kit: RedisKit) -> list[bytes]:
    return [line for line in (await kit.do("CLIENT", "LIST", "TYPE", "pubsub")).splitlines() if line]


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():
        await asyncio.sleep(0)


def heard(kit: RedisKit) -> pushes.Pushes:
    return kit.store._pushes[asyncio.get_running_loop()]


async def test_many_wait_over_one_connection(redis_kit: RedisKit) -> None:
    kit = redis_kit
    before = len(await _subscribers(kit))
    claims = [await held(kit, f"r{i}") for i in range(200)]
    waiting = [asyncio.create_task(kit.store.wait_done(claim.run_id)) for claim in claims for _ in range(2)]
    await _until(lambda: _all_ready(kit, 200))
    assert len(await _subscribers(kit)) == before + 1
    await asyncio.gather(*(kit.store.close(claim, "completed", claim.run_id.encode()) for claim in claims))
    rows = await asyncio.gather(*waiting)
    assert [row.outcome.decode() for row in rows] == [claim.run_id for claim in claims for _ in range(2)]
    assert not heard(kit)._bells


async def _all_ready(kit: RedisKit, count: int) -> bool:
    ears = kit.store._pushes.get(asyncio.get_running_loop())
    ready = ears._ready if ears else {}
    return len(ready) == count and all(event.is_set() for event in ready.values())


async def test_a_connection_that_breaks_is_made_again_and_everybody_looks(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)
    waiting = asyncio.create_task(kit.store.wait_done("r"))
    await _until(lambda: _all_ready(kit, 1))
    kit.store._recheck = 1000  # nobody looks unasked
    for line in await _subscribers(kit):
        await kit.do("CLIENT", "KILL", "ID", line.split(b" ")[0].removeprefix(b"id="))
    await kit.store.close(claim, "completed", b"out")
    assert (await waiting).outcome == b"out"


async def test_what_was_not_heard_is_seen_later(redis_kit: RedisKit) -> None:
    kit = redis_kit
    kit.store._recheck = 0.05
    claim = await held(kit)
    waiting = asyncio.create_task(kit.store.wait_done("r"))
    await _until(lambda: _all_ready(kit, 1))
    await kit.do("HSET", kit.store.space.run("r"), "status", "failed", "outcome", "unheard")
    assert (await waiting).outcome == b"unheard"
    assert claim.open


async def test_a_channel_is_left_when_nobody_listens_and_entered_again(redis_kit: RedisKit) -> None:
    kit = redis_kit
    channel = kit.store.space.requests_channel("r")
    await held(kit)
    for _ in range(3):
        async with kit.store.requests("r") as first, kit.store.requests("r") as second:
            assert await kit.do("PUBSUB", "NUMSUB", channel) == [channel.encode(), 1]
            while await first.wait(0) or await second.wait(0):
                pass
            await kit.store.ask("r", b"")
            assert await first.wait(5)
            assert await second.wait(5)
        await _until(lambda: _no_subscriber(kit, channel))


async def _no_subscriber(kit: RedisKit, channel: str) -> bool:
    count: list[object] = await kit.do("PUBSUB", "NUMSUB", channel)
    return count == [channel.encode(), 0]


async def test_the_connection_is_closed_when_nobody_has_listened_for_a_while(
    redis_kit: RedisKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "LINGER", 0.01)
    kit = redis_kit
    async with kit.store.requests("r"):
        pass
    task = heard(kit)._task
    assert task is not None
    await task
    assert heard(kit)._task is None
    async with kit.store.requests("r") as bell:
        while await bell.wait(0):
            pass
        await kit.do("PUBLISH", kit.store.space.requests_channel("r"), "1")
        assert await bell.wait(5)


async def test_a_silent_connection_is_pinged(redis_kit: RedisKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "IDLE", 0.02)
    kit = redis_kit
    async with kit.store.requests("r"):
        begin = heard(kit)._heard
        while heard(kit)._heard < begin + 0.1:
            await asyncio.sleep(0)


async def test_a_server_that_is_away_does_not_keep_anybody_from_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "PATIENCE", 0.01)
    with EmbeddedServer.start() as server:
        kit = RedisKit(server.url)
        claim = await held(kit)
        await kit.store.close(claim, "completed", b"out")
        kit.store._pushes.clear()
        endpoint = dataclasses.replace(kit.client._settings.endpoint, options={"path": "/nowhere"})
        ears = pushes.Pushes(endpoint)
        async with ears.listen("x") as bell:
            assert not await bell.wait(0)
        await ears.aclose()
        with pytest.raises(StoreClosed):
            async with ears.listen("x"):
                pass
        await kit.aclose()


async def test_a_bell_keeps_one_ring() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert await bell.wait(None)
    assert not await bell.wait(0)


async def test_each_loop_has_a_connection_of_its_own(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claim = await held(kit)

    async def elsewhere() -> str:
        row = await kit.store.wait_done("r", 10)
        await kit.store.aclose()
        return row.status

    waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    here = asyncio.create_task(kit.store.wait_done("r", 10))
    await _until(lambda: _all_ready(kit, 1))
    await kit.store.save(claim, Changes())
    await kit.store.close(claim, "completed", b"")
    assert await waiting == "completed"
    assert (await here).ended


async def test_a_channel_that_was_left_at_this_moment_is_ready_at_once(redis_kit: RedisKit) -> None:
    """It was not unsubscribed yet; a listener that waited for a confirmation would wait for nothing."""
    ears = redis_kit.store.pushes()
    async with ears.listen("channel"):
        pass
    first, again = Bell(), Bell()
    ears.attach("channel", first)
    await ears._ready["channel"].wait()
    ears.detach("channel", first)
    assert ears.attach("channel", again).is_set()
    await redis_kit.do("PUBLISH", "channel", "x")
    assert await again.wait(5)
    ears.detach("channel", again)
