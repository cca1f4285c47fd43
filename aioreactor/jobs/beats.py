"""Signs of life of a worker, so that others can tell whether anybody serves a queue.

arq's own health check is one key per queue, which the first worker to end deletes for all; and an hour is its default.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from aioreactor.jobs.queue import JobQueue
from aioreactor.store.errors import StoreError
from aioreactor.store.store import default_owner

EVERY = 5.0
"""Seconds between two signs of life."""
ALIVE = 3 * EVERY
"""Seconds for which one counts: a worker whose event loop stands still for longer is no use to anybody."""
_log = logging.getLogger("aioreactor.jobs")
PARTING = 1.0
"""Seconds for which a worker that ends tries to say so: it is known to be gone a little later anyway."""


class Beats:
    """Tells, while it runs, that a worker is there.

    Args:
        queue: Which the worker serves.
        load: How many runs it has, and how many fit in.
    """

    def __init__(self, queue: JobQueue, load: Callable[[], tuple[int, int]]) -> None:
        self.name = f"{default_owner()}:{os.urandom(3).hex()}"
        self._queue = queue
        self._load = load
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="aioreactor-worker-beats")

    async def stop(self) -> None:
        """The worker takes nothing any more. If the queue is away, it counts as there for a while.

        Cancellation: the same.
        """
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(PARTING):
                await self._queue.left(self.name)

    async def _run(self) -> None:
        while True:
            try:
                await self._queue.beat(self.name, *self._load(), alive=ALIVE, retry_for=EVERY)
            except StoreError:
                pass  # the worker itself says that its queue is away
            except Exception:
                _log.exception("a worker could not say that it is there")
            await asyncio.sleep(EVERY)
