"""A user's worker module: started as a process by ``arq …WorkerSettings`` and by ``aioreactor worker``."""

from __future__ import annotations

import os
from typing import Any

from aioreactor.jobs import defaults
from aioreactor.jobs.settings import worker_settings
from tests.integration.jobs.stage import fake_backing

E = os.environ
URL, QUEUE_URL, PREFIX = E["T_URL"], E.get("T_QUEUE_URL", E["T_URL"]), E["T_PREFIX"]
TTL_MS, IDLE_MS = int(E.get("T_TTL_MS", "30000")), int(E.get("T_IDLE_MS", "600000"))


def opens(ctx: dict[Any, Any]) -> Any:
    return fake_backing(URL, PREFIX, ttl_ms=TTL_MS, idle_ms=IDLE_MS)


async def own_job(ctx: dict[Any, Any], text: str) -> None:
    await ctx["redis"].rpush(f"{PREFIX}-events", f"own {text} {os.getpid()}")


async def raises(ctx: dict[Any, Any]) -> None:
    raise RuntimeError("a hook of the user's")


FAULTY = dict.fromkeys(E.get("T_FAULTY", "").split(), raises)
OPTIONS: dict[str, Any] = {
    "queue": f"{PREFIX}-queue",
    "queue_url": QUEUE_URL,
    "max_concurrency": int(E.get("T_CONCURRENCY", "100")),
    "shutdown_grace": float(E.get("T_GRACE", "0")),
    "sweep_interval": float(E["T_SWEEP"]) if "T_SWEEP" in E else None,
    "functions": [own_job],
    **FAULTY,
}
defaults.use(opens, **OPTIONS)
WorkerSettings = worker_settings(carrier=opens, **OPTIONS)
