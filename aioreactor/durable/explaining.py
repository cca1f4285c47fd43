"""Why a stored run does not move, from its record alone: nothing is taken, and nothing is asked of its owner."""

from __future__ import annotations

from aioreactor.durable.fits import check_fits
from aioreactor.durable.reading import Reading
from aioreactor.durable.requests import node_at, unpack
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.snapshot import Image
from aioreactor.errors import PlanChanged, SerializationError, UnknownReactor
from aioreactor.explanations import Explanation, Reason
from aioreactor.plan.model import Plan
from aioreactor.registry import find_reactor
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.records import RunRow

_NAMES = {
    "cancel": "a cancel",
    "answer": "an answer",
    "decision": "a decision",
    "mistake": "a payload that did not fit",
}


class Explaining(Reading):
    """The part of `DurableRuns` that tells why a run stands still."""

    async def explain(self, run_id: str) -> Explanation:
        """See `Runs.explain`.

        Raises:
            RunNotFound: there is no such run.

        Cancellation: nothing happens.
        """
        record = await self._read(run_id)
        row = record.row
        if row.ended:
            found = [Reason("ended", f"it has ended: {row.status}", since=row.ended_ms / 1000)]
        else:
            found = [*self._in_steps(record), *_of_owner(row), *_of_requests(record)]
        return Explanation(run_id, row.reactor, row.status, tuple(found))

    def _in_steps(self, record: StoredRun) -> list[Reason]:
        codec = self._codec()
        try:
            plan = find_reactor(record.row.reactor).plan
            images = {path: codec.image_back(path, data) for path, data in record.steps.items()}
            check_fits(plan, record.row.run_id, images)
        except (UnknownReactor, PlanChanged, SerializationError) as error:
            return [Reason("plan", f"the code that is here does not fit it: {error}")]
        if record.row.status == "rolling_back":
            return []
        opened = {entry[2]: entry[0] for entry in map(codec.entry_back, record.trace) if entry[1] == "interrupt"}
        found = [_of_step(plan, image, opened.get(image.path)) for image in images.values()]
        return [reason for reason in found if reason is not None]


def _of_step(plan: Plan, image: Image, since: float | None) -> Reason | None:
    node = node_at(plan, image.path)
    if node is None or image.status not in (NodeStatus.READY, NodeStatus.RUNNING):
        return None
    due = image.due or None
    if image.opened and node.kind == "interrupt":
        known = f" with the correlation id {image.correlation!r}" if image.correlation else ""
        refused = f"; {image.opened - 1} payloads did not fit" if image.opened > 1 else ""
        return Reason("interrupt", f"waits for an answer{known} (runs.resume){refused}", image.path, since, due)
    if image.opened and node.kind == "step":
        text = f"waits for a decision after {image.attempts} attempts (runs.decide)"
        return Reason("decision", text, image.path, since)
    if due is not None and node.kind == "timer":
        return Reason("timer", "waits", image.path, until=due)
    if due is not None and node.kind == "step":
        return Reason("retry", f"waits for attempt {image.attempts + 1}", image.path, until=due)
    return None


def _of_owner(row: RunRow) -> list[Reason]:
    queue = f"queue {row.queue!r}" if row.queue else "the default queue"
    updated, lease = row.updated_ms / 1000, row.lease_ms / 1000
    if row.lease_left_ms:
        what = "rolls it back" if row.status == "rolling_back" else "executes it"
        return [Reason("executed", f"{row.owner} {what}; its lease is good", until=lease, holder=row.owner)]
    if row.lease_ms:
        text = f"{row.owner} had it and is gone, or stands still; a sweep takes it"
        return [Reason("lost", text, since=lease, holder=row.owner)]
    if row.status == "paused":
        return []
    if row.due_ms > row.now_ms:
        kind_is_start = row.status == "pending"
        text = "is to be started later" if kind_is_start else "is parked; nobody executes it"
        return [Reason("start" if kind_is_start else "worker", text, until=row.due_ms / 1000)]
    return [Reason("worker", f"waits for a worker of {queue}", since=updated)]


def _of_requests(record: StoredRun) -> list[Reason]:
    found = []
    for request in record.waiting:
        try:
            body = unpack(request.body)
        except SerializationError:
            continue
        if body.kind in _NAMES:
            text = f"{_NAMES[body.kind]} was accepted and is not carried out yet"
            found.append(Reason("request", text, body.path))
    return found
