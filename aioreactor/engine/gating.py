"""Coordination of a step: what an attempt takes before its body is entered, and gives back when its end is kept.

Overview. `gated` computes the keys from the arguments, passes the gates, makes the attempt in a place of its own, and
gives everything back. What refuses fails the step, which never started; where the run may be left to others (in a
worker) it is snoozed instead: no attempt, it keeps its place in line and comes back when it is called, or after a
while. Waits end when their scope is stopped or the run is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from anyio import CancelScope

from aioreactor.engine import attempt, events, marks
from aioreactor.engine.arguments import FATAL
from aioreactor.engine.coordinating import Asking, Ending, Holding, PeriodTaken, Wish
from aioreactor.engine.drive import EngineClosed, shielded
from aioreactor.engine.scope import NodeStatus, Parked, Scope
from aioreactor.engine.snoozing import Waker, alive, comes_back, is_elsewhere, snooze
from aioreactor.engine.state import Readies
from aioreactor.engine.wishes import coordinator_of, hear, place_around, subject_of, wishes_of
from aioreactor.errors import ArgumentError, ContentionError, LeaseLost
from aioreactor.logs import note

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Bound, Later
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")
_ENDINGS: dict[int, Ending] = {
    NodeStatus.COMPLETED: "success",
    NodeStatus.SKIPPED: "halt",
    NodeStatus.HALTED: "halt",
}


class Gate:
    """What one attempt has passed, and what it holds meanwhile."""

    __slots__ = ("bound", "holds", "limit", "lost", "place")

    def __init__(self, bound: Bound, place: Any) -> None:
        self.bound = bound
        self.place = place
        self.holds: Holding | None = None
        self.limit: CancelScope | None = None
        self.lost: LeaseLost | None = None

    def lose(self, error: LeaseLost) -> None:
        """A hold is lost: the body is cancelled, if it is in there."""
        self.lost = self.lost or error
        if self.limit is not None:
            self.limit.cancel()

    async def checked(self) -> None:
        """Return if what it holds is surely held; a loop that stood still asks.

        Raises:
            LeaseLost: it is not.
        """
        if self.lost is None and self.holds is not None and time.monotonic() >= self.holds.trusted_until:
            await self.holds.check()
        if self.lost is not None:
            raise self.lost


class Holder(Protocol):
    """Who asks at the gates: an attempt, or a scope."""

    @property
    def place(self) -> Any:
        """Where it is."""
        ...

    def lose(self, error: LeaseLost) -> None:
        """One of its holds is lost."""
        ...


# ---------------------------------------------------------------------- the stage


class Barred(NamedTuple):
    """The gates did not let it in; ``then`` is what comes of the node."""

    then: Readies | Later


async def gated(ex: Execution, scope: Scope, index: int, number: int, bound: Bound) -> Readies | Later:
    """Pass the gates of a step, make the attempt, and give back what it held.

    Cancellation: a real one is noted with the execution and does not come out of here.
    """
    node, path = scope.plan.nodes[index], scope.path_of(index)
    try:
        wishes = wishes_of(node.coordination, partial(subject_of, node, bound), path)
    except ArgumentError as error:
        return await attempt.ended(ex, scope, index, number, error, started=_started(scope, index), retry=False)
    gate = Gate(bound, coordinator_of(ex).place(place_around(scope), _name(ex, scope, index, number)))
    found = await passed(ex, scope, index, number, wishes, gate)
    if isinstance(found, Barred):
        return found.then
    gate.holds = found
    return await _through(ex, scope, index, gate)


def _name(ex: Execution, scope: Scope, index: int, number: int) -> str:
    return f"{ex.state.run_id}:{scope.path_of(index)}:{number}"


def _started(scope: Scope, index: int) -> bool:
    """Whether an attempt before this one, or one before a crash, was entered."""
    return scope.attempt_of(index) > 0 or bool(scope.suspects and index in scope.suspects)


async def passed(
    ex: Execution, scope: Scope, index: int, number: int, wishes: Sequence[Wish], holder: Holder
) -> Holding | Barred:
    """Take what a node wishes for; or what comes of the node that was refused, or is not to start any more.

    Cancellation: a real one is noted with the execution and does not come out of here.
    """
    refuse = partial(attempt.ended, ex, scope, index, number, started=_started(scope, index), retry=False)
    waker = Waker(ex) if ex.may_park else None
    parked = scope.parks.get(index) if scope.parks else None
    tickets = dict(parked.tickets) if parked else {}
    asking = Asking(holder.place, holder.place.name, holder.lose, waker, alive(ex), tickets, outer=ex.outer_holds)
    hear(ex, scope, index, number, holder.place)
    try:
        found = await taken(ex, scope, wishes, asking)
    except asyncio.CancelledError as error:
        noted = ex.note_if_cancelled(error)
        await _leave_line(ex, parked, asking)
        return Barred(ex.state.drop(scope, index) if noted else await refuse(error))
    except PeriodTaken as error:
        await _leave_line(ex, parked, asking)
        return Barred(await _passed_by(ex, scope, index, number, str(error)))
    except ContentionError as error:
        if waker is not None and comes_back(error):
            snoozed = await snooze(ex, scope, index, number, wishes, error, waker, asking)
            if snoozed is not None:
                return Barred(snoozed)
            await coordinator_of(ex).resign(wishes, asking)
        await _leave_line(ex, parked, asking)
        return Barred(await refuse(error))
    except (EngineClosed, *FATAL):
        raise
    except Exception as error:
        await _leave_line(ex, parked, asking)
        return Barred(await refuse(error))
    if found is None or scope.stopped or ex.leaving is not None:
        return Barred(await _too_late(ex, scope, index, wishes, asking, found))
    if parked is not None:
        return await _used_up(ex, scope, index, found)
    return found


async def _leave_line(ex: Execution, parked: Parked | None, asking: Asking) -> None:
    """It does not come back with its places in line; if another execution has the run, that one does with those kept.

    Cancellation: noted with the execution.
    """
    if parked is not None and is_elsewhere(ex):
        for name in [name for name, token in asking.tickets.items() if parked.tickets.get(name) == token]:
            del asking.tickets[name]
    if asking.tickets:
        try:
            await shielded(coordinator_of(ex).resign([], asking))
        except asyncio.CancelledError as error:
            ex.note_if_cancelled(error)


async def _used_up(ex: Execution, scope: Scope, index: int, found: Holding) -> Holding | Barred:
    """Its places in line are not to be used again, by whoever goes on after a crash: that is kept before it begins."""
    if scope.parks:
        scope.parks.pop(index, None)
    ex.state.touch(scope, index)
    if ex.state.recording:
        await ex.save(firm=True)
    if not scope.stopped:
        return found
    if is_elsewhere(ex):
        found.abandon()  # who has the run may have come with the same places
    else:
        await released(ex, place_around(scope), found, None)
    return Barred(ex.state.drop(scope, index))


async def _too_late(
    ex: Execution, scope: Scope, index: int, wishes: Sequence[Wish], asking: Asking, found: Holding | None
) -> Readies | Later:
    """Its scope was stopped, or the run is being left, while it waited."""
    parked = scope.parks.get(index) if scope.parks else None
    if found is not None and parked is not None and is_elsewhere(ex):
        found.abandon()  # who has the run may have come with the same places
        return ex.state.drop(scope, index)
    await released(ex, asking.place, found, None)
    await _leave_line(ex, parked, asking)
    if not scope.stopped:
        return attempt.Later(scope, index, 0.0)
    await shielded(coordinator_of(ex).resign(wishes, asking))
    return ex.state.drop(scope, index)


async def taken(ex: Execution, scope: Scope, wishes: Sequence[Wish], asking: Asking) -> Holding | None:
    """What is wished for; None when the wait was cut short.

    Raises:
        ContentionError, PeriodTaken, UnknownRateLimit, AioreactorError: see `Coordinator.acquire`.

    Cancellation: nothing is held.
    """
    limit, found = CancelScope(), None
    ex.waits[limit] = scope
    try:
        with limit:
            found = await coordinator_of(ex).acquire(wishes, asking)
    finally:
        del ex.waits[limit]
    return found


async def _through(ex: Execution, scope: Scope, index: int, gate: Gate) -> Readies | Later:
    """Make the attempt, and give back what it held."""
    marks.expect(ex, scope, index, gate.place.name, gate.holds)
    try:
        ready = await attempt.run_step(ex, scope, index, gate)
    except EngineClosed:
        raise
    except BaseException:
        await released(ex, gate.place, gate.holds, "failure")
        raise
    ending = _ENDINGS.get(scope.status[index], "failure")
    if isinstance(ready, attempt.Later):
        ending = "halt"  # the next attempt takes its own
    done = await released(ex, gate.place, gate.holds, "paused" if ex.lost is not None else ending)
    marks.settled(ex, scope, index, gate.place.name, marked=done and ex.lost is None)
    return ready


async def released(ex: Execution, place: Any, holds: Holding | None, ending: Ending | None) -> bool:
    """Give holds back, whatever happens meanwhile; without an ``ending`` as if they had never been taken.

    False if a marker or a position could not be written.

    Cancellation: noted with the execution, when all of it is done.
    """
    try:
        if holds is not None:
            await shielded(holds.give_back() if ending is None else holds.release(ending))
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)
    except Exception as error:
        text = "a marker or a position could not be written"
        note(logger, logging.WARNING, "hold_not_released", text, run_id=ex.state.run_id, error=error)
        return False
    finally:
        if place is not None:
            coordinator_of(ex).listen(place, None)
    return True


async def _passed_by(ex: Execution, scope: Scope, index: int, number: int, why: str) -> Readies | Later:
    """Somebody succeeded in this period already: the step is skipped, and the run goes on."""
    if ex.state.recording:
        unkept = attempt.keep(ex, scope, index, None)
        if unkept is not None:
            return await attempt.ended(ex, scope, index, number, unkept, started=False, retry=False)
    ex.state.log("skip", scope.path_of(index), number, why)
    ready = ex.state.complete(scope, index, None, skipped=True)
    if ex.state.recording:
        await ex.save()
    await ex.tell(scope, "on_step_skip", events.StepSkipped, index, number, value=None, duration=0.0)
    return ready
