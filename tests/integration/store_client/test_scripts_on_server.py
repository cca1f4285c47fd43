"""Scripts are loaded when needed, whatever happens to them on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from aioreactor.store.calls import Value
from aioreactor.store.client import StoreClient
from aioreactor.store.errors import ReplyError, ScriptError
from aioreactor.store.scripts import script_from
from tests.integration.store_client.samples import PUSH, Connect, entries, gather, push_script
from tests.integration.store_client.servers import Server


async def test_a_script_is_loaded_once_per_connection(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(50)))
    await client.run(PUSH, [key], [50])
    stats = (await client.execute("INFO", "commandstats")).decode()
    assert "cmdstat_script|load:calls=1," in stats
    assert "cmdstat_evalsha:calls=51," in stats
    assert "cmdstat_eval:" not in stats


@pytest.mark.parametrize("warm", [True, False])
async def test_flush_in_the_middle_of_a_batch(client: StoreClient, key: str, warm: bool) -> None:
    """All is applied once; in the order of issue, if no script is loaded for the first time meanwhile."""
    a, b = push_script("a"), push_script("b")
    if warm:
        await asyncio.gather(client.run(a, [key + "x"], [0]), client.run(b, [key + "x"], [0]))
    work: list[Awaitable[Any]] = []
    for i in range(300):
        if i in {0, 1, 100, 101, 250}:
            work.append(client.execute("SCRIPT", "FLUSH", "SYNC"))
        work.append(client.run(a if i % 3 else b, [key], [i]))
    results = await gather(*work)
    assert not [r for r in results if isinstance(r, Exception)]
    applied = await entries(client, key)
    assert sorted(applied) == list(range(300))
    assert [i for i in applied if i % 3] == [i for i in range(300) if i % 3]
    assert [i for i in applied if i % 3 == 0] == list(range(0, 300, 3))
    if warm:
        assert applied == list(range(300))


async def test_a_younger_command_does_not_overtake_one_that_is_repeated(client: StoreClient, key: str) -> None:
    await client.run(PUSH, [key], [0])

    async def later(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        await client.run(PUSH, [key], [number])

    await client.execute("SCRIPT", "FLUSH", "SYNC")
    await asyncio.gather(*(later(i) for i in range(1, 200)))
    assert await entries(client, key) == list(range(200))


async def test_flushed_all_the_time(connect: Connect, server: Server, key: str) -> None:
    client, vandal = connect(server.url), connect(server.url)
    stop = asyncio.Event()

    async def flush() -> None:
        while not stop.is_set():
            await vandal.execute("SCRIPT", "FLUSH", "SYNC")

    async def one(number: int) -> None:
        for turn in range(50):
            await client.run(PUSH, [key], [number * 100 + turn])

    task = asyncio.create_task(flush())
    await asyncio.gather(*(one(i) for i in range(20)))
    stop.set()
    await task
    applied = await entries(client, key)
    assert len(applied) == len(set(applied)) == 1000
    for number in range(20):
        assert [a for a in applied if a // 100 == number] == [number * 100 + t for t in range(50)]


async def test_script_load_not_allowed(connect: Connect, server: Server, key: str) -> None:
    server.command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-script")
    client = connect(f"unix://limited@{server.path}?password=secret")
    await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(10)))
    assert await entries(client, key) == list(range(10))


async def test_an_error_in_a_script_reaches_its_caller(client: StoreClient, key: str) -> None:
    await client.execute("SET", key, "text")
    with pytest.raises(ReplyError, match=r"log_push_a: .*WRONGTYPE") as failed:
        await client.run(PUSH, [key], [1])
    assert failed.value.command == "log_push_a"


async def test_a_script_that_does_not_compile(client: StoreClient, key: str) -> None:
    broken = script_from("log_break", "--[[\nkeys: log\nargs:\nreturns: OK\n]]\nlocal log = KEYS[1]\nif 'OK'\n")
    with pytest.raises(ReplyError, match="ompil"):
        await client.run(broken, [key])
    assert await client.execute("ECHO", "fine") == b"fine"


async def test_undeclared_replies_are_refused(client: StoreClient, key: str) -> None:
    odd = script_from(
        "log_odd",
        "--[[\nkeys: log\nargs: what\nreturns: OK\n]]\nlocal log = KEYS[1]\nlocal what = ARGV[1]\n"
        "if what == 'nil' then return false end\nif what == 'word' then return {what} end\n"
        "if what == 'hole' then return {'OK', false} end\nreturn 'OK'\n",
    )
    assert await client.run(odd, [key], ["plain"]) == ("OK", [])
    for what in ("nil", "word", "hole"):
        with pytest.raises(ScriptError, match="log_odd: answered"):
            await client.run(odd, [key], [what])


@pytest.mark.parametrize(("keys", "args"), [([], [1]), (["a", "b"], [1]), (["a"], []), (["a"], [1, 2])])
async def test_miscounted_keys_and_arguments(client: StoreClient, keys: list[str], args: list[int]) -> None:
    with pytest.raises(TypeError, match=r"log_push_a takes (keys \(log\)|args \(entry\)), got [012]"):
        await client.run(PUSH, keys, args)


@pytest.mark.parametrize("value", [None, True, object(), [1], bytearray(b"x")])
async def test_values_that_cannot_be_sent(client: StoreClient, key: str, value: Any) -> None:
    with pytest.raises(TypeError, match="encode the value first"):
        await client.run(PUSH, [key], [value])
    with pytest.raises(TypeError, match="encode the value first"):
        await client.execute("SET", key, value)


async def test_values_that_can(client: StoreClient, key: str) -> None:
    values: list[tuple[Value, bytes]] = [
        ("ü", "ü".encode()),
        (b"\x00\xff", b"\x00\xff"),
        (5, b"5"),
        (memoryview(b"m"), b"m"),
    ]
    for value, stored in values:
        await client.execute("SET", key, value)
        assert await client.execute("GET", key) == stored
