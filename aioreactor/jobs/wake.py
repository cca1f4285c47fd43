"""Hears tokens: what wakes a sleeping worker when something was enqueued."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from redis.asyncio.connection import AbstractConnection

from aioreactor.jobs.queue import WAKE_MS, JobQueue
from aioreactor.store.endpoints import TROUBLE
from aioreactor.store.replies import backoff

BLOCK = 5
"""Seconds for which the server holds each question."""

SLACK = 5.0
"""Seconds without an answer past that, after which the connection counts as dead."""

_log = logging.getLogger("aioreactor.jobs")


class WakeListener:
    """Takes one token at a time over a connection of its own, and only when it is wanted.

    Args:
        queue: Whose tokens.
        on_wake: Called when there is one, and after each new connection.
        is_full: Whether a token would be wasted here; then it is put back.
    """

    def __init__(self, queue: JobQueue, *, on_wake: Callable[[], None], is_full: Callable[[], bool]) -> None:
        self._queue = queue
        self._on_wake = on_wake
        self._is_full = is_full
        self._wanted = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        """The next token is for this worker."""
        self._wanted.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="aioreactor-wake")

    def decline(self) -> None:
        """Tokens are for others until `want`; one that was asked for already is put back."""
        self._wanted.clear()

    async def aclose(self) -> None:
        """Listen no more.

        Cancellation: the same.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._connected()
            except TROUBLE as error:  # a TimeoutError is an OSError
                self._failures += 1
                if self._failures == 1:
                    _log.warning("queue %s: not woken, only polled, for now: %s", self._queue.queue_name, error)
                await asyncio.sleep(backoff(self._failures))

    async def _connected(self) -> None:
        connection = await self._connect()
        try:
            # What was rung while nobody listened was not heard.
            self._on_wake()
            while True:
                await self._wanted.wait()
                if await self._ask(connection, "BLPOP", self._queue.wake_key, BLOCK) is not None:
                    await self._took(connection)
                self._failures = 0
        finally:
            await connection.disconnect(nowait=True)

    async def _connect(self) -> AbstractConnection:
        # The server's patience is bounded by each question, not by the connection.
        endpoint = self._queue.endpoint
        endpoint = replace(endpoint, options={**endpoint.options, "socket_timeout": None, "protocol": 2})
        async with asyncio.timeout(BLOCK + SLACK):
            return await endpoint.connect()

    async def _took(self, connection: AbstractConnection) -> None:
        # Before the answers below: what becomes free while they are under way may want the next one.
        self._wanted.clear()
        if self._is_full():
            await self._ask(connection, "RPUSH", self._queue.wake_key, "1")
            await self._ask(connection, "PEXPIRE", self._queue.wake_key, WAKE_MS)
        else:
            self._on_wake()

    async def _ask(self, connection: AbstractConnection, *command: str | int) -> Any:
        async with asyncio.timeout(BLOCK + SLACK):
            await connection.send_command(*command)
            return await connection.read_response(disable_decoding=True)
