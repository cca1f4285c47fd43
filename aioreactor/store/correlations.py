"""Which open interrupt waits for which correlation id: one entry per reactor and id, beside the runs.

The record of a run decides whether an interrupt is open; an entry only says where to look. So one whose interrupt is
not open any more makes room for the next that wants its id, and meanwhile tells late answers which run it was.

Whoever closes an interrupt has its entry expire. When nobody came to that (a crash, a deleted run), a sweeper does: it
looks at each entry every hour.
"""

from __future__ import annotations

from aioreactor.store.client import StoreClient
from aioreactor.store.keys import KeySpace
from aioreactor.store.scripts import ScriptLibrary

LOOK_MS = 3_600_000


class CorrelationIndex:
    """The entries of one key space."""

    def __init__(self, client: StoreClient, space: KeySpace) -> None:
        self._client = client
        self._space = space
        self._watched = space.correlations()
        self._scripts = ScriptLibrary("aioreactor.store")

    async def claim(self, reactor: str, correlation_id: str, run_id: str, path: str, stale: str = "") -> str:
        """Note who waits for an id; gives whoever is noted already (to be passed as ``stale`` if that is over).

        Raises:
            StoreError: The store is away.

        Cancellation: it was noted, or not.
        """
        keys = [self._space.correlation(reactor, correlation_id), self._watched]
        reply = await self._client.run(self._scripts["correlation_claim"], keys, [holder(run_id, path), stale, LOOK_MS])
        return reply.values[0].decode() if reply.word == "TAKEN" else ""

    async def find(self, reactor: str, correlation_id: str) -> tuple[str, str] | None:
        """Run id and path of whoever waits for an id, or did last.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        found = await self._client.execute("GET", self._space.correlation(reactor, correlation_id), repeatable=True)
        return parted(found.decode()) if found else None

    async def expire(self, reactor: str, correlation_id: str, run_id: str, path: str, keep_ms: int) -> None:
        """The interrupt is open no more: keep its entry for a while only.

        Raises:
            StoreError: The store is away.

        Cancellation: it was done, or not.
        """
        await self._expire(self._space.correlation(reactor, correlation_id), holder(run_id, path), keep_ms)

    async def _expire(self, key: str, held_by: str, keep_ms: int) -> None:
        await self._client.run(self._scripts["correlation_expire"], [key, self._watched], [held_by, keep_ms])

    async def due(self, limit: int) -> list[Entry]:
        """Entries that have not been looked at for an hour, for this caller only.

        Raises:
            StoreError: The store is away.

        Cancellation: some are looked at an hour later.
        """
        reply = await self._client.run(self._scripts["correlation_due"], [self._watched], [limit, LOOK_MS])
        return [Entry(self, key.decode()) for key in reply.values[0]]


class Entry:
    """One entry, to be looked at."""

    def __init__(self, index: CorrelationIndex, key: str) -> None:
        self._index = index
        self._key = key
        self._holder = ""

    async def holder(self) -> tuple[str, str] | None:
        """Run id and path of who waits; None if the entry is gone, and will not be looked at again.

        Raises:
            StoreError: The store is away.

        Cancellation: nothing happens.
        """
        found = await self._index._client.execute("GET", self._key, repeatable=True)
        if not found:
            await self._index._client.execute("ZREM", self._index._watched, self._key, repeatable=True)
            return None
        self._holder = found.decode()
        return parted(self._holder)

    async def expire(self, keep_ms: int) -> None:
        """As `CorrelationIndex.expire`, for who was found.

        Raises:
            StoreError: The store is away.

        Cancellation: it was done, or not.
        """
        await self._index._expire(self._key, self._holder, keep_ms)


def holder(run_id: str, path: str) -> str:
    """Who waits, as it is stored."""
    return f"{run_id}\n{path}"


def parted(text: str) -> tuple[str, str]:
    """Run id and path of a holder."""
    run_id, _, path = text.rpartition("\n")
    return run_id, path
