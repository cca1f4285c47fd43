"""The command: ``python -m benchmarks [row …] [--quick] [--check] [--json FILE]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import background, behind, composition, dag, durable, fan_out, imports, memory, scale
from benchmarks.harness import Effort, Row, as_json, machine, table

Group: TypeAlias = Callable[[Effort], Coroutine[Any, Any, list[Row]]]

GROUPS: dict[str, Group] = {
    "chain": dag.chain,
    "wide": dag.wide,
    "diamond": dag.diamond,
    "runs": scale.runs,
    "memory": memory.memory,
    "steps": scale.steps,
    "nesting": composition.nesting,
    "map": composition.inline_map,
    "import": imports.imports,
    "durable": durable.durable,
    "flat": durable.flat,
    "checkpoints": durable.checkpoints,
    "enqueue": background.enqueue,
    "background": background.background,
    "latency": background.latency,
    "fan-out": fan_out.fan_out,
    "fan-back": fan_out.fan_back,
    "fan-flat": fan_out.fan_flat,
    "behind": behind.behind,
}
"""In the order they are measured."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the engine against its floors.")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"some of: {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a smoke of some seconds; figures mean little")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    found = parser.parse_args(given)
    unknown = [name for name in found.rows if name not in GROUPS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return found


def measured(names: Sequence[str], effort: Effort) -> list[Row]:
    """The rows of these groups; each group has an event loop of its own."""
    rows: list[Row] = []
    for name in names:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        rows += asyncio.run(GROUPS[name](effort))
    return rows


def main() -> int:
    """Measure, print, judge."""
    options = arguments()
    rows = measured(options.rows or list(GROUPS), Effort(options.quick))
    print(" ".join(f"{key}={word}" for key, word in machine().items()))
    print(table(rows))
    if options.json:
        as_json(rows, options.json)
    missed = [row.name for row in rows if row.met is False]
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
