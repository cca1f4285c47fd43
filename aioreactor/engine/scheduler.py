"""The scheduler: acts on what the run state decides, as tasks of one anyio task group."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from anyio import CancelScope, create_task_group

from aioreactor.clock import Timer
from aioreactor.engine import (
    ending,
    events,
    gating,
    guarding,
    guarding_nested,
    mapping,
    nesting,
    orders,
    pausing,
    reporting,
    rollback,
    units,
)
from aioreactor.engine.attempt import Later, run_step
from aioreactor.engine.drive import EngineClosed, tick
from aioreactor.engine.hooks import hooks_for
from aioreactor.engine.leaving import GiveUp, Leaving, queued, reached, to_rest
from aioreactor.engine.limiter import Limiter, Ready, admit, release, withdraw
from aioreactor.engine.ports import Detached, Environment, Journal, JournalFailed
from aioreactor.engine.scope import Failed, MapRun, NodeStatus, Scope
from aioreactor.engine.services import Services
from aioreactor.engine.state import Readies, RollBack, Stopped, Wake
from aioreactor.errors import AioreactorError, DeadlineExceeded, LeaseLost, OwnershipLost
from aioreactor.failures import type_name
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.redaction import secrets_of_fields
from aioreactor.results import Outcome

logger = logging.getLogger("aioreactor.engine")
R = TypeVar("R")
_LOSSES: dict[type, str] = {
    OwnershipLost: "ownership_lost",
    JournalFailed: "checkpoint_failed",
    Detached: "run_detached",
}
Tell: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Execution(Services):
    """One run in this process: `run` proceeds from validated inputs to the outcome."""

    __slots__ = (
        "_bounded",
        "_engine_cut",
        "_gated",
        "_held",
        "_host_baseline",
        "_outbox",
        "_settling",
        "_sleepers",
        "_timers",
        "_unstarted",
        "_wakers",
        "asked_again",
        "awaits_trigger",
        "began_at",
        "bodies",
        "cancelled",
        "correlations",
        "cut_reason",
        "cutting",
        "doom",
        "first_orders",
        "interrupted",
        "leaving",
        "listening",
        "mailbox",
        "may_park",
        "open_nodes",
        "park_after",
        "park_timers_after",
        "refused",
        "resumed",
        "rollback_limit",
        "rollback_scopes",
        "serving",
        "unadmitted",
        "waits",
    )

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        super().__init__(environment, plan, run_id, journal)
        self.bodies: dict[CancelScope, Scope] = {}
        self.cutting: dict[CancelScope, str] = {}
        self.waits: dict[CancelScope, Scope] = {}
        """Steps that wait at their gates."""
        self.cancelled: asyncio.CancelledError | None = None
        self.interrupted: BaseException | None = None
        self.cut_reason = "the run was cancelled"
        self.began_at = self.clock.monotonic()
        self.doom: AioreactorError | None = None
        self.rollback_limit = math.inf
        self.rollback_scopes: set[CancelScope] = set()
        self._engine_cut = False
        self._host_baseline = 0
        self._unstarted = 0
        self._sleepers: dict[asyncio.Future[None], tuple[Later, float]] = {}
        self._settling: set[Scope] = set()
        self._timers: list[Timer] = []
        self._wakers: dict[MapRun, asyncio.Event] = {}
        self._outbox: list[tuple[MapRun, int]] = []
        self._bounded = False
        self._gated = False
        self._held: list[tuple[Scope, GiveUp]] = []
        self.leaving: Leaving | None = None
        self.awaits_trigger = False
        """Whether reaching the plan's ``background`` trigger hands the run to a worker."""
        self.park_after: float | None = None
        """Seconds; a quiescent run that will wait for longer is parked. None waits in place."""
        self.park_timers_after: float | None = None
        """The same, where ``park_after`` is None, for a run that waits for a timer first."""
        self.open_nodes: dict[str, Ready] = {}
        """By path: what waits for an answer or a decision."""
        self.mailbox: orders.Mailbox | None = None
        self.first_orders: Sequence[orders.Order] = ()
        """Requests that were waiting when the run was taken."""
        self.correlations: pausing.Correlations | None = None
        self.listening = self.serving = self.asked_again = False
        self.may_park = False
        """Whether what its gates refuse comes back later, instead of failing."""
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
        self.learn_secrets(secrets_of_fields(inputs, self.plan.fields.hidden))

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
        task.add_done_callback(lambda _: _ring(ended))
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
            if self.resumed and self.coordinator is not None:
                await guarding_nested.readmit_nested(self)
            self.watch_deadline(self.state.root)
            if self.doom is not None:
                self._meet_doom(self.doom)
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
                self._start_admitted(release(scope))
            if type(ready) is Later:
                await self._back_off(ready)
                if self.state.recording and not scope.stopped and self.leaving is None:
                    await self.save(always=True)  # the process may have slept: is the run still ours?
                if scope.stopped and scope.parks:
                    await gating.withdraw(self, scope, index)
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
        return await mapping.run_map(self, scope, index)

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

    def _start_admitted(self, ready: Readies) -> None:
        for each in ready:
            self._start(each)

    def _start(self, ready: Ready) -> None:
        self._unstarted += 1
        self.tasks.start_soon(self._work, *ready)

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

    async def _back_off(self, later: Later) -> None:
        """Wait for the next attempt; cut short when the scope is stopped."""
        waker = later.waker
        if later.scope.stopped or self.leaving is not None or (waker is not None and waker.woken):
            return
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if waker is not None:
            waker.alarm = alarm
        self._sleepers[alarm] = later, self.clock.now() + later.delay
        self.consider_leaving()
        timer = self.clock.call_later(later.delay, partial(_ring, alarm))
        watch = CancelScope()
        if later.unit:
            self.tasks.start_soon(units.watch, self, later, watch, partial(_ring, alarm))
        try:
            await alarm
        except asyncio.CancelledError as error:
            self.note_if_cancelled(error)
        finally:
            timer.cancel()
            watch.cancel()
            del self._sleepers[alarm]
            if waker is not None:
                waker.alarm = None

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

    def _on_stopped(self, chain: tuple[Scope, ...]) -> list[Ready]:
        ready = self._call_off()
        for scope in chain:
            if scope in self._settling:
                continue
            self._settling.add(scope)
            if self.policy(scope, "on_failure") == "cancel":
                self.cut_below(scope, "another step failed")
            else:
                span = self.span(scope, "settle_timeout")
                reason = f"it did not end within settle_timeout={span:g} s of a failure"
                self._timers.append(self.clock.call_later(span, partial(self.cut_below, scope, reason)))
        return ready

    def _call_off(self) -> list[Ready]:
        """Nothing new starts in stopped scopes: wake who waits for another attempt, empty the queues."""
        for alarm, (later, _) in self._sleepers.items():
            if later.scope.stopped:
                _ring(alarm)
        for limit, where in self.waits.items():
            if where.stopped:
                limit.cancel()
        ready = self._given_up()
        for scope in self.state.scopes():
            for dropped in withdraw(scope) if scope.limiters else ():
                ready += self.state.drop(*dropped)
        return ready

    # ------------------------------------------------------------------ leaving

    def leave(self, leaving: Leaving) -> None:
        """Leave the run as soon as what is in flight has settled; nothing new starts from now on."""
        if self.leaving is not None or self.lost is not None or self.state.root.stopped:
            return
        self.leaving, self._gated = leaving, True
        for alarm in self._sleepers:
            _ring(alarm)
        for limit in self.waits:
            limit.cancel()
        for scope, index in queued(list(self.state.scopes())) if self._bounded else ():
            self.hold(scope, partial(self.state.drop, scope, index))
        for waker in self._wakers.values():
            waker.set()

    def hold(self, scope: Scope, give_up: GiveUp) -> None:
        """Something that was to start, or to go on, stays as it is for whoever goes on with the run.

        ``give_up`` is called if its scope is stopped before the run is left.
        """
        self._held.append((scope, give_up))

    def _turned_away(self, scope: Scope, index: int) -> bool:
        """Whether a node whose turn has come is held."""
        if scope.stopped:
            return False
        if self.leaving is None and self.awaits_trigger:
            found = reached(self)
            if found is not None:
                self.leave(found)
        if self.leaving is None:
            return False
        if scope.limiters and scope.plan.nodes[index].kind == "step":
            self._start_admitted(release(scope))
        self.hold(scope, partial(self.state.drop, scope, index))
        return True

    def _given_up(self) -> list[Ready]:
        """What is held in stopped scopes does not wait for anybody any more."""
        ready = pausing.give_up(self) if self.open_nodes else []
        held, self._held = self._held, []
        for scope, give_up in held:
            if scope.stopped:
                ready += give_up()
            else:
                self._held.append((scope, give_up))
        return ready

    def consider_leaving(self) -> None:
        """Leave the run if nothing but waiting, for long or for somebody, is in progress."""
        if self.leaving is None and self.lost is None:
            found = to_rest(self, list(self._sleepers.values()))
            if found is not None:
                self.leave(found)

    async def serve_now(self) -> None:
        """See `orders.serve_now`."""
        await orders.serve_now(self)

    def await_decision(self, scope: Scope, index: int, failed: Failed) -> None:
        """See `pausing.await_decision`."""
        pausing.await_decision(self, scope, index, failed)

    def at_a_time(self, delay: float, call: Callable[[], object]) -> None:
        """Call something ``delay`` seconds from now, if the execution still is at work then."""
        self._timers.append(self.clock.call_later(delay, call))

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

    def waker(self, run: MapRun) -> asyncio.Event:
        """The event that tells a map's source reader to look again."""
        return self._wakers.setdefault(run, asyncio.Event())

    def cut_below(self, scope: Scope, reason: str) -> None:
        """Cancel every body in flight in a scope and below."""
        if scope.parent is None:
            if self.state.root.active:
                self._cut_all(reason)
            return
        for limit, where in list(self.bodies.items()):
            if _is_below(where, scope) and limit not in self.cutting:
                self.cutting[limit] = reason
                limit.cancel()

    def _cut_all(self, reason: str) -> None:
        if not self._engine_cut and self.cancelled is None:
            self._engine_cut = True
            self.cut_reason = reason
            self.tasks.cancel_scope.cancel()

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

    # ------------------------------------------------------------------ deadlines

    def watch_deadline(self, scope: Scope) -> None:
        """Arm the deadline of a scope that has one."""
        span = self.option(scope.plan, "deadline")
        if span is None:
            return
        now = self.clock.now()
        until = scope.deadline = scope.deadline if scope.deadline is not None else now + span
        self._timers.append(self.clock.call_later(max(0.0, until - now), partial(self._expire, scope, span)))

    def _expire(self, scope: Scope, span: float) -> None:
        if scope.failure is not None or not scope.active:
            return
        failed = Failed(DeadlineExceeded(scope.plan.name, span), scope, None)
        reporting.blame_first_in_flight(self, failed, scope)
        self.state.fail_scope(scope, failed)
        self._settling.add(scope)
        self.cut_below(scope, f"the deadline of {span:g} s passed")
        self.start_all(self.apply_effects())

    def guard_lost(self, scope: Scope, error: LeaseLost) -> None:
        """What a scope held for all its bodies is lost: it fails, and what is in flight in it is cancelled."""
        if scope.failure is not None or not scope.active or not hasattr(self, "tasks"):
            return
        failed = Failed(error, scope, None)
        reporting.blame_first_in_flight(self, failed, scope)
        self.state.fail_scope(scope, failed)
        self._settling.add(scope)
        self.cut_below(scope, str(error))
        self.start_all(self.apply_effects())

    def _meet_doom(self, error: AioreactorError) -> None:
        """The run was taken up to be failed: nothing starts, and what may have started before counts as cut off."""
        failed = Failed(error, self.state.root, None)
        reporting.blame_first_in_flight(self, failed, self.state.root)
        self.state.fail_scope(self.state.root, failed, always=True)

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    # ------------------------------------------------------------------ cancellation and interruption

    def _caller_is_cancelled(self) -> bool:
        """Whether somebody cancelled the caller's task, or a cancel scope around it."""
        assert self._host is not None
        return self._host.cancelling() > self._host_baseline

    def note_if_cancelled(self, error: asyncio.CancelledError) -> bool:
        """Whether a ``CancelledError`` is a cancellation of the run, or of its bodies, rather than a leak."""
        if self._engine_cut or self.lost or self.state.cancelled or self.interrupted is not None:
            return True
        if self._caller_is_cancelled():
            self.note_cancel(error)
            return True
        return False

    def note_cancel(self, error: asyncio.CancelledError) -> None:
        """The run is cancelled from outside: stop it, cancel the bodies. The error goes on to the caller later."""
        if self.cancelled is not None:
            return
        self.cancelled = error
        if self.journal.durable and self.policy(self.state.root, "on_cancel") == "detach":
            self.lose(Detached(f"run {self.state.run_id} was cancelled here, and is left to a worker"))
            return
        self.cut_reason = "the run was cancelled"
        self._shut_down()
        rollback.bound_by_cancel(self)

    def order_cancel(self, order: orders.Cancel) -> None:
        """Somebody asked for an end of the run: stop it, cancel the bodies. Nothing is raised here for it."""
        if self.state.cancelled or self.lost is not None:
            return
        self.ordered = order
        if order.mode == "rollback":
            self.state.served = max(self.state.served, order.number)
        self.cut_reason = order.reason
        self._shut_down()

    def interrupt(self, error: BaseException) -> None:
        """A body raised ``KeyboardInterrupt`` or ``SystemExit``: abort the run."""
        if self.interrupted is None:
            self.interrupted = error
            self.cut_reason = f"interrupted by {type(error).__name__}"
            self._shut_down()

    def lose(self, error: AioreactorError) -> None:
        """The run is not ours to write any more, cannot be written, or is handed back: stop at once.

        Nothing is rolled back here either: whoever goes on does that, from what was written.
        """
        if self.lost is None:
            self.lost = error
            self.cut_reason = "another execution goes on with the run"
            event = _LOSSES.get(type(error), "run_handed_back")
            note(logger, logging.WARNING, event, str(error), run_id=self.state.run_id)
            self._shut_down()
            for running in self.rollback_scopes:
                running.cancel()

    def unkept(self, error: Exception) -> None:
        """A part of a checkpoint cannot be kept as it is: the run fails, and rolls back."""
        note(logger, logging.ERROR, "value_not_kept", str(error), run_id=self.state.run_id)
        failed = Failed(error, self.state.root, None)
        reporting.blame_first_in_flight(self, failed, self.state.root)
        self.state.fail_scope(self.state.root, failed, always=True)

    def _shut_down(self) -> None:
        self.state.cancel()
        self._call_off()
        tasks = getattr(self, "tasks", None)
        if tasks is not None:
            tasks.cancel_scope.cancel()


def _needs_no_slot(ready: Ready) -> bool:
    return ready[0].plan.nodes[ready[1]].kind != "step"


def _ring(alarm: asyncio.Future[None]) -> None:
    if not alarm.done():
        alarm.set_result(None)


def _is_below(scope: Scope, top: Scope) -> bool:
    current: Scope | None = scope
    while current is not None:
        if current is top:
            return True
        current = current.owner
    return False
