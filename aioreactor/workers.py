"""Workers: what `aioreactor.jobs` needs to execute runs, given by the runtime that is current in the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aioreactor.errors import StoreRequired
from aioreactor.jobs import defaults, settings
from aioreactor.jobs.ports import Backing
from aioreactor.jobs.service import WorkerService
from aioreactor.runtime import current_runtime


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
    try:
        yield Backing(runtime.durable, runtime.durable.swept())
    finally:
        await runtime.aclose()


def worker_settings(modules: Iterable[str] = (), **options: Any) -> type[settings.WorkerSettings]:
    """A settings class for ``arq myapp.worker.WorkerSettings``: an arq worker that executes runs.

    Args:
        modules: the modules that define the reactors; imported now.
        **options: ``queue`` (default: that of the settings), ``max_concurrency`` (runs at a time, default 100),
            ``shutdown_grace`` and ``sweep_interval`` (seconds, default 10), ``functions`` and ``cron_jobs`` of your
            own, and whatever arq's worker takes (hooks, ``max_jobs``, …).

    Raises:
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
