"""How far a run is: its steps, its maps, and what its bodies say of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from aioreactor.trace import Status


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How far one map is.

    Attributes:
        path: Of the map.
        total: Elements in all; None while its source is still being read.
        started: Elements that have begun.
        done: Elements that have their outcome, the failed and skipped ones included.
        failed: Elements that failed.
        skipped: Elements that were skipped.
        rate: Elements per second that got their outcome, since the map began; 0 where that is not known.
        remaining: Seconds that the others will take at that rate; None while that cannot be told.
        undone: Elements that have been rolled back.
    """

    path: str
    total: int | None
    started: int
    done: int
    failed: int = 0
    skipped: int = 0
    rate: float = 0.0
    remaining: float | None = None
    undone: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a body said with ``ctx.progress(done, total, message)`` last."""

    path: str
    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, as of one moment.

    Attributes:
        run_id: Which.
        status: Of the run.
        steps: Top-level nodes of its plan.
        steps_done: Those of them that have completed, or were skipped.
        maps: Those that have begun, in the order of the plan.
        reported: What bodies said last, by path.
    """

    run_id: str
    status: Status
    steps: int
    steps_done: int
    maps: tuple[MapProgress, ...] = ()
    reported: tuple[StepReport, ...] = ()

    @property
    def total(self) -> int | None:
        """Elements of all maps that have begun, or steps if none has; None while a source is still being read."""
        if not self.maps:
            return self.steps
        totals = [each.total for each in self.maps]
        return None if None in totals else sum(total for total in totals if total is not None)

    @property
    def started(self) -> int:
        """Elements that have begun; steps that are done, if no map has begun."""
        return sum(each.started for each in self.maps) if self.maps else self.steps_done

    @property
    def done(self) -> int:
        """Elements that have their outcome; or steps."""
        return sum(each.done for each in self.maps) if self.maps else self.steps_done

    @property
    def failed(self) -> int:
        """Elements that failed."""
        return sum(each.failed for each in self.maps)

    @property
    def rate(self) -> float:
        """Elements per second, of all maps together."""
        return sum(each.rate for each in self.maps)

    @property
    def remaining(self) -> float | None:
        """Seconds until the maps are done, at their rates; None while that cannot be told."""
        found = [each.remaining for each in self.maps]
        return None if not found or None in found else max(each for each in found if each is not None)

    def __str__(self) -> str:
        parts = [f"{self.steps_done}/{self.steps} steps"]
        parts += [
            f"{each.path} {each.done}/{'?' if each.total is None else each.total}"
            + (f" ({each.failed} failed)" if each.failed else "")
            for each in self.maps
        ]
        return f"{self.status}: {', '.join(parts)}"
