"""New runs that begin with what stands of old ones, and decisions about steps whose attempts were exhausted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from aioreactor.definition.annotations import UNKNOWN
from aioreactor.definition.convert import converter_for
from aioreactor.definition.fields import closest_text
from aioreactor.definition.markers import Value
from aioreactor.durable.control import ASKABLE, Control, refusal
from aioreactor.durable.fits import Opened
from aioreactor.durable.requests import Body, pack
from aioreactor.engine.orders import Verdict
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.snapshot import FANNED, Image
from aioreactor.errors import AlreadyResumed, InputValidationError, NotResumable
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.plan.paths import node_at, present_path, present_records
from aioreactor.starting import check_importable
from aioreactor.store.answers import Accepted, Refused
from aioreactor.store.plan_codec import known
from aioreactor.store.records import NewRun
from aioreactor.store.records import RunRecord as StoredRun
from aioreactor.trace import Status

COPIED_MS = 3_600_000
"""For how long the results of maps that fanned out are kept for a run that is about to be created."""
_STANDS = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)
_RETRIED: frozenset[Status] = frozenset(("failed", "cancelled", "aborted"))


class Anew(Control):
    """The part of `DurableRuns` that begins runs from others, and decides about steps."""

    async def retry(self, run_id: str, new_id: str) -> str:
        """Begin a new run with the inputs of an old one and what stands of it; gives the reactor's name.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: it did not fail, or is going back.
            UnknownReactor, PlanChanged, SerializationError, DefinitionError: a worker could not execute it.

        Cancellation: the new run was created, or not; if it was, it is rung for.
        """
        record = await self._read(run_id)
        if record.row.status not in _RETRIED:
            raise NotResumable(run_id, record.row.status, "only what failed or was cancelled can be retried")
        opened = self._opened(record, needs_resources=False)
        kept = [node.name for node in opened.plan.nodes if _stands(node.name, opened.images)]
        stored, _ = present_records(opened.plan, record.steps)
        steps = {path: data for path, data in stored.items() if _top(path) in kept}
        return await self._begin(record, opened, new_id, steps)

    async def fork(self, run_id: str, new_id: str, step: str) -> str:
        """Begin a new run that takes over the results before a step; gives the reactor's name.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: it has not ended.
            ValueError: it has no such step.
            UnknownReactor, PlanChanged, SerializationError, DefinitionError: a worker could not execute it.

        Cancellation: the new run was created, or not; if it was, it is rung for.
        """
        record = await self._read(run_id)
        if not record.row.ended:
            going_back = record.row.status == "rolling_back"
            text = "rollback in progress" if going_back else "only a run that has ended can be forked"
            raise NotResumable(run_id, record.row.status, text)
        opened = self._opened(record, needs_resources=False)
        plan = opened.plan
        if step not in plan.by_name:
            raise ValueError(f"{plan.name} has no step {step!r}{closest_text(step, plan.by_name)}")
        again = {plan.nodes[index].name for index in _from(plan, plan.by_name[step])}
        kept = [node.name for node in plan.nodes if node.name not in again and _stands(node.name, opened.images)]
        codec = self._codec()
        images = [_taken_over(plan, image) for path, image in opened.images.items() if _top(path) in kept]
        return await self._begin(record, opened, new_id, {image.path: codec.image(image) for image in images})

    async def _begin(self, record: StoredRun, opened: Opened, new_id: str, steps: Mapping[str, bytes]) -> str:
        plan, row = opened.plan, record.row
        check_importable(plan)
        options = {"tags": row.tags, "queue": row.queue, "durability": row.durability}
        gates = await self._in_line(plan, new_id, opened.inputs, {})
        new = self._new(plan, row.inputs, options, gates=gates)
        new = msgspec.structs.replace(new, parent=row.run_id, steps=steps, state=row.state)
        fanned = [path for path, data in steps.items() if self._codec().image_back(path, data).opened == FANNED]
        if fanned:
            # Copied before it is a run's, so that no key of them can stay for ever.
            await self.store.fans.copy(row.run_id, new_id, fanned, ttl_ms=COPIED_MS)
        await self._written(new_id, new)
        return plan.name

    async def _written(self, new_id: str, new: NewRun) -> None:
        await self.store.create(new_id, new)
        await self.ring(new_id, new.queue)

    async def decide(self, run_id: str, path: str, verdict: Verdict | Value) -> str:
        """Say what becomes of a step whose attempts were exhausted; gives the reactor's name.

        Raises:
            RunNotFound: there is no such run.
            NotResumable: the step does not wait for a decision.
            AlreadyResumed: it was decided otherwise.
            InputValidationError: the value does not fit the step's annotation.
            SerializationError: nor does None, for a step that is skipped.
            UnknownReactor, PlanChanged: the run cannot be read here.

        Cancellation: the decision was accepted, or not; the same call tells.
        """
        record = await self._read(run_id)
        opened = self._opened(record, needs_resources=False)
        path = present_path(opened.plan, path)
        node, image = node_at(opened.plan, path), opened.images.get(path)
        if record.row.ended or record.row.status == "rolling_back":
            raise refusal(run_id, Refused(record.row.status))
        waits = image is not None and image.opened and image.status == NodeStatus.READY
        if node is None or image is None or node.kind != "step" or not waits:
            raise NotResumable(run_id, record.row.status, f"step {path!r} does not wait for a decision")
        stored = opened.stored_path(path)
        body = pack(self._decision(node, stored, verdict))
        number = f"decision:{stored}:{image.attempts}"
        accepted = await self.store.ask(run_id, body, request_id=number, allowed=ASKABLE)
        if not isinstance(accepted, Accepted):
            raise refusal(run_id, accepted)
        if not accepted.same:
            raise AlreadyResumed(run_id, path)
        if not accepted.lease_left_ms:
            await self.ring(run_id, record.row.queue)
        return opened.plan.name

    def _decision(self, node: PlanNode, path: str, verdict: Verdict | Value) -> Body:
        if isinstance(verdict, Value):
            value = _checked(node, path, verdict.value)
            return Body("decision", path, value=self._codec().value(node, path, value), text="value")
        skipped = self._codec().value(node, path, None) if verdict == "skip" else b""
        return Body("decision", path, value=skipped, text=verdict)


def _checked(node: PlanNode, path: str, value: Any) -> Any:
    annotation = known(node.result_type)
    if annotation is UNKNOWN:
        return value
    try:
        return converter_for(annotation)(value)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise InputValidationError(f"the value decided for step {path!r}", {"*": [str(error)]}) from error


def _top(path: str) -> str:
    """The node of the root that a path is in."""
    return path.partition(".")[0].partition("[")[0]


def _stands(name: str, images: Mapping[str, Image]) -> bool:
    """Whether all that a node of the root did is there still."""
    own = images.get(name)
    inside = [image for path, image in images.items() if path != name and _top(path) == name]
    undone = (NodeStatus.UNDONE, NodeStatus.COMPENSATED, NodeStatus.CUT)
    return own is not None and own.status in _STANDS and all(image.status not in undone for image in inside)


def _from(plan: Plan, index: int) -> set[int]:
    """A node and all that depends on it."""
    found, following = {index}, [index]
    while following:
        for dependant in plan.nodes[following.pop()].dependants:
            if dependant not in found:
                found.add(dependant)
                following.append(dependant)
    return found


def _taken_over(plan: Plan, image: Image) -> Image:
    """A result as a fork has it: what made it is another run's to undo."""
    node = node_at(plan, image.path)
    made_here = node is not None and (node.kind == "step" or image.opened == FANNED)
    if made_here and image.status == NodeStatus.COMPLETED:
        return replace(image, status=int(NodeStatus.SKIPPED), order=0)
    return replace(image, order=0)
