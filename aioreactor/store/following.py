"""The trace of a run as it grows: who follows it leaves a mark with the run, and writes tell for as long as it lasts.

So a run that nobody follows pays for one more field of its hash in a read that each write makes anyway. Whoever
follows stops by not coming again; the mark is over by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from aioreactor.store.client import StoreClient
from aioreactor.store.keys import KeySpace
from aioreactor.store.pushes import Bell, Pushes
from aioreactor.store.records import TERMINAL
from aioreactor.store.scripts import ScriptLibrary
from aioreactor.trace import Status

EVERY = 5.0
"""Seconds after which who follows a run looks although nothing was told: a message may be lost."""
WATCHED_MS = 3 * int(EVERY * 1000)
MOST = 500
"""Entries that one look gives at most."""
_scripts = ScriptLibrary("aioreactor.store")


class Piece(msgspec.Struct, frozen=True):
    """Some entries of a trace, the next ones; ``ended`` if the run has."""

    entries: list[bytes]
    ended: bool

    @property
    def is_full(self) -> bool:
        """Whether there may be more already."""
        return len(self.entries) == MOST

    @property
    def is_last(self) -> bool:
        """Whether no others will follow."""
        return self.ended and not self.is_full


@asynccontextmanager
async def following(
    client: StoreClient, pushes: Pushes, space: KeySpace, run_id: str, place: int
) -> AsyncIterator[Follower]:
    """Follow one run, from the entry at ``place`` on.

    Cancellation: its subscriptions are gone.
    """
    run, trace = space.run(run_id), space.of_run(run_id)[2]
    bell = Bell()
    async with pushes.hearing([trace, space.done_channel(run_id)], bell):
        yield Follower(client, [run, trace], bell, place)


class Follower:
    """Who follows one run; made by `following`."""

    def __init__(self, client: StoreClient, keys: list[str], bell: Bell, place: int) -> None:
        self._client = client
        self._keys = keys
        self._bell = bell
        self._place = place

    async def look(self) -> Piece | None:
        """What is there that was not given before; None if there is no such run.

        Raises:
            StoreError: The store is away.

        Cancellation: the same entries are given next time.
        """
        reply = await self._client.run(_scripts["run_watch"], self._keys, [self._place, MOST, WATCHED_MS])
        if reply.word == "MISSING":
            return None
        status, entries = cast("Status", reply.values[0].decode()), reply.values[1]
        self._place += len(entries)
        return Piece(entries, status in TERMINAL)

    async def wait(self) -> None:
        """Until there may be more.

        Cancellation: only the wait ends.
        """
        await self._bell.wait(EVERY)
