"""What a live run occupies: 10,000 runs, each suspended in a body, divided by their number.

Bar: 20 KiB per run with one body waiting in it, the caller's own task included. For information: runs in which three
bodies wait at a time, and, as the floor, the same number of bare task groups in the same state.

Each figure comes from a process of its own (``python -m benchmarks.memory ours chain traced 10000``): ``traced`` is
what `tracemalloc` counts as allocated and alive, ``rss`` how much the process grew, untraced.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from anyio import create_task_group

from benchmarks import shapes
from benchmarks.harness import Effort, Row, Sample

SHAPES = {"chain": "chain of 5, one body waits", "spread": "1 → 3 → 1, three bodies wait"}


class Gate:
    """A body that, reached for the ``at``-th time per run, waits until it is opened."""

    def __init__(self) -> None:
        self.inside = 0
        self.open = asyncio.Event()

    async def third(self, given: int) -> int:
        """Waits when two steps are behind it."""
        if given == 2:
            await self._wait()
        return given + 1

    async def middle(self, given: int) -> int:
        """Waits when one step is behind it."""
        if given == 1:
            await self._wait()
        return given + 1

    async def _wait(self) -> None:
        self.inside += 1
        await self.open.wait()


def _call(side: str, shape: str, gate: Gate) -> tuple[Sample, int]:
    """What to start, and how many bodies of one run will be waiting."""
    if shape == "chain":
        ours: Any = partial(shapes.chain(5, gate.third).run, start=0)
        return (ours if side == "ours" else partial(shapes.task_chain, 5, gate.third)), 1
    ours = partial(shapes.spread(3, gate.middle).run, start=0)
    return (ours if side == "ours" else partial(shapes.task_spread, 3, gate.middle)), 3


def resident() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def occupied(how: str) -> int:
    """Bytes in use, by either measure."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] if how == "traced" else resident()


async def probe(side: str, shape: str, how: str, count: int) -> float:
    """Bytes per suspended run."""
    gate = Gate()
    call, waiting = _call(side, shape, gate)
    async with create_task_group() as group:
        group.start_soon(call)
        await asyncio.sleep(0.05)
        gate.open.set()
    gate.open, gate.inside = asyncio.Event(), 0
    if how == "traced":
        tracemalloc.start()
    before, per_run = occupied(how), 0.0
    async with create_task_group() as group:
        for _ in range(count):
            group.start_soon(call)
        while gate.inside < count * waiting:
            await asyncio.sleep(0.01)
        per_run = (occupied(how) - before) / count
        gate.open.set()
    return per_run


def _in_a_process(*words: str) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout) / 1024


async def memory(effort: Effort) -> list[Row]:
    """KiB per run that waits in a body."""
    count, rounds = effort.of(10_000, 1_000), effort.of(3, 1)
    rows = []
    for shape, text in SHAPES.items():
        for how in ("traced", "rss"):
            pairs = [
                (_in_a_process("ours", shape, how, str(count)), _in_a_process("floor", shape, how, str(count)))
                for _ in range(rounds)
            ]
            ours, floor = (median(side) for side in zip(*pairs, strict=True))
            note = f"over the floor: {ours - floor:.1f} KiB"
            name = f"memory per live run, {text}, {how}"
            ratio = ours / floor if floor else None
            bar = 20.0 if shape == "chain" else None
            rows.append(Row(name, "KiB", ours, floor, ratio, judged="ours", bar=bar, note=note))
    return rows


if __name__ == "__main__":
    print(asyncio.run(probe(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
