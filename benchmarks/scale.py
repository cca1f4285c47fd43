"""Many runs at once, and long ones.

==========  ======================================  ====================================================  ====
row         ours                                    floor                                                 bar
==========  ======================================  ====================================================  ====
runs        10,000 runs of 5 steps, all at once     10,000 bare task groups, same shape, 5 tasks each     2.5x
steps       a run of 10 … 100,000 steps (chain)     plain awaits of the same coroutines                   none
==========  ======================================  ====================================================  ====

In ``runs`` every body gives way to the loop once, so that all runs are really alive at the same time. Both sides are
children of one outer task group. ``steps`` shows that a step costs the same however many there are; its ratio is
to the cost per step of the shortest run, taken in the same rounds.
"""

from __future__ import annotations

import asyncio
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from anyio import create_task_group

from benchmarks import shapes
from benchmarks.harness import Effort, Row, Sample, interleaved, repeated, timed


async def yielding(given: int) -> int:
    """A body that suspends once."""
    await asyncio.sleep(0)
    return given + 1


def at_once(call: Sample, count: int) -> Sample:
    """All of them as tasks of one group."""

    async def sample() -> None:
        async with create_task_group() as group:
            for _ in range(count):
                group.start_soon(call)

    return sample


async def runs(effort: Effort) -> list[Row]:
    """Ten thousand runs of five steps, in two shapes."""
    count = effort.of(10_000, 1_000)
    rounds = effort.of(7, 3)
    cases: list[tuple[str, Any, Sample]] = [
        ("1 → 3 → 1", shapes.spread(3, yielding), partial(shapes.task_spread, 3, yielding)),
        ("chain of 5", shapes.chain(5, yielding), partial(shapes.task_chain, 5, yielding)),
    ]
    rows = []
    for shape, reactor, bare in cases:
        found = await interleaved(at_once(partial(reactor.run, start=0), count), at_once(bare, count), rounds)
        name = f"{count:,} runs at once, {shape}"
        note = "floor: task groups, 5 tasks each"
        rows.append(found.row(name, "µs/run", 1e6 / count, judged="ratio", bar=2.5, note=note))
    return rows


async def steps(effort: Effort) -> list[Row]:
    """Cost per step against the number of steps."""
    sizes = (10, 100, 1_000, 10_000) if effort.quick else (10, 100, 1_000, 10_000, 100_000)
    samples: dict[int, Sample] = {}
    made: dict[int, float] = {}
    for size in sizes:
        began = perf_counter()
        reactor = shapes.chain(size)
        made[size] = (perf_counter() - began) * 1e6 / size
        samples[size] = repeated(partial(reactor.run, start=0), max(1, sizes[-1] // 10 // size))
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for sample in samples.values():
        await sample()
    for _ in range(effort.of(7, 3)):
        for size, sample in samples.items():
            done = size * max(1, sizes[-1] // 10 // size)
            seconds[size].append(await timed(sample) * 1e6 / done)
    smallest = seconds[100]
    return [
        Row(
            f"chain of {size:,}",
            "µs/step",
            median(seconds[size]),
            median(smallest),
            median(mine / least for mine, least in zip(seconds[size], smallest, strict=True)),
            note=f"floor: the chain of 100; class made in {made[size]:.0f} µs/step",
        )
        for size in sizes
    ]
