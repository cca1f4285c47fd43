"""Workers: what `aioreactor.jobs` needs to execute runs, given by the runtime that is current in the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aioreactor.definition.reactor import Reactor
from aioreactor.durable import DurableRuns
from aioreactor.errors import IdempotencyConflict, StoreRequired
from aioreactor.jobs import defaults, settings
from aioreactor.jobs.book import ScheduleBook
from aioreactor.jobs.ports import Backing, Scheduling
from aioreactor.jobs.service import WorkerService
from aioreactor.runtime import Runtime, current_runtime
from aioreactor.starting import values_of


class Beginner:
    """Begins the runs of schedules as `Reactor.enqueue` does; see `aioreactor.jobs.ports.Starts`."""

    def __init__(self, runtime: Runtime, durable: DurableRuns) -> None:
        self._runtime = runtime
        self._durable = durable

    async def start(self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Have a worker execute a new run; False if there is one of this id already, whatever its inputs.

        Raises:
            AioreactorError: it cannot be begun.
            StoreError: the store is away; it may have been begun.

        Cancellation: it was begun, or not.
        """
        plan = self._runtime._prepare(reactor, options, dispatched=True)
        try:
            return await self._runtime._dispatch(plan, options["run_id"], values_of(plan, inputs), options) is not None
        except IdempotencyConflict:
            return False

    async def is_over(self, run_id: str) -> bool:
        """Whether a run has ended, or there is no such run any more.

        Raises:
            StoreError: the store is away.

        Cancellation: nothing happens.
        """
        row = await self._durable.store.peek(run_id)
        return row is None or row.ended


@asynccontextmanager
async def backing(ctx: dict[Any, Any]) -> AsyncIterator[Backing]:
    """The stored runs of the current runtime; ``ctx`` entries reach steps as resources.

    Raises:
        StoreRequired: no store is configured.

    Cancellation: connections are closed.
    """
    runtime = current_runtime()
    if runtime.durable is None:
        raise StoreRequired("a worker")
    runtime.worker_context = ctx
    durable = runtime.durable
    book = ScheduleBook(durable.client, durable.store.space)
    try:
        yield Backing(durable, durable.swept(), Scheduling(Beginner(runtime, durable), book, runtime.settings.clock))
    finally:
        await runtime.aclose()


def worker_settings(modules: Iterable[str] = (), **options: Any) -> type[settings.WorkerSettings]:
    """A settings class for ``arq myapp.worker.WorkerSettings``: an arq worker that executes runs.

    Args:
        modules: the modules that define the reactors; imported now.
        **options: ``queue`` (default: that of the settings), ``max_concurrency`` (runs at a time, default 100),
            ``shutdown_grace`` and ``sweep_interval`` (seconds, default 10), ``functions`` and ``cron_jobs`` of your
            own, ``schedules`` beside those at the top level of ``modules`` (None: this worker begins no run of
            any), and whatever arq's worker takes (hooks, ``max_jobs``, …).

    Raises:
        DefinitionError, InputValidationError, ValueError: a schedule cannot begin runs.
        ImportError: a module cannot be imported.
        TypeError: an option is not known.
    """
    given = options.setdefault("settings", current_runtime().settings)
    options.setdefault("queue", given.queue)
    return settings.worker_settings(modules, carrier=backing, **options)


def _service() -> WorkerService:
    return worker_settings().service


def functions() -> list[Any]:
    """The job functions, to be merged into an arq worker's own ``functions``."""
    return list(_service().functions())


def cron_jobs() -> list[Any]:
    """The cron jobs (the sweeper), to be merged into an arq worker's own ``cron_jobs``."""
    return list(_service().cron_jobs())


def stand_by() -> None:
    """Let ``aioreactor worker`` execute runs of the current runtime, unless a module has said something else."""
    if not defaults.is_said():
        given = current_runtime().settings
        defaults.use(backing, settings=given, queue=given.queue)
