"""What the run store is asked for, and what it answers: plain, immutable data. Times are server times in ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aioreactor.store import keys
from aioreactor.store.records import RunRow, known_status
from aioreactor.trace import Status

if TYPE_CHECKING:
    from aioreactor.store.claim import Claim


class Exists(msgspec.Struct, frozen=True, gc=False):
    """There is a run of that id already; ``lease_left_ms`` is 0 if nobody has a live lease."""

    run_id: str
    status: Status
    ver: int
    same_inputs: bool
    lease_left_ms: int


class Created(msgspec.Struct, frozen=True, gc=False):
    """It was created by this call; ``claim`` is there if it was to be held at once."""

    run_id: str
    created_ms: int
    claim: Claim | None


class Held(msgspec.Struct, frozen=True):
    """Somebody else has a live lease."""

    ms_left: int
    owner: str


class Refused(msgspec.Struct, frozen=True):
    """The run is in another status than those that were named; or it was ``late``."""

    status: Status
    late: bool = False


class Missing(msgspec.Struct, frozen=True):
    """There is no such run (any more)."""


class Accepted(msgspec.Struct, frozen=True):
    """A request was left, now or before.

    Attributes:
        number: Its place among the run's requests, from 1.
        first: False if one of that id had been left before; that one counts.
        same: Whether it was the same as this one.
        status: The run's.
        lease_left_ms: 0 if nobody has a live lease: nobody will look at it by himself.
    """

    number: int
    first: bool
    same: bool
    status: Status
    lease_left_ms: int


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list: those that meet all that is given.

    Attributes:
        since_ms: Created at that time or later.
        elements: Also those that are elements of others; a parent's are always listed.
    """

    reactor: str | None = None
    status: Status | None = None
    tag: str | None = None
    parent: str | None = None
    since_ms: int = 0
    elements: bool = False

    def labels(self) -> list[str]:
        """The lists that a run has to be in.

        Raises:
            ValueError: A name is empty or too long, or there is no such status.
        """
        found = [keys.reactor_label(self.reactor)] if self.reactor is not None else []
        found += [keys.status_label(known_status(self.status))] if self.status is not None else []
        found += [keys.tag_label(self.tag)] if self.tag is not None else []
        if self.parent is not None:
            return [*found, keys.parent_label(self.parent)]
        return [*found, keys.ALL if self.elements else keys.TOP]


class Page(msgspec.Struct, frozen=True):
    """Some runs, newest first; an empty ``cursor`` says that there are no more."""

    rows: list[RunRow]
    cursor: str


class Repaired(msgspec.Struct, frozen=True):
    """What `RunStore.repair` did: index entries that it looked at, took out, and wrote anew."""

    looked: int = 0
    dropped: int = 0
    renewed: int = 0
