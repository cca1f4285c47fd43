"""What commands that work on stored runs share: the option that says where, and what their modules bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aioreactor import DefinitionError, configure, current_runtime
from aioreactor.cli.output import CannotUse
from aioreactor.cli.targets import ModuleBroken, import_module, reactors_in

if TYPE_CHECKING:
    from aioreactor.durable import DurableRuns

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

NO_STORE = "no store is configured: give --redis-url, set AIOREACTOR_REDIS_URL, or name a module that configures one"


def redis_url_option(command: C) -> C:
    """``--redis-url URL``, else ``AIOREACTOR_REDIS_URL``."""
    option = click.option(
        "--redis-url", metavar="URL", envvar="AIOREACTOR_REDIS_URL", help="Where. [env: AIOREACTOR_REDIS_URL]"
    )
    return option(command)


def import_reactors(name: str) -> int:
    """Import a module; gives how many reactors it defines.

    Raises:
        CannotUse: it cannot be imported.
    """
    try:
        return len(reactors_in(import_module(name)))
    except (ModuleBroken, DefinitionError) as error:
        raise CannotUse(str(error)) from error


def use_store(url: str | None) -> None:
    """Keep runs at ``url`` from now on; whatever else a module has configured stays.

    Raises:
        CannotUse: an ``AIOREACTOR_*`` variable does not fit.
    """
    try:
        settings = current_runtime().settings
        if url is not None and url != settings.redis_url:
            configure(**{**{each.name: getattr(settings, each.name) for each in fields(settings)}, "redis_url": url})
    except ValueError as error:
        raise CannotUse(str(error)) from error


def stored_runs() -> DurableRuns:
    """The stored runs of the current runtime.

    Raises:
        CannotUse: there is no store, or its URL is not understood.
    """
    try:
        durable = current_runtime().durable
    except ValueError as error:
        raise CannotUse(str(error)) from error
    if durable is None:
        raise CannotUse(NO_STORE)
    return durable


def in_store(work: Callable[[DurableRuns], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` on the stored runs, and close what it opened.

    Raises:
        CannotUse: there is no store, or it is away.
    """
    from aioreactor.jobs.settings import shown
    from aioreactor.store.errors import StoreError

    async def run() -> T:
        try:
            return await work(stored_runs())
        finally:
            await current_runtime().aclose()

    where = shown(stored_runs().settings.redis_url or "")
    try:
        return asyncio.run(run())
    except StoreError as error:
        raise CannotUse(f"the store at {where} cannot be used: {error}") from error
