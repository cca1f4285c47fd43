"""Positions in lines are executed strictly one after another by several processes, whatever happens to these.

Runs take their time, fail, are delivered more than once; workers are killed and replaced. Each body notes at the server
when it begins and when it ends. A thousand positions with ``AIOREACTOR_FAULTS=deep``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

from aioreactor import Failure, Halt, OrderedLock, Success
from tests.faults import reactors
from tests.faults.kit import DEEP, KILLED, RANDOM, SEED, Field, Worker, Zygote
from tests.integration.coordination.kit import leftovers

LONG, CHAINS, CHAIN, DEATHS = (1000, 20, 50, 12) if DEEP else (24, 1, 6, 1)
"""Positions of one loose line; strict ones, and positions in each; deaths of workers."""

Rows = list[dict[str, Any]]


def rows(key: str, number: int, failing: set[int]) -> Rows:
    return [{"key": key, "n": n, "ms": RANDOM.randrange(6), "fails": n in failing} for n in range(number)]


class Crew:
    """Three workers, of which one is killed now and then."""

    def __init__(self, field: Field, zygotes: Sequence[Zygote]) -> None:
        self.field = field
        self.workers = [self._start(zygote) for zygote in zygotes]
        self.deaths = 0

    def _start(self, zygote: Zygote) -> Worker:
        return self.field.worker(zygote, snooze_delay=1.5, snooze_max=10_000, park_after=0.05, concurrency=40)

    async def one_dies(self) -> None:
        number = RANDOM.randrange(len(self.workers))
        worker = self.workers[number]
        os.kill(worker.pid, signal.SIGKILL)
        assert await worker.waiting == KILLED
        self.deaths += 1
        self.workers[number] = self._start(worker.zygote)

    async def end(self) -> None:
        for worker in self.workers:
            await worker.end()

    async def kill(self) -> None:
        for worker in self.workers:
            await worker.__aexit__(ValueError)


async def started(field: Field, reactor: str, given: Rows) -> list[str]:
    """In the order of their positions: many at once, the rest one by one."""
    cls = reactors.ALL[reactor].with_options(queue=field.queue())
    together = len(given) * 3 // 4
    handles = await cls.enqueue_many(given[:together])
    handles += [await cls.enqueue(**row) for row in given[together:]]
    return [handle.run_id for handle in handles]


def in_order(lines: list[str], deaths: int) -> list[int]:
    """Which were executed, one after another; a death has at most one begin anew."""
    found = [(int(n), len(list(group))) for n, group in itertools.groupby(lines)]
    again = sum(times - 2 for _, times in found)
    assert all(times >= 2 for _, times in found), found
    assert again <= 2 * deaths, f"{again} more than {deaths} deaths explain: {found}"
    return [n for n, _ in found]


async def test_positions_are_executed_in_order_whatever_dies(ward: Field, zygote: Zygote, clinic: list[Zygote]) -> None:
    ward.base["default_queue"] = ward.queue()
    loose = rows("loose", LONG, set(RANDOM.sample(range(LONG), LONG // 10)))
    breaks = {f"strict{each}": RANDOM.randrange(CHAIN) for each in range(CHAINS)}
    ids = {"loose": await started(ward, "Following", loose)}
    for key, at in breaks.items():
        ids[key] = await started(ward, "FollowingStrictly", rows(key, CHAIN, {at}))
    everybody = [run_id for some in ids.values() for run_id in some]
    crew = Crew(ward, [zygote, *clinic])
    try:
        ending = asyncio.create_task(ward.ended(everybody, 400 if DEEP else 60))
        for death in range(DEATHS):
            await ward.ring(RANDOM.sample(everybody, len(everybody) // 3))
            while not ending.done() and await ward.do("LLEN", ward.ledger.key) < 2 * LONG * (death + 1) // (DEATHS + 1):
                await asyncio.sleep(0.01)
            await crew.one_dies()
        found = await ending
    except BaseException:
        await crew.kill()
        raise
    await crew.end()
    assert in_order(await ward.ledger.lines("loose"), crew.deaths) == list(range(LONG)), f"seed {SEED}"
    ends = [type(found[run_id].outcome) for run_id in ids["loose"]]
    assert ends == [Failure if row["fails"] else Success for row in loose], f"seed {SEED}"
    for key, at in breaks.items():
        assert in_order(await ward.ledger.lines(key), crew.deaths) == list(range(at + 1)), f"seed {SEED}"
        ends = [type(found[run_id].outcome) for run_id in ids[key]]
        assert ends == [Success] * at + [Failure] + [Halt] * (CHAIN - at - 1), f"seed {SEED}"
    assert {await OrderedLock.peek(key) for key in ids} == {None}
    assert await leftovers(ward.do, ward.prefix) == []
