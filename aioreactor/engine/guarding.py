"""Coordination of reactors: what a run, a composed child or an element holds for all the bodies inside it.

Overview. A `Guard` belongs to the scope whose class declares coordination. The run's own is taken before anything runs
(`admit`), is data in its record from then on, and is taken up again by whoever goes on with the run (`readmit`): what
was lost meanwhile is competed for anew. A child's is taken before it is opened, and is in its image. Each is given back
when its scope has ended and that was kept; over a park or a hand-off it is stretched and left as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aioreactor.engine import marks
from aioreactor.engine.coordinating import Asking, Coordinator, Holding, OuterHolds, PeriodTaken, Spender, Wish
from aioreactor.engine.drive import EngineClosed, shielded
from aioreactor.engine.gating import released
from aioreactor.engine.leaving import Leaving
from aioreactor.engine.ports import JournalFailed
from aioreactor.engine.scope import Failed, Scope
from aioreactor.engine.snoozing import Waker, alive, comes_back, is_elsewhere, snooze_delay, withdraw_all
from aioreactor.engine.wishes import coordinator_of, hear, name_of, wishes_of
from aioreactor.errors import ArgumentError, ContentionError, LeaseLost, OwnershipLost, UnknownRateLimit
from aioreactor.logs import note
from aioreactor.plan.model import Plan

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.engine")
GAP = 60.0
"""Seconds for which holds are kept at least, over a gap without a process."""

_EXCLUSIVE = frozenset({"lock", "semaphore"})
_KEPT = _EXCLUSIVE | {"ordered_lock"}


class Guard:
    """What a scope holds for the bodies inside it.

    Attributes:
        wishes: All that it is to hold.
        alive: Seconds for which its places in line are kept.
        held: Names of those locks and semaphores that it does hold.
        base: The context that bodies inside are copied from.
        outer: That of the nearest scope around.
        outer_holds: See `Asking.outer`.
        spender: See `Asking.spender`.
        waker: Calls when what was refused is there.
    """

    __slots__ = (
        "alive", "base", "ex", "held", "holdings", "outer", "outer_holds", "place", "positions", "scope", "spender",
        "tickets", "waker", "wishes",
    )  # fmt: skip

    def __init__(self, place: Any, wishes: Sequence[Wish]) -> None:
        self.place = place
        self.wishes = list(wishes)
        self.alive = GAP
        self.held: set[str] = set()
        self.holdings: list[Holding] = []
        self.positions: dict[str, dict[str, Any]] = {}
        self.tickets: dict[str, str] = {}
        self.ex: Execution | None = None
        self.scope: Scope | None = None
        self.outer: Guard | None = None
        self.outer_holds: OuterHolds | None = None
        self.spender: Spender | None = None
        self.base: Any = None
        self.waker: Waker | None = None

    def enter(self, ex: Execution, scope: Scope, base: Any) -> None:
        """Bodies in this scope are inside from now on."""
        self.ex, self.scope, self.outer, self.base = ex, scope, scope.guard, base
        coordinator_of(ex).settle(base, self.place)
        scope.guard = self

    def asking(self, *, admitted: bool = False, undoing: bool = False) -> Asking:
        """How it asks for what it does not have."""
        return Asking(
            self.place,
            self.place.name,
            self.lose,
            self.waker,
            self.alive,
            self.tickets,
            self.positions,
            admitted=admitted,
            undoing=undoing,
            outer=self.outer_holds,
            spender=self.spender,
        )

    def got(self, holding: Holding, wishes: Sequence[Wish]) -> None:
        """It has these."""
        self.holdings.append(holding)
        self.held |= {wish.name for wish in wishes if wish.primitive.kind in _EXCLUSIVE}

    def lose(self, error: LeaseLost) -> None:
        """One of its holds is lost: what goes forward inside fails; a rollback takes it anew for each action."""
        self.held -= {wish.name for wish in self.wishes if wish.key == error.key}
        if self.ex is not None and self.scope is not None:
            self.ex.guard_lost(self.scope, error)

    def missing(self) -> list[Wish]:
        """Locks and semaphores that it does not hold now."""
        return [wish for wish in self.wishes if wish.primitive.kind in _EXCLUSIVE and wish.name not in self.held]

    def to_data(self) -> dict[str, Any]:
        """What another process needs to go on with all of it."""
        found: dict[str, list[Any]] = {}
        for holding in self.holdings:
            for name, rows in holding.to_data().items():
                found.setdefault(name, []).extend(rows)
        return found

    def forget(self) -> list[Holding]:
        """Its holdings, for somebody to give back; it has none any more."""
        found, self.holdings, self.held = self.holdings, [], set()
        return found


def locks_of(wishes: Sequence[Wish]) -> list[Wish]:
    """Those that a rollback takes as well: limits, periods and turns never hold it up."""
    return [wish for wish in wishes if wish.primitive.kind in _EXCLUSIVE]


# ---------------------------------------------------------------------- the run's own


async def admit(ex: Execution, view: Any, inputs: Mapping[str, Any]) -> None:
    """Pass the run's gates. Where they refuse, the run is halted, failed, left or cancelled, and nothing starts.

    Raises:
        ContentionError: one refused, and the run may not be left to others; nothing has run.
        UnknownRateLimit, AioreactorError: likewise.

    Cancellation: noted with the execution.
    """
    root = ex.state.root
    root.view, root.inputs = view, inputs
    guard = _made(ex) if ex.lost is None else None
    if guard is not None:
        await _enter(ex, guard, guard.wishes, admitted=False)


async def readmit(ex: Execution, *, back: bool) -> None:
    """Take up again what the run holds; ``back``: it is being rolled back, and so waits for nothing.

    Raises, Cancellation: as for `admit`.
    """
    gates = ex.state.gates or {}
    if ex.state.root.guard is not None or ex.lost is not None:
        return
    guard = _made(ex)
    if guard is None or (back and "holds" not in gates):
        if guard is not None:
            guard.enter(ex, ex.state.root, ex.base)  # it holds nothing: each action takes what it needs
        return
    if "holds" not in gates:
        await _enter(ex, guard, guard.wishes, admitted=False)
        return
    try:
        holding, kept = await shielded(coordinator_of(ex).adopt(gates["holds"], guard.asking()))
    except asyncio.CancelledError as error:
        ex.note_cancel(error)
        return
    except Exception as error:
        ex.lose(JournalFailed(f"the store did not say what the run still holds: {error}"))
        return
    guard.got(holding, [wish for wish in guard.wishes if wish.name in kept])
    missing = [wish for wish in guard.wishes if wish.primitive.kind in _KEPT and wish.name not in kept]
    if missing and not back:
        await _enter(ex, guard, missing, admitted=True)
    else:
        guard.enter(ex, ex.state.root, ex.base)


def _made(ex: Execution) -> Guard | None:
    """The run's guard, which has nothing yet; None when a key cannot be computed, which fails the run."""
    root, plan = ex.state.root, ex.plan
    try:
        wishes = wishes_of(plan.options.coordination, lambda: root.view, plan.reactor.__qualname__)
    except ArgumentError as error:
        _fail(ex, error)
        return None
    guard = Guard(coordinator_of(ex).place(None, ex.state.run_id), wishes)
    gates = ex.state.gates or {}
    guard.positions, guard.tickets = dict(gates.get("positions", {})), dict(gates.get("tickets", {}))
    guard.waker, guard.alive = Waker(ex) if ex.may_park else None, alive(ex)
    guard.outer_holds, guard.spender = ex.outer_holds, ex.spender
    return guard


