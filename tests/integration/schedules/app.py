"""A user's module: ``aioreactor worker`` finds its schedule, and ``arq …WorkerSettings`` is given it."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from redis.asyncio import Redis

from aioreactor import Reactor, schedule, step, worker_settings

LIST = f"{os.environ.get('AIOREACTOR_KEY_PREFIX', 'app')}-beats"


class Beat(Reactor[str], name="tests.schedules.Beat"):
    at: float

    @step
    async def beat(self, at: float) -> str:
        redis: Any = Redis.from_url(os.environ["AIOREACTOR_REDIS_URL"])
        async with redis:
            await redis.rpush(LIST, f"{at:.0f} {os.getpid()}")
        return "beaten"


def inputs(tick: datetime) -> dict[str, float]:
    return {"at": tick.timestamp()}


beats = schedule(Beat, cron="* * * * * *", key="beats", inputs=inputs)
WorkerSettings = worker_settings(schedules=[beats])
