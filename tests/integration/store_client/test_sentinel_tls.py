"""Sentinels, TLS and RESP3: redis-py's handshake, this client's traffic."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioreactor.store.errors import StoreUnavailable
from tests.integration.store_client.samples import ONCE, PUSH, Connect, entries
from tests.integration.store_client.servers import Server, free_port, server_binary

Watched = tuple[str, int, Server, Server]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A primary, its replica, and a Sentinel."""
    primary = Server(port=free_port())
    replica = Server("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0", port=free_port())
    directory, port = Path(tempfile.mkdtemp(prefix="se", dir="/tmp")), free_port()
    config = directory / "conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor main 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n"
    )
    process = subprocess.Popen(
        [server_binary(), str(config), "--sentinel"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 15
    while b"master_link_status:up" not in replica.command("INFO", "replication"):
        assert time.monotonic() < until
        time.sleep(0.02)
    yield f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/main", port, primary, replica
    process.kill()
    process.wait()
    shutil.rmtree(directory)
    replica.close()
    primary.close()


async def sentinel(port: int, *args: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((f"*{len(args)}\r\n" + "".join(f"${len(a)}\r\n{a}\r\n" for a in args)).encode())
    try:
        return await reader.read(65536)
    finally:
        writer.close()
        await writer.wait_closed()


def replication_of(server: Server) -> bytes:
    """What a server says of its role; nothing while Sentinel, reconfiguring it, resets all its connections."""
    try:
        return server.command("INFO", "replication")
    except ConnectionResetError:
        return b""


async def test_failover_by_sentinel(connect: Connect, watched: Watched, key: str) -> None:
    url, port, primary, replica = watched
    client = connect(url, socket_timeout=0.5, retry_for=20)
    await client.run(PUSH, [key], [0])
    async with asyncio.timeout(20):
        while b"-" in (answer := await sentinel(port, "SENTINEL", "FAILOVER", "main"))[:1]:
            await asyncio.sleep(0.1)
        count = 1
        while b"role:master" not in replication_of(replica):
            await client.run(ONCE, [key], [count])
            count += 1
        while b"role:slave" not in replication_of(primary):
            await asyncio.sleep(0.05)
    assert answer == b"+OK\r\n"
    await client.run(ONCE, [key], [1_000_000])
    stored = replica.command("LRANGE", key, "-1", "-1")
    assert b"1000000" in stored


async def test_an_unknown_service(connect: Connect, watched: Watched) -> None:
    client = connect(watched[0].replace("/main", "/other"), retry_for=0.3)
    with pytest.raises(StoreUnavailable, match="No master found for 'other'"):
        await client.execute("PING")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


async def test_tls(connect: Connect, server: Server, key: str, certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        there, back = await asyncio.open_unix_connection(server.path)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    client = connect(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate[1]}&ssl_check_hostname=true")
    await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(200)))
    assert await entries(client, key) == list(range(200))
    big = bytes(3 << 20)
    replies = await asyncio.gather(*(client.execute("ECHO", big) for _ in range(5)), client.execute("ECHO", "x"))
    assert replies == [big] * 5 + [b"x"]
    await client.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no", repeatable=False)
    assert await client.execute("ECHO", "again", repeatable=True) == b"again"
    await client.aclose()
    distrusting = connect(f"rediss://127.0.0.1:{port}", retry_for=0.3)
    with pytest.raises(StoreUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        await distrusting.execute("PING")
    listener.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    await listener.wait_closed()


async def test_resp3_and_a_database(connect: Connect, server: Server, key: str) -> None:
    client = connect(f"{server.url}?protocol=3&db=4")
    await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(50)))
    assert await entries(client, key) == list(range(50))
    assert b"db=4" in await client.execute("CLIENT", "INFO")
    assert b"resp=3" in await client.execute("CLIENT", "INFO")


async def test_a_name_for_the_connection(connect: Connect, server: Server) -> None:
    client = connect(server.url, client_name="worker-7")
    assert await client.execute("CLIENT", "GETNAME") == b"worker-7"
