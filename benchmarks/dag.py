"""One run: a chain, one wide layer, a diamond.

==========  ==============================  =============================================  =================
row         ours                            floor                                          bar
==========  ==============================  =============================================  =================
chain       a run of 100 trivial steps      plain awaits of the same coroutines            5 µs/step over it
wide        a run of 1 → 500 → 1            bare anyio task group of 500, same values      1.5x
diamond     a run of 1 → 2 → 1              bare anyio task group, a task per step         none
==========  ==============================  =============================================  =================

Figures are of whole runs, start and end of the run included, divided by the number of steps.
"""

from __future__ import annotations

from functools import partial

from benchmarks import shapes
from benchmarks.harness import Effort, Row, interleaved, repeated


async def chain(effort: Effort) -> list[Row]:
    """A chain of 100."""
    length, times = 100, effort.of(100, 20)
    ours = repeated(partial(shapes.chain(length).run, start=0), times)
    floor = repeated(partial(shapes.bare_chain, length), times)
    rounds = await interleaved(ours, floor, effort.rounds)
    scale = 1e6 / times / length
    return [rounds.row("chain of 100", "µs/step", scale, judged="over", bar=5.0, note="floor: plain awaits")]


async def wide(effort: Effort) -> list[Row]:
    """One, then 500, then one."""
    width, times = 500, effort.of(20, 5)
    ours = repeated(partial(shapes.spread(width).run, start=0), times)
    floor = repeated(partial(shapes.bare_spread, width), times)
    rounds = await interleaved(ours, floor, effort.rounds)
    scale = 1e6 / times / (width + 2)
    return [rounds.row("1 → 500 → 1", "µs/step", scale, judged="ratio", bar=1.5, note="floor: one task group")]


async def diamond(effort: Effort) -> list[Row]:
    """One, then two, then one."""
    times = effort.of(1000, 100)
    ours = repeated(partial(shapes.spread(2).run, start=0), times)
    floor = repeated(partial(shapes.task_spread, 2), times)
    rounds = await interleaved(ours, floor, effort.rounds)
    return [rounds.row("diamond", "µs/step", 1e6 / times / 4, note="floor: task group, a task per step")]
