"""The journal of one element of a fan-out: nothing is written before it ends, unless something has to outlive it.

An element that ends at once is kept with all others of its session, in one write. It becomes a run of its own, with the
journal of any run, when a crash must not lose what it has done so far: between two steps, before another attempt, when
it has something to roll back, when it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aioreactor.durable.element_records import Record, record_of
from aioreactor.engine.ports import Checkpoint, JournalFailed
from aioreactor.engine.rollback_order import next_action
from aioreactor.engine.scope import MapRun, NodeStatus
from aioreactor.engine.snapshot import image_of
from aioreactor.engine.state_changes import WHOLE
from aioreactor.results import Outcome
from aioreactor.snapshots import encode_outcome
from aioreactor.store.errors import StoreError
from aioreactor.store.journal import RunJournal
from aioreactor.store.plan_codec import PlanCodec

if TYPE_CHECKING:
    from aioreactor.durable.session import Session
    from aioreactor.engine.scheduler import Execution


class ElementJournal(RunJournal):
    """Of one element, in the session that it was dealt to."""

    def __init__(self, session: Session, index: int, codec: PlanCodec, **options: Any) -> None:
        runs = session.runs
        super().__init__(runs.store, session.claim, session.hold, codec, encode_outcome, **options)
        self.execution: Execution
        self.index = index
        self.is_run = False
        """Whether it is a run of its own."""
        self.inputs: Mapping[str, Any] = {}
        """What it was given."""
        self.base: Mapping[str, bytes] = {}
        """Images that it begins with."""
        self._session = session

    async def save(self, checkpoint: Checkpoint) -> None:
        """See `Journal.save`; nothing is written if the element is about to end, or has done nothing."""
        if self.is_run:
            await super().save(checkpoint)
            return
        unkept = self._add(checkpoint)
        if not self._batch.steps or self._is_over():
            await self.check()  # with nothing done, nothing would be lost
        else:
            await self.become_run()
        if unkept is not None:
            raise unkept

    def _is_over(self) -> bool:
        """Whether nothing of it will run any more, so that its end is about to be kept."""
        state = self.execution.state
        if state.root.left == 0 and not state.failures and not state.cancelled:
            return True
        stopped = state.root.stopped and state.settled
        undo = state.halt is None
        return stopped and next_action(state.root, undo=undo) is None

    async def become_run(self) -> None:
        """Write all there is as a run of its own.

        Raises:
            OwnershipLost: it is another session's.
            JournalFailed: the store is away.
        """
        try:
            claim, hold = await self._session.detach(self)
        except StoreError as error:
            raise JournalFailed(f"the store did not keep an element: {error}") from error
        self.claim, self._hold = claim, hold
        self.is_run = True

    def taken_changes(self) -> Any:
        """What is to be written first, as a run that is created takes it."""
        changes = self._batch.changes()
        self._batch = type(self._batch)()
        return changes

    async def part(self, checkpoint: Checkpoint, delay: float, waits_for: str) -> str:
        """See `Journal.part`: what waits is a run of its own."""
        if not self.is_run:
            self._add(checkpoint)
            await self.become_run()
        return await super().part(checkpoint, delay, waits_for)

    async def close(self, checkpoint: Checkpoint, outcome: Outcome[Any]) -> None:
        """See `Journal.close`."""
        if self.is_run:
            await super().close(checkpoint, outcome)
            return
        self.codec.scrub = self.scrubber()
        try:
            await self._session.ended(self.index, self._record(outcome), outcome)
        except StoreError as error:
            raise JournalFailed(f"the store did not keep what became of an element: {error}") from error

    def _record(self, outcome: Outcome[Any]) -> Record:
        execution = self.execution
        root, plan = execution.state.root, execution.plan
        is_owed = next_action(root) is not None or bool(getattr(outcome, "rollback_failures", ()))
        steps: dict[str, bytes] = {}
        if self._session.undoes and is_owed:
            images = [image_of(ready, self.codec) for ready in _nodes(execution)]
            steps = {image.path: self.codec.image(image) for image in images}
        if self._session.back:
            return Record(steps=steps)  # what it came to when it was executed stays
        return record_of(plan, self.codec, root, outcome, steps)

    async def ring_now(self) -> None:
        """Tell workers of it, now that it is a run of its own."""
        if self._ring is not None:
            await self._ring(0)

    def let_go(self) -> None:
        """Keep the lease of its own run no longer; the session's is the session's."""
        if self.is_run:
            super().let_go()

    async def hand_back(self, *, due_ms: int = 0) -> None:
        """See `RunJournal.hand_back`; what is no run of its own goes back with its session."""
        if self.is_run:
            await super().hand_back(due_ms=due_ms)


def _nodes(execution: Execution) -> list[Any]:
    """Everything of an element that an image is kept of."""
    found: list[Any] = []
    for scope in execution.state.scopes():
        if isinstance(scope.parent, MapRun) and not scope.plan.element:
            found.append((scope, WHOLE))
        found += [(scope, index) for index, status in enumerate(scope.status) if status != NodeStatus.WAITING]
    return found
