"""Taking control of stored runs from outside: cancelled, answered, decided.

Nobody but a run's owner writes it. So whoever wants something leaves a request first, which the store numbers; from
then on it cannot be lost. If somebody executes the run, that process is rung and carries the request out. If nobody
does, whoever asked takes the run, finds the request among those that wait, and carries it out here; should this process
die on the way, the sweeper rings for the run, and the next owner finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from aioreactor.durable.fits import Opened
from aioreactor.durable.payloads import checked_payload
from aioreactor.durable.reading import AT_REST
from aioreactor.durable.requests import Body, answer_id, pack, unpack
from aioreactor.durable.starting import Starting
from aioreactor.durable.taking import Taking
from aioreactor.engine.orders import Mode
from aioreactor.engine.pausing import interrupt_of
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.snapshot import Image
from aioreactor.errors import (
    AlreadyResumed,
    InputValidationError,
    NotResumable,
    OwnershipLost,
    RunNotFound,
    UnknownReactor,
)
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.plan.paths import node_at, present_path
from aioreactor.registry import find_plan
from aioreactor.results import Dispatched, Outcome, Paused
from aioreactor.store.answers import Accepted, Missing, Refused
from aioreactor.store.claim import new_token
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.store.records import RunRow
from aioreactor.trace import RunRecord, Status

ASKABLE: frozenset[Status] = frozenset(("pending", "running", "paused"))
LOOK_AGAIN = 2.0
"""Seconds after which whoever waits for a run's end looks whether its owner is still there."""


