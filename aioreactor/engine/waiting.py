"""What waits in a run, and how it is woken: for another attempt, at gates, for room in a map, for somebody's answer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.clock import Timer
from aioreactor.engine import fanning, units
from aioreactor.engine.fans import is_fan
from aioreactor.engine.limiter import Ready
from aioreactor.engine.ports import Environment, Journal
from aioreactor.engine.scope import MapRun, Scope
from aioreactor.engine.services import Services
from aioreactor.plan.model import Plan

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Later
    from aioreactor.engine.leaving import Leaving
    from aioreactor.engine.orders import Mailbox, Order
    from aioreactor.engine.pausing import Correlations


KEPT_EACH = 0.5
"""Seconds after which what a body reports is kept, with all that it says until then."""


class Waiting(Services):
    """The part of an `Execution` that knows what waits in it."""

    __slots__ = (
        "_keeping",
        "_sleepers",
        "_timers",
        "_wakers",
        "asked_again",
        "correlations",
        "first_orders",
        "leaving",
        "listening",
        "mailbox",
        "open_nodes",
        "serving",
        "waits",
    )

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        Services.__init__(self, environment, plan, run_id, journal)
        self._keeping = False
        """Whether what bodies report is about to be kept."""
        self.waits: dict[CancelScope, Scope] = {}
        """Steps that wait at their gates."""
        self._sleepers: dict[asyncio.Future[None], tuple[Later, float]] = {}
        self._timers: list[Timer] = []
        self._wakers: dict[MapRun, asyncio.Event] = {}
        self.leaving: Leaving | None = None
        """Why the run is being left, if it is: nothing waits here any longer."""
        self.open_nodes: dict[str, Ready] = {}
        """By path: what waits for an answer or a decision."""
        self.correlations: Correlations | None = None
        self.mailbox: Mailbox | None = None
        self.first_orders: Sequence[Order] = ()
        """Requests that were waiting when the run was taken."""
        self.listening = self.serving = self.asked_again = False

    @abstractmethod
    def consider_leaving(self) -> None:
        """Leave the run if nothing but waiting, for long or for somebody, is in progress."""

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
        timer = self.clock.call_later(later.delay, partial(ring, alarm))
        watch = CancelScope()
        if later.unit:
            is_map = later.scope.plan.nodes[later.index].kind == "map"
            watched: Any = (
                fanning.watch if is_map and is_fan((later.scope.children or {}).get(later.index)) else units.watch
            )
            self.tasks.start_soon(watched, self, later, watch, partial(ring, alarm))
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

    def waker(self, run: MapRun) -> asyncio.Event:
        """The event that tells a map's source reader to look again."""
        return self._wakers.setdefault(run, asyncio.Event())

    def _wake_stopped(self) -> None:
        """Nothing in a stopped scope waits any longer."""
        for alarm, (later, _) in self._sleepers.items():
            if later.scope.stopped:
                ring(alarm)
        for limit, where in self.waits.items():
            if where.stopped:
                limit.cancel()

    def _wake_all(self) -> None:
        for alarm in self._sleepers:
            ring(alarm)
        for limit in self.waits:
            limit.cancel()
        for waker in self._wakers.values():
            waker.set()

    def keep_progress(self) -> None:
        """See `Services.keep_progress`: not at once, since bodies may report often."""
        if not self._keeping and self.lost is None:
            self._keeping = True
            self.at_a_time(KEPT_EACH, self._keep_now)

    def _keep_now(self) -> None:
        self._keeping = False
        if self.lost is None and self.outcome is None:
            self._send(partial(self.save, always=True))

    def at_a_time(self, delay: float, call: Callable[[], object]) -> None:
        """Call something ``delay`` seconds from now, if the execution still is at work then."""
        self._timers.append(self.clock.call_later(delay, call))

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()


def ring(alarm: asyncio.Future[None]) -> None:
    """Wake who awaits it, unless somebody did."""
    if not alarm.done():
        alarm.set_result(None)
