"""By what runs are listed and found again: kept beside the runs, after the fact, and mended when it is wrong.

The record of a run decides; the index only says where to look. It lives in one hash slot of its own, so that it cannot
be written together with a record. Therefore:

* A run enters ``live`` *before* it can be lost (created, or taken), and leaves it after it has ended or paused.
* Everything else follows the record. What a crash left out is added when the sweeper looks at ``live``; what is
  there too much goes when somebody meets it in a list, or when `RunStore.repair` comes by.
* Each entry carries the version of the record it was made from, so that a late writer changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from aioreactor.store.calls import Value
from aioreactor.store.client import StoreClient
from aioreactor.store.errors import StoreError
from aioreactor.store.keys import KeySpace, status_label
from aioreactor.store.records import LIVE, TERMINAL, RunRow
from aioreactor.store.scripts import ScriptLibrary

Entry: TypeAlias = tuple[str, str]
"""A run's id, and what the index knows of it: version and labels, or nothing."""

Place: TypeAlias = tuple[str, str]
"""Where a page ended: time and id of the last run that was looked at."""

NEVER = -1
EXPIRY_SLACK_MS = 1000
"""A record is looked for only when it is surely gone."""

FIRST: Place = ("+inf", "")

PER_SCRIPT = 500
"""Entries that one script takes; some milliseconds of the server's one thread."""

_log = logging.getLogger("aioreactor.store")


class Listed(NamedTuple):
    """How a run is to be listed; the spans say when the sweeper is to look at it, as a living or as an expired run."""

    run_id: str
    created_ms: int
    ver: int
    labels: str
    status: str
    live_in_ms: int
    expire_in_ms: int = 0

    def entry(self) -> tuple[Value, ...]:
        """The arguments of ``index_put``."""
        # A paused run may be due, or have got a request meanwhile: the sweeper looks once, and takes it out if not.
        live_in_ms = self.live_in_ms if self.status in LIVE or self.status == "paused" else NEVER
        expires = self.status in TERMINAL and self.expire_in_ms > 0
        expire_in_ms = self.expire_in_ms + EXPIRY_SLACK_MS if expires else NEVER
        listing = f"{self.labels}\n{status_label(self.status)}"
        return (self.run_id, self.created_ms, self.ver, live_in_ms, expire_in_ms, listing)


