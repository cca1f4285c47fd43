"""The settings class that ``arq myapp.worker.WorkerSettings`` and ``aioreactor worker`` run."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeGuard, cast
from urllib.parse import unquote, urlsplit

from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker as ArqWorker
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from aioreactor.jobs import payload
from aioreactor.jobs.ports import Backing, Carrier, Hook, OpensBacking, SweptStore
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.schedules import Schedule, checked, schedules_in
from aioreactor.jobs.service import WorkerService, guarded
from aioreactor.registry import open_modules
from aioreactor.settings import Settings
from aioreactor.store.endpoints import Endpoint, parse_endpoint

DEFAULT_URL = "redis://localhost:6379/0"
PATIENCE = (0.25, 20)
"""Seconds between tries of a command, and how many, while the queue's server is away."""

_HOOKS = ("on_startup", "on_shutdown", "on_job_start", "on_job_end", "after_job_end")
_OPTIONS = frozenset(inspect.signature(ArqWorker).parameters)


class WorkerSettings:
    """What `worker_settings` makes; arq reads its attributes. A subclass may say more, such as ``max_jobs = 5``.

    Attributes:
        service: Our part of the worker.
        modules: That were imported for it.
        url: Where its queue is.
    """

    service: ClassVar[WorkerService]
    modules: ClassVar[tuple[str, ...]] = ()
    url: ClassVar[str] = DEFAULT_URL

    def __init_subclass__(cls) -> None:
        # arq looks into the class itself, not into its bases.
        for base in cls.__mro__[1:-1]:
            for name, value in vars(base).items():
                if name in _OPTIONS and name not in cls.__dict__:
                    setattr(cls, name, value)


def worker_settings(
    modules: Iterable[str] = (),
    *,
    carrier: Carrier | OpensBacking,
    store: SweptStore | None = None,
    settings: Settings | None = None,
    queue: JobQueue | str | None = None,
    queue_url: str | None = None,
    max_concurrency: int = 100,
    shutdown_grace: float = 10.0,
    sweep_interval: float | None = 10.0,
    functions: Sequence[Any] = (),
    cron_jobs: Sequence[Any] = (),
    schedules: Iterable[Schedule] | None = (),
    **options: Any,
) -> type[WorkerSettings]:
    """Settings for an arq worker that carries runs on, beside the user's own jobs.

    Args:
        modules: With the reactors, imported now.
        carrier: Executes runs; or opens, within the worker's loop, what does.
        store: Is swept, if ``carrier`` is one.
        settings: Of the runtime; they say which queue it is, and where, if nothing else does.
        queue: Its name, or itself.
        queue_url: Where it is.
        max_concurrency: Runs at a time in each worker.
        shutdown_grace: Seconds for what runs when the worker is told to end.
        sweep_interval: Seconds between sweeps, over all workers; None leaves them to others.
        functions: The user's own.
        cron_jobs: The user's own.
        schedules: Whose runs it begins, beside those at the top level of ``modules``; None begins none.
        options: Anything else that arq's worker takes. Hooks are kept, and their errors logged. The queue is read
            as plain data unless ``job_deserializer`` says otherwise.

    Raises:
        DefinitionError, InputValidationError: A schedule cannot begin runs.
        ImportError: A module cannot be imported.
        TypeError: arq's worker knows no such option.
        ValueError: A URL or number cannot be used, or two schedules have one key.
    """
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(f"an arq worker has no option {', '.join(sorted(unknown))}")
    names = tuple(dict.fromkeys(modules))
    imported = [importlib.import_module(name) for name in names]
    open_modules(names)
    found = () if schedules is None else checked([*schedules, *itertools.chain(*map(schedules_in, imported))])
    url = _queue_url(queue_url, settings)
    if not isinstance(queue, JobQueue):
        name = queue or (settings.queue if settings is not None else None) or default_queue_name
        queue = JobQueue(url, name, dumps=options.get("job_serializer"))
    backing = Backing(carrier, store) if is_carrier(carrier) else cast("OpensBacking", carrier)
    service = WorkerService(
        backing,
        queue,
        max_concurrency=max_concurrency,
        shutdown_grace=shutdown_grace,
        sweep_interval=sweep_interval,
        schedules=found,
    )
    attributes = _attributes(service, options, functions, cron_jobs)
    return type("WorkerSettings", (WorkerSettings,), {**attributes, "service": service, "modules": names, "url": url})


