"""What the workers of the background rows import: a reactor of one step, and the same as a job of plain arq."""

from __future__ import annotations

import os
import time
from typing import Any

from aioreactor import Reactor, step
from aioreactor.jobs.settings import redis_settings

QUEUE = "bench:arq"


class NoOp(Reactor[float], name="bench.NoOp"):
    """Tells when its step began, by a clock that all processes of a machine share."""

    number: int

    @step
    async def began(self, number: int) -> float:
        """The step."""
        return time.monotonic()

    returns = began


async def noop(ctx: dict[Any, Any], number: int) -> float:
    """The same as a job."""
    return time.monotonic()


class WorkerSettings:
    """Of ``arq``, with all that it has by default."""

    functions = (noop,)
    queue_name = QUEUE
    redis_settings = redis_settings(os.environ.get("AIOREACTOR_REDIS_URL", "redis://localhost"))
