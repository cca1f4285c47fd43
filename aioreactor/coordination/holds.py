"""What one body has after it passed its gates, and how it is given back."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Literal, TypeAlias

from aioreactor.coordination import periods
from aioreactor.coordination.desk import Desk, settled
from aioreactor.coordination.orders import Turn
from aioreactor.coordination.periods import Claim
from aioreactor.coordination.rates import Spent
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Entry, Lease
from aioreactor.logs import note
from aioreactor.store.errors import StoreError

Ending: TypeAlias = Literal["success", "halt", "failure", "paused"]
"""How a body ended. ``paused`` is no end: it comes back, keeps its position, and nothing is marked."""

logger = logging.getLogger("aioreactor.coordination")


class Holds:
    """What was taken, in the order of taking. Given back once: by `release`, `give_back`, or kept by `park`.

    Attributes:
        scope: Whose.
        label: For people; whom a marker names.
    """

    def __init__(self, desk: Desk, scope: Scope, label: str) -> None:
        self.scope = scope
        self.label = label
        self.turns: list[Turn] = []
        self.claims: list[Claim] = []
        self.spent: list[Spent] = []
        self.entries: list[Entry] = []
        self._desk = desk

    @property
    def leases(self) -> list[Lease]:
        """Those that this body took itself, not those that it entered again."""
        return [entry.lease for entry in self.entries if entry.outer is None]

    @property
    def trusted_until(self) -> float:
        """`time.monotonic` until which nobody else can have any of it."""
        kept: list[Lease | Turn] = [*(entry.lease for entry in self.entries), *self.turns]
        return min((each.trusted_until for each in kept), default=float("inf"))

    async def check(self) -> None:
        """Return if all of it is surely held now; asks the store.

        Raises:
            LeaseLost: One is not.
            StoreError: The store could not be asked.

        Cancellation: nothing happens.
        """
        for entry in self.entries:
            await entry.lease.check()
        for turn in self.turns:
            await turn.check()

    async def mark(self) -> None:
        """Mark the periods now, since the body has succeeded; everything else stays held.

        Raises:
            StoreError: A marker could not be written.

        Cancellation: some are marked.
        """
        while self.claims:
            if self.claims[0].first:
                await periods.mark(self._desk, self.claims[0], self.label)
            del self.claims[0]

    async def release(self, ending: Ending) -> None:
        """Give everything back, the last first; mark the period after a success, and let the line advance.

        Raises:
            StoreError: A marker or the line could not be written; all the rest was done.

        Cancellation: all of it is done all the same, then it is raised.
        """
        await settled(self._release(ending))

    async def give_back(self) -> None:
        """Give everything back as if it had never been asked for, since nothing ran.

        Cancellation: all of it is done all the same, then it is raised.
        """
        await settled(self._give_back())

    async def stretch(self, seconds: float) -> None:
        """Have every lease last at least so long from now, without being renewed; those that are lost say so.

        Raises:
            StoreError: The store is away.

        Cancellation: some may last longer.
        """
        for lease in self.leases:
            why = await lease.renew(ttl=max(seconds, lease.ttl))
            if why:
                lease.lose(why)

    async def park(self, seconds: float) -> dict[str, Any]:
        """Keep everything for so long without this process; what to pass to `Coordinator.adopt`, as plain data.

        Raises:
            StoreError: The store is away; nothing has changed but that some may last longer.

        Cancellation: as for an error.
        """
        await self.stretch(seconds)
        data = self.to_data()
        self.abandon()
        return data

    def abandon(self) -> None:
        """Keep nothing of it here any more, without a word to the store: somebody else goes on with it."""
        for entry in reversed(self.entries):
            if entry.close():
                self._desk.renewer.drop(entry.lease)
        for turn in self.turns:
            turn.drop()
        self.entries, self.turns = [], []

    def to_data(self) -> dict[str, Any]:
        """Everything that is needed to go on with it elsewhere, as plain data; without what is lost."""
        return {
            "leases": [_lease_data(lease) for lease in self.leases if lease.error is None],
            "turns": [_turn_data(turn) for turn in self.turns if turn.error is None],
            "claims": [[claim.key, claim.field, *claim.bucket] for claim in self.claims],
        }

    async def _release(self, ending: Ending) -> None:
        failed: list[StoreError] = []
        for claim in self.claims if ending == "success" else ():
            if claim.first:
                await _tried(periods.mark(self._desk, claim, self.label), failed)
        for entry in reversed(self.entries):
            await entry.leave()
        for turn in reversed(self.turns):
            if ending == "paused":
                turn.drop()
            elif turn.error is None:
                await _tried(turn.end(failed=ending == "failure"), failed)
        self._forget()
        if failed:
            raise failed[0]

    async def _give_back(self) -> None:
        failed: list[StoreError] = []
        for entry in reversed(self.entries):
            await entry.leave()
        for spent in reversed(self.spent):
            await _tried(spent.restore(), failed)
        for turn in reversed(self.turns):
            await _tried(turn.yield_back(), failed)
        self._forget()
        for error in failed:
            note(logger, logging.WARNING, "give_back_failed", "it is counted as spent", error=error)

    def _forget(self) -> None:
        self.entries, self.turns, self.claims, self.spent = [], [], [], []


async def _tried(work: Coroutine[Any, Any, Any], failed: list[StoreError]) -> None:
    try:
        await work
    except StoreError as error:
        failed.append(error)


def _lease_data(lease: Lease) -> dict[str, Any]:
    slot = lease.slot
    return {
        "kind": slot.kind,
        "key": slot.key,
        "limit": slot.limit,
        "ttl": slot.ttl,
        "extends": slot.extends,
        "on_lost": slot.on_lost,
        "token": lease.token,
        "fence": lease.fence,
    }


def _turn_data(turn: Turn) -> dict[str, Any]:
    place = turn.position
    return {
        "key": place.key,
        "epoch": place.epoch,
        "number": place.number,
        "token": place.token,
        "poison_after": place.poison_after,
    }
