"""Journals that write behind: no step waits for its checkpoint, and what happens during one write shares the next.

Overview. `save` encodes a checkpoint at once and adds it to what is pending. A write takes all that is pending, so what
the store has is the run as of some `save`, never a part of one. One write is under way at a time. A `Pace` says how
much has to be pending for a write to begin, and at how much whoever saves more waits until it is written. A firm
checkpoint (of a rollback, which must not run ahead of its record) is waited for as in a `RunJournal`.

Failures. After a write that failed nothing more is written, since the record would have a hole. The execution is told
at once, by ``failed``, and stops where it was; the run goes on elsewhere from what was written. An outcome is stored
with all that is still pending, or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aioreactor.engine.ports import Checkpoint, JournalFailed
from aioreactor.errors import AioreactorError, OwnershipLost
from aioreactor.results import Outcome
from aioreactor.store.errors import StoreError
from aioreactor.store.journal import RunJournal

MIB = 1024 * 1024
PATIENCE = 0.005
"""Bodies that never wait let go of the event loop each so many seconds, for writes to go on."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much may be pending, in bytes; each change (a step, a trace entry) counts for 1 KiB more than it has.

    A write begins at ``begin``; at ``wait``, who saves waits until all is written.
    """

    begin: int
    wait: int


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class WriteBehind(RunJournal):
    """A `RunJournal` that writes at a pace of its own: at once, without anybody waiting."""

    behind = True
    pace = Pace(begin=1, wait=MIB)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._order = asyncio.Lock()
        self._behind: asyncio.Task[None] | None = None
        self._turn_at = 0.0
        self._failure: AioreactorError | None = None
        self._ended = False

    async def save(self, checkpoint: Checkpoint) -> None:
        """See `Journal.save`. Waits only if the checkpoint is firm, too much is pending, or the lease may be over.

        Lets go of the loop now and then, and when a body has cancelled its own task: that is not to come out elsewhere.

        Cancellation: what was added is written all the same.
        """
        self._require_whole()
        if checkpoint.firm or self._batch.weight >= self.pace.wait:
            await super().save(checkpoint)
            return
        unkept = self._add(checkpoint)
        now = time.monotonic()
        overdue = self._batch.weight >= self.pace.begin and self._is_overdue(now)
        if now >= self.claim.trusted_until:
            await self._still_ours()
        elif overdue or _is_cancelled():
            self._turn_at = now
            await asyncio.sleep(0)
        if unkept is not None:
            raise unkept

    def _is_overdue(self, now: float) -> bool:
        """Have what is pending written; whether that has waited for a turn for long."""
        if self._behind is None:
            self._behind = asyncio.get_running_loop().create_task(self._write_behind())
            self._turn_at = now
        return now - self._turn_at > PATIENCE

    async def _still_ours(self) -> None:
        try:
            await self._hold.check()
        except StoreError as error:
            raise JournalFailed(f"the store could not be asked whose the run is: {error}") from error

    async def _write_behind(self) -> None:
        try:
            while self._batch.weight >= self.pace.begin and not self._ended and self._failure is None:
                await self._write_batch()
        except AioreactorError as error:
            self.failed(error)
        finally:
            self._behind = None

    async def _write_batch(self) -> None:
        """As a `RunJournal` does, but one at a time, and never past one that failed."""
        async with self._order:
            if self._ended:
                return  # what it was to write went with the end
            self._require_whole()
            try:
                await super()._write_batch()
            except (OwnershipLost, JournalFailed) as error:
                self._failure = error
                raise

    def _require_whole(self) -> None:
        """Refuse to go on past a write that failed: what follows it would leave a hole.

        Raises:
            OwnershipLost, JournalFailed: as the write that failed.
        """
        if self._failure is not None:
            raise self._failure

    async def close(self, checkpoint: Checkpoint, outcome: Outcome[Any]) -> None:
        """See `Journal.close`.

        Cancellation: callers shield it.
        """
        async with self._order:
            self._require_whole()
            self._ended = True
            await super().close(checkpoint, outcome)

    async def part(self, checkpoint: Checkpoint, delay: float, waits_for: str) -> str:
        """See `Journal.part`.

        Cancellation: callers shield it.
        """
        async with self._order:
            self._require_whole()
            self._ended = True
            return await super().part(checkpoint, delay, waits_for)

    async def hand_back(self, *, due_ms: int = 0) -> None:
        """See `RunJournal.hand_back`.

        Cancellation: callers shield it.
        """
        async with self._order:
            self._require_whole()
            self._ended = True
            await super().hand_back(due_ms=due_ms)


class WriteAtExit(WriteBehind):
    """Writes when the run ends, goes back, or is handed on; before that only what would take too much memory."""

    pace = Pace(begin=16 * MIB, wait=32 * MIB)


KINDS: Mapping[str, type[RunJournal]] = {"step": RunJournal, "batched": WriteBehind, "exit": WriteAtExit}
"""The journal of each level of durability."""
