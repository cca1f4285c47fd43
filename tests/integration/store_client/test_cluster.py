"""A real cluster: nodes are found, slots move, a replica takes over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from redis.crc import key_slot

from aioreactor.store.client import StoreClient
from aioreactor.store.errors import ReplyError, StoreClosed, StoreUnavailable
from tests.integration.store_client.fakes import FakeServer, fake
from tests.integration.store_client.samples import ONCE, PUSH, Connect, entries, gather, push_script
from tests.integration.store_client.servers import Server, free_port

SLOTS = ("0 5460", "5461 10922", "10923 16383")


class Cluster:
    """Three primaries, and a replica of the first."""

    def __init__(self) -> None:
        self.nodes = [self.node() for _ in range(4)]
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[1].port}"
        for node, slots in zip(self.nodes, SLOTS, strict=False):
            node.command("CLUSTER", "ADDSLOTSRANGE", *slots.split())
        for node in self.nodes[1:]:
            port = self.nodes[0].port
            node.command("CLUSTER", "MEET", "127.0.0.1", str(port), str(port + 1))
        self.wait(lambda n: b"cluster_known_nodes:4" in n.command("CLUSTER", "INFO"))
        self.wait(lambda n: b"cluster_state:ok" in n.command("CLUSTER", "INFO"), self.nodes[:3])
        self.nodes[3].command("CLUSTER", "REPLICATE", self.id(0))
        self.wait(lambda n: b"master_link_status:up" in n.command("INFO", "replication"), self.nodes[3:])

    def node(self) -> Server:
        port, bus = free_port(), free_port()
        while bus != port + 1:
            port = free_port()
            bus = port + 1
        return Server(
            "--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "1000",
            "--repl-diskless-sync-delay", "0", port=port,
        )  # fmt: skip

    def wait(self, true: Callable[[Server], bool], nodes: Sequence[Server] | None = None) -> None:
        until = time.monotonic() + 20
        while not all(true(n) for n in nodes or self.nodes):
            assert time.monotonic() < until
            time.sleep(0.02)

    def id(self, number: int) -> str:
        return self.nodes[number].command("CLUSTER", "MYID").split(b"\r\n")[1].decode()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


def key_in(number: int, tag: str) -> str:
    """A key of the node's slots."""
    first, last = map(int, SLOTS[number].split())
    return next(k for i in range(100_000) if first <= key_slot((k := f"{{{tag}{i}}}").encode()) <= last)


async def test_calls_find_their_node(connect: Connect, cluster: Cluster, key: str) -> None:
    client = connect(cluster.url)
    keys = [key_in(n, key.strip("{}")) for n in (0, 1, 2)]
    await asyncio.gather(*(client.run(PUSH, [k], [i]) for i in range(50) for k in keys))
    for k in keys:
        assert await entries(client, k) == list(range(50))
    ports = {await client.execute("CONFIG", "GET", "port", key=k) and k for k in keys}
    assert len(ports) == 3
    assert await client.execute("PING") == b"PONG"


async def test_keys_of_two_slots_are_the_servers_error(connect: Connect, cluster: Cluster) -> None:
    client = connect(cluster.url)
    with pytest.raises(ReplyError) as failed:
        await client.execute("MGET", key_in(0, "x"), key_in(1, "x"))
    assert failed.value.code == "CROSSSLOT"


async def test_a_slot_that_moves_while_it_is_used(connect: Connect, cluster: Cluster, key: str) -> None:
    client = connect(cluster.url)
    k = key_in(1, key.strip("{}"))
    slot, source, target = str(key_slot(k.encode())), cluster.nodes[1], cluster.nodes[2]
    stop = asyncio.Event()
    count = 0

    async def use() -> None:
        nonlocal count
        while not stop.is_set():
            await asyncio.gather(*(client.run(ONCE, [k], [count + i]) for i in range(5)))
            count += 5

    def move(source: Server, target: Server, ids: tuple[int, int]) -> None:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(ids[0]))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(ids[1]))
        time.sleep(0.05)
        moved = source.command("MIGRATE", "127.0.0.1", str(target.port), k, "0", "5000")
        assert moved in {b"+OK\r\n", b"+NOKEY\r\n"}
        time.sleep(0.05)
        for node in (target, source, cluster.nodes[0]):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id(ids[1]))
        time.sleep(0.05)

    task = asyncio.create_task(use())
    await asyncio.sleep(0.05)
    await asyncio.to_thread(move, source, target, (1, 2))
    await asyncio.to_thread(move, target, source, (2, 1))
    stop.set()
    await task
    assert count > 50
    assert await entries(client, k) == list(range(count))


