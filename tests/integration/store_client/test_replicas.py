"""Writes wait until replicas have them; with real ones, which are stopped and cut off."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioreactor.store import replication
from aioreactor.store.calls import Call
from aioreactor.store.client import StoreClient
from aioreactor.store.records import NewRun
from aioreactor.store.store import RunStore
from tests.integration.store_client.samples import PUSH, Connect
from tests.integration.store_client.servers import Server, free_port

NEW = NewRun(reactor="R")


class Pair:
    """A primary and its replica."""

    def __init__(self) -> None:
        port = free_port()
        self.primary = Server("--repl-diskless-sync-delay", "0", port=port)
        self.replica = Server("--replicaof", "127.0.0.1", str(port))
        self.url = self.primary.url

    @property
    def linked(self) -> bool:
        return b"state=online" in self.primary.command("INFO", "replication")

    def freeze(self) -> None:
        assert self.replica.process is not None
        os.kill(self.replica.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.replica.process is not None
        os.kill(self.replica.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.thaw()
        self.replica.close()
        self.primary.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
async def pair(servers: Pair) -> AsyncIterator[Pair]:
    await until(lambda: servers.linked)
    yield servers
    servers.thaw()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


class Sent:
    """The order in which calls leave and are answered."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def before_send(self, call: Call) -> None:
        self.log.append(f">{call.name}")

    def after_reply(self, call: Call, reply: Any) -> None:
        self.log.append(f"<{call.name}")


@pytest.fixture
def warnings() -> Iterator[list[Any]]:
    found: list[Any] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler, logger = Keeps(), logging.getLogger("aioreactor.store")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


async def test_a_write_returns_when_the_replica_has_it(
    pair: Pair, connect: Connect, key: str, warnings: list[Any]
) -> None:
    client = connect(pair.url, wait_replicas=1, replicas_timeout=4.0)
    assert await client.run(PUSH, [key], ["a"], replicate=True) == ("OK", [1])
    pair.freeze()
    write = asyncio.create_task(client.run(PUSH, [key], ["b"], replicate=True))
    await until(lambda: pair.primary.command("LLEN", key) == b":2\r\n")
    assert not write.done()
    pair.thaw()
    assert await write == ("OK", [2])
    assert pair.replica.command("LLEN", key) == b":2\r\n"
    assert warnings == []


