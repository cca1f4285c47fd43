"""The scheduler: runs the nodes that the run state makes ready, as tasks of one anyio task group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from anyio import CancelScope, create_task_group

from aioreactor.engine import (
    ending,
    events,
    fanning,
    guarding,
    guarding_nested,
    mapping,
    nesting,
    orders,
    pausing,
    reporting,
    rollback,
    snoozing,
    units,
)
from aioreactor.engine.acting import Acting
from aioreactor.engine.attempt import Later, run_step
from aioreactor.engine.drive import EngineClosed, tick
from aioreactor.engine.fans import is_fan
from aioreactor.engine.hooks import hooks_for
from aioreactor.engine.limiter import Limiter, Ready
from aioreactor.engine.ports import Environment, Journal
from aioreactor.engine.scope import Failed, NodeStatus, Scope
from aioreactor.engine.state import Readies
from aioreactor.engine.waiting import ring
from aioreactor.errors import AioreactorError
from aioreactor.failures import type_name
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.results import Outcome

logger = logging.getLogger("aioreactor.engine")
R = TypeVar("R")
Tell: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Execution(Acting):
    """One run in this process: `run` proceeds from validated inputs to the outcome."""

    __slots__ = ("began_at", "doom", "refused", "resumed", "unadmitted")

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        Acting.__init__(self, environment, plan, run_id, journal)
        self.began_at = self.clock.monotonic()
        self.doom: AioreactorError | None = None
        """The run was taken up to be failed with this: what may have started before counts as cut off."""
        self.resumed = False
        self.refused: BaseException | None = None
        """What its own gates refused, if they did: nothing has run."""
        self.unadmitted: guarding.Guard | None = None
        """What was refused to the run as a whole, which is being left for that."""

    # ------------------------------------------------------------------ the whole run

    async def run(self, view: Any, inputs: Mapping[str, Any]) -> Outcome[Any]:
        """Run to the end and give the outcome.

        Raises:
            KeyboardInterrupt, SystemExit: raised by a body; the run is aborted.
            ContentionError, UnknownRateLimit, AioreactorError: its own gates do not let it in; nothing has run.

        Cancellation: handled as the reactor's ``on_cancel`` says, then it goes on to the caller.
        """
        self._prepare(inputs)
        if self.plan.options.coordination:
            await guarding.admit(self, view, inputs)
        shown = reporting.shown_inputs(self.plan, inputs) if self.state.root.hooks is not None else {}
        tell = partial(self.tell, self.state.root, "on_run_start", events.RunStarted, inputs=shown)

        def start() -> Readies:
            barred = self.state.cancelled or self.state.root.stopped or self.leaving is not None
            return () if barred else self.state.open_root(view, inputs)

        return await self._drive(tell, start)

    async def resume(
        self, inputs: Mapping[str, Any], restore: Callable[[], Readies], *, back: bool = False
    ) -> Outcome[Any]:
        """Go on with a run that another execution began; ``restore`` fills the state and says what may start.

        ``back``: it is being rolled back.

        Raises, Cancellation: as for `run`.
        """
        self._prepare(inputs)
        self.resumed = True
        if self.plan.options.coordination:
            await guarding.readmit(self, back=back)
        tell = partial(self.tell, self.state.root, "on_run_resume", events.RunResumed)
        return await self._drive(tell, restore)

    def _prepare(self, inputs: Mapping[str, Any]) -> None:
        self._host = asyncio.current_task()
        assert self._host is not None
        self._host_baseline = self._host.cancelling()
        root = self.state.root
        root.hooks = hooks_for([*self.environment.middlewares, *self.plan.options.middlewares])
        limit = self.option(self.plan, "max_concurrency")
        root.limiters = (Limiter(limit),) if limit is not None else ()
        self._bounded = limit is not None or self.plan.has_bounds
        self._gated = self.awaits_trigger
        self.learn_inputs(inputs, self.plan.fields.hidden)

    async def _drive(self, tell: Tell, start: Callable[[], Readies]) -> Outcome[Any]:
        """Wait in the caller's task until all bodies have ended, then conclude.

        No code of the user's runs in the caller's task, so a ``CancelledError`` here, and a pending ``Task.cancel()``,
        can only come from outside. (A body's own task group may leave ``cancelling()`` raised, up to Python 3.12, and
        the engine's own cuts cancel everything in its task group: neither can be told apart from a real one there.)
        """
        await self.shielded(self._forward(tell, start))
        self._stop_timers()
        if self.cancelled is None and self._caller_is_cancelled():
            self.note_cancel(asyncio.CancelledError())
        return await ending.conclude(self)

    async def shielded(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for the end of ``work``, in a task of its own, however often the caller is cancelled; notes that it was.

        Cancellation: noted; comes out of `run` when all is done.
        """
        task = asyncio.get_running_loop().create_task(work)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: ring(ended))
        try:
            await ended
        except asyncio.CancelledError as error:
            self.note_cancel(error)
            await self._wait_out(task)
        return task.result()

    async def _wait_out(self, task: asyncio.Task[Any]) -> None:
        with CancelScope(shield=True):
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])

    async def _forward(self, tell: Tell, start: Callable[[], Readies]) -> None:
        async with create_task_group() as self.tasks:
            if self.state.root.hooks is not None and self.leaving is None:
                await tell()
            ready = start()
            if self.resumed and self.fans is not None:
                await fanning.reload(self)
            if self.resumed and self.coordinator is not None:
                await guarding_nested.readmit_nested(self)
            self.watch_deadline(self.state.root)
            if self.doom is not None:
                self._fail_whole(self.state.root, self.doom)
            self.listening = self.mailbox is not None
            ready = pausing.without_open(self, ready)
            if self.first_orders and not self.state.root.stopped:
                await orders.carry_out(self, self.first_orders)
            first = self.pick(self._without_waits(ready))
            if first is not None:
                await self._go_on(*first)
            if self.open_nodes:
                while pausing.overdue(self):
                    await tick()  # a deadline that has passed is noticed by a timer, whose turn comes
                self.consider_leaving()
        self.listening = False

    # ------------------------------------------------------------------ node after node

    def _without_waits(self, ready: Readies) -> Readies:
        """Those that may start at once; what still waits for its next attempt, of a run gone on with, waits on."""
        now = self.clock.now()
        later = {
            (s, i): s.due[i] - now
            for s, i in ready
            if s.due and s.due.get(i, 0.0) > now and not (s.parks and i in s.parks)  # those ask at once
        }
        for (scope, index), delay in later.items():
            self.tasks.start_soon(self._wait_then_go, Later(scope, index, delay))
        return [each for each in ready if each not in later]

    async def _wait_then_go(self, later: Later) -> None:
        await self._back_off(later)
        self.start_all(self._again(later))

    def _again(self, later: Later) -> Readies:
        """A wait has ended: the next attempt, or none if its scope was stopped meanwhile."""
        if later.scope.stopped:
            return self.state.drop(later.scope, later.index)
        return ((later.scope, later.index),)

    async def _work(self, scope: Scope, index: int) -> None:
        self._unstarted -= 1
        await self._go_on(scope, index)

    async def _go_on(self, scope: Scope, index: int) -> None:
        """Perform a node, then its first ready successor, and so on, in this one task."""
        current: Ready | None = (scope, index)
        while current is not None:
            scope, index = current
            if self._gated and self._turned_away(scope, index):
                break
            node = scope.plan.nodes[index]
            is_step = node.kind == "step"
            try:
                waits: Any = await units.settled(self, scope, index) if node.units else None
                if waits is not None:
                    ready: Any = waits
                elif is_step and not scope.stopped:
                    ready = await run_step(self, scope, index)
                else:
                    ready = await self._perform(scope, index)
            except EngineClosed:
                raise
            except BaseException as error:
                ready = self._unexpected(scope, index, error)
            if is_step and scope.limiters:
                self._free_slot(scope)
            if type(ready) is Later:
                await self._back_off(ready)
                if self.state.recording and not scope.stopped and self.leaving is None:
                    await self.save(always=True)  # the process may have slept: is the run still ours?
                if scope.stopped and scope.parks:
                    await snoozing.withdraw(self, scope, index)
                if scope.stopped and is_fan((scope.children or {}).get(index)):
                    await fanning.call_off(self, scope, index)
                ready = self._again(ready)
            if self.state.freed:
                await guarding_nested.free(self)
            ready = self._admitted(ready)
            if self._outbox:
                await self._flush()
            if self._unstarted and ready:
                await self._give_way()
            current = self._first(ready)
        if self._sleepers or self.open_nodes:
            self.consider_leaving()

    async def _perform(self, scope: Scope, index: int) -> Any:
        if scope.stopped or (self.state.recording and not self.journal.trusted and not await self.may_begin(scope)):
            return self.state.drop(scope, index)
        kind = scope.plan.nodes[index].kind
        if kind == "compose":
            return await nesting.run_child(self, scope, index)
        if kind == "interrupt":
            return await pausing.open_interrupt(self, scope, index)
        if kind == "timer":
            return await pausing.run_timer(self, scope, index)
        if scope.plan.nodes[index].unit is not None:
            return await units.dispatch(self, scope, index)
        if self.fans is not None and scope.plan.nodes[index].fan is not None:
            return await fanning.run_fan(self, scope, index)
        return await mapping.run_map(self, scope, index)

    def _unexpected(self, scope: Scope, index: int, error: BaseException) -> Readies:
        """Something that no stage expected came out of a node: it fails like for any other reason."""
        entered = scope.status[index] == NodeStatus.RUNNING
        if scope.status[index] not in (NodeStatus.RUNNING, NodeStatus.READY):
            note(
                logger, logging.ERROR, "engine_error", repr(error), run_id=self.state.run_id, path=scope.path_of(index)
            )
            return ()
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.interrupt(error)
            return self.state.cut(scope, index, error) if entered else self.state.drop(scope, index)
        failed = Failed(error, scope, index, attempts=scope.attempt_of(index) + entered)
        self.state.log("failure", failed.path, failed.attempts or 1, type_name(error))
        return self.state.fail(scope, index, failed, started=entered)

    async def _give_way(self) -> None:
        """What became ready earlier starts earlier: tasks that wait for their first turn get it."""
        try:
            await tick()
        except asyncio.CancelledError as error:
            self.note_if_cancelled(error)

    async def _roll_back_nested(self, scope: Scope, undo: bool) -> None:
        with CancelScope(shield=True):
            await rollback.roll_back(self, scope, undo=undo)
            if self.units is not None and undo:
                await units.withdraw(self, scope)
            ready = self._after_rollback(scope)
            if self.state.freed:
                await guarding_nested.free(self)
            self.start_all(ready)
            await self._flush()

    def _after_rollback(self, scope: Scope) -> Readies:
        ready = self.state.rolled_back(scope)
        return [*ready, *self.apply_effects()]

    # ------------------------------------------------------------------ what stages ask of others

    async def serve_now(self) -> None:
        """See `orders.serve_now`."""
        await orders.serve_now(self)

    def await_decision(self, scope: Scope, index: int, failed: Failed) -> None:
        """See `pausing.await_decision`."""
        pausing.await_decision(self, scope, index, failed)
