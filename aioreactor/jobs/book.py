"""What is known of schedules in the store: up to when their ticks were dealt with, and by whom they are right now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aioreactor.jobs.schedules import ON_TIME_MS
from aioreactor.store.calls import Value
from aioreactor.store.client import StoreClient
from aioreactor.store.keys import KeySpace
from aioreactor.store.scripts import Script, ScriptLibrary

HOLD_MS = 15_000
"""For so long after its last sign of life a worker that died keeps the ticks that it was dealing with."""

KEEP_MS = 90 * 86_400_000
"""For so long what is known of a schedule outlives the last worker that had it. Later, it is a new one."""


class Seen(NamedTuple):
    """A schedule, as it was found.

    Attributes:
        mine: Whether the ticks that are due are for whoever asked.
        now_ms: The store's time.
        last_ms: The moment up to which all ticks were dealt with.
        run_id: The last run that was begun, if it is ``mine``; or empty.
        busy_ms: For how much longer somebody else has its ticks.
    """

    mine: bool
    now_ms: int
    last_ms: int
    run_id: str = ""
    busy_ms: int = 0


class ScheduleBook:
    """The schedules of one key space."""

    def __init__(self, client: StoreClient, space: KeySpace) -> None:
        self._client = client
        self._space = space
        self._scripts: Mapping[str, Script] = ScriptLibrary(
            "aioreactor.jobs", shared=[ScriptLibrary("aioreactor.store")]
        )

    async def claim(self, key: str, spec: str, token: str, tick_ms: int) -> Seen:
        """Take what is due of a schedule, if ``tick_ms`` is; with 0 only look. A new one has nothing due before now.

        Args:
            key: Of the schedule.
            spec: Its expression and zone.
            token: Of whoever asks.
            tick_ms: One of its ticks.

        Raises:
            StoreError: The store is away.

        Cancellation: it was taken, or not; then others have to wait for a moment.
        """
        args: list[Value] = [spec, tick_ms, token, HOLD_MS, ON_TIME_MS, KEEP_MS]
        keys = [self._space.schedule(key)]
        reply = await self._client.run(self._scripts["schedule_claim"], keys, args, replicate=True)
        now_ms, last_ms, rest = reply.values
        if reply.word == "MINE":
            return Seen(True, now_ms, last_ms, rest.decode())
        return Seen(False, now_ms, last_ms, "", rest)

    async def settle(self, key: str, token: str, dealt_ms: int, run_id: str, *, ends: bool) -> bool:
        """All ticks up to a moment have been dealt with; whether that was still for ``token`` to say.

        Raises:
            StoreError: The store is away.

        Cancellation: it was noted, or not.
        """
        args: list[Value] = [token, dealt_ms, run_id, 0 if ends else HOLD_MS]
        keys = [self._space.schedule(key)]
        reply = await self._client.run(self._scripts["schedule_settle"], keys, args, replicate=True)
        return reply.word == "OK"
