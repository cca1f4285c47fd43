"""A process whose tasks spend limits as fast as they can, for a while; a program for `test_rates_measured`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from aioreactor import RateLimit, RateLimited, Runtime, Settings

ALGORITHMS = ("fixed", "sliding", "gcra")
LIMITS: dict[Any, int] = {0.1: 6, 0.5: 20}


async def spend(algorithm: Any, until: float) -> None:
    limit = RateLimit(algorithm, limits=LIMITS, algorithm=algorithm)
    while True:
        try:
            async with limit:
                pass
        except RateLimited as error:
            # Half of the time: some are early, and all come at once when there is room.
            await asyncio.sleep(error.retry_after / 2)
        if time.time() >= until:
            return


async def main() -> None:
    order = json.loads(sys.argv[1])
    async with Runtime(Settings(redis_url=order["url"], key_prefix=order["prefix"])):
        await asyncio.gather(*(spend(algorithm, 0) for algorithm in ALGORITHMS))  # so that all is there
        print("in", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        until = time.time() + order["seconds"]
        await asyncio.gather(*(spend(algorithm, until) for algorithm in ALGORITHMS for _ in range(order["tasks"])))


if __name__ == "__main__":
    asyncio.run(main())