class RunIndex:
    """The index of one key space."""

    def __init__(self, client: StoreClient, space: KeySpace, library: ScriptLibrary) -> None:
        self._client = client
        self._space = space
        self._library = library
        self._keys = (space.rows(), space.live(), space.expiring())
        self._cursor = 0

    async def expect(self, run_id: str, in_ms: int) -> None:
        """Before a run may begin to live: have the sweeper look at it then, if it would not anyway.

        Raises:
            StoreError: The store is away; the run must not begin.

        Cancellation: it was noted, or not.
        """
        await self.expect_all([(run_id, in_ms)])

    async def expect_all(self, waits: Sequence[tuple[str, int]]) -> None:
        """The same as `expect` for many runs, in one round trip.

        Raises:
            StoreError: As for `expect`.

        Cancellation: some were noted.
        """
        await self._in_slices("live_expect", [self._space.live()], [1], waits)

    async def look_again(self, waits: Sequence[tuple[str, int]]) -> None:
        """Have the sweeper look at these runs after these spans in ms, if they are still there.

        Cancellation: it was noted, or not.
        """
        if waits:
            await self._in_slices("live_expect", [self._space.live()], [0], waits)

    async def put_all(self, runs: Sequence[Listed]) -> None:
        """List runs as of these versions. A failure is only logged: records stand, and the index mends itself.

        No run may be in there twice.

        Cancellation: some were listed.
        """
        try:
            await self._in_slices("index_put", self._keys, [], [listed.entry() for listed in runs])
        except StoreError as error:
            some = ", ".join(f"{listed.run_id} as {listed.status}" for listed in runs[:3])
            _log.warning("%d runs (%s) are not listed until the index is mended: %s", len(runs), some, error)

    async def _in_slices(
        self, script: str, keys: Sequence[str], args: Sequence[Value], entries: Sequence[tuple[Value, ...]]
    ) -> None:
        """A script for many entries: in one round trip, but not all of them while the server does nothing else."""
        if len(entries) == 1:
            await self._client.run(self._library[script], keys, [*args, *entries[0]])
            return
        slices = [entries[first : first + PER_SCRIPT] for first in range(0, len(entries), PER_SCRIPT)]
        calls = [(keys, [*args, *(part for entry in some for part in entry)]) for some in slices]
        for reply in await self._client.issue(self._library[script], calls):
            if isinstance(reply, BaseException):
                raise reply

    async def put_row(self, row: RunRow, *, idle_ms: int, expire_in_ms: int) -> None:
        """List a run as its record says.

        Cancellation: it was listed, or not.
        """
        live_in_ms = (row.lease_left_ms or idle_ms) if row.is_owed else NEVER
        await self.put_all(
            [Listed(row.run_id, row.created_ms, row.ver, row.labels, row.status, live_in_ms, expire_in_ms)]
        )

    async def drop(self, run_id: str, seen: str) -> bool:
        """Take a run out that is gone, if the index still knows what it knew; tells whether it did.

        Cancellation: it was taken out, or not.
        """
        reply = await self._client.run(self._library["index_drop"], self._keys, [run_id, seen])
        return reply.word == "OK"

    async def forget(self, run_id: str) -> None:
        """Take a run out that was deleted. A failure is only logged.

        Cancellation: it was taken out, or not.
        """
        try:
            row = await self._client.execute("HGET", self._space.rows(), run_id, repeatable=True)
            await self.drop(run_id, (row or b"").decode())
        except StoreError as error:
            _log.warning("run %s, now deleted, is listed until the index is mended: %s", run_id, error)

    async def claim(self, due: str, limit: int, again_ms: int) -> list[Entry]:
        """Entries whose time in ``due`` has come; nobody else gets them for ``again_ms``.

        Cancellation: they may be claimed by nobody until then.
        """
        reply = await self._client.run(self._library["index_claim"], [due, self._space.rows()], [limit, again_ms])
        return _entries(reply.values[0])

    async def page(
        self, labels: Sequence[str], place: Place, since_ms: int, limit: int
    ) -> tuple[list[Entry], Place | None]:
        """Entries after a place that have all labels, newest first; and the next place, None at the end.

        Cancellation: nothing happens.
        """
        lists = [self._space.listing(label) for label in labels]
        reply = await self._client.run(
            self._library["index_page"], [self._space.rows(), *lists], [*place, since_ms, limit]
        )
        if reply.word == "END":
            return _entries(reply.values[0]), None
        at_ms, at_id, found = reply.values
        return _entries(found), (at_ms.decode(), at_id.decode())

    async def scan(self, limit: int) -> list[Entry]:
        """The next some of all entries, round and round; about ``limit``.

        Cancellation: the same ones come again.
        """
        args = ("HSCAN", self._space.rows(), self._cursor, "COUNT", limit)
        cursor, found = await self._client.execute(*args, repeatable=True)
        self._cursor = int(cursor)
        return _entries(found)

    async def drop_all(self, entries: Sequence[Entry]) -> int:
        """Take entries out whose runs are gone; gives how many.

        Cancellation: some were taken out.
        """
        return sum(await asyncio.gather(*(self.drop(run_id, seen) for run_id, seen in entries)))


def listing_in(seen: str) -> str:
    """The labels in what the index knows of a run."""
    return seen.partition("\n")[2]


def cursor_of(place: Place | None) -> str:
    """A place as text for the caller; empty at the end."""
    return f"{place[0]}:{quote(place[1], safe='')}" if place else ""


def place_of(cursor: str) -> Place:
    """The place that a cursor stands for.

    Raises:
        ValueError: It is none of ours.
    """
    if not cursor:
        return FIRST
    at_ms, separator, at_id = cursor.partition(":")
    if not (separator and at_ms.isascii() and at_ms.isdigit()):
        raise ValueError(f"not a cursor of a list: {cursor!r:.80}")
    return at_ms, unquote(at_id)


def _entries(flat: Sequence[bytes]) -> list[Entry]:
    each = iter(flat)
    return [(run_id.decode(), seen.decode()) for run_id, seen in zip(each, each, strict=True)]