async def test_a_replica_takes_over_while_the_primary_is_used(connect: Connect, cluster: Cluster, key: str) -> None:
    client = connect(cluster.url)
    k = key_in(0, key.strip("{}"))
    stop = asyncio.Event()
    count = 0

    async def use() -> None:
        nonlocal count
        while not stop.is_set():
            await asyncio.gather(*(client.run(ONCE, [k], [count + i]) for i in range(5)))
            count += 5

    task = asyncio.create_task(use())
    await asyncio.sleep(0.1)
    for successor in (3, 0):
        node = cluster.nodes[successor]
        assert node.command("CLUSTER", "FAILOVER") == b"+OK\r\n"
        await asyncio.to_thread(cluster.wait, lambda n: b"role:master" in n.command("INFO", "replication"), [node])
        await asyncio.sleep(0.1)
    stop.set()
    await task
    assert await entries(client, k) == list(range(count))
    await asyncio.to_thread(
        cluster.wait,
        lambda n: b"master_link_status:up" in n.command("INFO", "replication"),
        cluster.nodes[3:],
    )


async def test_a_primary_dies(connect: Connect, key: str) -> None:
    """With a cluster of its own, since it does not survive unhurt."""
    cluster = await asyncio.to_thread(Cluster)
    try:
        client = connect(cluster.url, socket_timeout=0.5, retry_for=20)
        k, other = key_in(0, "d"), key_in(1, "d")
        await client.run(ONCE, [k], [0])
        await asyncio.sleep(0.1)
        cluster.nodes[0].stop()
        waiting = [asyncio.create_task(client.run(ONCE, [k], [i])) for i in range(1, 20)]
        await client.execute("SET", other, "works", repeatable=True)
        await asyncio.gather(*waiting)
        assert await entries(client, k) == list(range(20))
    finally:
        cluster.close()


async def test_no_node_answers(connect: Connect) -> None:
    client = connect("redis+cluster://127.0.0.1:1,127.0.0.1:2", retry_for=0.3)
    assert {type(e) for e in await gather(*(client.run(PUSH, ["k"], [i]) for i in range(5)))} == {StoreUnavailable}


async def test_redirected_in_circles(connect: Connect) -> None:
    """Two nodes that send each other everything must not be asked without end."""
    ports: list[int] = []

    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        if args[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n" % ports[0]
        there = ports[1] if served.port == ports[0] else ports[0]
        return b"-MOVED 12739 127.0.0.1:%d\r\n" % there

    async with fake(handler) as one, fake(handler) as two:
        ports += [one.port, two.port]
        client = connect(f"redis+cluster://127.0.0.1:{one.port}", retry_for=0.5)
        with pytest.raises(StoreUnavailable, match="MOVED"):
            await client.execute("GET", "k")
        assert len(one.seen) + len(two.seen) < 60


async def test_ask_is_followed_once_and_preceded_by_asking(connect: Connect) -> None:
    ports: list[int] = []

    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        if args[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % ports[0]
        if served.port == ports[0]:
            return b"-ASK 1 127.0.0.1:%d\r\n" % ports[1]
        return b"+OK\r\n" if args[0] in {b"ASKING", b"SCRIPT"} else b"*2\r\n$2\r\nOK\r\n:1\r\n"

    async with fake(handler) as one, fake(handler) as two:
        ports += [one.port, two.port]
        client: StoreClient = connect(f"redis+cluster://127.0.0.1:{one.port}")
        script = push_script("ask")
        await client.run(script, ["k"], [1])
        assert [s[0] for s in two.seen] == [b"SCRIPT", b"ASKING", b"EVALSHA"]
        await client.run(script, ["k"], [1])
        assert [s[0] for s in one.seen].count(b"EVALSHA") == 2


def answer_map(port: int) -> bytes:
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port


async def test_moved_to_a_node_that_was_not_known(connect: Connect) -> None:
    ports: list[int] = []

    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        if args[0] == b"CLUSTER":
            return answer_map(ports[0])
        return b"-MOVED 12739 :%d\r\n" % ports[1] if served.port == ports[0] else b":7\r\n"

    async with fake(handler) as one, fake(handler) as two:
        ports += [one.port, two.port]
        client = connect(f"redis+cluster://127.0.0.1:{one.port}")
        key = next(k for i in range(10**6) if key_slot((k := f"k{i}").encode()) == 12739)
        assert await gather(*(client.execute("INCR", key) for _ in range(5))) == [7] * 5
        assert await client.execute("INCR", key) == 7
        assert len(one.seen) == 6


@pytest.mark.parametrize("answer", [b"-TRYAGAIN later\r\n", b"-CLUSTERDOWN Hash slot not served\r\n"])
async def test_a_slot_that_is_not_ready(connect: Connect, answer: bytes) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        if args[0] == b"CLUSTER":
            return answer_map(served.port)
        return answer if sum(s[0] == b"INCR" for s in served.seen) < 4 else b":1\r\n"

    async with fake(handler) as served:
        client = connect(f"redis+cluster://127.0.0.1:{served.port}")
        assert await client.execute("INCR", "k") == 1
        assert any(s[0] == b"CLUSTER" for s in served.seen[1:])


async def test_close_while_a_call_waits_for_its_slot(connect: Connect) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        return answer_map(served.port) if args[0] == b"CLUSTER" else b"-TRYAGAIN later\r\n"

    async with fake(handler) as served:
        client = connect(f"redis+cluster://127.0.0.1:{served.port}")
        task = asyncio.create_task(client.execute("INCR", "k"))
        await asyncio.sleep(0.1)
        await client.aclose(drain=0.05)
        with pytest.raises(StoreClosed):
            await task
