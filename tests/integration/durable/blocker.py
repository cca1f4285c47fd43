"""A process whose step blocks its event loop. ``python -m tests.integration.durable.blocker RUN_ID SECONDS``."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import aioreactor
from aioreactor import Context, OwnershipLost, Reactor, step

SECONDS = 0.0


def say(word: str) -> None:
    print(word, flush=True)


class Blocks(Reactor[str], name="tests.Blocks"):
    @step
    async def first(self) -> int:
        say("first")
        return 1

    @step
    async def block(self, first: int, ctx: Context) -> str:
        say("block")
        time.sleep(SECONDS)
        say("unblocked")
        return "done"

    @step
    async def sibling(self, first: int) -> str:
        say("sibling")
        return "done"

    @step
    async def last(self, block: str, sibling: str) -> str:
        say("last")
        return block

    returns = last


async def main() -> None:
    aioreactor.configure()
    try:
        say(repr(await Blocks.with_options(run_id=sys.argv[1]).run()))
    except OwnershipLost:
        say("OwnershipLost")
    await aioreactor.current_runtime().aclose()


if __name__ == "__main__":
    SECONDS = float(sys.argv[2])
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    from tests.integration.durable import blocker

    blocker.SECONDS = SECONDS
    asyncio.run(blocker.main())
