"""What a worker process does for runs: the job function, the cron job and the hooks that arq calls.

None of them raises: to arq every one of our jobs succeeds at once, and a worker never dies of us. What went wrong is
logged, and the sweeper finds the runs that are concerned.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from arq.cron import CronJob, cron
from arq.worker import Function, func

from aioreactor.jobs import payload
from aioreactor.jobs.beats import Beats
from aioreactor.jobs.host import Host
from aioreactor.jobs.ports import Backing, Hook, OpensBacking
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.schedules import Schedule
from aioreactor.jobs.sweeper import LIMIT, sweep_up
from aioreactor.jobs.ticker import Ticker

JOB_TIMEOUT = 30
"""Seconds. A delivery takes milliseconds; with arq's ten seconds more, this is when a killed worker's comes again."""

MAX_TRIES = 1_000_000
"""A shutdown counts as a try with arq; ours are nobody's."""

PATIENCE = 0.05
"""Seconds for which a delivery, some of whose runs were taken, waits for more room before others get the rest."""

FULL = 1.0
"""The same for one of which nothing was taken; so a full worker under plain arq does not cycle through the queue."""

LONGEST = 10.0
"""After so many seconds a delivery that still finds room now and then gives the rest back."""

_log = logging.getLogger("aioreactor.jobs")


