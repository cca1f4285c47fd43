"""Places in line at several gates: one is of no use as long as another gate refuses, and must not keep others out."""

from __future__ import annotations

from contextlib import suppress

from aioreactor.coordination import slots
from aioreactor.coordination.desk import Desk
from aioreactor.coordination.keys import SlotKind
from aioreactor.coordination.slots import Parking, Slot
from aioreactor.errors import ContentionError, LockUnavailable
from aioreactor.store.errors import StoreError


async def spare(desk: Desk, parking: Parking, error: ContentionError) -> None:
    """Give back what was given to places in line at other gates than the one that refuses; the rest stay in line.

    Cancellation: some may be kept for a while.
    """
    refused = f"{'lock' if isinstance(error, LockUnavailable) else 'semaphore'}:{error.key}"
    for name, token in [each for each in parking.tickets.items() if each[0] != refused]:
        kind, _, key = name.partition(":")
        found: SlotKind = "lock" if kind == "lock" else "semaphore"
        desk.inbox.call_back(token, parking.wake)  # given to it from now on, it tries again
        with suppress(StoreError):
            if (await desk.call("slot_renew", desk.keys.slots(found, key)[:2], [token, 0])).word == "HELD":
                desk.inbox.forget(token)
                del parking.tickets[name]
                await slots.give_back(desk, Slot(found, key, 1, 1, False, "warn"), token)
