"""The store client: commands of many tasks share few connections and travel together.

What is issued in one iteration of the event loop leaves in one write, and each reply goes to the task that
waits for it. Connections are made when first needed, one per lane, server and event loop; what breaks is
found again and repeated within a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from aioreactor.store import commands
from aioreactor.store.calls import Call, FaultHook, Key, Value, pack
from aioreactor.store.cluster import ClusterHub
from aioreactor.store.endpoints import parse_endpoint
from aioreactor.store.errors import StoreClosed
from aioreactor.store.hub import Hub, Settings
from aioreactor.store.replication import Replication
from aioreactor.store.scripts import Reply, Script

DEFAULT_LANE = "default"
LEASE_LANE = "lease"


class StoreClient:
    """An asynchronous client of one Redis or Valkey, of a Sentinel-managed primary, or of a cluster.

    It may be used from several event loops, also in several threads: each has connections of its own. After
    a fork, only loops made in the child may use it.

    Args:
        url: See `endpoints`.
        retry_for: Seconds after its issue during which a command is sent again when the store is away or
            not ready. A command under way to a server that hangs is noticed only after `socket_timeout`,
            so that the longest wait is about the sum of both.
        socket_timeout: Seconds without any reply after which a server counts as hung.
        connect_timeout: Seconds for opening a connection.
        lanes: Names of the connections to each server. Leases have one of their own, so that no large value
            delays a renewal.
        wait_replicas: So many replicas are to have a write that `run` is told to replicate, before it returns.
        replicas_timeout: Seconds for which that is waited for; then it is noted, and the write counts all the same.
        hook: For tests, see `FaultHook`.
        options: More for redis-py's connections, such as `client_name` or `credential_provider`.

    Raises:
        ValueError: The URL or an option is not understood.
    """

    def __init__(
        self,
        url: str,
        *,
        retry_for: float = 10.0,
        socket_timeout: float = 5.0,
        connect_timeout: float | None = None,
        lanes: Sequence[str] = (DEFAULT_LANE, LEASE_LANE),
        wait_replicas: int = 0,
        replicas_timeout: float = 1.0,
        hook: FaultHook | None = None,
        **options: Any,
    ) -> None:
        options = {"socket_timeout": socket_timeout, "socket_connect_timeout": connect_timeout} | options
        endpoint = parse_endpoint(url, **options)
        timeout = endpoint.options["socket_timeout"]
        if wait_replicas and timeout is not None and replicas_timeout >= timeout:
            raise ValueError(f"replicas_timeout={replicas_timeout}: less than socket_timeout, {timeout:g} s")
        self._replication = Replication(wait_replicas, replicas_timeout) if wait_replicas else None
        self._settings = Settings(endpoint, tuple(lanes), timeout, hook, self._replication)
        self._retry_for = retry_for
        self._hubs: dict[asyncio.AbstractEventLoop, Hub] = {}
        self._inherited: list[Hub] = []
        self._lock = threading.Lock()
        self._closed = False
        _clients.add(self)

    async def run(
        self,
        script: Script,
        keys: Sequence[Key],
        args: Sequence[Value] = (),
        *,
        lane: str = DEFAULT_LANE,
        retry_for: float | None = None,
        replicate: bool = False,
    ) -> Reply:
        """The reply of `script`, which is loaded onto the server if it is not there.

        Scripts are repeatable by convention, and so it is sent again when a reply was lost.

        Args:
            script: From a `ScriptLibrary`.
            keys: Its keys, all of one slot.
            args: Its arguments.
            lane: The connection it takes.
            retry_for: Instead of the client's.
            replicate: It writes what replicas are to have, see `wait_replicas`.

        Raises:
            StoreUnavailable: The store could not be reached or was not ready within `retry_for`.
            ReplyError: The script failed on the server.
            ScriptError: It answered something that its header does not declare.
            StoreClosed: The client was closed.
            TypeError: Number or type of keys or arguments is wrong.
            ValueError: There is no such lane.

        Cancellation: a script that was not sent yet is never sent; one that was sent is applied, or not, and
            its reply is dropped. No other command is disturbed.
        """
        hub = self._hubs.get(asyncio.get_running_loop()) or self._open_hub()
        call = Call(
            hub.loop.create_future(),
            script.pack(keys, args),
            script.name,
            keys[0] if keys else None,
            script,
            lane,
            True,
            hub.loop.time(),
            self._retry_for if retry_for is None else retry_for,
        )
        if replicate and self._replication is not None:
            call.replicated = True
            hub.submit(call)
            return await self._replicated(script, call, self._replication)
        hub.submit(call)
        return script.decode(await call.future)

    async def _replicated(self, script: Script, call: Call, replication: Replication) -> Reply:
        reply = script.decode(await call.future)
        if call.barrier is not None:
            await replication.confirm(script.name, call.barrier)
        return reply

    async def execute(
        self,
        *args: Value,
        lane: str = DEFAULT_LANE,
        repeatable: bool = False,
        key: Key | None = None,
        retry_for: float | None = None,
    ) -> Any:
        """The reply of one command, as the server sent it: `bytes`, `int`, lists of them or None.

        Args:
            args: The command and its arguments, one each (`"SCRIPT", "FLUSH"`).
            lane: The connection it takes.
            repeatable: It may be sent again although it may have been applied. Otherwise it is sent again
                only when it certainly was not.
            key: The key that decides the node in a cluster, where it is not where most commands have it.
            retry_for: Instead of the client's.

        Raises:
            OutcomeUnknown: The connection broke under a command that is not repeatable.
            StoreUnavailable: The store could not be reached or was not ready within `retry_for`.
            ReplyError: The server refused it.
            StoreClosed: The client was closed.
            ValueError: It would block or change the connection, which others use as well; or there is no
                such lane.
            TypeError: An argument is of a type that cannot be sent.

        Cancellation: as for `run`.
        """
        commands.check_sharable(args)
        hub = self._hubs.get(asyncio.get_running_loop()) or self._open_hub()
        call = Call(
            hub.loop.create_future(),
            pack(args),
            commands.name_of(args),
            commands.key_of(args) if key is None else key,
            None,
            lane,
            repeatable,
            hub.loop.time(),
            self._retry_for if retry_for is None else retry_for,
        )
        hub.submit(call)
        return await call.future

    async def aclose(self, *, drain: float = 1.0) -> None:
        """Close all connections; the client cannot be used any more.

        Commands under way get up to `drain` seconds to be answered, then their callers get `StoreClosed`.
        Connections in other running loops are closed without waiting.

        Cancellation: everything is closed all the same, at once.
        """
        own = asyncio.get_running_loop()
        with self._lock:
            self._closed = True
            hubs, self._hubs = self._hubs, {}
        for loop, hub in hubs.items():
            if loop is not own and not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # it was closed in this very moment
                    loop.call_soon_threadsafe(hub.shut)
        if own in hubs:
            await hubs[own].aclose(drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open_hub(self) -> Hub:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise StoreClosed("the store client is closed")
            self._hubs = {known: hub for known, hub in self._hubs.items() if not known.is_closed()}
            kind = ClusterHub if self._settings.endpoint.kind == "cluster" else Hub
            hub = self._hubs[loop] = kind(self._settings, loop)
        return hub

    def _forget_parent(self) -> None:
        # The sockets and the selector are shared with the parent process: closing a transport here would
        # take the parent's socket out of its selector. They are kept, untouched, for ever.
        self._inherited += self._hubs.values()
        self._hubs = {}
        self._lock = threading.Lock()


_clients: weakref.WeakSet[StoreClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
