"""A cancelled waiter disturbs nobody."""

from __future__ import annotations

import asyncio
import random

import pytest

from aioreactor.store.client import StoreClient
from tests.integration.store_client.samples import PUSH, Connect, entries, gather
from tests.integration.store_client.servers import Server


async def test_cancelled_before_it_was_sent_is_never_sent(client: StoreClient, key: str) -> None:
    await client.execute("PING")
    doomed = asyncio.create_task(client.run(PUSH, [key], [1]))
    kept = asyncio.create_task(client.run(PUSH, [key], [2]))
    asyncio.get_running_loop().call_soon(doomed.cancel)
    await kept
    assert doomed.cancelled()
    assert await entries(client, key) == [2]


async def test_cancelled_in_flight_its_reply_is_dropped(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await client.execute("PING")
    server.pause()
    first, doomed, last = (asyncio.create_task(client.execute("ECHO", w)) for w in ("a", "b", "c"))
    await asyncio.sleep(0.02)
    doomed.cancel()
    server.resume()
    assert await first == b"a"
    assert await last == b"c"
    assert doomed.cancelled()


async def test_cancelled_while_connecting(connect: Connect, server: Server) -> None:
    server.stop()
    client = connect(server.url)
    doomed = asyncio.create_task(client.execute("ECHO", "a"))
    kept = asyncio.create_task(client.execute("ECHO", "b"))
    await asyncio.sleep(0.05)
    doomed.cancel()
    await asyncio.to_thread(server.start)
    assert await kept == b"b"
    assert doomed.cancelled()


@pytest.mark.parametrize("seed", range(8))
async def test_cancelled_at_random_points_while_others_go_on(client: StoreClient, key: str, seed: int) -> None:
    dice = random.Random(seed)
    acknowledged: set[int] = set()

    async def one(number: int) -> None:
        for turn in range(20):
            mark = number * 100 + turn
            await client.run(PUSH, [key], [mark])
            acknowledged.add(mark)
            assert await client.execute("ECHO", mark) == str(mark).encode()

    tasks = [asyncio.create_task(one(i)) for i in range(100)]
    victims = dice.sample(tasks, 60)
    while victims:
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(dice.choice([0, 0, 0.0005]))
        for _ in range(dice.randrange(1, 4)):
            if victims:
                victims.pop().cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
    applied = await entries(client, key)
    assert acknowledged <= set(applied)
    assert len(applied) == len(set(applied))


async def test_a_timeout_around_a_command_leaves_the_connection_usable(connect: Connect, server: Server) -> None:
    client = connect(server.url)
    own = await client.execute("CLIENT", "ID")
    server.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.execute("ECHO", "late")
    server.resume()
    assert await gather(client.execute("ECHO", "x"), client.execute("CLIENT", "ID")) == [b"x", own]
