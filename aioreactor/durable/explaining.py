"""Why a stored run does not move, from its record, its queue and the keys it waits for: nothing of it is changed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from aioreactor.durable.base import Queue
from aioreactor.durable.explaining_gates import Keys, refused, waiting
from aioreactor.durable.explaining_steps import Restored, Unit
from aioreactor.durable.gatekeeper import Gatekeeper
from aioreactor.durable.requests import Body, unpack
from aioreactor.durable.taking import Taking
from aioreactor.engine.limiter import Ready
from aioreactor.engine.rollback_order import Action
from aioreactor.engine.scope import FanRun
from aioreactor.errors import AioreactorError, PlanChanged, SerializationError, UnknownReactor
from aioreactor.explanations import Explanation, Reason, moment
from aioreactor.queues import QueueReport
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.records import RunRow

_NAMES = {
    "cancel": "a cancel",
    "answer": "an answer",
    "decision": "a decision",
    "look": "the last of too many payloads",
}
DEEPEST = 8
"""So many runs are followed from holder to holder in search of a circle."""


class Explaining(Taking):
    """The part of `DurableRuns` that tells why a run stands still."""

    async def explain(self, run_id: str) -> Explanation:
        """See `Runs.explain`.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the store is away.

        Cancellation: nothing happens.
        """
        record = await self._read(run_id)
        row = record.row
        if row.ended:
            return Explanation(run_id, row.reactor, row.status, (_ended(row),))
        keys = self._keys()
        steps, at = await self._in_steps(record, keys)
        found = [*_of_requests(record), *steps, *await self._of_owner(row, at)]
        cycle = await self._cycle([run_id], steps, keys)
        deadline = row.deadline_ms / 1000 if row.deadline_ms is not None else None
        return Explanation(run_id, row.reactor, row.status, (*([cycle] if cycle else []), *found), deadline)

    # ------------------------------------------------------------------ steps

    async def _in_steps(self, record: StoredRun, keys: Keys | None) -> tuple[list[Reason], list[str]]:
        """Reasons of steps; and those whose turn has come, and which wait for nothing that is known."""
        try:
            opened = self._opened(record, needs_resources=False)
            mistakes = Counter(body.path for body in _bodies(record) if body.kind == "mistake")
            restored = Restored(self.environment, opened, self._codec(), record.row, mistakes)
        except PlanChanged as error:
            return [Reason("plan", f"it is kept until code that fits is back: {error}")], []
        except UnknownReactor as error:
            return [Reason("unknown_reactor", f"this process does not know it: {error}")], []
        except SerializationError as error:
            return [Reason("unreadable", f"this process cannot read it: {error}")], []
        if restored.goes_back:
            return await self._going_back(restored, keys), []
        own = await self._at_own_gates(restored, keys)
        found, at = ([own] if own else []), []
        for ready in restored.ready if own is None else ():
            reasons = await self._of_node(restored, ready, keys)
            found += reasons
            if not reasons:
                at.append(ready[0].path_of(ready[1]))
        return found, at

    async def _of_node(self, restored: Restored, ready: Ready, keys: Keys | None) -> list[Reason]:
        by_itself = restored.by_itself(ready)
        if by_itself is not None:
            return [by_itself]
        inner = (ready[0].children or {}).get(ready[1])
        if isinstance(inner, FanRun):
            return [await self._of_fan(restored, inner.path, "are to settle")]
        units = [await self._of_unit(restored, ready, unit) for unit in restored.units(ready)]
        gates = None if units else await self._at_gates(restored, ready, keys)
        return units if gates is None else [gates]

    async def _of_unit(self, restored: Restored, ready: Ready, unit: Unit) -> Reason:
        row, path = await self.store.peek(unit.run_id), ready[0].path_of(ready[1])
        parked = not restored.row.lease_left_ms
        until = unit.since + self.settings.unit_park if parked else None
        if row is None:
            stands = "is gone"
        elif row.ended:
            stands = f"is {row.status}; who has this run takes the outcome over"
        else:
            stands = f"is {row.status}" + (f" and waits for {row.waits_for}" if row.waits_for else "")
        text = f"waits for unit {unit.path!r}, run {unit.run_id}, which {stands}"
        return Reason("unit", text, path, unit.since or None, until, unit.run_id)

    async def _of_fan(self, restored: Restored, path: str, what: str) -> Reason:
        """What becomes of the elements of a map that fanned out."""
        row = await self.store.fans.look(restored.row.run_id, path)
        if row is None:
            return Reason("elements", f"waits for its elements, which {what}; nothing is known of them", path)
        total = row.values["total"] or "an unknown number"
        stand = f"{row.number('settled')} of {total} have, {row.under_way} are under way"
        if row.values["back"]:
            left = row.number("taken_back") - row.number("came_back")
            stand = f"{row.number('undone')} have been, {left} are under way"
        own = f", {len(row.runs)} of them runs of their own" if row.runs else ""
        nobody = "; no worker has any of them" if row.waiting and not row.sessions else ""
        text = f"waits for its elements, which {what}: {stand}{own}{nobody}"
        return Reason("elements", text, path, row.number("began_ms") / 1000)

    def _keys(self) -> Keys | None:
        found = self.environment.coordinator()
        return Keys(found) if isinstance(found, Gatekeeper) else None

    async def _at_gates(self, restored: Restored, ready: Ready, keys: Keys | None) -> Reason | None:
        scope, index = ready
        path, parked = scope.path_of(index), restored.parked(ready)
        label = f"{restored.row.run_id}:{path}"
        if keys is None:
            return None
        if parked is not None:
            since = restored.parked_since(path)
            return await refused(keys, parked.waits_for, path, label, since, restored.due(ready))
        names = [wish.name for wish in restored.wishes(scope, index)] if restored.row.lease_left_ms else []
        return await waiting(keys, names, path, label)

    async def _at_own_gates(self, restored: Restored, keys: Keys | None) -> Reason | None:
        """Of a run that its own gates refused, or that stands in line at them where it is executed."""
        row, gates = restored.row, restored.opened.gates or {}
        if keys is None:
            return None
        if gates.get("for"):
            since, until = restored.parked_since(""), row.due_ms / 1000 or None
            return await refused(keys, str(gates["for"]), "", row.run_id, since, until)
        names = [wish.name for wish in restored.own_wishes()] if row.lease_left_ms else []
        return await waiting(keys, names, "", row.run_id)

    async def _going_back(self, restored: Restored, keys: Keys | None) -> list[Reason]:
        action, row = restored.next_action, restored.row
        if action is None:
            return [Reason("rolling_back", "goes back; nothing is left to be undone")]
        fate = restored.opened.fate
        why = f" after {fate.path!r} failed" if fate is not None and fate.path else ""
        found = [
            Reason("rolling_back", f"goes back{why}: its {action.kind} is next", action.path, row.updated_ms / 1000)
        ]
        if isinstance(action.run, FanRun) and action.kind != "undo_all":
            return [*found, await self._of_fan(restored, action.path, "are to be rolled back")]
        gates = await self._of_action(restored, action, keys)
        return [*found, gates] if gates is not None else found

    async def _of_action(self, restored: Restored, action: Action, keys: Keys | None) -> Reason | None:
        if keys is None or action.run is not None:
            return None
        wishes = [*restored.wishes(action.scope, action.index), *restored.own_wishes()]
        label = f"{restored.row.run_id}:{action.kind}:{action.path}"
        return await waiting(keys, [wish.name for wish in wishes], action.path, label)

    # ------------------------------------------------------------------ circles

    async def _cycle(self, chain: list[str], reasons: Sequence[Reason], keys: Keys | None) -> Reason | None:
        """Whether what the first of ``chain`` waits for is held by a run that waits for what that one holds."""
        for holder in [each.holder for each in reasons if each.holder and each.kind in _HELD][:DEEPEST]:
            record = await self._run_of(holder)
            found = record.row.run_id if record is not None else ""
            if found == chain[0] and len(chain) > 1:
                text = f"waits in a circle: {' waits for '.join([*chain, found])}"
                return Reason("cycle", text, holder=chain[1])
            if record is None or found in chain or len(chain) > DEEPEST:
                continue
            following, _ = await self._in_steps(record, keys)
            deeper = await self._cycle([*chain, found], following, keys)
            if deeper is not None:
                return deeper
        return None

    async def _run_of(self, label: str) -> StoredRun | None:
        """The run that a holder's label speaks of: all of it, or what stands before step and attempt."""
        for name in (label, label.rsplit(":", 2)[0]):
            record = await self.store.read(name) if 0 < len(name) <= 200 else None
            if record is not None and not record.row.ended:
                return record
        return None

    # ------------------------------------------------------------------ who has it

    async def _of_owner(self, row: RunRow, at: list[str]) -> list[Reason]:
        updated, lease = row.updated_ms / 1000, row.lease_ms / 1000
        if row.lease_left_ms:
            steps = f" at {', '.join(map(repr, at[:3]))}{' and more' if len(at) > 3 else ''}" if at else ""
            what = "rolls it back" if row.status == "rolling_back" else f"executes it{steps}"
            return [Reason("executed", f"{row.owner} {what}; its lease is good", until=lease, holder=row.owner)]
        if row.lease_ms:
            text = f"{row.owner} had it and is gone, or stands still; a sweep takes it"
            return [Reason("lost", text, since=lease, holder=row.owner), *await self._without_workers(row, lease)]
        if row.status == "paused" and row.asked <= row.served:
            return []  # nobody is to have it; when a deadline passes a worker takes it
        if row.awaited_ms > row.now_ms:
            kind_is_start = row.status == "pending"
            text = "is to be started later" if kind_is_start else "nobody has it; a worker takes it when it is due"
            first = Reason("start" if kind_is_start else "parked", text, until=row.due_ms / 1000)
            return [first, *await self._without_workers(row, updated)]
        return await self._of_queue(row, updated)

    async def _without_workers(self, row: RunRow, since: float) -> list[Reason]:
        return [reason for reason in await self._of_queue(row, since) if reason.kind == "no_worker"]

    async def _of_queue(self, row: RunRow, since: float) -> list[Reason]:
        queue: Queue = self.queues(row.queue)
        try:
            report = await queue.look()
        except AioreactorError as error:
            name = f"queue {row.queue!r}" if row.queue else "the default queue"
            return [Reason("worker", f"waits for a worker of {name}, which cannot be looked at: {error}", since=since)]
        return [_no_worker(report, since) if not report.alive else _worker(report, since)]


