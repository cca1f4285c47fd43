"""The two kinds of sessions: one executes elements, the other one rolls them back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aioreactor.durable.element_journal import ElementJournal
from aioreactor.durable.element_records import (
    Record,
    outcome_back,
    pack_left,
    record_of,
    step_inputs,
)
from aioreactor.durable.session import Session, Told, answer_all
from aioreactor.engine.arguments import Frame, cross_checked, resolve, validated, view_of
from aioreactor.engine.ports import Fate
from aioreactor.engine.recovery import restoring
from aioreactor.engine.reporting import refused
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.snapshot import Image
from aioreactor.errors import ArgumentError, InputValidationError, OwnershipLost, SerializationError
from aioreactor.plan.model import Source
from aioreactor.results import Outcome, RollbackFailure
from aioreactor.store.answers import Exists
from aioreactor.store.claim import Claim
from aioreactor.store.fans import Dealt, Settled
from aioreactor.store.keys import element_id
from aioreactor.store.leases import Hold
from aioreactor.store.records import NewRun, Place

logger = logging.getLogger("aioreactor.runs")
_REFUSALS = (ArgumentError, InputValidationError, SerializationError)
_STOPPED = "its map was rolled back"


@dataclass(frozen=True, slots=True)
class Entry:
    """What an element is executed with."""

    view: Any
    inputs: Mapping[str, Any]


class ElementSession(Session):
    """What both kinds have in common: how an element becomes an execution, and a run of its own."""

    def _execution(self, index: int) -> tuple[Execution, ElementJournal]:
        run_id = element_id(self.run_id, self.path, index)
        runs, retention_ms = self.runs, self.runs._retention_ms(self.plan)
        ring = partial(runs.ring, run_id, self.shared.queue)
        journal = ElementJournal(self, index, self.codec, retention_ms=retention_ms, ring=ring)
        execution = Execution(runs.environment, self.plan, run_id, journal)
        journal.execution = execution
        journal.scrubber = lambda: execution.scrubber
        journal.failed = execution.lose
        runs.furnish(execution, self.codec, retention_ms)
        execution.outer_results = self.outer
        execution.outer_holds = None if self.back else partial(runs.outer_holds, self.run_id)
        execution.common = self.common
        execution.learn_secrets(self.secrets)
        self.executions[index] = execution
        if self._ended is not None:
            execution.lose(self._ended)
        elif self.claim.cut:
            execution.order_cancel(self._order())  # dealt before the map was stopped, and begun after that
        return execution, journal

    def _entry(self, execution: Execution, index: int, item: bytes | None) -> Entry:
        """Its inputs, and the view of them.

        Raises:
            ArgumentError, InputValidationError, SerializationError: they cannot be had.
        """
        if item is None:
            raise SerializationError(f"an item of map {self.path!r}", "it is not there any more")
        value = self.codec.item_back(self.node, item)
        resources = self.runs._resources(self.plan)
        if self.plan.unit_of:
            inputs = step_inputs(self.common, value)
            return Entry(view_of(self.plan, inputs, resources), inputs)
        frame = Frame(execution, execution.state.root, 0, item=value)
        own = tuple(arg for arg in self.node.args if arg.source is Source.ITEM)
        owner = f"{self.plan.reactor.__qualname__} in '{self.path}[{index}]'"
        inputs = validated(self.plan.fields, {**self.common, **resolve(own, frame)}, owner)
        return Entry(view_of(self.plan, inputs, resources), inputs)

    async def _run(self, journal: ElementJournal, execution: Execution, work: Any) -> Outcome[Any]:
        """Let it run to its end, and see to what comes after that, if it is a run of its own by then."""
        runs, run_id = self.runs, execution.state.run_id
        runs._executing_here[run_id] = execution
        try:
            if self.plan.has_units:
                await journal.become_run()
            outcome: Outcome[Any] = await work
        finally:
            work.close()
            runs._executing_here.pop(run_id, None)
            await runs.part_with(execution, journal)
        if journal.is_run and journal.claim.ended and outcome.status not in {"running", "paused"}:
            self._more = max(self._more, await runs.settle_run(run_id))
        return outcome

    async def _is_adopted(self, index: int) -> bool:
        """Whether an element that was dealt before is a run of its own: then that one counts.

        Cancellation: whoever looks at the fan-out next mends what is half-way.
        """
        runs, run_id = self.runs, element_id(self.run_id, self.path, index)
        row = await runs.store.peek(run_id)
        if row is None:
            return False
        if row.ended and row.place is not None and row.place.back != self.back:
            await runs.store.delete(run_id, force=True)  # it was counted, and who did so died before removing it
            return False
        await runs.store.fans.detach(self.run_id, self.path, self.claim.token, index)
        if row.ended:
            self._more = max(self._more, await runs.settle_run(run_id))
        return True

    async def detach(self, journal: ElementJournal) -> tuple[Claim, Hold]:
        """Make an element a run of its own, beginning with what its journal has to write.

        Raises:
            OwnershipLost: it is not this session's any more.
            StoreError: the store is away.

        Cancellation: it is one, or not; whoever looks at the fan-out next mends what is half-way.
        """
        execution, runs = journal.execution, self.runs
        run_id, store = execution.state.run_id, self.runs.store
        if not await store.fans.detach(self.run_id, self.path, self.claim.token, journal.index):
            raise OwnershipLost(run_id, "it was dealt to another session")
        created = await store.create(run_id, self._new(journal), hold_ms=runs._ttl_ms())
        if isinstance(created, Exists) or created.claim is None:
            raise OwnershipLost(run_id, "it was a run of its own already")
        execution.units = runs.units_of(self.plan, run_id, created.created_ms, self.shared.queue, self.codec.ahead)
        return created.claim, runs.keep(execution, created.claim)

    def _new(self, journal: ElementJournal) -> NewRun:
        execution, codec = journal.execution, self.codec
        root, changes = execution.state.root, journal.taken_changes()
        inputs = root.inputs or journal.inputs
        deadline = root.deadline
        return NewRun(
            reactor=self.plan.name,
            inputs=codec.inputs(self.plan, inputs),
            version=str(self.plan.options.version or ""),
            fingerprint=self.plan.fingerprint,
            deadline_ms=max(1, int((deadline - execution.clock.now()) * 1000)) if deadline is not None else None,
            parent=self.run_id,
            queue=self.shared.queue,
            listed=False,
            steps={**journal.base, **changes.steps},
            trace=changes.trace,
            state=changes.state or b"",
            gates=changes.gates or b"",
            element=str(Place(self.path, journal.index, self.back)),
            failure=changes.failure or b"",
            left=changes.left or b"",
        )


class Forward(ElementSession):
    """Executes elements."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._batch: list[tuple[Told, Outcome[Any]]] = []

    async def _claim(self, wanted: int) -> Dealt | None:
        store, claim = self.runs.store.fans, self.claim
        return await store.claim(self.run_id, self.path, claim.token, ttl_ms=claim.ttl_ms, wanted=wanted)

    def _settling(self) -> int:
        return len(self._batch)

    async def ended(self, index: int, record: Record, outcome: Outcome[Any]) -> None:
        """Say what an element came to; returns when that is kept.

        Raises:
            OwnershipLost: it was not this session's to say.
            StoreError: the store is away.

        Cancellation: it is kept, or not.
        """
        told = Told(index, record)
        self._batch.append((told, outcome))
        self._told.set()
        await told.kept

    async def _settle(self, wanted: int) -> Dealt | None:
        batch, self._batch = self._batch, []
        if not batch:
            return await self._claim(wanted) if wanted else None
        settled = [Settled(told.index, told.record.letter, told.record.packed()) for told, _ in batch]
        every, store = [told for told, _ in batch], self.runs.store.fans
        try:
            dealt = await store.settle(
                self.run_id, self.path, self.claim.token, settled, ttl_ms=self.claim.ttl_ms, wanted=wanted
            )
        except Exception as error:
            answer_all(every, (), error)
            return None
        if dealt is None:
            answer_all(every, [each.index for each in every], None)
            return None
        await self._tell(batch, dealt)
        answer_all(every, dealt.refused, None)
        return dealt

    async def _tell(self, batch: list[tuple[Told, Outcome[Any]]], dealt: Dealt) -> None:
        for told, _ in batch if self.listeners.of_elements else ():
            if told.index not in dealt.refused:
                outcome = outcome_back(self.node, self.codec, self.path, told.index, told.record)
                await self.listeners.finished(told.index, outcome)
        if self.listeners.is_time(over=dealt.over):
            row = await self.runs.store.fans.look(self.run_id, self.path)
            if row is not None:
                await self.listeners.progress(row.number("settled"), row.number("fed") if row.values["end"] else None)

    async def _execute(self, index: int, item: bytes | None, dealt: Dealt, record: bytes) -> None:
        again = index in dealt.again
        if again and await self._is_adopted(index):
            return
        execution, journal = self._execution(index)
        try:
            entry = self._entry(execution, index, item)
            if not self.plan.unit_of:
                cross_checked(entry.view, f"{self.plan.reactor.__qualname__} in '{self.path}[{index}]'")
        except _REFUSALS as error:
            outcome = refused(self.plan, execution.state.run_id, error, self.common)
            await self.ended(index, record_of(self.plan, self.codec, execution.state.root, outcome, {}), outcome)
            return
        journal.inputs = entry.inputs
        if again and dealt.doomed:
            await self._run(journal, execution, self._cut(execution, entry))
        else:
            await self._run(journal, execution, execution.run(entry.view, entry.inputs))

    def _cut(self, execution: Execution, entry: Entry) -> Any:
        """It may have been entered by somebody who died, and its map has been stopped since: it counts as cut off."""
        execution.state.root.view = entry.view
        images = {node.name: Image(node.name, NodeStatus.RUNNING) for node in self.plan.nodes if node.kind == "step"}
        first = {name: image for name, image in images.items() if self.plan.by_name[name] in self.plan.roots}
        fate = Fate("cancelled", reason=_STOPPED)
        return execution.resume(
            entry.inputs, restoring(execution, self.codec, first, [], entry.inputs, fate), back=True
        )


