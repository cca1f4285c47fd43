"""Stopping what goes on in a scope: after a failure in it, when its deadline passes, when what covered it is lost."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

from anyio import CancelScope

from aioreactor.engine import reporting
from aioreactor.engine.leaving import Leavable
from aioreactor.engine.limiter import Ready, withdraw
from aioreactor.engine.ports import Environment, Journal
from aioreactor.engine.scope import Failed, Scope
from aioreactor.errors import DeadlineExceeded, LeaseLost
from aioreactor.plan.model import Plan


class Stoppable(Leavable):
    """The part of an `Execution` that stops scopes, and cuts the bodies in them."""

    __slots__ = ("_engine_cut", "_settling", "bodies", "cancelled", "cut_reason", "cutting")

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        Leavable.__init__(self, environment, plan, run_id, journal)
        self.bodies: dict[CancelScope, Scope] = {}
        self.cutting: dict[CancelScope, str] = {}
        self.cancelled: asyncio.CancelledError | None = None
        self.cut_reason = "the run was cancelled"
        self._engine_cut = False
        self._settling: set[Scope] = set()

    @abstractmethod
    def apply_effects(self) -> list[Ready]:
        """Act on what the last transitions decided besides starting nodes; give what that made ready."""

    @abstractmethod
    def start_all(self, ready: Sequence[Ready]) -> None:
        """Start all that is ready, each as a task."""

    # ------------------------------------------------------------------ after a failure

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
                self.at_a_time(span, partial(self.cut_below, scope, reason))
        return ready

    def _call_off(self) -> list[Ready]:
        """Nothing new starts in stopped scopes: wake who waits for another attempt, empty the queues."""
        self._wake_stopped()
        ready = self._given_up()
        for scope in self.state.scopes():
            for dropped in withdraw(scope) if scope.limiters else ():
                ready += self.state.drop(*dropped)
        return ready

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

    # ------------------------------------------------------------------ a scope as a whole

    def watch_deadline(self, scope: Scope) -> None:
        """Arm the deadline of a scope that has one."""
        span = self.option(scope.plan, "deadline")
        if span is None:
            return
        now = self.clock.now()
        until = scope.deadline = scope.deadline if scope.deadline is not None else now + span
        self.at_a_time(max(0.0, until - now), partial(self._expire, scope, span))

    def _expire(self, scope: Scope, span: float) -> None:
        if scope.failure is None and scope.active:
            error = DeadlineExceeded(scope.plan.name, span)
            self._fail_and_cut(scope, error, f"the deadline of {span:g} s passed")

    def guard_lost(self, scope: Scope, error: LeaseLost) -> None:
        """What a scope held for all its bodies is lost: it fails, and what is in flight in it is cancelled."""
        if scope.failure is None and scope.active and hasattr(self, "tasks"):
            self._fail_and_cut(scope, error, str(error))

    def _fail_and_cut(self, scope: Scope, error: Exception, reason: str) -> None:
        self._fail_whole(scope, error)
        self._settling.add(scope)
        self.cut_below(scope, reason)
        self.start_all(self.apply_effects())

    def _fail_whole(self, scope: Scope, error: Exception) -> None:
        """A scope fails, though no node of it did; the failure names the first step in flight."""
        failed = Failed(error, scope, None)
        reporting.blame_first_in_flight(self, failed, scope)
        self.state.fail_scope(scope, failed, always=True)


def _is_below(scope: Scope, top: Scope) -> bool:
    current: Scope | None = scope
    while current is not None:
        if current is top:
            return True
        current = current.owner
    return False