async def test_too_few_replicas_are_told_of_once_and_the_write_counts(
    pair: Pair, connect: Connect, key: str, warnings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(pair.url, wait_replicas=2, replicas_timeout=0.1)
    for number in (1, 2, 3):
        assert await client.run(PUSH, [key], ["a"], replicate=True) == ("OK", [number])
    assert len(warnings) == 1
    said = warnings[0]
    assert (said.event, said.write, said.wanted, said.unsaid) == ("replicas_behind", "log_push_a", 2, 0)
    assert said.have in {"0", "1"}, "the one that there is may be slow"
    monkeypatch.setattr(replication, "QUIET", 0.0)
    await client.run(PUSH, [key], ["a"], replicate=True)
    assert [each.unsaid for each in warnings] == [0, 2]


async def test_writes_share_one_wait_and_what_comes_meanwhile_the_next(pair: Pair, connect: Connect, key: str) -> None:
    sent = Sent()
    client = connect(pair.url, wait_replicas=1, replicas_timeout=4.0, hook=sent)
    await client.run(PUSH, [key], ["0"], replicate=True)
    sent.log.clear()
    pair.freeze()
    first = [asyncio.create_task(client.run(PUSH, [key], ["a"], replicate=True)) for _ in range(20)]
    await until(lambda: "<log_push_a" in sent.log)
    second = [asyncio.create_task(client.run(PUSH, [key], ["b"], replicate=True)) for _ in range(5)]
    reads = asyncio.create_task(client.execute("LLEN", key))
    await asyncio.sleep(0)
    assert sent.log == [">log_push_a"] * 20 + [">WAIT"] + ["<log_push_a"] * 20
    pair.thaw()
    await asyncio.gather(*first, *second)
    assert await reads == 26
    rest = sent.log[41:]
    assert rest[:8] == ["<WAIT", *[">log_push_a"] * 5, ">LLEN", ">WAIT"]
    assert sent.log.count(">WAIT") == sent.log.count("<WAIT") == 2


async def test_nothing_is_waited_for_that_is_not_asked_to_be(pair: Pair, connect: Connect, key: str) -> None:
    sent = Sent()
    pair.freeze()
    client = connect(pair.url, wait_replicas=1, hook=sent)
    await client.run(PUSH, [key], ["a"])
    await client.execute("LLEN", key)
    without = connect(pair.url, hook=sent)
    await without.run(PUSH, [key], ["a"], replicate=True)
    assert ">WAIT" not in sent.log


async def test_a_connection_lost_while_it_waits_loses_no_reply(
    pair: Pair, connect: Connect, key: str, warnings: list[Any]
) -> None:
    sent = Sent()
    client = connect(pair.url, wait_replicas=1, replicas_timeout=4.0, hook=sent)
    await client.run(PUSH, [key], ["0"], replicate=True)
    pair.freeze()
    sent.log.clear()
    write = asyncio.create_task(client.run(PUSH, [key], ["a"], replicate=True))
    await until(lambda: "<log_push_a" in sent.log)
    later = asyncio.create_task(client.run(PUSH, [key], ["b"], replicate=True))
    await asyncio.sleep(0)
    pair.primary.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await write == ("OK", [2])
    pair.thaw()
    assert await later == ("OK", [3])
    assert [(each.event, each.have) for each in warnings] == [("replicas_behind", "unknown")]


async def test_a_server_that_forbids_waiting_is_told_of(
    pair: Pair, connect: Connect, key: str, warnings: list[Any]
) -> None:
    pair.primary.command("ACL", "SETUSER", "w", "on", ">p", "~*", "&*", "+@all", "-wait")
    client = connect(pair.url, wait_replicas=1, username="w", password="p")
    assert await client.run(PUSH, [key], ["a"], replicate=True) == ("OK", [1])
    assert [(each.event, each.have) for each in warnings] == [("replicas_behind", "unknown")]
    assert "NOPERM" in warnings[0].getMessage()


async def test_a_client_that_is_closed_while_it_waits(pair: Pair, connect: Connect, key: str) -> None:
    sent = Sent()
    client = connect(pair.url, wait_replicas=1, replicas_timeout=4.0, hook=sent)
    await client.run(PUSH, [key], ["0"], replicate=True)
    pair.freeze()
    write = asyncio.create_task(client.run(PUSH, [key], ["a"], replicate=True))
    await until(lambda: sent.log[-2:] == [">WAIT", "<log_push_a"])
    await client.aclose(drain=0)
    assert await write == ("OK", [2])


async def test_the_writes_of_a_run_are_replicated_before_they_count(pair: Pair, key: str) -> None:
    async with StoreClient(pair.url, wait_replicas=1, replicas_timeout=4.0) as client:
        store = RunStore(client, prefix=key.strip("{}"))
        run = store.space.run("r")
        pair.freeze()
        creating = asyncio.create_task(store.create("r", NEW, hold_ms=60_000))
        await until(lambda: pair.primary.command("EXISTS", run) == b":1\r\n")
        assert not creating.done()
        pair.thaw()
        created: Any = await creating
        assert pair.replica.command("EXISTS", run) == b":1\r\n"
        pair.freeze()
        closing = asyncio.create_task(store.close(created.claim, "completed", b"", retention_ms=60_000))
        await until(lambda: b"completed" in pair.primary.command("HGET", run, "status"))
        assert not closing.done()
        pair.thaw()
        await closing
        assert b"completed" in pair.replica.command("HGET", run, "status")
        await store.aclose()


def test_the_wait_ends_before_the_server_counts_as_hung() -> None:
    with pytest.raises(ValueError, match="less than socket_timeout"):
        StoreClient("redis://nowhere", wait_replicas=1, replicas_timeout=5.0)