class Back(ElementSession):
    """Rolls elements back."""

    back = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._batch: list[tuple[Told, bytes]] = []

    async def _claim(self, wanted: int) -> Dealt | None:
        store, claim = self.runs.store.fans, self.claim
        while True:
            dealt = await store.claim_back(self.run_id, self.path, claim.token, ttl_ms=claim.ttl_ms, wanted=wanted)
            if dealt is None or dealt.indexes or not dealt.more:
                return dealt

    def _settling(self) -> int:
        return len(self._batch)

    async def ended(self, index: int, record: Record, outcome: Outcome[Any]) -> None:
        """Say what is left of an element; returns when that is kept.

        Raises, Cancellation: as `Forward.ended`.
        """
        left = self.runs.left_of(self.node, self.path, index, outcome)
        before = self.before[index]
        after = Record(before.kind, before.blob, record.steps if left else {})
        told = Told(index, after)
        self._batch.append((told, pack_left(left)))
        self._told.set()
        await told.kept

    async def _settle(self, wanted: int) -> Dealt | None:
        batch, self._batch = self._batch, []
        every = [told for told, _ in batch]
        if batch:
            store, claim = self.runs.store.fans, self.claim
            rows = [(told.index, told.record.letter.encode() + told.record.packed(), left) for told, left in batch]
            try:
                kept = await store.settle_back(self.run_id, self.path, claim.token, rows, ttl_ms=claim.ttl_ms)
            except Exception as error:
                answer_all(every, (), error)
                return None
            answer_all(every, kept.refused if kept is not None else [each.index for each in every], None)
            if kept is not None:
                self._more = kept.more
            if kept is not None and kept.wake is not None:
                await self.runs.ring(self.run_id, kept.wake)
        return await self._claim(wanted) if wanted else None

    async def _execute(self, index: int, item: bytes | None, dealt: Dealt, record: bytes) -> None:
        if await self._is_adopted(index):
            return
        execution, journal = self._execution(index)
        try:
            before = self.before[index] = Record.read(record)
            images = {path: self.codec.image_back(path, data) for path, data in before.steps.items()}
            entry = self._entry(execution, index, item)
        except _REFUSALS as error:
            await self._unavailable(index, record, error)
            return
        journal.inputs, journal.base = entry.inputs, before.steps
        execution.state.root.view = entry.view
        fate = Fate("cancelled", reason=_STOPPED)
        restore = restoring(execution, self.codec, images, [], entry.inputs, fate, quiet=True)
        await self._run(journal, execution, execution.resume(entry.inputs, restore, back=True))

    async def _unavailable(self, index: int, record: bytes, error: Exception) -> None:
        """It cannot be rolled back by the code that is here: that is reported, and it stays owed."""
        self.before[index] = Record(chr(record[0]).lower() if record else "s")
        place = f"{self.path}[{index}]"
        left = [RollbackFailure(place, "undo", "state_unavailable", str(error), None, self.path, index)]
        told = Told(index, Record("", b""))
        self._batch.append((told, pack_left(left)))
        self._told.set()
        await told.kept
