"""How everything here is measured: interleaved rounds, medians, ratios, a table.

A round takes a sample of ours and a sample of the floor, one right after the other, and the order alternates from
round to round (ABBA): slow phases of the machine fall on both. Ratios are taken per round; the median round counts.
The garbage collector is emptied before every sample and stays on during it, as it would for users.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypeAlias

Sample: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
"""Does a fixed amount of work once."""
Judged: TypeAlias = Literal["ratio", "over", "ours", ""]
"""What a bar is held against: ours / floor, ours - floor, ours alone, or nothing."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. ``rounds`` are the interleaved ones; ``quick`` is a smoke for CI."""

    quick: bool = False

    @property
    def rounds(self) -> int:
        """Rounds per row."""
        return 3 if self.quick else 11

    def of(self, full: int, quick: int) -> int:
        """A size or a number of repetitions."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``ours`` and ``floor`` are in ``unit``; ``bar`` limits what ``judged`` names."""

    name: str
    unit: str
    ours: float
    floor: float | None = None
    ratio: float | None = None
    judged: Judged = ""
    bar: float | None = None
    spread: float | None = None
    note: str = ""

    @property
    def figure(self) -> float | None:
        """The number that the bar is held against."""
        if self.judged == "ours":
            return self.ours
        if self.judged == "over" and self.floor is not None:
            return self.ours - self.floor
        return self.ratio if self.judged == "ratio" else None

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None where there is none."""
        figure = self.figure
        return None if figure is None or self.bar is None else figure <= self.bar


@dataclass(slots=True)
class Rounds:
    """Seconds per sample, round by round."""

    ours: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)

    def row(self, name: str, unit: str, scale: float, **more: Any) -> Row:
        """A row of the medians; ``scale`` turns the seconds of one sample into ``unit``."""
        ratios = sorted(mine / bare for mine, bare in zip(self.ours, self.floor, strict=True))
        quarter = len(ratios) // 4
        return Row(
            name,
            unit,
            median(self.ours) * scale,
            median(self.floor) * scale,
            median(ratios),
            spread=ratios[-1 - quarter] - ratios[quarter],
            **more,
        )


async def timed(sample: Sample, before: Sample | None = None) -> float:
    """Seconds that one sample takes, after a collection and after ``before``."""
    if before is not None:
        await before()
    gc.collect()
    began = perf_counter()
    await sample()
    return perf_counter() - began


async def interleaved(ours: Sample, floor: Sample, rounds: int, before: Sample | None = None) -> Rounds:
    """Warm both up, then take turns; ``before`` each sample something may be put right, which does not count."""
    await timed(ours, before)
    await timed(floor, before)
    found = Rounds()
    for number in range(rounds):
        pairs = [(ours, found.ours), (floor, found.floor)]
        for sample, seconds in pairs if number % 2 == 0 else reversed(pairs):
            seconds.append(await timed(sample, before))
    return found


def repeated(sample: Sample, times: int) -> Sample:
    """A sample that does the work of another several times."""

    async def again() -> None:
        for _ in range(times):
            await sample()

    return again


# ---------------------------------------------------------------------- reports

_HEAD = ("what", "ours", "floor", "unit", "ratio", "± iqr", "bar", "", "note")
_VERDICT = {True: "met", False: "MISSED", None: ""}


def _number(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.3g}"


def _bar(row: Row) -> str:
    if row.bar is None:
        return ""
    unit = "x" if row.judged == "ratio" else f" {row.unit}"
    return f"≤ {row.bar:g}{unit}" + (" over" if row.judged == "over" else "")


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    spread = "" if row.spread is None else f"{row.spread:.2f}"
    verdict = _VERDICT[row.met]
    return row.name, _number(row.ours), _number(row.floor), row.unit, ratio, spread, _bar(row), verdict, row.note


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, aligned for people."""
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = tuple("-" * width for width in widths)
    lines = [_HEAD, rule, *lines[1:]]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def machine() -> dict[str, str]:
    """What it was measured on, as far as it matters."""
    return {
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }


def as_json(rows: Iterable[Row], path: Path) -> None:
    """Write the rows, with what was judged, to a file."""
    found = [{**asdict(row), "figure": row.figure, "met": row.met} for row in rows]
    path.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1, ensure_ascii=False) + "\n", "utf-8")
