"""Rings for workers: jobs put into an arq queue, many at a time, and tokens that wake those who sleep.

A ring says *look at these runs*; what becomes of them is decided by who takes their lease. So a ring may be lost (the
sweeper rings again), doubled, late, or delivered to somebody who does not need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from arq.constants import default_queue_name, job_key_prefix

from aioreactor.jobs import payload
from aioreactor.jobs.payload import Dumps
from aioreactor.jobs.ports import Losses
from aioreactor.queues import QueueReport, WorkerSeen
from aioreactor.store.calls import Value
from aioreactor.store.client import StoreClient
from aioreactor.store.endpoints import Endpoint
from aioreactor.store.scripts import ScriptLibrary

T = TypeVar("T")

DAY_MS = 86_400_000

MAX_CHUNK = 64
"""Runs in one job: many, since arq spends about a millisecond on each job whatever it carries."""

SPREAD = 16
"""A ring for few runs is cut into up to so many jobs, for as many workers."""

JOBS_PER_SCRIPT = 500
"""The server does nothing else while a script runs: so many are a few milliseconds."""

SCRIPTS_PER_TRIP = 20

MAX_WAKES = 16
"""Tokens that may lie about: how many sleeping workers one ring wakes."""

WAKE_MS = 5000
"""A token is of use only to those who sleep, and they sleep for a second at most."""

LONGEST_NAP_MS = 1000
"""What becomes due later than this is noticed by a worker without being woken."""

SEEN_MS = 3_600_000
"""How long a worker that is gone is remembered."""

MAX_DUE_MS = 10 * 366 * DAY_MS

_scripts = ScriptLibrary("aioreactor.jobs", shared=[ScriptLibrary("aioreactor.store")])


class JobQueue:
    """One arq queue, which need not be on the server that keeps the runs.

    May be used from several event loops.

    Args:
        client: Where; a URL makes a client of its own, which `aclose` closes.
        queue_name: Of arq.
        dumps: What the queue's workers read, if that is not arq's default: their ``job_serializer``.
        keep_ms: How long after its time a job may wait for a worker; the sweeper rings again for those it loses.
    """

    def __init__(
        self,
        client: StoreClient | str,
        queue_name: str = default_queue_name,
        *,
        dumps: Dumps | None = None,
        keep_ms: int = DAY_MS,
    ) -> None:
        self._owned = isinstance(client, str)
        self._client = StoreClient(client) if isinstance(client, str) else client
        self._dumps = dumps or payload.dumps_plain
        self._keep_ms = keep_ms
        self.queue_name = queue_name
        self.wake_key = f"{queue_name}:wake"
        self.workers_key = f"{queue_name}:workers"

    @property
    def endpoint(self) -> Endpoint:
        """How to open another connection to its server."""
        return self._client._settings.endpoint

    async def ring(self, run_ids: Iterable[str], *, due_ms: int | None = None, chunk: int | None = None) -> list[str]:
        """Have workers carry these runs on, ``due_ms`` from now by the server's clock; gives the ids of the jobs.

        One round trip for up to some hundred thousand runs.

        Args:
            run_ids: Which; one that is named twice is delivered once.
            due_ms: Not before; None is at once.
            chunk: Runs per job, instead of as many as fit the number of them.

        Raises:
            StoreError: The queue's server was away for too long, or refuses to serve; some may have been rung.
            ValueError: ``due_ms`` is negative or more than ten years.

        Cancellation: some were rung, or all, or none.
        """
        due_ms = _checked(due_ms or 0)
        distinct = list(dict.fromkeys(run_ids))
        size = chunk or min(max(-(-len(distinct) // SPREAD), 1), MAX_CHUNK)
        jobs = [(payload.new_job_id(), payload.carry_body(some, self._dumps)) for some in slices(distinct, size)]
        await self._enqueue(jobs, due_ms)
        return [job_id for job_id, _ in jobs]

    async def ring_lost(self, losses: Losses) -> int:
        """Have workers carry on runs that nobody does, once per loss; gives how many of these rings are new.

        While the ring for a loss is outstanding, ringing for it again does nothing.

        Raises:
            StoreError: As for `ring`.

        Cancellation: as for `ring`.
        """
        jobs = [
            (payload.swept_job_id(run_id, loss), payload.carry_body([run_id], self._dumps)) for run_id, loss in losses
        ]
        return await self._enqueue(jobs, 0)

    async def _enqueue(self, jobs: Sequence[tuple[str, bytes]], due_ms: int) -> int:
        added = 0
        for trip in slices(jobs, JOBS_PER_SCRIPT * SCRIPTS_PER_TRIP):
            # Issued in one iteration of the loop, they leave in one write.
            calls = [self._client.run(*self._call(some, due_ms)) for some in slices(trip, JOBS_PER_SCRIPT)]
            replies = await asyncio.gather(*calls, return_exceptions=True)
            for reply in replies:
                if isinstance(reply, BaseException):
                    raise reply
                added += reply.values[0]
        return added

    def _call(self, jobs: Sequence[tuple[str, bytes]], due_ms: int) -> tuple[Any, list[str], list[Value]]:
        wakes = MAX_WAKES if due_ms == 0 else int(due_ms < LONGEST_NAP_MS)
        keys = [self.queue_name, self.wake_key, *(payload.job_key(job_id) for job_id, _ in jobs)]
        args: list[Value] = [due_ms, self._keep_ms, len(job_key_prefix), wakes, WAKE_MS]
        return _scripts["jobs_ring"], keys, [*args, *(body for _, body in jobs)]

    async def beat(
        self, worker: str, running: int, places: int, *, alive: float, retry_for: float | None = None
    ) -> None:
        """A worker of this queue is there, for ``alive`` seconds, with so many runs in so many places.

        Raises:
            StoreError: As for `ring`.

        Cancellation: it was told, or not.
        """
        args: list[Value] = [worker, int(alive * 1000), SEEN_MS, running, places]
        await self._client.run(_scripts["worker_beat"], [self.workers_key], args, retry_for=retry_for)

    async def left(self, worker: str) -> None:
        """A worker of this queue has ended.

        Raises:
            StoreError: As for `ring`.

        Cancellation: it was told, or not.
        """
        await self._client.execute("HDEL", self.workers_key, worker, repeatable=True)

    async def look(self) -> QueueReport:
        """Who serves this queue, and what waits in it.

        Raises:
            StoreError: As for `ring`.

        Cancellation: nothing happens.
        """
        reply = await self._client.run(_scripts["queue_look"], [self.queue_name, self.workers_key])
        now_ms, due, later, rows = reply.values
        seen = [_seen(name, row, now_ms) for name, row in zip(rows[::2], rows[1::2], strict=True)]
        return QueueReport(self.queue_name, due, later, _distinct(seen))

    def named(self, queue_name: str) -> JobQueue:
        """Another queue of the same server, or this one; to be closed by nobody."""
        if queue_name == self.queue_name:
            return self
        return JobQueue(self._client, queue_name, dumps=self._dumps, keep_ms=self._keep_ms)

    async def aclose(self) -> None:
        """Close the client if the queue made it.

        Cancellation: it is closed all the same.
        """
        if self._owned:
            await self._client.aclose()

    def __repr__(self) -> str:
        return f"<JobQueue {self.queue_name}>"


def _seen(name: bytes, row: bytes, now_ms: int) -> WorkerSeen:
    seen_ms, until_ms, running, places = map(int, row.split())
    return WorkerSeen(name.decode(), seen_ms / 1000, until_ms > now_ms, running, places)


def _distinct(seen: Sequence[WorkerSeen]) -> tuple[WorkerSeen, ...]:
    """By name; of a process with a service for its functions and one for its cron jobs, only the first."""
    carrying = {worker.process for worker in seen if worker.places}
    return tuple(
        sorted((each for each in seen if each.places or each.process not in carrying), key=lambda each: each.name)
    )


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """``items`` in pieces of ``size``."""
    return (items[first : first + size] for first in range(0, len(items), size))


def _checked(due_ms: int) -> int:
    if not 0 <= due_ms <= MAX_DUE_MS:
        raise ValueError(f"due_ms is to be between 0 and ten years, not {due_ms}")
    return due_ms
