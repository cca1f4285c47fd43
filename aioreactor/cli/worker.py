"""``aioreactor worker``: carries runs on until it is told to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import click

from aioreactor.cli import output
from aioreactor.cli.stores import import_reactors, redis_url_option, use_store

_log = logging.getLogger("aioreactor.worker")


@click.command()
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--queue", metavar="NAME", help="The queue to serve. [default: AIOREACTOR_QUEUE, else arq:queue]")
@click.option("--concurrency", type=click.IntRange(min=1), help="Runs at a time. [default: 100]")
@click.option("--burst", is_flag=True, help="End when nothing is left to do.")
@click.option(
    "--sweep-interval", metavar="SECONDS", type=click.FloatRange(min=1), help="Between two sweeps. [default: 10]"
)
@click.option("--schedules/--no-schedules", default=True, help="Begin runs of the schedules in MODULE...")
@redis_url_option
def worker(
    modules: tuple[str, ...],
    queue: str | None,
    concurrency: int | None,
    sweep_interval: float | None,
    redis_url: str | None,
    *,
    burst: bool,
    schedules: bool,
) -> None:
    """Carry on the runs of the reactors in these modules, and begin those of their schedules.

    Works until SIGTERM or SIGINT; then what runs is handed back, so that other workers go on with it at once. A second
    signal ends the grace that it gets. Exit code 2 when a module cannot be imported or the server is away.

    For example: aioreactor worker shop.reactors --concurrency 50
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("arq").setLevel(logging.WARNING)
    names = tuple(dict.fromkeys(modules))
    found = sum(import_reactors(name) for name in names)
    use_store(redis_url)
    given = {
        "queue": queue,
        "max_concurrency": concurrency,
        "sweep_interval": sweep_interval,
        "queue_url": redis_url,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if burst or not schedules:
        options["schedules"] = None
    _serve(names, found, options, burst=burst)


def _serve(names: Sequence[str], found: int, options: dict[str, Any], *, burst: bool) -> None:
    from redis.exceptions import RedisError

    from aioreactor import DefinitionError, InputValidationError, workers
    from aioreactor.jobs.defaults import NoBacking, default_settings
    from aioreactor.jobs.settings import shown
    from aioreactor.jobs.worker import create_worker

    workers.stand_by()
    try:
        settings = default_settings(modules=names, **options)
    except (NoBacking, DefinitionError, InputValidationError, TypeError, ValueError) as error:
        raise output.CannotUse(str(error)) from error
    service = settings.service
    where = shown(settings.url)
    _log.info(
        "carries on runs of %d reactors in %s%s: queue %s at %s, %d at a time%s",
        found,
        ", ".join(names),
        f" and begins those of {len(service.schedules)} schedules" if service.schedules else "",
        service.queue.queue_name,
        where,
        service.max_concurrency,
        ", until nothing is left" if burst else "",
    )

    async def serve() -> None:
        # Made within the loop whose signals it handles.
        await create_worker(settings, **({"burst": True, "cron_jobs": []} if burst else {})).serve()

    try:
        asyncio.run(serve())
    except (RedisError, OSError) as error:
        raise output.CannotUse(f"the queue's server at {where} cannot be used: {error}") from error
