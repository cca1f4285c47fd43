"""Telling who listens to the run of a map what happens to its elements, in whatever worker that is."""

from __future__ import annotations

from typing import Any

from aioreactor.clock import Clock
from aioreactor.engine import events
from aioreactor.engine.hooks import Hook, hooks_for, tell
from aioreactor.engine.ports import Environment
from aioreactor.plan.model import Plan

PROGRESS_EACH = 0.5
"""Seconds between two reports of how far a map is, from one session; the last one comes in any case."""


class Listeners:
    """The hooks of one run that are told of the elements of its map at ``path``."""

    def __init__(self, environment: Environment, plan: Plan, run_id: str, path: str) -> None:
        hooks = hooks_for([*environment.middlewares, *plan.options.middlewares])
        self._finished: tuple[Hook, ...] = hooks.listening("on_element_finish") if hooks is not None else ()
        self._progress: tuple[Hook, ...] = hooks.listening("on_progress") if hooks is not None else ()
        self._clock: Clock = environment.clock
        self._about = {"run_id": run_id, "reactor": plan.name, "path": path, "attempt": 1}
        self._told_at = self._clock.monotonic()

    @property
    def of_elements(self) -> bool:
        """Whether anybody wants to know of single elements."""
        return bool(self._finished)

    def is_time(self, *, over: bool) -> bool:
        """Whether somebody wants to know how far the map is, and was not told a moment ago."""
        now = self._clock.monotonic()
        if not self._progress or not (over or now - self._told_at >= PROGRESS_EACH):
            return False
        self._told_at = now
        return True

    async def finished(self, index: int, outcome: Any) -> None:
        """An element has its outcome.

        Cancellation: reaches a hook that waits.
        """
        made: Any = events.ElementFinished
        await tell(self._finished, made(**self._about, at=self._clock.now(), index=index, outcome=outcome))

    async def progress(self, done: int, total: int | None) -> None:
        """So many elements have their outcome.

        Cancellation: reaches a hook that waits.
        """
        made: Any = events.ProgressReported
        await tell(self._progress, made(**self._about, at=self._clock.now(), done=done, total=total, message=""))
