"""Durable runs in this process: what a step costs beside a bare write of what it writes.

===========  =========================================  ==========================================  ===================
row          ours                                       floor                                       bar
===========  =========================================  ==========================================  ===================
durable      a chain of 100, ``durability="step"``      the same bytes, an awaited ``EVALSHA``      1.5x
                                                        each, by redis-py; and by our own client
flat         a step near the 1,000th and near the       a step near the 10th of the same run        1.25x
             10,000th
checkpoints  500 runs save a step at the same time      the same bytes, 500 ``EVALSHA`` sent        2x, and 15 µs each
                                                        together on one connection
batched      a chain of 100, ``durability="batched"``   the same bytes in one pipeline of redis-py  2x
===========  =========================================  ==========================================  ===================

The floors send what the engine's checkpoints were seen to send, argument for argument, to a script that writes it and
asks nothing. Figures of chains are of whole runs, creating and closing included, divided by the number of steps.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from aioreactor import Runtime
from aioreactor.store.claim import Claim
from aioreactor.store.answers import Created
from aioreactor.store.records import Changes, NewRun
from benchmarks import shapes
from benchmarks.harness import Effort, Row, Rounds, Sample, interleaved, repeated
from benchmarks.stored import BARE_WRITE, Checkpoint, a_runtime, checkpoints_of, client_of, redis_of, store_of

LENGTH = 100
PARALLEL = 500
HOUR_MS = 3_600_000


async def durable(effort: Effort) -> list[Row]:
    """A chain of 100, each step kept before the next one starts."""
    times = effort.of(5, 1)
    name, scale = f"durable chain of {LENGTH}", 1e6 / times / LENGTH
    async with a_runtime() as runtime:
        run = partial(shapes.chain(LENGTH).run, start=0)
        written = await checkpoints_of(runtime, run)
        ours, beside = repeated(run, times), await redis_of(runtime)
        raw = repeated(_raw(beside, written), times)
        rounds = await interleaved(ours, raw, effort.rounds)
        note = f"floor: EVALSHA by redis-py; {len(written)} checkpoints"
        rows = [rounds.row(name, "µs/step", scale, judged="ratio", bar=1.5, note=note)]
        rounds = await interleaved(ours, repeated(_awaited(runtime, written), times), effort.rounds)
        rows += [rounds.row(name, "µs/step", scale, note="floor: the same by our own client")]
        await beside.aclose()
    return rows


def _awaited(runtime: Runtime, written: list[Checkpoint]) -> Sample:
    client = client_of(runtime)

    async def sample() -> None:
        for keys, args in written:
            await client.run(BARE_WRITE, keys, args)

    return sample


def _raw(redis: Any, written: list[Checkpoint]) -> Sample:
    async def sample() -> None:
        for keys, args in written:
            await redis.evalsha(BARE_WRITE.sha, len(keys), *keys, *args)

    return sample


async def flat(effort: Effort) -> list[Row]:
    """What a step costs early and late in one run."""
    late = effort.of(10_000, 1_000)
    places = [10, 1_000, 10_000] if late == 10_000 else [10, 1_000]
    begun: list[float] = []

    async def noting(given: int) -> int:
        begun.append(perf_counter())
        return given + 1

    found: dict[int, list[float]] = {place: [] for place in places}
    async with a_runtime():
        run = partial(shapes.chain(late + 50, noting).run, start=0)
        for _ in range(effort.of(6, 2)):
            begun.clear()
            await run()
            taken = [after - before for before, after in itertools.pairwise(begun)]
            for place, seconds in found.items():
                seconds.append(median(taken[max(place - 50, 0) : place + 49]))
    return [_late(place, Rounds(found[place][1:], found[10][1:])) for place in places[1:]]


def _late(place: int, rounds: Rounds) -> Row:
    note = "floor: steps 1 to 59 of the same run"
    return rounds.row(f"durable step {place:,} of one run", "µs", 1e6, judged="ratio", bar=1.25, note=note)


async def checkpoints(effort: Effort) -> list[Row]:
    """500 runs that each save a step and its trace."""
    async with a_runtime() as runtime:
        written = await checkpoints_of(runtime, partial(shapes.chain(2).run, start=0))
        changes = _changes_in(written[0])
        claims = [await _claim(runtime, number) for number in range(PARALLEL)]
        client, store = client_of(runtime), store_of(runtime)
        keys, args = written[0]

        async def ours() -> None:
            await asyncio.gather(*(store.save(claim, changes) for claim in claims))

        async def floor() -> None:
            calls = (client.run(BARE_WRITE, [f"{{{number}}}{key}" for key in keys], args) for number in range(PARALLEL))
            await asyncio.gather(*calls)

        rounds = await interleaved(ours, floor, effort.of(31, 5))
    note = f"floor: {PARALLEL} EVALSHA on one connection"
    name, scale = f"{PARALLEL} checkpoints at once", 1e6 / PARALLEL
    return [
        rounds.row(name, "µs", scale, judged="ratio", bar=2.0, note=note),
        rounds.row(name, "µs", scale, judged="ours", bar=15.0, note=note),
    ]


def _changes_in(written: Checkpoint) -> Changes:
    """The steps and trace entries that a recorded checkpoint holds; those of one step hold nothing else."""
    _, args = written
    scalars, steps, dropped = (int(count) for count in args[5:8])
    assert scalars == dropped == 0
    past = 8 + 2 * steps
    pairs = zip(args[8:past:2], args[9:past:2], strict=True)
    return Changes(steps=dict(pairs), trace=args[past:])  # type: ignore[arg-type]


async def _claim(runtime: Runtime, number: int) -> Claim:
    made = await store_of(runtime).create(f"parallel-{number}", NewRun(reactor="bench"), hold_ms=HOUR_MS)
    assert isinstance(made, Created)
    assert made.claim is not None
    return made.claim


async def batched(effort: Effort) -> list[Row]:
    """A chain of 100 whose steps are kept behind it."""
    times = effort.of(10, 2)
    async with a_runtime() as runtime:
        chain = shapes.chain(LENGTH)
        written = await checkpoints_of(runtime, partial(chain.run, start=0))
        run = partial(chain.with_options(durability="batched").run, start=0)
        await run()
        beside = await redis_of(runtime)
        rounds = await interleaved(repeated(run, times), repeated(_piped(beside, written), times), effort.rounds)
        await beside.aclose()
    note = f"floor: {len(written)} EVALSHA in one pipeline"
    return [rounds.row('chain of 100, "batched"', "µs/step", 1e6 / times / LENGTH, judged="ratio", bar=2.0, note=note)]


def _piped(redis: Any, written: list[Checkpoint]) -> Sample:
    async def sample() -> None:
        async with redis.pipeline(transaction=False) as pipe:
            for keys, args in written:
                pipe.evalsha(BARE_WRITE.sha, len(keys), *keys, *args)
            await pipe.execute()

    return sample