_HELD = frozenset({"lock", "semaphore", "ordered_lock"})


def _ended(row: RunRow) -> Reason:
    if row.status == "aborted":
        return Reason("aborted", "it was cut off; what it did stands until runs.undo", since=row.ended_ms / 1000)
    return Reason("ended", f"it has ended: {row.status}", since=row.ended_ms / 1000)


def _no_worker(report: QueueReport, since: float) -> Reason:
    last = report.last_seen
    seen = "none was seen for an hour" if last is None else f"one was last seen at {moment(last)}"
    return Reason("no_worker", f"no worker serves queue {report.name!r}: {seen}", since=since)


def _worker(report: QueueReport, since: float) -> Reason:
    alive = report.alive
    running, places = sum(each.running for each in alive), sum(each.places for each in alive)
    full = f", with {running} of {places} places taken" if places else ""
    jobs = f"{report.due} jobs wait there" if report.due else "no job waits there, so that a sweep has to ring again"
    text = f"waits for a worker of queue {report.name!r}: {len(alive)} there{full}; {jobs}"
    return Reason("worker", text, since=since)


def _bodies(record: StoredRun) -> Iterator[Body]:
    """The requests that nobody has carried out."""
    for request in record.waiting:
        with contextlib.suppress(SerializationError):
            yield unpack(request.body)


def _of_requests(record: StoredRun) -> list[Reason]:
    return [
        Reason("request", f"{_NAMES[body.kind]} was accepted and is not carried out yet", body.path)
        for body in _bodies(record)
        if body.kind in _NAMES
    ]
