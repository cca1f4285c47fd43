"""Durable chains that write behind, against the same bytes written through a bare pipeline.

===================  =====================================  ==========================================  ====
row                  ours                                   floor                                       bar
===================  =====================================  ==========================================  ====
durable, "batched"   a run of 100 trivial steps             redis-py: create, one pipeline of the       2x
                                                            writes of each step, close
durable, "exit"      the same                               the same                                    none
durable, "step"      the same                               the same                                    none
===================  =====================================  ==========================================  ====

The floor writes what ours stores, byte for byte: taken from a run under ``"step"``, a HSET and an RPUSH per step in one
pipeline, which is awaited once; before and after it the HSET of a run's scalars. It has no lease, no version, no lists.
Figures are of whole runs, divided by the number of steps. ``python -m benchmarks behind``
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import redis.asyncio

from aioreactor import Runtime, Settings
from aioreactor.embedded import EmbeddedServer
from benchmarks import shapes
from benchmarks.harness import Effort, Row, interleaved, repeated

LENGTH = 100
BARS = {"batched": 2.0, "exit": None, "step": None}
_names = itertools.count()


async def behind(effort: Effort) -> list[Row]:
    """A row per level."""
    rows = []
    with EmbeddedServer.start() as server:
        for level, bar in BARS.items():
            async with Runtime(Settings(redis_url=server.url, key_prefix=level)):
                rows.append(await _row(effort, server.url, level, bar))
    return rows


async def _row(effort: Effort, url: str, level: Any, bar: float | None) -> Row:
    times = effort.of(20, 3)
    reactor = shapes.chain(LENGTH)
    client: Any = redis.asyncio.Redis.from_url(url)
    await reactor.with_options(run_id="sample", durability=level).run(start=0)
    found = await client.hgetall(f"{level}:{{sample}}:steps"), await client.lrange(f"{level}:{{sample}}:trace", 0, -1)
    scalars = await client.hgetall(f"{level}:{{sample}}:run")
    assert len(found[0]) == LENGTH
    assert len(found[1]) == 2 * LENGTH
    ours = repeated(partial(reactor.with_options(durability=level).run, start=0), times)
    rounds = await interleaved(ours, repeated(partial(_pipelined, client, *found, scalars), times), effort.rounds)
    await client.aclose()
    scale = 1e6 / times / LENGTH
    judged: Any = "ratio" if bar else ""
    return rounds.row(
        f'durable chain of {LENGTH}, "{level}"', "µs/step", scale, judged=judged, bar=bar, note="floor: one pipeline"
    )


async def _pipelined(client: Any, steps: dict[Any, Any], trace: list[Any], scalars: dict[Any, Any]) -> None:
    """What somebody would write who has all values at hand."""
    name = f"bare:{{{next(_names)}}}"
    await client.hset(f"{name}:run", mapping=scalars)
    pipe = client.pipeline(transaction=False)
    for number, (path, value) in enumerate(steps.items()):
        pipe.hset(f"{name}:steps", path, value)
        pipe.rpush(f"{name}:trace", *trace[2 * number : 2 * number + 2])
    await pipe.execute()
    await client.hset(f"{name}:run", mapping=scalars)