class WorkerService:
    """One worker's part in carrying runs on; belongs to one event loop once it has started.

    Args:
        backing: What executes runs and keeps them, or what opens it within the worker's loop.
        queue: Where it rings; the worker serves the same queue.
        max_concurrency: Executions at a time.
        shutdown_grace: Seconds for what runs when the worker is told to end.
        sweep_interval: Seconds between sweeps, over all workers of the queue; None leaves them to others.
        sweep_limit: Runs per batch of a sweep.
        schedules: Whose runs it begins.
    """

    def __init__(
        self,
        backing: Backing | OpensBacking,
        queue: JobQueue,
        *,
        max_concurrency: int = 100,
        shutdown_grace: float = 10.0,
        sweep_interval: float | None = 10.0,
        sweep_limit: int = LIMIT,
        schedules: Sequence[Schedule] = (),
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency is to be at least 1, not {max_concurrency}")
        self.queue = queue
        self.max_concurrency = max_concurrency
        self.shutdown_grace = shutdown_grace
        self.sweep_interval = sweep_interval
        self.sweep_limit = sweep_limit
        self.schedules = schedules
        self.host: Host | None = None
        self.ended = False
        self._given = backing
        self._opened: AbstractAsyncContextManager[Backing] | None = None
        self._backing: Backing | None = None
        self._ticker: Ticker | None = None
        self._starting = asyncio.Lock()
        self._beats: Beats | None = None
        self._carries = False

    # ------------------------------------------------------------------ what arq gets

    def functions(self) -> list[Function]:
        """The job functions, for the ``functions`` of a worker."""
        carry = func(self.carry, name=payload.CARRY, timeout=JOB_TIMEOUT, keep_result=0, max_tries=MAX_TRIES)
        # Results are kept as the worker keeps them: a user's own job whose body cannot be read ends here too.
        unreadable = func(self.unreadable, name=payload.UNREADABLE, timeout=JOB_TIMEOUT, max_tries=MAX_TRIES)
        return [carry, unreadable]

    def cron_jobs(self) -> list[CronJob]:
        """The cron jobs, for the ``cron_jobs`` of a worker; one winner per tick over all workers of a queue."""
        if self.sweep_interval is None:
            return []
        ticks = cron_ticks(self.sweep_interval)
        return [cron(self.sweep, name=payload.SWEEP, timeout=JOB_TIMEOUT, keep_result=0, max_tries=1, **ticks)]  # type: ignore[arg-type]

    async def startup(self, ctx: dict[Any, Any]) -> None:
        """The ``on_startup`` of a worker; without it the first delivery does the same.

        Cancellation: what was opened is closed when the worker ends.
        """
        self._carries = True
        await self._start(ctx)

    async def shutdown(self, ctx: dict[Any, Any]) -> None:
        """The ``on_shutdown`` of a worker: hands back what runs, so that others go on with it at once.

        Cancellation: what runs is cancelled and hands itself back, but is not rung again.
        """
        host, self.ended = self.host, True
        ticker, self._ticker = self._ticker, None
        try:
            if ticker is not None:
                await ticker.aclose()
            if self._beats is not None:
                await self._beats.stop()
            if host is not None:
                await self._hand_back(host)
        except Exception:
            _log.exception("what this worker ran could not be rung again; it is swept")
        finally:
            await self._close()

    async def carry(self, ctx: dict[Any, Any], *args: Any, **kwargs: Any) -> None:
        """The job function: start what there is room for, have others get the rest, and return.

        Cancellation: what was started goes on; arq delivers the whole again.
        """
        delivery = str(ctx.get("job_id", ""))
        run_ids = payload.run_ids_in(args, kwargs)
        if run_ids is None:
            _log.error("job %s was dropped: its arguments are none of this version's; its runs are swept", delivery)
            return
        try:
            await self._deliver(ctx, run_ids, delivery)
        except Exception:
            _log.exception("job %s was dropped: its runs are swept", delivery)

    async def unreadable(self, ctx: dict[Any, Any], reason: str = "") -> None:
        """The job function for bodies that cannot be read: the sweeper's jobs name their run in their id.

        Raises:
            Unreadable: The job is a user's own.

        Cancellation: as for `carry`.
        """
        delivery = str(ctx.get("job_id", ""))
        run_id = payload.swept_run_id(delivery)
        if run_id is not None:
            _log.error("job %s cannot be read, but its id names its run: %s", delivery, reason)
            await self.carry(ctx, payload.FORM, [run_id])
        elif payload.is_ours(delivery.encode()):
            _log.error("job %s was dropped, its runs are swept: it cannot be read: %s", delivery, reason)
        else:
            raise payload.Unreadable(reason)

    async def sweep(self, ctx: dict[Any, Any]) -> None:
        """The cron job: see `sweeper.sweep_up`.

        Cancellation: what was not rung is found again.
        """
        try:
            await self._start(ctx)
            if self._backing is not None and self._backing.store is not None:
                await sweep_up(self._backing.store, self.queue, self.sweep_limit)
        except Exception:
            _log.exception("a sweep failed; the next one does its work")

    # ------------------------------------------------------------------ inside

    async def _deliver(self, ctx: dict[Any, Any], run_ids: Sequence[str], delivery: str) -> None:
        self._carries = True
        host = await self._start(ctx)
        if host is None:
            await self.queue.ring(run_ids, due_ms=1000)
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + LONGEST
        left = host.admit(run_ids, delivery)
        while left and not host.closed and loop.time() < until:
            if not await host.room(PATIENCE if len(left) < len(run_ids) else FULL):
                break
            left = host.admit(left, delivery)
        if left:
            # Whole deliveries that found no room come back a little later, others at once for who has some.
            untouched = len(left) == len(run_ids) and not host.closed
            await self.queue.ring(left, due_ms=random.randrange(250, 750) if untouched else None)

    async def _start(self, ctx: dict[Any, Any]) -> Host | None:
        """The host, opened if it is not; None if it cannot be right now, or the worker ends."""
        if self.host is not None or self.ended:
            return self.host
        async with self._starting:
            if self.host is None and not self.ended:
                try:
                    self._backing = await self._open(ctx)
                except Exception:
                    _log.exception("this worker cannot carry runs on yet; it tries again with the next delivery")
                else:
                    self.host = Host(self._backing.carrier, max_concurrency=self.max_concurrency)
                    self._tick(self._backing)
                    self._beats = Beats(self.queue, self._load)
                    self._beats.start()
        return self.host

    def _load(self) -> tuple[int, int]:
        """Runs, and places for them: none in one that was only seen to sweep, whose process may have another."""
        host = self.host
        return (host.running, host.max_concurrency) if host is not None and self._carries else (0, 0)

    def _tick(self, backing: Backing) -> None:
        if self.schedules and backing.scheduling is None:
            _log.error("what stands behind this worker begins no runs: %d schedules do not tick", len(self.schedules))
        elif self.schedules and backing.scheduling is not None:
            self._ticker = Ticker(self.schedules, backing.scheduling, self.queue.queue_name)
            self._ticker.start()

    async def _open(self, ctx: dict[Any, Any]) -> Backing:
        if isinstance(self._given, Backing):
            return self._given
        opened = self._given(ctx)
        backing = await opened.__aenter__()
        self._opened = opened
        return backing

    async def _hand_back(self, host: Host) -> None:
        lost = await host.drain(self.shutdown_grace)
        if lost:
            await self.queue.ring(lost, chunk=1)
            _log.info("handed back: %d runs, for other workers to go on with", len(lost))

    async def _close(self) -> None:
        opened, self._opened, self._backing = self._opened, None, None
        try:
            if opened is not None:
                await opened.__aexit__(None, None, None)
        except Exception:
            _log.exception("what stood behind this worker did not close well")
        try:
            await self.queue.aclose()
        except Exception:
            _log.exception("the queue did not close well")


def guarded(hook: Hook | None, what: str) -> Hook | None:
    """A user's hook, whose errors are logged instead of ending the worker."""
    if hook is None:
        return None

    async def call(ctx: dict[Any, Any]) -> None:
        try:
            await hook(ctx)
        except Exception:
            _log.exception("the worker's %s hook raised; the worker goes on", what)

    call.__qualname__ = getattr(hook, "__qualname__", what)
    return call


def cron_ticks(interval: float) -> Mapping[str, set[int] | int]:
    """When arq is to call something about every ``interval`` seconds: a second at least, an hour at most.

    Raises:
        ValueError: It is not positive.
    """
    if interval <= 0:
        raise ValueError(f"sweep_interval is to be positive, not {interval}")
    whole = [each for each in range(1, 61) if 60 % each == 0]
    seconds = max((each for each in whole if each <= interval), default=1)
    if seconds < 60:
        return {"second": set(range(0, 60, seconds))}
    minutes = max(each for each in whole if each <= interval / 60)
    return {"minute": set(range(0, 60, minutes)), "second": 0}
