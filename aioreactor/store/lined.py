"""Runs that stand in lines, by when somebody has to give a sign of life for them: beside the runs, as the index is.

The record of a run decides whether it lives. An entry has all that is needed to give the sign, or to take the run out
of its lines if there is no record any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioreactor.store.client import StoreClient
from aioreactor.store.index import PER_SCRIPT
from aioreactor.store.keys import KeySpace
from aioreactor.store.scripts import ScriptLibrary


class LinedRuns:
    """The entries of one key space; an entry is any text."""

    def __init__(self, client: StoreClient, space: KeySpace) -> None:
        self._client = client
        self._key = space.lined()
        self._rows = space.rows()
        self._scripts = ScriptLibrary("aioreactor.store")

    async def put(self, entries: Sequence[tuple[str, int]]) -> None:
        """Have somebody look at these after so many ms, unless they are there already.

        Raises:
            StoreError: The store is away.

        Cancellation: some may have been put.
        """
        await self._timed("1", entries)

    async def postpone(self, entries: Sequence[tuple[str, int]]) -> None:
        """Have somebody look at these after so many ms from now, if they are still there.

        Raises:
            StoreError: The store is away; they are looked at all the same.

        Cancellation: some may have been.
        """
        await self._timed("0", entries)

    async def claim(self, limit: int, again_ms: int) -> list[str]:
        """Entries whose time has come; nobody else gets them for ``again_ms``.

        Raises:
            StoreError: The store is away.

        Cancellation: they may be claimed by nobody until then.
        """
        reply = await self._client.run(self._scripts["index_claim"], [self._key, self._rows], [limit, again_ms])
        return [entry.decode() for entry in reply.values[0][::2]]

    async def drop(self, entries: Sequence[str]) -> None:
        """Take entries out.

        Raises:
            StoreError: The store is away.

        Cancellation: they were taken out, or not.
        """
        if entries:
            await self._client.execute("ZREM", self._key, *entries, repeatable=True)

    async def _timed(self, gently: str, entries: Sequence[tuple[str, int]]) -> None:
        for first in range(0, len(entries), PER_SCRIPT):
            flat = [part for entry in entries[first : first + PER_SCRIPT] for part in entry]
            await self._client.run(self._scripts["live_expect"], [self._key], [gently, *flat])
