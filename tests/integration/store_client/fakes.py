"""A scripted server, and a proxy that loses what it is told to lose."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

Handler = Callable[["FakeServer", list[bytes]], bytes | None]
OK = b"+OK\r\n"


class FakeServer:
    """Speaks just enough RESP; a handler that returns None closes the connection, `b""` says nothing."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.seen: list[list[bytes]] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                args = await read_command(reader)
                if args[0] == b"CLIENT" and args[1] == b"SETINFO":
                    reply: bytes | None = OK
                else:
                    self.seen.append(args)
                    reply = self.handler(self, args)
                if reply is None:
                    return
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()


async def read_command(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readexactly(1) and await reader.readuntil(b"\r\n"))[:-2])
    args = []
    for _ in range(count):
        length = int((await reader.readuntil(b"\r\n"))[1:-2])
        args.append((await reader.readexactly(length + 2))[:-2])
    return args


@contextlib.asynccontextmanager
async def fake(handler: Handler) -> AsyncIterator[FakeServer]:
    served = FakeServer(handler)
    tasks: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        tasks.add(asyncio.create_task(served.serve(reader, writer)))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    served.port = listener.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        listener.close()
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await listener.wait_closed()


class Proxy:
    """Between client and server, in the loop of the test.

    Attributes:
        swallow: Replies are read from the server and dropped, so that commands are applied and never answered.
        writes: Sizes of the chunks that came from clients.
        chop: Passes replies on in pieces of that many bytes.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.swallow = False
        self.chop = 0
        self.writes: list[int] = []
        self.writers: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.directory = tempfile.TemporaryDirectory(prefix="px", dir="/tmp")
        self.path = str(Path(self.directory.name) / "p")
        self.url = f"unix://{self.path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        there, back = await asyncio.open_unix_connection(self.target)
        self.writers |= {writer, back}
        up = asyncio.create_task(self.up(reader, back))
        try:
            await self.down(there, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            writer.close()
            back.close()

    async def up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            self.writes.append(len(data))
            writer.write(data)
        writer.close()

    async def down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.swallow:
                continue
            for place in range(0, len(data), self.chop or len(data)):
                writer.write(data[place : place + (self.chop or len(data))])
                if self.chop:
                    await writer.drain()
                    await asyncio.sleep(0)

    def cut(self) -> None:
        """Drop every connection."""
        for writer in self.writers:
            if not writer.transport.is_closing():
                writer.transport.abort()
        self.writers.clear()


@contextlib.asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    listener = await asyncio.start_unix_server(proxy.serve, proxy.path)
    try:
        yield proxy
    finally:
        listener.close()
        for task in proxy.tasks:
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
        await listener.wait_closed()
        proxy.directory.cleanup()
