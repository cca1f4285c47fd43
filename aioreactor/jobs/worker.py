"""An arq worker that is woken, survives its server's failures, and leaves to others what it has no room for.

Overview. arq's worker polls. This one polls when there is a reason: a token (something was enqueued), a freed slot, the
next job's time, or a second gone by. Everything else is arq's: what a job is, how it is claimed, retried and finished.

What of arq this rests on, beyond its documented surface; each has a contract test:

* `_poll_iteration` is one look at the queue, called by `main` again and again, each after ``poll_delay``.
* `start_jobs` is given the ids that were found, and starts those that nobody else has.
* `_release_sem_dec_counter_on_complete` is called when a job has ended; `job_counter` and `max_jobs` count them.
* `tasks` holds the jobs under way, by id; an exception of theirs comes out of `_poll_iteration`.
* `handle_sig` cancels `tasks` and `main_task`, `handle_sig_wait_for_completion` when `tasks` is empty or time is up;
  `close` is called after `main` and runs `on_shutdown`.
* `get_kwargs` reads a settings class; `_handle_signals`, `_pool`, `main_task`, `sem` are what their names say.

Failures. While the queue's server is away, what runs here goes on; the worker looks again with backoff. When an error
comes out of arq the worker logs it and goes on. It ends when it is told to, or cannot connect when it starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from signal import Signals
from typing import Any

from arq.connections import ArqRedis
from arq.worker import Worker as ArqWorker
from arq.worker import get_kwargs

from aioreactor.jobs import payload
from aioreactor.jobs.ports import Hook
from aioreactor.jobs.queue import LONGEST_NAP_MS
from aioreactor.jobs.service import WorkerService
from aioreactor.jobs.settings import WorkerSettings
from aioreactor.jobs.wake import WakeListener
from aioreactor.store.endpoints import TROUBLE
from aioreactor.store.replies import backoff

LONGEST_NAP = LONGEST_NAP_MS / 1000

_log = logging.getLogger("aioreactor.jobs")


class Worker(ArqWorker):
    """See the module. To be made within an event loop; `create_worker` makes one of a settings class.

    Args:
        service: Our part of it.
        options: Of arq's worker.
    """

    def __init__(self, *, service: WorkerService, **options: Any) -> None:
        super().__init__(**{**options, "poll_delay": 0})
        self.service = service
        self._reason = asyncio.Event()
        self._listener = WakeListener(service.queue, on_wake=self._reason.set, is_full=self._turns_away)
        self._failures = 0
        self._more = False
        self._starved = False
        self._stopping = False
        self._closing = asyncio.Lock()

    # ------------------------------------------------------------------ the loop

    async def _poll_iteration(self) -> None:
        """Look at the queue as arq does, then nap until there is a reason for the next one."""
        self._reason.clear()
        self._more = self._starved = False
        host = self.service.host
        if host is not None:
            host.on_room = self._on_room
        try:
            await super()._poll_iteration()
            await self._nap()
            await self._settle()
        except asyncio.CancelledError:
            if self._told_to_end():
                raise
            _log.exception("a job was cancelled within arq; the worker goes on")
        except Exception as error:
            await self._recover(error)
        else:
            self._failures = 0

    def _told_to_end(self) -> bool:
        task = asyncio.current_task()
        return self._stopping or (task is not None and task.cancelling() > 0)

    async def _recover(self, error: Exception) -> None:
        self._failures += 1
        if not isinstance(error, TROUBLE):
            _log.error("an error came out of arq; the worker goes on", exc_info=error)
        elif self._failures == 1:
            _log.warning("queue %s is away; what runs here goes on: %s", self.queue_name, error)
        await asyncio.sleep(backoff(self._failures))

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        """Start users' jobs, and as many deliveries as there is room for runs."""
        before = len(self.tasks)
        chosen = self._chosen(job_ids)
        await super().start_jobs(chosen)
        # A full page of jobs that others have is no reason to look again at once.
        self._more = len(job_ids) >= self.queue_read_limit and len(self.tasks) > before
        self._starved = len(chosen) < len(job_ids) or self.job_counter >= self.max_jobs

    def _chosen(self, job_ids: list[bytes]) -> list[bytes]:
        host = self.service.host
        if host is None:
            return job_ids
        # One under way may still bring a run; one that has ended stays in `tasks` until this look at the queue is over.
        coming = sum(payload.is_ours(job_id.encode()) for job_id, task in self.tasks.items() if not task.done())
        room = host.free - coming
        deliveries = [job_id for job_id in job_ids if payload.is_ours(job_id)]
        left = set(deliveries[max(room, 0) :])
        return [job_id for job_id in job_ids if job_id not in left]

    def _release_sem_dec_counter_on_complete(self) -> None:
        super()._release_sem_dec_counter_on_complete()
        self._on_room()

    def _on_room(self) -> None:
        """A job or a run has ended; a reason only if something waits for that."""
        if self._starved or self.burst or self._stopping:
            self._reason.set()

    def _has_room(self) -> bool:
        host = self.service.host
        return self.allow_pick_jobs and self.job_counter < self.max_jobs and (host is None or host.free > 0)

    def _turns_away(self) -> bool:
        """Whether there is no room for what a token stands for; then a freed slot is a reason to look."""
        full = not self._has_room()
        self._starved = self._starved or full
        return full

    async def _nap(self) -> None:
        """Sleep until there is a reason to look again."""
        if self._more or self._reason.is_set():
            return
        span = LONGEST_NAP
        if self._has_room():
            self._listener.want()
            span = min(span, await self._next_due())
        else:
            self._starved = True
            self._listener.decline()
        try:
            async with asyncio.timeout(span):
                await self._reason.wait()
        except TimeoutError:
            return

    async def _settle(self) -> None:
        """In burst mode arq ends when the queue is empty; what runs ends before, and may ring until then."""
        host = self.service.host
        if self.burst and host is not None and host.running and await self.pool.zcard(self.queue_name) == 0:
            await host.idle()

    async def _next_due(self) -> float:
        """Seconds until the next job's time; those whose time has come are somebody's already."""
        now_ms = time.time() * 1000
        found = await self.pool.zrangebyscore(
            self.queue_name, f"({int(now_ms)}", "+inf", start=0, num=1, withscores=True
        )
        return max((found[0][1] - now_ms) / 1000 + 0.001, 0.0) if found else LONGEST_NAP

    # ------------------------------------------------------------------ the end

    def handle_sig(self, signum: Signals) -> None:
        """Stop as arq does; a second signal ends the grace of what still runs."""
        if not self._hurried():
            super().handle_sig(signum)

    def handle_sig_wait_for_completion(self, signum: Signals) -> None:
        """The same, when jobs get some time to end."""
        if not self._hurried():
            super().handle_sig_wait_for_completion(signum)
            self._reason.set()

    def _hurried(self) -> bool:
        if self._stopping and self.service.host is not None:
            self.service.host.hurry()
        before, self._stopping = self._stopping, True
        return before

    async def serve(self) -> None:
        """Work until told to end (by a signal, or cancelled), or in burst mode until nothing is left; then hand back.

        Raises:
            OSError, RedisError: The queue's server could not be reached when the worker started.

        Cancellation: as for a signal: what runs is handed back, and then this is cancelled.
        """
        try:
            await self.async_run()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                if self.main_task is not None:
                    self.main_task.cancel()
                raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Hand back what runs, run the user's hook, and close the connections; whatever of this fails, all is tried.

        Cancellation: what runs is cancelled without being rung again.
        """
        # Closed from outside, `serve` closes too: neither returns before all is handed back.
        async with self._closing:
            self._stopping = True
            await self._listener.aclose()
            await self._cancel_tasks()
            pool: ArqRedis | None = self._pool
            self._pool = None
            hook: Hook | None = self.on_shutdown
            self.on_shutdown = None
            try:
                if hook is not None:
                    await hook(self.ctx)
                if pool is not None:
                    await pool.delete(self.health_check_key)
            except TROUBLE as error:
                _log.warning("queue %s was away when the worker ended: %s", self.queue_name, error)
            finally:
                if pool is not None:
                    await pool.aclose(close_connection_pool=True)

    async def _cancel_tasks(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in (self.main_task, *self.tasks.values()) if task is not None and task is not own]
        for task in tasks:
            # Once: a second one would cut off what the first has started, such as a pipeline that is closing.
            if not task.cancelling():
                task.cancel()
        # arq's own waits for them without this, and so may never come to `on_shutdown`.
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tasks.clear()


def create_worker(settings: type[WorkerSettings], **options: Any) -> Worker:
    """A worker of a settings class; ``options`` of arq's worker come first."""
    return Worker(service=settings.service, **{**get_kwargs(dict(vars(settings))), **options})
