"""Composition: one step inside 1 … 50 reactors, and maps inside one run.

==========  =====================================  =============================================  ====
row         ours                                   floor                                          bar
==========  =====================================  =============================================  ====
nesting     a run of one step at depth 1 … 50      the same step at depth 0                       none
map         a map of 10,000 no-op items            anyio task group bounded by a limiter          none
==========  =====================================  =============================================  ====

``nesting`` gives the cost of one level: what the run took more than the flat one, divided by the depth.
"""

from __future__ import annotations

from functools import partial
from statistics import median

from anyio import CapacityLimiter, create_task_group

from benchmarks import shapes
from benchmarks.harness import Effort, Row, interleaved, repeated

CONCURRENCY = 16


async def nesting(effort: Effort) -> list[Row]:
    """Microseconds per level of `compose`."""
    rows = []
    for depth in (1, 5, 10, 25, 50):
        times = effort.of(max(10, 1000 // depth), 10)
        ours = repeated(partial(shapes.nested(depth).run, start=0), times)
        flat = repeated(partial(shapes.nested(0).run, start=0), times)
        found = await interleaved(ours, flat, effort.of(7, 3))
        levels = [mine - least for mine, least in zip(found.ours, found.floor, strict=True)]
        per_level = median(levels) * 1e6 / times / depth
        flat_run = median(found.floor) * 1e6 / times
        rows.append(Row(f"compose, depth {depth}", "µs/level", per_level, note=f"the flat run: {flat_run:.0f} µs"))
    return rows


async def bare_map(items: int, concurrency: int) -> list[object]:
    """A task per item, at most ``concurrency`` of them past the limiter."""
    results: list[object] = [None] * items
    limiter = CapacityLimiter(concurrency)

    async def one(place: int) -> None:
        async with limiter:
            results[place] = await nothing(place)

    async with create_task_group() as group:
        for place in range(items):
            group.start_soon(one, place)
    return results


async def nothing(item: int) -> object:
    """The no-op."""
    return None


async def inline_map(effort: Effort) -> list[Row]:
    """Microseconds per element."""
    items = effort.of(10_000, 1_000)
    ours = partial(shapes.mapping(items, CONCURRENCY).run, start=0)
    found = await interleaved(ours, partial(bare_map, items, CONCURRENCY), effort.of(7, 3))
    note = f"floor: task group bounded at {CONCURRENCY}"
    return [found.row(f"map of {items:,}", "µs/element", 1e6 / items, note=note)]
