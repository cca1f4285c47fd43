"""How a run is ended from outside: by its caller, on somebody's order, by an interrupt, or because it is not ours."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from anyio import CancelScope

from aioreactor.engine import rollback
from aioreactor.engine.ports import Detached, Environment, Journal, JournalFailed
from aioreactor.engine.stopping import Stoppable
from aioreactor.errors import AioreactorError, OwnershipLost
from aioreactor.logs import note
from aioreactor.plan.model import Plan

if TYPE_CHECKING:
    from aioreactor.engine.leaving import Leaving
    from aioreactor.engine.orders import Cancel

logger = logging.getLogger("aioreactor.engine")
_LOSSES: dict[type, str] = {
    OwnershipLost: "ownership_lost",
    JournalFailed: "checkpoint_failed",
    Detached: "run_detached",
}


class Cancellable(Stoppable):
    """The part of an `Execution` that ends a run as a whole before its time."""

    __slots__ = ("_host_baseline", "interrupted", "resting", "rollback_limit", "rollback_scopes")

    def __init__(self, environment: Environment, plan: Plan, run_id: str, journal: Journal | None = None) -> None:
        Stoppable.__init__(self, environment, plan, run_id, journal)
        self._host_baseline = 0
        self.interrupted: BaseException | None = None
        self.resting: Leaving | None = None
        """Why the run is left in the middle of its rollback, if it is."""
        self.rollback_limit = math.inf
        self.rollback_scopes: set[CancelScope] = set()

    @property
    def may_go_back(self) -> bool:
        """Whether a rollback goes on here."""
        return self.lost is None and self.resting is None and self.interrupted is None

    @property
    def is_cut(self) -> bool:
        """Whether the bodies of the run were cancelled."""
        return self._engine_cut or self.cancelled is not None or self.interrupted is not None

    def rest_back(self, leaving: Leaving) -> None:
        """Leave the run in the middle of its rollback, which goes on elsewhere meanwhile."""
        self.resting = leaving

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

    def order_cancel(self, order: Cancel) -> None:
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
        self._fail_whole(self.state.root, error)

    def _shut_down(self) -> None:
        self.state.cancel()
        self._call_off()
        tasks = getattr(self, "tasks", None)
        if tasks is not None:
            tasks.cancel_scope.cancel()
