"""Steps that their gates refused, and that come back: when they are called, or after a while; and those that do not."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aioreactor.definition.primitives import OrderedLock
from aioreactor.engine import attempt, events
from aioreactor.engine.coordinating import Asking, Wish
from aioreactor.engine.drive import shielded
from aioreactor.engine.scope import Parked, Scope
from aioreactor.engine.wishes import coordinator_of, name_of
from aioreactor.errors import ContentionError, LeaseLost, OutOfTurn, OwnershipLost
from aioreactor.logs import note

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Later
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")


class Waker:
    """Ends a wait early: what was refused is there now."""

    __slots__ = ("alarm", "ex", "woken")

    def __init__(self, ex: Execution) -> None:
        self.ex = ex
        self.woken = False
        self.alarm: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        """Wake who sleeps here; else, when the run was left, have somebody take it."""
        self.woken = True
        if self.alarm is not None:
            if not self.alarm.done():
                self.alarm.set_result(None)
        elif self.ex.parted:
            self.ex.journal.rouse()


def is_elsewhere(ex: Execution) -> bool:
    """Whether another execution may have the run, and so come with the places in line that were kept."""
    return isinstance(ex.lost, OwnershipLost) or not ex.journal.trusted


def comes_back(error: ContentionError) -> bool:
    """Whether it may be had later: not if its line is over, nor if waiting for it would never end."""
    return not error.cycle and (not isinstance(error, OutOfTurn) or error.reason == "waiting")


def snooze_delay(ex: Execution, error: ContentionError, wishes: Sequence[Wish]) -> float:
    """Seconds after which it is tried again although nobody called; to ask is a sign of life in a line."""
    if error.retry_after is not None:
        return error.retry_after
    lives = [wish.primitive.poison_after / 3 for wish in wishes if isinstance(wish.primitive, OrderedLock)]
    return min([ex.environment.snooze_delay * random.uniform(1.0, 1.5), *lives])


def alive(ex: Execution) -> float:
    """Seconds for which a place in line is kept: until after the next try, and for a worker to take the run."""
    return 2 * ex.environment.snooze_delay + 60


async def snooze(
    ex: Execution,
    scope: Scope,
    index: int,
    number: int,
    wishes: Sequence[Wish],
    error: ContentionError,
    waker: Waker,
    asking: Asking,
) -> Later | None:
    """Come back later; None if it has come back too often."""
    before = scope.parks.get(index) if scope.parks else None
    count, name = (before.count if before is not None else 0) + 1, name_of(wishes, error)
    if count > ex.environment.snooze_max and not ex.state.admitted:
        return None
    if count == ex.environment.snooze_max + 1:
        text = "it goes on waiting, since the run has done things already"
        path = scope.path_of(index)
        note(logger, logging.WARNING, "still_waiting", text, run_id=ex.state.run_id, path=path, waits_for=name)
    delay = snooze_delay(ex, error, wishes)
    parked = Parked(count, asking.tickets, waker, name)
    ex.state.snooze(scope, index, parked, ex.clock.now() + delay)
    if before is None:
        ex.state.log("park", scope.path_of(index), number, name)
    if ex.state.recording:
        await ex.save()
    await ex.tell(scope, "on_step_park", events.StepParked, index, number, delay=delay, waits_for=name)
    return attempt.Later(scope, index, delay, name, waker)


async def withdraw(ex: Execution, scope: Scope, index: int) -> None:
    """A snoozed step will not come back: its place in line is given up.

    Cancellation: noted with the execution.
    """
    parked = scope.parks.pop(index, None) if scope.parks else None
    if parked is None or is_elsewhere(ex):
        return
    node, name = scope.plan.nodes[index], f"{ex.state.run_id}:{scope.path_of(index)}:{scope.attempt_of(index) + 1}"
    place = coordinator_of(ex).place(None, name)
    fixed = [Wish(each, each.key) for each in node.coordination if isinstance(each.key, str)]
    asking = Asking(place, name, _nothing, tickets=parked.tickets)
    try:
        await shielded(coordinator_of(ex).resign(fixed, asking))
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)


async def withdraw_all(ex: Execution) -> None:
    """The execution ends here, and what was snoozed comes back elsewhere, with places of its own.

    Cancellation: noted with the execution.
    """
    for scope in ex.state.scopes():
        for index in list(scope.parks or ()):
            await withdraw(ex, scope, index)


def _nothing(error: LeaseLost) -> None:
    """Nothing is held."""
