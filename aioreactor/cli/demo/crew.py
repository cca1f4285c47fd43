"""The demo's worker processes: started as a person would, served with the shop, killed on purpose, ended at the end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from aioreactor.cli.demo.link import LINK, Call, Did, line, perform

MODULES = ("aioreactor.cli.demo.checkout", "aioreactor.cli.demo.app")
COMMAND = ("-m", "aioreactor", "worker", *MODULES, "--sweep-interval", "1")
LEASE_TTL = 1.5
"""Seconds for which a killed worker keeps its runs. Nobody wants to wait; a real shop leaves it at 30."""

ENDING = 3.0
"""Seconds that a worker gets to end by itself."""

LONGEST_LINE = 1 << 24
"""Bytes of one call."""

Process: TypeAlias = asyncio.subprocess.Process


class WorkerFailed(Exception):
    """A worker ended by itself, or did not do its work; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process was about to do for a run, and when (`time.monotonic`)."""

    pid: int
    did: Did
    at: float


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed: after which action of the shop, whose answer it never got."""

    pid: int
    after: str
    at: float


@dataclass(slots=True)
class Crew:
    """The processes, and what is known of them.

    Attributes:
        seen: What they have told, in order.
        kills: In order.
        kill_after: Whoever has this action done next is killed before it hears of it.
    """

    shop: Mapping[str, object]
    url: str
    folder: Path
    seen: list[Seen] = field(default_factory=list[Seen])
    kills: list[Kill] = field(default_factory=list[Kill])
    kill_after: str | None = None
    _processes: dict[int, Process] = field(default_factory=dict[int, Process])
    _serving: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    @property
    def pids(self) -> list[int]:
        """Of all that were started, oldest first."""
        return list(self._processes)

    @property
    def living(self) -> int:
        """How many have not been killed."""
        return len(self._processes) - len(self.kills)

    async def start(self, count: int) -> None:
        """Start workers.

        Cancellation: those that were started are ended with the others.
        """
        for _ in range(count):
            ours, theirs = socket.socketpair()
            try:
                process = await self._spawn(theirs)
            except BaseException:
                ours.close()
                raise
            self._processes[process.pid] = process
            self._serving.append(asyncio.get_running_loop().create_task(self._answer(ours, process)))

    async def _spawn(self, link: socket.socket) -> Process:
        with link, (self.folder / f"worker-{len(self._processes) + 1}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *COMMAND,
                env=environment(self.url, link.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[link.fileno()],
                start_new_session=True,  # a Ctrl-C is for the demo, which then ends them
            )

    async def _answer(self, sock: socket.socket, process: Process) -> None:
        """Do what a worker asks for, each call on its own, until it is gone."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=LONGEST_LINE)
        try:
            async with asyncio.TaskGroup() as calls:
                while message := await _next_line(reader):
                    found = msgspec.json.decode(message, type=Call | Did)
                    if isinstance(found, Did):
                        self.seen.append(Seen(process.pid, found, time.monotonic()))
                    else:
                        calls.create_task(self._perform(found, writer, process))
        finally:
            writer.close()

    async def _perform(self, call: Call, writer: asyncio.StreamWriter, process: Process) -> None:
        answer = await perform(self.shop, call)
        if call.action == self.kill_after and answer.error is None and process.returncode is None:
            self.kill_after = None
            self.kills.append(Kill(process.pid, call.action, time.monotonic()))
            process.kill()
        elif not writer.is_closing():
            writer.write(line(answer))

    async def failed(self) -> str:
        """Wait until one has ended that nobody killed; says what is known of it.

        Raises:
            Exception: serving one of them failed.

        Cancellation: nothing happens.
        """
        exits: dict[asyncio.Future[Any], int] = {
            asyncio.ensure_future(each.wait()): pid for pid, each in self._processes.items()
        }
        waits: set[asyncio.Future[Any]] = {*exits, *self._serving}
        try:
            while True:
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
                    if each in exits and exits[each] not in {kill.pid for kill in self.kills}:
                        pid = exits[each]
                        return f"worker {pid} ended with code {each.result()}{self.log_tail(pid)}"
        finally:
            for each in exits:
                each.cancel()

    def log_tail(self, pid: int, lines: int = 5) -> str:
        """The end of what a worker logged, to be put behind a sentence."""
        path = self.folder / f"worker-{self.pids.index(pid) + 1}.log"
        written = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "; the end of its log:\n" + "\n".join(written[-lines:]) if written else "; it logged nothing"

    async def end(self) -> None:
        """End them: asked to first, killed if they do not.

        Cancellation: those that are left see that the demo is gone, and end.
        """
        living = [each for each in self._processes.values() if each.returncode is None]
        for process in living:
            with suppress(ProcessLookupError):
                process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING):
                await asyncio.gather(*(each.wait() for each in living))
        for process in living:
            if process.returncode is None:
                process.kill()
                await process.wait()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@asynccontextmanager
async def crew_of(count: int, shop: Mapping[str, object], url: str, folder: Path) -> AsyncIterator[Crew]:
    """So many workers at the store with this URL; all that are started meanwhile are ended after the block.

    They log into ``folder``: that of the server, which is removed even when the demo is killed.

    Cancellation: they are ended first.
    """
    crew = Crew(shop, url, folder)
    try:
        await crew.start(count)
        yield crew
    finally:
        await crew.end()


def environment(url: str, link: int) -> dict[str, str]:
    """What a worker is started with; ``AIOREACTOR_*`` variables of the person's own are none of the demo's."""
    theirs = {name: text for name, text in os.environ.items() if not name.startswith("AIOREACTOR_")}
    return {**theirs, **settings(url), LINK: str(link)}


def settings(url: str) -> dict[str, str]:
    """The variables that make a worker serve the demo's store."""
    return {"AIOREACTOR_REDIS_URL": url, "AIOREACTOR_LEASE_TTL": f"{LEASE_TTL:g}"}


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """The next whole line; empty when the worker is gone, even in the middle of one."""
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
