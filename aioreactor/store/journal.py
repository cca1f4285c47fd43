"""The journal of one run in a store: checkpoints of one loop iteration share a write, in the order they happened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import structs

from aioreactor.engine.ports import Checkpoint, JournalFailed
from aioreactor.engine.snapshot import image_of
from aioreactor.errors import AioreactorError, OwnershipLost, PayloadTooLarge, SerializationError
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
Ring = Callable[[int], Awaitable[str]]
"""Tells workers of the run, so many milliseconds from now; gives the id of the job, empty when nobody could be told."""


class _Batch:
    """What has happened since the last write began; ``weight`` is what it takes to hold it, in bytes."""

    __slots__ = (
        "failure",
        "fingerprint",
        "gates",
        "left",
        "progress",
        "served",
        "state",
        "status",
        "steps",
        "trace",
        "version",
        "weight",
    )

    def __init__(self) -> None:
        self.steps: dict[str, bytes] = {}
        self.trace: list[bytes] = []
        self.status: Status | None = None
        self.failure: bytes | None = None
        self.state: bytes | None = None
        self.served: int | None = None
        self.gates: bytes | None = None
        self.progress: bytes | None = None
        self.left: bytes | None = None
        self.version: str | None = None
        self.fingerprint: str | None = None
        self.weight = 0

    @property
    def is_empty(self) -> bool:
        scalars = (self.status, self.failure, self.state, self.served, self.gates, self.progress, self.left)
        return not (self.steps or self.trace or any(scalars))

    def changes(self) -> Changes:
        status = None if self.status in TERMINAL else self.status
        return Changes(
            status=status,
            steps=self.steps,
            trace=self.trace,
            failure=self.failure,
            state=self.state,
            served=self.served,
            gates=self.gates,
            progress=self.progress,
            left=self.left,
            version=self.version,
            fingerprint=self.fingerprint,
        )


def _tell(waiting: list[asyncio.Future[None]], error: Exception | None = None) -> None:
    for written in waiting:
        if written.done():
            continue
        if error is not None:
            written.set_exception(error)
        else:
            written.set_result(None)


SWEPT = 60.0
"""A run that waits for a unit for more seconds is not rung for that time: the end of the unit rings, or a sweep."""

CHANGE = 1024
"""So many bytes a change counts for, besides its own."""


def _unheard(error: AioreactorError) -> None:
    """Nobody has asked to be told."""


class RunJournal:
    """Writes a run under its claim. ``hold`` keeps the lease until the run is closed or let go.

    ``failed`` is called with why a write failed that nobody waits for.
    """

    durable = True
    behind = False

    def __init__(
        self,
        store: Store,
        claim: Claim,
        hold: Hold,
        codec: PlanCodec,
        encode_outcome: EncodeOutcome,
        *,
        retention_ms: int,
        known_state: bytes = b"",
        served: int = 0,
        ring: Ring | None = None,
    ) -> None:
        self.store = store
        self.claim = claim
        self.codec = codec
        self.scrubber: Callable[[], Scrubber] = Scrubber
        self.failed: Callable[[AioreactorError], None] = _unheard
        self._hold = hold
        self._encode_outcome = encode_outcome
        self._ring = ring
        self._retention_ms = retention_ms
        self._batch = _Batch()
        self._joining: list[asyncio.Future[None]] | None = None
        self._finishing: set[asyncio.Task[None]] = set()
        self._known_state = known_state
        self._served = served
        self._known_gates: Mapping[str, Any] | None = None
        self._known_left = 0
        self._known_progress: Mapping[str, Any] | None = None
        self._rousing: set[asyncio.Task[None]] = set()
        self._asked: set[int] = set()
        self._known_status: Status = "running"
        self._known_fate: tuple[str, str, BaseException | None, int] | None = None

    @property
    def trusted(self) -> bool:
        """See `Journal.trusted`."""
        return self.claim.trusted

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
        """See `Journal.save`. All callers of a loop iteration share one write, which the first of them makes.

        With nothing to write, returns when earlier writes were answered and the run is still ours.

        Cancellation: gives up the wait; it is written all the same.
        """
        unkept = self._add(checkpoint)
        if self._joining is None:
            self._joining = []
            await self._lead(self._joining)
        else:
            written = asyncio.get_running_loop().create_future()
            self._joining.append(written)
            await written
        if unkept is not None:
            raise unkept

    async def _lead(self, waiting: list[asyncio.Future[None]]) -> None:
        """Write for all who join before the write begins.

        No task of its own: between a body and the next, each iteration of the loop counts.
        """
        try:
            await asyncio.sleep(0)
            await self._write_batch()
        except asyncio.CancelledError:
            self._hand_over(waiting)
            raise
        except Exception as error:
            _tell(waiting, error)
            raise
        finally:
            if self._joining is waiting:
                self._joining = None
        _tell(waiting)

    def _hand_over(self, waiting: list[asyncio.Future[None]]) -> None:
        """The rest of a write whose leader was cancelled; what it had sent is in the claim's outbox, and sent again."""
        task = asyncio.get_running_loop().create_task(self._finish(waiting))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _finish(self, waiting: list[asyncio.Future[None]]) -> None:
        try:
            await self._write_batch()
        except asyncio.CancelledError:
            for written in waiting:
                written.cancel()
            raise
        except Exception as error:
            _tell(waiting, error)  # the leader has gone; if nobody waits, the next write meets the same
        else:
            _tell(waiting)

    async def _write_batch(self) -> None:
        try:
            await self._hold.check()
            # Taken and put into the claim's outbox without an await in between, lest a cancellation loses it.
            batch, self._batch, self._joining = self._batch, _Batch(), None
            if batch.is_empty:
                async with self.claim.turn:  # earlier writes have been answered
                    pass
            if not batch.is_empty or self.claim.outbox:
                await self.store.save(self.claim, batch.changes())
                self._hold.answered()
                # The process may have slept before it read the answer: nothing starts that somebody else has done.
                await self._hold.check()
        except OwnershipLost:
            raise
        except Exception as error:
            if self.claim.lost:
                raise OwnershipLost(self.claim.run_id, self.claim.lost) from error
            raise JournalFailed(f"the store did not keep a checkpoint: {error}") from error

    def _add(self, checkpoint: Checkpoint) -> Exception | None:
        """Add to the batch; gives why a part of it cannot be kept. The rest is kept all the same."""
        self.codec.scrub = self.scrubber()
        batch = self._batch
        unkept: Exception | None = None
        for ready in checkpoint.nodes:
            try:
                image = image_of(ready, self.codec)
            except (SerializationError, PayloadTooLarge) as error:
                unkept = unkept or error
                continue
            batch.steps[image.path] = record = self.codec.image(image)
            batch.weight += CHANGE + len(record)
        batch.trace += [self.codec.entry(entry) for entry in checkpoint.entries]
        batch.weight += CHANGE * len(checkpoint.entries)
        if checkpoint.status != self._known_status:
            batch.status = self._known_status = checkpoint.status
            batch.weight += CHANGE
        if checkpoint.served > self._served:
            batch.served = self._served = checkpoint.served
            batch.weight += CHANGE
        fate = checkpoint.fate
        if fate is not None and (told := (fate.kind, fate.path, fate.error, len(fate.left))) != self._known_fate:
            batch.failure = self.codec.fate(fate)
            self._known_fate = told
            batch.weight += CHANGE + len(batch.failure)
        if checkpoint.gates is not self._known_gates and checkpoint.gates is not None:
            self._known_gates = checkpoint.gates
            batch.gates = self.codec.gates(checkpoint.gates)
            batch.weight += CHANGE + len(batch.gates)
        if len(checkpoint.left) != self._known_left and checkpoint.left:
            self._known_left = len(checkpoint.left)
            batch.left = self.codec.left(checkpoint.left)
            batch.weight += CHANGE + len(batch.left)
        if checkpoint.reported is not None and checkpoint.reported != self._known_progress:
            self._known_progress = checkpoint.reported
            batch.progress = self.codec.progress(checkpoint.reported)
            batch.weight += CHANGE + len(batch.progress)
        if checkpoint.notes or self._known_state:
            try:
                state = self.codec.notes(checkpoint.notes)
            except (SerializationError, PayloadTooLarge) as error:
                return unkept or error
            if state != self._known_state:
                batch.state = self._known_state = state
                batch.weight += CHANGE + len(state)
        return unkept

    async def check(self) -> None:
        """Return if the run is surely still ours; asks the store only if the lease may be over by now.

        Raises:
            OwnershipLost: it is not ours any more.
            StoreError: the store could not be asked.

        Cancellation: nothing happens.
        """
        await self._hold.check()

    def changed_code(self, version: str, fingerprint: str) -> None:
        """Other code goes on with the run than began it: written with the next checkpoint."""
        self._batch.version, self._batch.fingerprint = version, fingerprint

    def let_go(self) -> None:
        """Keep the lease no longer; what was not closed by now is somebody else's when it ends."""
        self._hold.release()

    async def part(self, checkpoint: Checkpoint, delay: float, waits_for: str) -> str:
        """See `Journal.part`. What cannot be kept is an error of the step that made it, and was met before.

        First let go, then rung: a crash in between leaves it to the sweeper, while a worker that was rung before it is
        free would turn away.

        Cancellation: callers shield it.
        """
        self._add(checkpoint)
        self._hold.release()
        delay_ms = round(delay * 1000)
        rest = f"{self.claim.fence} {waits_for}"
        try:
            changes = structs.replace(self._batch.changes(), rest=rest)
            await self.store.release(self.claim, changes, due_ms=delay_ms)
        except StoreError as error:
            raise JournalFailed(f"the store did not keep the last checkpoint: {error}") from error
        if self.claim.asked > self._served:
            delay_ms = 0  # what came while the run was being left is for whoever takes it
        elif checkpoint.status == "paused" and not delay_ms:
            return ""
        # Nearly every unit ends long before that; a job for the other ones would stay in the queue for all of them.
        is_swept = waits_for.startswith("unit ") and delay > SWEPT
        return await self._ring(delay_ms) if self._ring is not None and not is_swept else ""

    def rouse(self) -> None:
        """See `Journal.rouse`. If it fails, the run is taken when it is due."""
        task = asyncio.get_running_loop().create_task(self._rouse())
        self._rousing.add(task)
        task.add_done_callback(self._rousing.discard)

    async def _rouse(self) -> None:
        try:
            if await self.store.rouse(self.claim.run_id) and self._ring is not None:
                await self._ring(0)
        except StoreError as error:
            note(logger, logging.WARNING, "not_roused", str(error), run_id=self.claim.run_id)

    async def hand_back(self, *, due_ms: int = 0) -> None:
        """Write what is pending and let the run go, in one; ``due_ms`` from now somebody else may take it.

        Raises:
            OwnershipLost: it is another execution's already.
            StoreError: the store is away; the lease ends by itself.

        Cancellation: callers shield it.
        """
        self._hold.release()
        await self.store.release(self.claim, self._batch.changes(), due_ms=due_ms)

    async def close(self, checkpoint: Checkpoint, outcome: Outcome[Any]) -> None:
        """See `Journal.close`. What cannot be kept is left out, since the run ends all the same.

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
