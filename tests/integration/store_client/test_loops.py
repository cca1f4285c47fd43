"""Several event loops, threads and processes; and how it ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from aioreactor.store.client import StoreClient
from aioreactor.store.errors import StoreClosed
from tests.integration.store_client.samples import PUSH, Connect, entries, gather, until
from tests.integration.store_client.servers import Server


def sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:
            continue
    return count


def test_loops_one_after_another_with_one_client(shared_server: Server, key: str) -> None:
    client = StoreClient(shared_server.url)
    before = sockets()

    async def use(number: int) -> None:
        await asyncio.gather(*(client.run(PUSH, [key], [number * 10 + i]) for i in range(10)))

    for number in range(5):
        asyncio.run(use(number))
        assert sockets() == before

    async def end() -> None:
        assert await entries(client, key) == list(range(50))
        await client.aclose()

    asyncio.run(end())
    assert sockets() == before


def test_loops_in_threads_with_one_client(shared_server: Server, key: str) -> None:
    client = StoreClient(shared_server.url)
    before = sockets()

    async def use(number: int) -> None:
        for i in range(100):
            await client.run(PUSH, [key], [number * 100 + i])
            assert await client.execute("ECHO", number) == str(number).encode()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def end() -> None:
        assert sorted(await entries(client, key)) == list(range(600))
        await client.aclose()

    asyncio.run(end())
    assert sockets() == before


async def test_aclose_ends_the_connections_of_other_loops(shared_server: Server) -> None:
    client = StoreClient(shared_server.url)
    ready = threading.Event()
    outcome: list[StoreClosed] = []

    async def other() -> None:
        await client.execute("PING")
        ready.set()
        while True:
            try:
                await client.execute("PING")
            except StoreClosed as closed:
                outcome.append(closed)
                return
            await asyncio.sleep(0.001)

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    await asyncio.to_thread(ready.wait)
    await client.execute("PING")
    await client.aclose()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    assert isinstance(outcome[0], StoreClosed)


def test_a_forked_child_makes_its_own_connection(shared_server: Server, key: str) -> None:
    client = StoreClient(shared_server.url)

    async def parent() -> None:
        own = await client.execute("CLIENT", "ID")
        process = os.fork()
        if process == 0:
            code = 1
            try:
                asyncio.events._set_running_loop(None)
                code = asyncio.new_event_loop().run_until_complete(child(own))
            finally:
                os._exit(code)
        for i in range(20):
            await client.run(PUSH, [key], [i])
        _, status = await asyncio.to_thread(os.waitpid, process, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await client.execute("CLIENT", "ID") == own
        assert len(await entries(client, key)) == 40
        await client.aclose()

    async def child(own: int) -> int:
        for i in range(20):
            await client.run(PUSH, [key], [i])
        different = await client.execute("CLIENT", "ID") != own
        await client.aclose()
        return 0 if different else 2

    asyncio.run(parent())


async def test_close_waits_for_what_is_under_way(connect: Connect, shared_server: Server, key: str) -> None:
    client = connect(shared_server.url)
    tasks = [asyncio.create_task(client.run(PUSH, [key], [i])) for i in range(200)]
    await asyncio.sleep(0)
    await client.aclose()
    assert [t.result().word for t in tasks] == ["OK"] * 200


async def test_close_ends_what_is_not_answered(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await client.execute("PING")
    server.pause()
    tasks = [asyncio.create_task(client.run(PUSH, [key], [i])) for i in range(20)]
    await asyncio.sleep(0.01)
    began = time.monotonic()
    await client.aclose(drain=0.1)
    assert time.monotonic() - began < 4
    assert {type(r) for r in await gather(*tasks)} == {StoreClosed}
    server.resume()


async def test_close_while_it_reconnects(connect: Connect, server: Server) -> None:
    client = connect(server.url)
    await client.execute("PING")
    server.stop()
    task = asyncio.create_task(client.execute("PING", repeatable=True))
    await asyncio.sleep(0.1)
    await client.aclose(drain=0)
    with pytest.raises(StoreClosed):
        await task


async def test_close_that_is_cancelled_closes_all_the_same(connect: Connect, server: Server) -> None:
    client = connect(server.url)
    await client.execute("PING")
    server.pause()
    task = asyncio.create_task(client.execute("PING"))
    await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.aclose(drain=60)
    with pytest.raises(StoreClosed):
        await task
    server.resume()


async def test_closed_is_closed(connect: Connect, shared_server: Server) -> None:
    client = connect(shared_server.url)
    await client.aclose()
    await client.aclose()
    with pytest.raises(StoreClosed):
        await client.execute("PING")


def test_a_loop_that_ends_without_close_leaves_nothing(shared_server: Server) -> None:
    before = sockets()

    async def use() -> None:
        client = StoreClient(shared_server.url)
        await client.execute("PING")
        asyncio.get_running_loop().client = client  # type: ignore[attr-defined]

    asyncio.run(use(), debug=True)
    assert sockets() == before


def test_a_loop_that_ends_while_commands_wait(server: Server) -> None:
    before = sockets()
    client = StoreClient(server.url)

    async def use() -> None:
        await client.execute("PING")
        server.pause()
        waiting = asyncio.create_task(client.execute("PING"))
        await asyncio.sleep(0.01)
        assert not waiting.done()

    asyncio.run(use())
    server.resume()
    assert asyncio.run(client.execute("PING")) == b"PONG"
    assert sockets() == before


async def test_nothing_is_connected_before_it_is_needed(connect: Connect, server: Server) -> None:
    clients = int(server.command("INFO", "clients").split(b"connected_clients:")[1].split(b"\r")[0])
    client = connect(server.url)
    await asyncio.sleep(0.01)
    assert server.command("INFO", "clients").count(b"connected_clients:%d\r" % clients) == 1
    await client.execute("PING")
    await until(lambda: server.command("INFO", "clients").count(b"connected_clients:%d\r" % (clients + 1)) == 1)


@pytest.mark.parametrize(
    "command",
    [
        "BLPOP k 0",
        "SUBSCRIBE c",
        "MULTI",
        "SELECT 1",
        "CLIENT REPLY OFF",
        "XREAD BLOCK 0 STREAMS k 0",
        "QUIT",
        "",
    ],
)
async def test_commands_that_cannot_share_are_refused(client: StoreClient, command: str) -> None:
    with pytest.raises(ValueError, match=r"own|empty"):
        await client.execute(*command.split())
    assert await client.execute("PING") == b"PONG"
