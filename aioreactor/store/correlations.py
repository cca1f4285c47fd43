"""Which open interrupt waits for which correlation id: one entry per reactor and id, beside the runs.

The record of a run decides whether an interrupt is open; an entry only says where to look. So one whose interrupt is
not open any more makes room for the next that wants its id, and meanwhile tells late answers which run it was.
"""

from __future__ import annotations

from aioreactor.store.client import StoreClient
from aioreactor.store.keys import KeySpace
from aioreactor.store.scripts import ScriptLibrary


class CorrelationIndex:
    """The entries of one key space."""

    def __init__(self, client: StoreClient, space: KeySpace) -> None:
        self._client = client
        self._space = space
        self._scripts = ScriptLibrary("aioreactor.store")

    async def claim(self, reactor: str, correlation_id: str, run_id: str, path: str, stale: str = "") -> str:
        """Note who waits for an id; gives whoever is noted already (to be passed as ``stale`` if that is over).

        Raises:
            StoreError: The store is away.

        Cancellation: it was noted, or not.
        """
        key = self._space.correlation(reactor, correlation_id)
        reply = await self._client.run(self._scripts["correlation_claim"], [key], [holder(run_id, path), stale])
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
        key = self._space.correlation(reactor, correlation_id)
        await self._client.run(self._scripts["correlation_expire"], [key], [holder(run_id, path), keep_ms])


def holder(run_id: str, path: str) -> str:
    """Who waits, as it is stored."""
    return f"{run_id}\n{path}"


def parted(text: str) -> tuple[str, str]:
    """Run id and path of a holder."""
    run_id, _, path = text.rpartition("\n")
    return run_id, path