class Control(Starting, Taking):
    """The part of `DurableRuns` that acts on runs which others execute, or nobody."""

    async def cancel(self, run_id: str, reason: str, mode: Mode, timeout: float | None = None) -> Outcome[Any]:
        """End a run ``cancelled``, wherever it is, and give its outcome.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: it has ended, or is going back already; nothing changed.
            TimeoutError: it took longer than ``timeout`` seconds; it is cancelled all the same.

        Cancellation: of the wait only, once the request was accepted.
        """
        body = pack(Body("cancel", text=reason, mode=mode))
        accepted = await self.store.ask(run_id, body, allowed=ASKABLE)
        if not isinstance(accepted, Accepted):
            raise refusal(run_id, accepted)
        async with asyncio.timeout(timeout):
            outcome = await self._seen_through(run_id)
        if outcome.status != "cancelled":
            raise NotResumable(run_id, outcome.status, "it ended before it could be cancelled")
        return outcome

    async def _seen_through(self, run_id: str) -> Outcome[Any]:
        """The outcome of a run that has a request: here if nobody has the run, else of whoever has it."""
        rung = False
        while True:
            row = await self.store.peek(run_id)
            if row is None:
                raise RunNotFound(run_id)
            if row.ended:
                return await self.outcome(run_id)
            if row.lease_left_ms:
                await self._rested(run_id, min(LOOK_AGAIN, row.lease_left_ms / 1000 + 0.05))
            elif self._knows(row):
                await self._carried_on(run_id)
            else:
                if not rung:
                    await self.ring(run_id, row.queue)
                rung = True
                await self._rested(run_id, LOOK_AGAIN)

    async def _carried_on(self, run_id: str) -> None:
        """Execute a run here that nobody has; somebody else may have been faster."""
        with contextlib.suppress(OwnershipLost):
            claim = await self._taken(run_id)
            if claim is not None:
                await self._resume(claim, None)
            else:
                await self._rested(run_id, 0.05)

    def _knows(self, row: RunRow) -> bool:
        try:
            find_plan(row.reactor, row.version)
        except UnknownReactor:
            return False
        return True

    async def _rested(self, run_id: str, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            await self.store.wait_done(run_id, timeout, until=AT_REST)

    async def run(
        self, plan: Plan, run_id: str, view: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Outcome[Any]:
        """See `Starting.run`.

        Cancellation: see there.
        """
        return await self._gone_on(run_id, await super().run(plan, run_id, view, inputs, options))

    async def _gone_on(self, run_id: str, outcome: Outcome[Any]) -> Outcome[Any]:
        """Go on here with a run that paused just when it was answered: there may be no worker to do it."""
        while isinstance(outcome, Paused):
            row = await self.store.peek(run_id)
            claim = await self._taken(run_id) if row is not None and row.asked > row.served else None
            if claim is None:
                break
            outcome = await self._resume(claim, None, awaits_trigger=True)
        return outcome

    # ------------------------------------------------------------------ resume

    async def resume(self, run_id: str, step: str | None, payload: Any, key: str | None) -> Outcome[Any]:
        """Answer an interrupt; see `Runs.resume`.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: the interrupt is not open, or its time is over; nothing changed.
            AlreadyResumed: another payload was accepted before.
            InputValidationError: the payload does not fit.
            UnknownReactor, PlanChanged, SerializationError: the run cannot be read here.

        Cancellation: the answer was accepted, or not; with a ``key`` the same call tells.
        """
        record = await self._read(run_id)
        opened = self._opened(record, needs_resources=False)
        path = present_path(opened.plan, _chosen(record, opened, step))
        stored = opened.stored_path(path)
        node = node_at(opened.plan, path)
        if node is None or node.kind != "interrupt":
            raise NotResumable(run_id, record.row.status, f"it has no interrupt {path!r}")
        before = next((request for request in record.requests if request.id == answer_id(stored)), None)
        if before is not None:
            return await self._answered_before(run_id, path, node, key, unpack(before.body))
        image = _open_image(record, opened, path, node)
        try:
            value = checked_payload(path, node.result_type, payload)
        except InputValidationError as error:
            if interrupt_of(node).max_attempts is not None:
                await self._count(run_id, stored, node, error)
            raise
        body = Body("answer", stored, key or "", self._codec().value(node, path, value), token=new_token())
        until_ms = round(image.due * 1000)
        asked = self.store.ask(run_id, pack(body), request_id=answer_id(stored), allowed=ASKABLE, until_ms=until_ms)
        accepted = await asked
        if not isinstance(accepted, Accepted):
            raise refusal(run_id, accepted)
        if not accepted.same:
            first = next(each for each in (await self._read(run_id)).requests if each.id == answer_id(stored))
            return await self._answered_before(run_id, path, node, key, unpack(first.body))
        return await self._followed(run_id, opened.plan, node)

    async def correlated(self, plan: Plan, correlation_id: str) -> tuple[str, str]:
        """Run id and path of the interrupt that waits for a correlation id, or did.

        Raises:
            RunNotFound: nobody does.

        Cancellation: nothing happens.
        """
        for name in (plan.name, *plan.options.aliases):
            found = await self.correlations.find(name, correlation_id)
            if found is not None:
                return found
        raise RunNotFound(f"with an interrupt that waits for {correlation_id!r}")

    async def _answered_before(
        self, run_id: str, path: str, node: PlanNode, key: str | None, first: Body
    ) -> Outcome[Any]:
        """The same call again gets what the first one got.

        Raises:
            AlreadyResumed: it is another call.
        """
        if key is None or first.key != key:
            raise AlreadyResumed(run_id, path)
        row = await self.store.peek(run_id)
        if row is None:
            raise RunNotFound(run_id)
        if row.rests_in(AT_REST):
            return await self.outcome(run_id)
        outcome = await self._followed(run_id, find_plan(row.reactor, row.version), node)
        if isinstance(outcome, Dispatched) and interrupt_of(node).resume == "inline":
            return await self.finished(run_id, None)
        return outcome

    async def _followed(self, run_id: str, plan: Plan, node: PlanNode) -> Outcome[Any]:
        """What comes of an accepted answer: the run goes on here, or elsewhere."""
        row = await self.store.peek(run_id)
        queue, job_id = (row.queue, "") if row is not None else ("", "")
        if interrupt_of(node).resume == "inline":
            claim = await self._taken(run_id)
            if claim is not None:
                return await self._gone_on(run_id, await self._resume(claim, None, awaits_trigger=True))
        elif row is not None and not row.lease_left_ms:
            job_id = await self.ring(run_id, queue)
        return Dispatched(job_id, _record=RunRecord(run_id, plan.name, "running"))

    async def _count(self, run_id: str, path: str, node: PlanNode, error: InputValidationError) -> None:
        """Count a payload that does not fit; who finds that these were too many sees to it that the run ends."""
        allowed = interrupt_of(node).max_attempts or 1
        body = pack(Body("mistake", path, errors=error.field_errors))
        accepted = await self.store.ask(run_id, body, allowed=ASKABLE, wakes=allowed == 1)
        if not isinstance(accepted, Accepted):
            return
        record = await self._read(run_id)
        mistakes = [each for each in record.requests[: accepted.number] if _is_mistake(each.body, path)]
        if len(mistakes) < allowed or record.row.ended:
            return
        await self.store.ask(run_id, pack(Body("look")), request_id=f"look:{path}", allowed=ASKABLE)
        await self._carried_on(run_id)


def _is_mistake(data: bytes, path: str) -> bool:
    body = unpack(data)
    return body.kind == "mistake" and body.path == path


def refusal(run_id: str, answer: Refused | Missing) -> RunNotFound | NotResumable:
    """Why a request was not accepted, as an error."""
    if isinstance(answer, Missing):
        return RunNotFound(run_id)
    if answer.late:
        return NotResumable(run_id, answer.status, "the time of the interrupt is over")
    going_back = answer.status == "rolling_back"
    return NotResumable(run_id, answer.status, "rollback in progress" if going_back else "it has ended")


def _chosen(record: StoredRun, opened: Opened, step: str | None) -> str:
    """The path that is meant.

    Raises:
        NotResumable: none was given, and there is not exactly one to choose.
    """
    if step is not None:
        return step
    row = record.row
    found = [path for path, image in opened.images.items() if image.opened and image.status == NodeStatus.READY]
    found = [path for path in found if (node := node_at(opened.plan, path)) is not None and node.kind == "interrupt"]
    if not found or row.ended:
        answered = [unpack(each.body).path for each in record.requests if each.id.startswith("answer:")]
        found = answered if len(answered) == 1 else []
    if len(found) == 1:
        return found[0]
    text = f"several interrupts are open: {', '.join(found)}; say which" if found else "no interrupt is open"
    raise NotResumable(row.run_id, row.status, text)


def _open_image(record: StoredRun, opened: Opened, path: str, node: PlanNode) -> Image:
    """The record of an interrupt that can be answered.

    Raises:
        NotResumable: it cannot.
    """
    row, image = record.row, opened.images.get(path)
    if row.ended or row.status == "rolling_back":
        raise refusal(row.run_id, Refused(row.status))
    if image is None or not image.opened or image.status != NodeStatus.READY:
        past = image is not None and image.status not in (NodeStatus.WAITING, NodeStatus.READY)
        raise NotResumable(row.run_id, row.status, f"{path!r} is {'not open any more' if past else 'not open yet'}")
    if image.due and row.now_ms > image.due * 1000:
        raise refusal(row.run_id, Refused(row.status, late=True))
    allowed = interrupt_of(node).max_attempts
    stored = opened.stored_path(path)
    if allowed is not None and sum(_is_mistake(each.body, stored) for each in record.requests) >= allowed:
        raise NotResumable(row.run_id, row.status, f"{path!r} got {allowed} payloads that did not fit (max_attempts)")
    return image