def _attributes(
    service: WorkerService, options: dict[str, Any], functions: Sequence[Any], cron_jobs: Sequence[Any]
) -> dict[str, Any]:
    """What arq's worker reads."""
    queue = service.queue
    return {
        # arq's own delays would make its default of ten jobs 20 a second.
        "poll_delay": 0.1,
        "max_jobs": 50,
        # When arq cancels a job that is just being finished, it does not call `on_shutdown` any more: let them end.
        "job_completion_wait": 2,
        "redis_settings": None if "redis_pool" in options else redis_settings(queue.endpoint),
        **options,
        "job_deserializer": _deserializer(options),
        **hooks(service, options),
        "queue_name": queue.queue_name,
        "functions": [*functions, *service.functions()],
        "cron_jobs": [*cron_jobs, *service.cron_jobs()],
    }


def _deserializer(options: dict[str, Any]) -> payload.Loads:
    """The user's, or the one that fits the jobs; what it cannot read reaches `WorkerService.unreadable`."""
    given: payload.Loads | None = options.get("job_deserializer")
    if given is None:
        # arq's own default, for what the user's serializer writes.
        given = pickle.loads if options.get("job_serializer") is not None else payload.loads_plain
    return payload.never_failing(given)


def is_carrier(given: Carrier | OpensBacking) -> TypeGuard[Carrier]:
    """Whether it is a carrier itself, not what opens one."""
    return hasattr(given, "carry_on")


def hooks(service: WorkerService, given: dict[str, Any]) -> dict[str, Hook | None]:
    """The hooks for arq: the user's, guarded. Ours begin after the user's start-up, and end before."""
    safe = {name: guarded(given.get(name), name) for name in _HOOKS}

    async def on_startup(ctx: dict[Any, Any]) -> None:
        if (theirs := safe["on_startup"]) is not None:
            await theirs(ctx)
        await service.startup(ctx)

    async def on_shutdown(ctx: dict[Any, Any]) -> None:
        await service.shutdown(ctx)
        if (theirs := safe["on_shutdown"]) is not None:
            await theirs(ctx)

    return {**safe, "on_startup": on_startup, "on_shutdown": on_shutdown}


def _queue_url(given: str | None, settings: Settings | None) -> str:
    """The queue's server: given, else of the runtime's settings."""
    if settings is None:
        return given or DEFAULT_URL
    return given or settings.queue_url or settings.redis_url or DEFAULT_URL


def redis_settings(where: str | Endpoint) -> RedisSettings:
    """What arq connects with for a URL, with retries that survive a restart of the server.

    Raises:
        ValueError: arq cannot serve a cluster, or the URL is not understood.
    """
    endpoint = parse_endpoint(where) if isinstance(where, str) else where
    if endpoint.kind == "cluster":
        raise ValueError("arq cannot keep its queue in a Redis Cluster: give queue_url= of a single or Sentinel server")
    options = endpoint.options
    known = {
        name: options[name]
        for name in (
            "username", "password", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data",
            "ssl_check_hostname",
        )
        if options.get(name) is not None
    }  # fmt: skip
    sentinel = endpoint.kind == "sentinel"
    return RedisSettings(
        host=list(endpoint.seeds) if sentinel else options.get("host", "localhost"),
        port=int(options.get("port", 6379)),
        unix_socket_path=options.get("path"),
        database=int(options.get("db", 0)),
        ssl=endpoint.connection_class.__name__ == "SSLConnection",
        sentinel=sentinel,
        sentinel_master=endpoint.service or "mymaster",
        # Each try of the first connection is already repeated as often as the next line says.
        conn_retries=1,
        retry=Retry(ConstantBackoff(PATIENCE[0]), PATIENCE[1]),
        retry_on_timeout=True,
        retry_on_error=[exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, OSError],
        **known,
    )


def shown(url: str) -> str:
    """A URL without its credentials."""
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{netloc}{unquote(parts.path)}"
