"""The journal of one run in a store: checkpoints of one loop iteration share a write, in the order they happened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from aioreactor.engine.drive import tick
from aioreactor.engine.ports import Checkpoint, JournalFailed
from aioreactor.engine.snapshot import image_of
from aioreactor.errors import OwnershipLost, SerializationError
from aioreactor.logs import note
from aioreactor.plan.model import PlanNode
from aioreactor.redaction import Scrubber
from aioreactor.results import Outcome
from aioreactor.store.claim import Claim
from aioreactor.store.errors import StoreError
from aioreactor.store.leases import Hold
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.ports import Store
from aioreactor.store.records import TERMINAL, Changes
from aioreactor.trace import Status

logger = logging.getLogger("aioreactor.store")
EncodeOutcome = Callable[[Outcome[Any]], bytes]


class _Batch:
    """What has happened since the last write began."""

    __slots__ = ("failure", "state", "status", "steps", "trace")

    def __init__(self) -> None:
        self.steps: dict[str, bytes] = {}
        self.trace: list[bytes] = []
        self.status: Status | None = None
        self.failure: bytes | None = None
        self.state: bytes | None = None

    def changes(self) -> Changes:
        status = None if self.status in TERMINAL else self.status
        return Changes(status=status, steps=self.steps, trace=self.trace, failure=self.failure, state=self.state)


class RunJournal:
    """Writes a run under its claim. ``hold`` keeps the lease until the run is closed or let go."""

    durable = True

    def __init__(
        self,
        store: Store,
        claim: Claim,
        hold: Hold,
        codec: PlanCodec,
        encode_outcome: EncodeOutcome,
        *,
        retention_ms: int,
    ) -> None:
        self.store = store
        self.claim = claim
        self.codec = codec
        self.scrubber: Callable[[], Scrubber] = Scrubber
        self._hold = hold
        self._encode_outcome = encode_outcome
        self._retention_ms = retention_ms
        self._batch = _Batch()
        self._writing: asyncio.Future[None] | None = None
        self._known_state: bytes = b""
        self._asked: set[int] = set()
        self._known_status: Status = "running"

    def prepare(self, node: PlanNode, path: str, value: Any) -> bytes:
        """See `Journal.prepare`."""
        self._warn_once(node, path, value)
        return self.codec.value(node, path, value)

    def _warn_once(self, node: PlanNode, path: str, value: Any) -> None:
        """Say of a step without a full annotation what its value would come back as."""
        if id(node) in self._asked or not self.codec.is_open(node):
            return
        self._asked.add(id(node))
        text = self.codec.warning(node, value)
        if text is not None:
            note(logger, logging.WARNING, "plain_data", text, path=path)

    def check_state(self, notes: Mapping[str, Any]) -> None:
        """See `Journal.check_state`."""
        self.codec.notes(notes)

    async def save(self, checkpoint: Checkpoint) -> None:
        """See `Journal.save`. The first caller of a loop iteration writes for all of them; the others wait for it.

        Cancellation: callers shield it.
        """
        self._add(checkpoint)
        if self._writing is not None:
            await asyncio.shield(self._writing)
            return
        self._writing = asyncio.get_running_loop().create_future()
        await tick()
        batch, self._batch = self._batch, _Batch()
        written, self._writing = self._writing, None
        try:
            await self._write(batch.changes())
        except BaseException as error:
            written.set_exception(error)
            written.exception()  # whoever waits for it gets it too; nobody has to
            raise
        written.set_result(None)

    async def _write(self, changes: Changes) -> None:
        try:
            await self._hold.check()
            await self.store.save(self.claim, changes)
        except OwnershipLost:
            raise
        except Exception as error:
            if self.claim.lost:
                raise OwnershipLost(self.claim.run_id, self.claim.lost) from error
            raise JournalFailed(f"the store did not keep a checkpoint: {error}") from error

    def _add(self, checkpoint: Checkpoint) -> None:
        self.codec.scrub = self.scrubber()
        batch = self._batch
        for ready in checkpoint.nodes:
            image = image_of(ready, self.codec)
            batch.steps[image.path] = self.codec.image(image)
        batch.trace += [self.codec.entry(entry) for entry in checkpoint.entries]
        if checkpoint.status != self._known_status:
            batch.status = self._known_status = checkpoint.status
        if checkpoint.fate is not None:
            batch.failure = self.codec.fate(checkpoint.fate)
        if checkpoint.notes:
            self._add_state(checkpoint.notes)

    def _add_state(self, notes: Mapping[str, Any]) -> None:
        try:
            state = self.codec.notes(notes)
        except SerializationError as error:  # a body in flight put it there; its own end will tell it
            note(logger, logging.WARNING, "state_not_kept", str(error), run_id=self.claim.run_id)
            return
        if state != self._known_state:
            self._batch.state = self._known_state = state

    def let_go(self) -> None:
        """Keep the lease no longer; what was not closed by now is somebody else's when it ends."""
        self._hold.release()

    async def close(self, checkpoint: Checkpoint, outcome: Outcome[Any]) -> None:
        """See `Journal.close`.

        Cancellation: callers shield it.
        """
        self._add(checkpoint)
        self._hold.release()
        changes = self._batch.changes()
        try:
            blob = self._encode_outcome(outcome)
            await self.store.close(self.claim, outcome.status, blob, changes, retention_ms=self._retention_ms)
        except StoreError as error:
            raise JournalFailed(f"the store did not keep the outcome: {error}") from error
