"""Who it is that holds or waits for a key, as far as its label tells: a run, a step in it, an attempt."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aioreactor.store.store import RunStore

_ATTEMPT = re.compile(r":(\d+)$")


@dataclass(frozen=True, slots=True)
class Owner:
    """A holder, a waiter, or one in line.

    Attributes:
        label: By which the key knows it.
        run: The run; empty if it is none, such as a process that used a primitive alone, or is not known any more.
        step: Where in the run; empty for the run as a whole. ``undo:pay`` is the undo of ``pay``.
        attempt: Of the step; 0 where there are none.
    """

    label: str
    run: str = ""
    step: str = ""
    attempt: int = 0


async def owner_of(store: RunStore, label: str) -> Owner:
    """Take a label apart: a run's id, and what is inside the run, behind a colon, or a slash before an element.

    Ids may have these, too, so the longest one counts that there is.

    Raises:
        StoreError: the store is away.

    Cancellation: nothing happens.
    """
    ends = [len(label), *(place for place in range(len(label) - 1, 0, -1) if label[place] in ":/")]
    for end in ends:
        try:
            row = await store.peek(label[:end])
        except ValueError:
            continue  # too long for an id
        if row is not None:
            return _inside(label, end)
    return Owner(label)


def _inside(label: str, end: int) -> Owner:
    rest = label[end:]
    attempt = _ATTEMPT.search(rest)
    step = rest[1 : attempt.start()] if attempt is not None else rest[1:]
    return Owner(label, label[:end], step, int(attempt[1]) if attempt is not None else 0)
