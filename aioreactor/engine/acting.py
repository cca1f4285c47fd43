"""Acting on what the run state decided: starting what is ready, and carrying out what else was decided."""

from __future__ import annotations

from abc import abstractmethod

from aioreactor.engine import events, reporting
from aioreactor.engine.cancelling import Cancellable
from aioreactor.engine.limiter import Ready, admit, release
from aioreactor.engine.ports import Environment, Journal
from aioreactor.engine.scope import MapRun, Scope
from aioreactor.engine.state import Readies
from aioreactor.engine.state_effects import RollBack, Stopped, Wake
from aioreactor.plan.model import Plan


class Acting(Cancellable):
    """The part of an `Execution` that starts nodes, where there is a slot for them, and heeds the state's effects."""

    __slots__ = ("_outbox", "_unstarted")

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        Cancellable.__init__(self, environment, plan, run_id, journal)
        self._outbox: list[tuple[MapRun, int]] = []
        self._unstarted = 0
        """How many tasks wait for their first turn."""

    @abstractmethod
    async def _work(self, scope: Scope, index: int) -> None:
        """Perform a node in a task that was started for it."""

    @abstractmethod
    async def _roll_back_nested(self, scope: Scope, undo: bool) -> None:
        """Roll a nested scope back that has settled, and go on with what that makes ready."""

    # ------------------------------------------------------------------ starting

    def pick(self, ready: Readies) -> Ready | None:
        """Start all that is ready: the first is returned, for this task to go on with; the rest get tasks."""
        return self._first(self._admitted(ready))

    def _admitted(self, ready: Readies) -> Readies:
        """What may start now, the effects of the last transitions included; the rest has joined its queue."""
        if self.state.effects:
            ready = [*ready, *self.apply_effects()]
        return self._with_slots(ready) if ready and self._bounded else ready

    def _first(self, ready: Readies) -> Ready | None:
        if not ready:
            return None
        if len(ready) > 1:
            for other in ready[1:]:
                self._start(other)
        return ready[0]

    def _with_slots(self, ready: Readies) -> list[Ready]:
        """Those that may start now. A step of a stopped scope never waits for a slot: it is given up at once."""
        waiting, admitted = list(ready), []
        while waiting:
            each = waiting.pop(0)
            if _needs_no_slot(each):
                admitted.append(each)
            elif each[0].stopped:
                waiting += [*self.state.drop(*each), *self.apply_effects()]
            elif admit(each):
                admitted.append(each)
        return admitted

    def start_all(self, ready: Readies) -> None:
        """Start all that is ready, each as a task."""
        first = self.pick(ready)
        if first is not None:
            self._start(first)

    def _free_slot(self, scope: Scope) -> None:
        for each in release(scope):
            self._start(each)

    def _start(self, ready: Ready) -> None:
        self._unstarted += 1
        self.tasks.start_soon(self._work, *ready)

    # ------------------------------------------------------------------ effects

    def apply_effects(self) -> list[Ready]:
        """Act on what the last transitions decided besides starting nodes; give what that made ready."""
        ready: list[Ready] = []
        effects = self.state.effects
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Stopped):
                ready += self._on_stopped(effect.chain)
            elif isinstance(effect, RollBack):
                self.tasks.start_soon(self._roll_back_nested, effect.scope, effect.undo)
            else:
                self._on_wake(effect)
        return ready

    def _on_wake(self, effect: Wake) -> None:
        event = self._wakers.get(effect.map)
        if event is not None:
            event.set()
        if effect.ended is not None and effect.map.scope.hooks is not None:
            self._outbox.append((effect.map, effect.ended))

    async def _flush(self) -> None:
        """Tell who listens of elements that ended."""
        while self._outbox:
            run, index = self._outbox.pop(0)
            outcome = reporting.element_outcome(self, run, index)
            await self.tell(
                run.scope, "on_element_finish", events.ElementFinished, run.index, index=index, outcome=outcome
            )


def _needs_no_slot(ready: Ready) -> bool:
    return ready[0].plan.nodes[ready[1]].kind != "step"
