"""`EmbeddedServer`: what a program sees of all this."""

import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import anyio
import anyio.to_thread

from aioreactor.embedded.hold import Hold
from aioreactor.embedded.launch import LOG_LINES, obtain
from aioreactor.embedded.launch_async import Launch
from aioreactor.embedded.options import Options
from aioreactor.embedded.patience import Patience

START_TIMEOUT = 30.0
LOG_LINES_KEPT = 200


class EmbeddedServer:
    """A Redis-compatible server of this process's own; made by `start` or `running`.

    It runs until `stop`, or until this process ends in whatever way, and then its directory is removed.
    Dropping the object does not stop it. Children forked without exec keep it alive as well, except
    against `stop`.

    With a data directory it is shared: `stop` lets go, and the last process to do so ends it.

    All methods may be called from any thread.
    """

    def __init__(self, hold: Hold, *, tcp: bool) -> None:
        """Wrap a hold on a server that answers; use `start` instead."""
        self._hold = hold
        self._pid = hold.home.pid or 0
        self._port = hold.home.port if tcp else None
        self._stopping = threading.Lock()
        self._stopped = False
        self._last_log: list[str] = []

    @classmethod
    def start(
        cls,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        tcp: bool = False,
        extra_args: Sequence[str] = (),
        timeout: float = START_TIMEOUT,
    ) -> Self:
        """Start a server, or attach to the one that already runs for `data_dir`; returns once it answers.

        Blocks for some tens of milliseconds; in a coroutine use `running`.

        Args:
            data_dir: Where its data is kept (append-only file, synced every second). Without it nothing
                outlives the server.
            tcp: Listen on a free port of 127.0.0.1 as well, and let `url` point there. Every local user
                can connect to it, only this user to the unix socket.
            extra_args: Further words of the server's command line, such as ``["--maxmemory", "64mb"]``.
                Ignored when attaching.
            timeout: Seconds until it must answer, reading its data included.

        Raises:
            ServerNotFound: There is no server binary.
            ServerStartError: The server ended or did not answer in time.
            ValueError: `extra_args` sets what this class decides.
        """
        options = Options.checked(data_dir=data_dir, tcp=tcp, extra_args=extra_args, timeout=timeout)
        return cls(obtain(options, Patience(timeout)), tcp=tcp)

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        tcp: bool = False,
        extra_args: Sequence[str] = (),
        timeout: float = START_TIMEOUT,
    ) -> AsyncGenerator[Self, None]:
        """`start` and `stop` around a block, without blocking the event loop.

        Takes the arguments of `start`.

        Raises:
            ServerNotFound: There is no server binary.
            ServerStartError: The server ended or did not answer in time.
            ValueError: `extra_args` sets what this class decides.

        Cancellation:
            While starting: takes effect at once, and the half-started server is ended in the background.
            While stopping: the stop goes on; with anyio's cancel scopes it is also awaited.
        """
        options = Options.checked(data_dir=data_dir, tcp=tcp, extra_args=extra_args, timeout=timeout)
        server = cls(await Launch(options).hold(), tcp=tcp)
        try:
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(server.stop, limiter=anyio.CapacityLimiter(1))

    @property
    def url(self) -> str:
        """The address for a Redis client: ``unix://…``, or ``redis://127.0.0.1:…`` with ``tcp=True``."""
        if self._port is not None:
            return f"redis://127.0.0.1:{self._port}/0"
        return f"unix://{quote(str(self.socket_path))}?db=0"

    @property
    def socket_path(self) -> Path:
        """The unix socket; it is there with ``tcp=True`` too."""
        return self._hold.home.socket

    @property
    def port(self) -> int | None:
        """The port on 127.0.0.1; ``None`` without ``tcp=True``."""
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._pid

    @property
    def directory(self) -> Path:
        """The server's own directory (socket, log), removed when it ends; not the data directory."""
        return self._hold.home.directory

    @property
    def attached(self) -> bool:
        """Whether another process had started this server."""
        return self._hold.supervisor is None

    @property
    def alive(self) -> bool:
        """Whether the server process runs; false after `stop`, whoever else may still use it."""
        home = self._hold.home
        return not self._stopped and home.exit_code is None and not home.is_gone()

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last `lines` lines that the server logged; after `stop`, as they were just before it."""
        return self._hold.home.log_tail(lines) or "\n".join(self._last_log[-lines:])

    def stop(self) -> None:
        """Let go of the server. Without a data directory, or as its last holder, that ends it.

        Returns once it is gone, its data on disk and its directory removed; at once if others hold it.
        Calling it again does nothing.
        """
        with self._stopping:
            if not self._stopped:
                self._last_log = self._hold.home.log_tail(LOG_LINES_KEPT).splitlines()
                self._stopped = True
                self._hold.release()

    def __enter__(self) -> Self:
        """Give the server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def __repr__(self) -> str:
        """Name the class, the address and the process."""
        state = "" if self.alive else " ended"
        return f"<{type(self).__name__} {self.url} pid={self.pid}{state}>"