async def _enter(ex: Execution, guard: Guard, wishes: Sequence[Wish], *, admitted: bool) -> None:
    hear(ex, ex.state.root, None, 1, guard.place)
    known = bool(guard.tickets)  # to whoever takes the run
    try:
        holding = await coordinator_of(ex).acquire(wishes, guard.asking(admitted=admitted))
    except EngineClosed:
        raise
    except BaseException as error:
        if isinstance(error, ContentionError) and comes_back(error) and ex.may_park and _snoozed(ex, guard, error):
            await _kept(ex, guard)
            return
        if not is_elsewhere(ex):
            await shielded(coordinator_of(ex).resign(wishes, guard.asking()))
        elif not known:
            await shielded(coordinator_of(ex).resign([], _places(guard)))
        coordinator_of(ex).listen(guard.place, None)
        _turn_away(ex, error)
        for holding in guard.forget():
            await released(ex, guard.place, holding, "failure")
        return
    if ex.lost is not None:
        await _unknown(ex, guard, holding, known)  # it was called off meanwhile
        guard.enter(ex, ex.state.root, ex.base)  # with what it was known to hold before
        return
    guard.got(holding, wishes)
    guard.enter(ex, ex.state.root, ex.base)
    ex.state.gates = marks.beside(ex, {"holds": guard.to_data()})
    if ex.state.recording:
        # At once, so that a crash neither spends a limit again nor leaves the locks to nobody.
        await ex.save(firm=True)
    if isinstance(ex.lost, OwnershipLost):
        for holding in guard.forget():
            await _unknown(ex, guard, holding, known)


async def _unknown(ex: Execution, guard: Guard, holding: Holding, known: bool) -> None:
    """Nobody else knows of these holds, unless who has the run now came with the same places in line."""
    if known and is_elsewhere(ex):
        coordinator_of(ex).listen(guard.place, None)
        holding.abandon()
    else:
        await released(ex, guard.place, holding, None)


