"""What the workers of the fan-out rows import: maps whose elements do nothing, and the same as a job of plain arq."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from aioreactor import FanOut, MapResults, Page, Reactor, from_input, map_each, step
from aioreactor.jobs.settings import redis_settings

QUEUE = "bench:arq"
EAGER_QUEUE = "bench:arq-eager"
WINDOW = 200


class Fan(Reactor[int], name="bench.Fan"):
    """Deals a list to workers, and reads what came of it in order."""

    numbers: list[int]

    @map_each(over=from_input("numbers"), fan_out=True)
    async def each(self, number: int) -> int:
        """The element."""
        return number

    @step
    async def read(self, each: MapResults[int]) -> int:
        """How many results are where they belong."""
        return sum([index == number async for index, number in _counted(each)])

    returns = read


class Undone(Reactor[int], name="bench.Undone"):
    """The same, of elements that are rolled back, since the step after them fails."""

    numbers: list[int]

    @map_each(over=from_input("numbers"), fan_out=True)
    async def each(self, number: int) -> int:
        """The element."""
        return number

    @each.undo
    async def forget(self, number: int) -> None:
        """Nothing is to be undone but the fact."""

    @step
    async def fails(self, each: MapResults[int]) -> int:
        """Has all of them rolled back."""
        raise ValueError(len(each))

    returns = fails


class Paged(Reactor[int], name="bench.Paged"):
    """Deals what a source has that is never in memory as a whole."""

    total: int

    async def pages(self, cursor: int | None, limit: int, total: int) -> Page[int]:
        """So many at a time as the window asks for."""
        first = cursor or 0
        stop = min(first + limit, total)
        return Page(range(first, stop), stop if stop < total else None)

    @map_each(over=pages, fan_out=FanOut(batch_size=WINDOW))
    async def each(self, number: int) -> None:
        """The element."""

    @step
    async def count(self, each: MapResults[None]) -> int:
        """How many succeeded."""
        return each.succeeded

    returns = count


async def _counted(results: MapResults[int]) -> AsyncIterator[tuple[int, Any]]:
    index = 0
    async for number in results:
        yield index, number
        index += 1


async def noop(ctx: dict[Any, Any], number: int) -> int:
    """The same as a job."""
    return number


class WorkerSettings:
    """Of ``arq``, with all that it has by default."""

    functions = (noop,)
    queue_name = QUEUE
    redis_settings = redis_settings(os.environ.get("AIOREACTOR_REDIS_URL", "redis://localhost"))


class EagerSettings:
    """The same, looking a hundred times a second, with a hundred jobs at a time; arq reads no inherited settings."""

    functions = (noop,)
    queue_name = EAGER_QUEUE
    redis_settings = WorkerSettings.redis_settings
    poll_delay = 0.01
    max_jobs = 100
