"""Elements of fan-outs as people see them: as runs, although most of them never were one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from aioreactor.durable.element_records import Record, outcome_back
from aioreactor.durable.elements import Elements
from aioreactor.errors import RunNotFound, SerializationError, UnknownReactor
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.plan.paths import node_at
from aioreactor.registry import find_plan
from aioreactor.results import Outcome, Skipped, Success
from aioreactor.snapshots import RunSnapshot
from aioreactor.store.answers import Held, Query
from aioreactor.store.fans import FanRow
from aioreactor.store.keys import element_id, element_of
from aioreactor.store.records import RunRow
from aioreactor.trace import RunRecord, Status

_STATUS: dict[str, Status] = {"s": "completed", "k": "completed", "f": "failed", "h": "halted", "x": "cancelled"}
_CURSOR = "elements\n"
_PAGE = 200


class ElementViews(Elements):
    """The part of `DurableRuns` that shows elements."""

    async def find(self, run_id: str, plan: Plan | None = None) -> RunSnapshot:
        """See `Reading.find`; an element is found by its id, ``PARENT/map[3]``, whether it was a run or not."""
        try:
            return await super().find(run_id, plan)
        except RunNotFound:
            found = await self._element(run_id)
            if found is None:
                raise
            return found

    async def _element(self, run_id: str) -> RunSnapshot | None:
        place = element_of(run_id)
        parent = await self.store.peek(place[0]) if place is not None else None
        if place is None or parent is None:
            return None
        _, path, index = place
        node = _node_at(parent, path)
        row = await self.store.fans.look(parent.run_id, path) if node is not None else None
        if node is None or row is None or index >= row.number("given"):
            return None
        [data] = await self.store.fans.records(parent.run_id, path, [index])
        busy = await self.store.fans.busy(parent.run_id, path)
        status = _status_of(data, index, busy)
        outcome = self._outcome(node, parent, path, index, data) if status not in ("running", "pending") else None
        return _snapshot(node, parent, path, index, row, status, outcome)

    def _outcome(
        self, node: PlanNode, parent: RunRow, path: str, index: int, data: bytes | None
    ) -> Outcome[Any] | None:
        try:
            found = outcome_back(node, self._codec(), path, index, Record.read(data))
        except SerializationError:
            return None
        assert node.fan is not None
        if isinstance(found, Skipped):
            found = Success(found.value)
        status = _status_of(data, index, ())
        record = RunRecord(element_id(parent.run_id, path, index), node.fan.name, status)
        object.__setattr__(found, "_record", record)
        outcome: Outcome[Any] = found
        return outcome

    async def delete(self, run_id: str) -> None:
        """See `Reading.delete`; elements that are runs of their own go with their run."""
        parent = await self.store.peek(run_id)
        inside = [each async for each in self._runs_of(parent)] if parent is not None else []
        await super().delete(run_id)
        for element in inside:
            if isinstance(await self.store.delete(element), Held):
                await self.cancel_element(element, f"run {run_id} was deleted", "rollback")

    async def _runs_of(self, parent: RunRow) -> AsyncIterator[str]:
        """Elements of a run that are runs of their own."""
        for path, _ in _fans_of(parent):
            row = await self.store.fans.look(parent.run_id, path)
            for index in row.runs if row is not None else ():
                yield element_id(parent.run_id, path, index)

    async def page(self, query: Query, limit: int, cursor: str) -> tuple[list[RunSnapshot], str]:
        """See `Reading.page`; after the runs that a run has started come the elements of its maps."""
        found: list[RunSnapshot] = []
        if not cursor.startswith(_CURSOR):
            found, following = await super().page(query, limit, cursor)
            if following or not query.parent or query.tag:
                return found, following
            cursor = _CURSOR
        async for snapshot in self._elements_from(query, cursor):
            if len(found) >= limit:
                return found, cursor
            found.append(snapshot)
            cursor = f"{_CURSOR}{snapshot.run_id}"
        return found, ""

    async def _elements_from(self, query: Query, cursor: str) -> AsyncIterator[RunSnapshot]:
        """Elements after that of the cursor: map after map, the highest index first."""
        assert query.parent is not None
        parent = await self.store.peek(query.parent)
        if parent is None:
            return
        last = element_of(cursor.removeprefix(_CURSOR))
        for path, node in _fans_of(parent):
            if last is not None and path != last[1]:
                continue
            row = await self.store.fans.look(parent.run_id, path)
            stop = last[2] if last is not None else row.number("given") if row is not None else 0
            last = None
            if row is not None:
                async for snapshot in self._elements_below(parent, path, node, row, stop):
                    if query.status in (None, snapshot.status) and query.reactor in (None, snapshot.reactor):
                        yield snapshot

    async def _elements_below(
        self, parent: RunRow, path: str, node: PlanNode, row: FanRow, stop: int
    ) -> AsyncIterator[RunSnapshot]:
        busy, again = await self.store.fans.busy(parent.run_id, path), set(row.indexes("again"))
        runs = set(row.runs)
        for first in range(stop - 1, -1, -_PAGE):
            indexes = range(first, max(first - _PAGE, -1), -1)
            found = await self.store.fans.records(parent.run_id, path, indexes)
            for index, data in zip(indexes, found, strict=True):
                if index not in runs:  # those are listed as what they are
                    status = "pending" if index in again else _status_of(data, index, busy)
                    yield _snapshot(node, parent, path, index, row, status, None)


def _status_of(data: bytes | None, index: int, busy: Sequence[int]) -> Status:
    if index in busy:
        return "running"
    return _STATUS[chr(data[0]).lower()] if data else "completed"


def _snapshot(
    node: PlanNode, parent: RunRow, path: str, index: int, row: FanRow, status: Status, outcome: Outcome[Any] | None
) -> RunSnapshot:
    assert node.fan is not None
    began = row.number("began_ms") / 1000
    return RunSnapshot(
        element_id(parent.run_id, path, index),
        node.fan.name,
        status,
        began,
        parent.updated_ms / 1000,
        outcome=outcome,
        parent=parent.run_id,
        version=parent.version,
    )


def _node_at(parent: RunRow, path: str) -> PlanNode | None:
    try:
        node = node_at(find_plan(parent.reactor, parent.version), path)
    except UnknownReactor:
        return None
    return node if node is not None and node.fan is not None else None


def _fans_of(parent: RunRow) -> Iterator[tuple[str, PlanNode]]:
    """The maps of a run that may have fanned out, with their paths."""
    try:
        plan = find_plan(parent.reactor, parent.version)
    except UnknownReactor:
        return
    yield from _fans_in(plan, "")


def _fans_in(plan: Plan, before: str) -> Iterator[tuple[str, PlanNode]]:
    for node in plan.nodes:
        if node.fan is not None:
            yield f"{before}{node.name}", node
        if node.kind == "compose" and node.child is not None:
            yield from _fans_in(node.child, f"{before}{node.name}.")
