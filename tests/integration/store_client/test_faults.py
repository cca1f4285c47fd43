"""What breaks is found again and repeated; what is not safe to repeat is not."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from aioreactor.store.client import StoreClient
from aioreactor.store.errors import OutcomeUnknown, ReplyError, StoreUnavailable
from aioreactor.store.replies import backoff
from tests.integration.store_client.fakes import OK, FakeServer, fake, proxied
from tests.integration.store_client.samples import ONCE, PUSH, Connect, entries, gather, until
from tests.integration.store_client.servers import Server


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


async def test_client_kill_in_the_middle_of_commands(connect: Connect, server: Server, key: str) -> None:
    client, killer = connect(server.url), connect(server.url)
    stop = asyncio.Event()
    kills = 0

    async def kill() -> None:
        nonlocal kills
        own = await killer.execute("CLIENT", "ID")
        while not stop.is_set():
            kills += await killer.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(0.003)
        assert own

    async def one(number: int) -> None:
        for turn in range(40):
            await client.run(ONCE, [key], [number * 100 + turn])

    task = asyncio.create_task(kill())
    await asyncio.gather(*(one(i) for i in range(25)))
    stop.set()
    await task
    assert kills > 3
    applied = await entries(client, key)
    assert sorted(applied) == sorted(n * 100 + t for n in range(25) for t in range(40))
    for number in range(25):
        assert [a for a in applied if a // 100 == number] == [number * 100 + t for t in range(40)]


async def test_server_restart(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await client.run(PUSH, [key], [0])
    server.stop()
    waiting = [asyncio.create_task(client.run(PUSH, [key], [i])) for i in range(100)]
    await asyncio.sleep(0.2)
    await asyncio.to_thread(server.start)
    assert [r.word for r in await asyncio.gather(*waiting)] == ["OK"] * 100
    assert await entries(client, key) == list(range(100))


async def test_an_idle_connection_that_was_closed_is_replaced_unnoticed(connect: Connect, server: Server) -> None:
    client = connect(server.url)
    first = await client.execute("CLIENT", "ID")
    server.command("CLIENT", "KILL", "ID", str(first))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    assert await client.execute("CLIENT", "ID") != first
    assert time.monotonic() - began < 4


async def test_a_hung_server_is_left_and_tried_again(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url, socket_timeout=0.2)
    await client.run(ONCE, [key], [0])
    server.pause()
    waiting = [asyncio.create_task(client.run(ONCE, [key], [i])) for i in range(1, 50)]
    await asyncio.sleep(0.7)
    server.resume()
    await asyncio.gather(*waiting)
    assert await entries(client, key) == list(range(50))


async def test_a_hung_server_past_the_bound(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url, socket_timeout=0.2, retry_for=0.5)
    await client.run(PUSH, [key], [0])
    server.pause()
    began = time.monotonic()
    failed = await gather(client.run(PUSH, [key], [1]), client.execute("PING", retry_for=0.1))
    assert time.monotonic() - began < 4
    assert [type(e) for e in failed] == [StoreUnavailable, OutcomeUnknown]
    assert failed[0].may_be_applied
    assert isinstance(failed[0].__cause__, Exception)
    server.resume()
    assert (await client.run(PUSH, [key], [2])).word == "OK"


async def test_no_server_at_all(connect: Connect, tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/nowhere", retry_for=0.3)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"PING given up after 0\.3 s, it was not applied") as failed:
        await client.execute("PING")
    assert 0.25 < time.monotonic() - began < 4
    assert failed.value.__cause__ is not None
    assert not failed.value.may_be_applied


async def test_a_shorter_bound_counts_although_others_wait_longer(connect: Connect, tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/nowhere", retry_for=8.0)
    long = asyncio.create_task(client.execute("PING"))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await client.execute("PING", retry_for=0.1)
    assert time.monotonic() - began < 4
    assert not long.done()
    long.cancel()
    await asyncio.wait([long])


async def test_replies_lost_after_being_applied(connect: Connect, server: Server, key: str) -> None:
    async with proxied(server.path) as proxy:
        client = connect(proxy.url)
        await client.run(ONCE, [key], [0])
        proxy.swallow = True
        waiting = [asyncio.create_task(client.run(ONCE, [key], [i])) for i in range(1, 30)]
        plain = asyncio.create_task(client.execute("INCR", f"{key}n"))
        await until(lambda: server.command("GET", f"{key}n") == b"$1\r\n1\r\n")
        proxy.swallow = False
        proxy.cut()
        assert {r.word for r in await asyncio.gather(*waiting)} == {"SAME"}
        with pytest.raises(OutcomeUnknown, match="it may have been applied"):
            await plain
        assert await client.execute("GET", f"{key}n") == b"1"
        assert await entries(client, key) == list(range(30))


async def test_connections_cut_at_random(connect: Connect, server: Server, key: str) -> None:
    async with proxied(server.path) as proxy:
        client = connect(proxy.url)
        dice = random.Random(7)
        stop = asyncio.Event()

        async def cut() -> None:
            while not stop.is_set():
                await asyncio.sleep(dice.random() * 0.01)
                proxy.cut()

        async def one(number: int) -> None:
            for turn in range(30):
                mark = number * 100 + turn
                await client.run(ONCE, [key], [mark])
                assert await client.execute("ECHO", mark, repeatable=True) == str(mark).encode()

        task = asyncio.create_task(cut())
        await asyncio.gather(*(one(i) for i in range(20)))
        stop.set()
        await task
        applied = await entries(client, key)
        assert len(applied) == len(set(applied)) == 600


async def test_readonly_replica_until_it_is_promoted(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await client.run(PUSH, [key], [0])
    before = await client.execute("CLIENT", "ID")
    server.command("REPLICAOF", "127.0.0.1", "1")
    waiting = [asyncio.create_task(client.run(PUSH, [key], [i])) for i in range(1, 20)]
    plain = asyncio.create_task(client.execute("INCR", f"{key}n"))
    await asyncio.sleep(0.15)
    assert not any(t.done() for t in [*waiting, plain])
    server.command("REPLICAOF", "NO", "ONE")
    await asyncio.gather(*waiting)
    assert await plain == 1
    assert await entries(client, key) == list(range(20))
    assert await client.execute("CLIENT", "ID") != before


async def test_readonly_past_the_bound(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url, retry_for=0.3)
    server.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match=r"it was not applied.*READONLY"):
        await client.run(PUSH, [key], [1])


async def test_busy_with_somebody_elses_script(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await client.run(PUSH, [key], [0])
    server.command("CONFIG", "SET", "busy-reply-threshold", "50")
    hog = asyncio.create_task(
        asyncio.to_thread(
            server.command,
            "EVAL",
            "local t = redis.call('TIME') local s = t[1] * 1000 + t[2] / 1000 "
            "repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > s + 400",
            "0",
        )
    )
    await asyncio.sleep(0.15)
    assert (await client.run(PUSH, [key], [1])).values == [2]
    await hog


async def test_out_of_memory_is_not_repeated(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await client.run(PUSH, [key], [0])
    server.command("CONFIG", "SET", "maxmemory", "1")
    began = time.monotonic()
    with pytest.raises(ReplyError) as failed:
        await client.run(PUSH, [key], [1])
    assert failed.value.code == "OOM"
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-BUSY Redis is busy running a script.\r\n",
        b"-NOREPLICAS Not enough good replicas to write.\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-ERR Error running script (call to f_ab): @user_script:1: -READONLY You can't write here.\r\n",
    ],
)
async def test_not_ready_yet(connect: Connect, answer: bytes) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        return answer if sum(s[0] == b"ECHO" for s in served.seen) < 4 else bulk(args[1])

    async with fake(handler) as served:
        client = connect(f"redis://127.0.0.1:{served.port}")
        assert await client.execute("ECHO", "x") == b"x"
        assert len(served.seen) == 4


@pytest.mark.parametrize(
    "answer", [b"-ERR no\r\n", b"-WRONGTYPE no\r\n", b"-OOM no\r\n", b"-NOPERM no\r\n", b"-MOVED 1 h:1\r\n"]
)
async def test_not_repeated(connect: Connect, answer: bytes) -> None:
    async with fake(lambda served, args: answer) as served:
        client = connect(f"redis://127.0.0.1:{served.port}")
        with pytest.raises(ReplyError):
            await client.execute("ECHO", "x")
        assert len(served.seen) == 1


async def test_one_slot_that_is_not_ready_does_not_hold_up_the_others(connect: Connect) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        return b"-TRYAGAIN later\r\n" if args[1] == b"bad" else bulk(args[1])

    async with fake(handler) as served:
        client = connect(f"redis://127.0.0.1:{served.port}", retry_for=0.5)
        bad = asyncio.create_task(client.execute("ECHO", "bad"))
        for i in range(100):
            assert await client.execute("ECHO", i) == str(i).encode()
        assert not bad.done()
        with pytest.raises(StoreUnavailable, match="TRYAGAIN"):
            await bad


@pytest.mark.parametrize("garbage", [b"!!\r\n", b"+OK\r\n+extra\r\n", b"$5\r\nab\x00\r\n+\r\n", None])
async def test_nonsense_from_the_server_ends_the_connection_only(connect: Connect, garbage: bytes | None) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes | None:
        return garbage if served.connections < 3 else bulk(args[1])

    async with fake(handler) as served:
        client = connect(f"redis://127.0.0.1:{served.port}", socket_timeout=0.3)
        results = await gather(*(client.execute("ECHO", i, repeatable=True) for i in range(5)))
        results += await gather(*(client.execute("ECHO", i, repeatable=True) for i in range(5)))
        assert results[5:] == [b"0", b"1", b"2", b"3", b"4"] or garbage == b"+OK\r\n+extra\r\n"
        assert await client.execute("ECHO", "end", repeatable=True) == b"end"


async def test_connection_closed_in_the_middle_of_a_reply(connect: Connect) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        return b"$1000\r\nabc" if served.connections == 1 else bulk(args[1])

    async with fake(handler) as served:
        client = connect(f"redis://127.0.0.1:{served.port}", socket_timeout=0.2)
        assert await client.execute("ECHO", "x", repeatable=True) == b"x"
        assert served.connections == 2


@pytest.mark.parametrize("url", ["unix://wrong@{path}?password=no", "unix://{path}?password=no", "unix://{path}?db=99"])
async def test_a_refused_handshake_fails_at_once(connect: Connect, server: Server, url: str) -> None:
    server.command("ACL", "SETUSER", "other", "on", ">x", "+@all")
    client = connect(url.format(path=server.path))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"WRONGPASS|invalid username|index is out of range|password"):
        await client.execute("PING")
    assert time.monotonic() - began < 2


async def test_a_password_that_is_missing(connect: Connect, server: Server) -> None:
    server.command("CONFIG", "SET", "requirepass", "secret")
    with pytest.raises(StoreUnavailable, match="uthentication"):
        await connect(server.url).execute("PING")
    assert await connect(f"{server.url}?password=secret").execute("PING") == b"PONG"


async def test_no_answer_to_the_handshake(connect: Connect, server: Server) -> None:
    server.pause()
    client = connect(server.url, socket_timeout=0.1, retry_for=0.5)
    with pytest.raises(StoreUnavailable):
        await client.execute("PING")
    server.resume()
    assert await client.execute("PING") == b"PONG"


async def test_too_many_clients_for_a_while(connect: Connect, server: Server) -> None:
    holder = connect(server.url)
    await holder.execute("PING")
    server.command("CONFIG", "SET", "maxclients", "1")
    waiting = asyncio.create_task(connect(server.url).execute("PING"))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    await holder.execute("CONFIG", "SET", "maxclients", "100")
    assert await waiting == b"PONG"


async def test_a_slow_lane_does_not_delay_the_other(connect: Connect, server: Server, key: str) -> None:
    client = connect(server.url)
    await asyncio.gather(client.execute("PING"), client.execute("PING", lane="lease"))
    bulky = [asyncio.create_task(client.execute("SET", key, bytes(1 << 20))) for _ in range(100)]
    await asyncio.sleep(0)
    await client.execute("PING", lane="lease")
    assert not all(task.done() for task in bulky)
    await asyncio.gather(*bulky)


async def test_a_blocked_event_loop_is_no_hung_server(connect: Connect, server: Server) -> None:
    client = connect(server.url, socket_timeout=0.15)
    own = await client.execute("CLIENT", "ID")
    task = asyncio.create_task(client.execute("CLIENT", "ID"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.5)
    assert await task == own


async def test_a_command_may_take_longer_than_the_timeout_if_others_are_answered_meanwhile(connect: Connect) -> None:
    async def check(client: StoreClient) -> None:
        assert await client.execute("ECHO", "x") == b"x"

    async with fake(lambda served, args: bulk(args[1])) as served:
        client = connect(f"redis://127.0.0.1:{served.port}", socket_timeout=0.2)
        for _ in range(10):
            await asyncio.gather(*(check(client) for _ in range(5)))
            await asyncio.sleep(0.03)
        assert served.connections == 1
        assert OK


async def test_a_script_that_answers_noscript_itself_is_not_repeated_for_ever(client: StoreClient, key: str) -> None:
    from aioreactor.store.scripts import script_from

    text = "--[[\nkeys: log\nargs:\nreturns: OK\n]]\nlocal log = KEYS[1]\n"
    liar = script_from("log_lie", text + "if log then return redis.error_reply('NOSCRIPT no') end return 'OK'\n")
    async with asyncio.timeout(5):
        with pytest.raises(ReplyError) as failed:
            await client.run(liar, [key])
        assert failed.value.code == "NOSCRIPT"
        with pytest.raises(ReplyError):
            await client.execute("EVALSHA", "0" * 40, 0)


async def test_a_malformed_redirect_is_an_error(connect: Connect) -> None:
    def handler(served: FakeServer, args: list[bytes]) -> bytes:
        if args[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % served.port
        return b"-MOVED somewhere\r\n"

    async with fake(handler) as served:
        client = connect(f"redis+cluster://127.0.0.1:{served.port}")
        async with asyncio.timeout(2):
            with pytest.raises(ReplyError, match="MOVED somewhere"):
                await client.execute("GET", "k")


async def test_a_long_outage_does_not_slow_down_the_first_call_after_it(
    connect: Connect, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def noted(failures: int) -> float:
        waited.append(backoff(failures))
        return waited[-1]

    client = connect(server.url, retry_for=0.8)
    server.stop()
    with pytest.raises(StoreUnavailable):
        await client.execute("PING")
    await asyncio.to_thread(server.start)
    monkeypatch.setattr("aioreactor.store.link.backoff", noted)
    assert await client.execute("PING") == b"PONG"
    assert sum(waited) == 0


async def test_a_command_that_is_not_repeatable_survives_an_idle_connection_closed_by_the_server(
    connect: Connect, server: Server
) -> None:
    client = connect(server.url)
    first = await client.execute("CLIENT", "ID")
    server.command("CLIENT", "KILL", "ID", str(first))
    for _ in range(3):
        await asyncio.sleep(0.001)
    assert await client.execute("INCR", "n") == 1


async def test_the_server_ends_its_side_while_bytes_wait_to_be_written(connect: Connect) -> None:
    """asyncio then closes the transport when they are written, or cannot be."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            writer.close()
            return
        while b"ECHO" not in (data := await reader.read(1000)):
            writer.write(b"+OK\r\n" * data.count(b"SETINFO"))
        writer.write_eof()
        await asyncio.sleep(0.05)
        while await reader.read(1 << 20):
            pass
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = connect(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}", retry_for=0.5)
    results = await gather(*(client.execute("ECHO", bytes(1 << 20), repeatable=bool(i % 2)) for i in range(20)))
    assert {type(r) for r in results} <= {StoreUnavailable, OutcomeUnknown}
    assert connections > 1
    listener.close()
    await listener.wait_closed()