def _turn_away(ex: Execution, error: BaseException) -> None:
    """What becomes of a run whose gates do not let it in.

    Raises:
        BaseException: ``error``, where the run may not be left to others: nothing has run.
    """
    if isinstance(error, asyncio.CancelledError):
        ex.note_cancel(error)
    elif isinstance(error, PeriodTaken):
        _halt(ex, "period")
    elif isinstance(error, ContentionError) and not comes_back(error) and not error.cycle:
        _halt(ex, getattr(error, "reason", ""))
    elif not ex.may_park:
        ex.refused = error
        raise error
    elif isinstance(error, (ContentionError, UnknownRateLimit, ValueError)):
        _fail(ex, error)
    elif isinstance(error, Exception):
        ex.lose(JournalFailed(f"the store could not be asked for what the run needs: {error}"))
    else:
        raise error


def _halt(ex: Execution, reason: str) -> None:
    state = ex.state
    if state.admitted:
        _fail(ex, LeaseLost(ex.plan.name, reason))
        return
    state.halt = (reason, "")
    state.stop_all()


def _fail(ex: Execution, error: BaseException) -> None:
    ex.state.fail_scope(ex.state.root, Failed(error, ex.state.root, None), always=True)


def _snoozed(ex: Execution, guard: Guard, error: ContentionError) -> bool:
    """Leave the run until it is called, or for a while; False if it has come back too often."""
    gates = ex.state.gates or {}
    count = int(gates.get("parks", 0)) + 1
    if count > ex.environment.snooze_max and not ex.state.admitted:
        return False
    name = name_of(guard.wishes, error)
    if count == ex.environment.snooze_max + 1:
        text = "it goes on waiting, since the run has done things already"
        note(logger, logging.WARNING, "still_waiting", text, run_id=ex.state.run_id, waits_for=name)
    kept = {"holds": guard.to_data()} if guard.holdings else {}
    parked = {**kept, "parks": count, "tickets": guard.tickets, "positions": guard.positions, "for": name}
    ex.state.gates = marks.beside(ex, parked)
    ex.unadmitted = guard
    ex.leave(Leaving("park", "", ex.clock.now() + snooze_delay(ex, error, guard.wishes), name))
    return True


async def _kept(ex: Execution, guard: Guard) -> None:
    """What the run holds while it waits for the rest."""
    for holding in guard.forget():
        await stretched(ex, guard, holding, 2 * ex.environment.snooze_delay + GAP)


async def stretched(ex: Execution, guard: Guard, holding: Holding, seconds: float) -> None:
    """Keep what is held for so long without this process.

    Cancellation: noted with the execution; then it is left as it is.
    """
    coordinator_of(ex).listen(guard.place, None)
    try:
        await shielded(holding.park(seconds))
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)
        holding.abandon()
    except Exception as error:
        note(logger, logging.WARNING, "hold_not_stretched", run_id=ex.state.run_id, error=error)
        holding.abandon()


async def call_off(ex: Execution) -> None:
    """The execution ends here, and its places in line may not have been kept: nobody would come when they are called.

    Cancellation: noted with the execution.
    """
    if is_elsewhere(ex) or ex.parted:
        return  # who has the run, or takes it, comes with the same places
    await withdraw_all(ex)
    guard = ex.unadmitted
    if guard is not None and guard.tickets:
        await resigned(ex, [], _places(guard))


def _places(guard: Guard) -> Asking:
    """Nothing but its places in line."""
    return Asking(guard.place, guard.place.name, guard.lose, tickets=guard.tickets)


async def resigned(ex: Execution, wishes: Sequence[Wish], asking: Asking) -> None:
    """Give up places in line and positions.

    Cancellation: noted with the execution.
    """
    try:
        await shielded(coordinator_of(ex).resign(wishes, asking))
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)


# ---------------------------------------------------------------------- undoing a run that has ended


async def taken_again(coordinator: Coordinator, plan: Plan, view: Any, run_id: str) -> Guard | None:
    """The locks and semaphores of a run that has ended, for an undo; None if its class declares none.

    Raises:
        ContentionError: one was not to be had within its ``rollback_wait``.
        ArgumentError: a key cannot be computed.
        AioreactorError: the store is away.

    Cancellation: nothing is held.
    """
    wishes = locks_of(wishes_of(plan.options.coordination, lambda: view, plan.reactor.__qualname__))
    if not wishes:
        return None
    guard = Guard(coordinator.place(None, run_id), wishes)
    guard.got(await coordinator.acquire(wishes, guard.asking(admitted=True, undoing=True)), wishes)
    return guard
