"""What is kept of elements of maps that fanned out: what they have in common, their items, and what they came to. Pure.

An element's record is a letter and a MessagePack array: its outcome, and, in capitals, the images of its nodes, from
which it can be rolled back. The records of elements that are runs of their own are their runs' until they settle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from aioreactor.definition.annotations import UNKNOWN
from aioreactor.engine.scope import NodeStatus, Scope
from aioreactor.errors import AioreactorError, SerializationError
from aioreactor.failures import ORIGIN, origin_of
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.plan.units import ITEM, PATH
from aioreactor.results import Failure, Halt, Outcome, RollbackFailure, Skipped, Success
from aioreactor.snapshots import encode_outcome
from aioreactor.store.codec import FieldsCodec, codec_for
from aioreactor.store.codec_records import check_size, unstamp
from aioreactor.store.plan_codec import PlanCodec, known

_PLACES = ("step", "owner", "where")
_STEP = re.compile(r"\b(?:step|interrupt) '([^']+)'")

SUCCESS, SKIPPED, FAILURE, HALT, CUT = "s", "k", "f", "h", "x"


class Shared(msgspec.Struct, array_like=True):
    """What all elements of one map of one run have in common; ``values`` are inputs, encoded."""

    reactor: str
    queue: str
    created_ms: int
    values: bytes


class Record(NamedTuple):
    """What an element came to. ``steps`` are the images of its nodes, by path, while something may be rolled back."""

    kind: str = SUCCESS
    blob: bytes = b""
    steps: Mapping[str, bytes] = {}

    def packed(self) -> bytes:
        """All of it but its kind; nothing of a success with nothing to say."""
        if not self.blob and not self.steps:
            return b""
        return msgspec.msgpack.encode([self.blob, self.steps] if self.steps else [self.blob])

    @property
    def letter(self) -> str:
        """Its kind, in capitals while something may be rolled back."""
        return self.kind.upper() if self.steps else self.kind

    @classmethod
    def read(cls, data: bytes | None) -> Record:
        """A record as the store has it, its kind first.

        Raises:
            SerializationError: it is damaged.
        """
        if not data:
            return cls(SUCCESS)
        kind, rest = chr(data[0]).lower(), data[1:]
        if not rest:
            return cls(kind)
        try:
            blob, *steps = _records.decode(rest)
            return cls(kind, _blob.decode(blob), _steps.decode(steps[0]) if steps else {})
        except msgspec.MsgspecError as error:
            raise SerializationError("the record of an element", str(error)) from error


_records = msgspec.msgpack.Decoder(list[msgspec.Raw])
_blob = msgspec.msgpack.Decoder(bytes)
_steps = msgspec.msgpack.Decoder(dict[str, bytes])
_shared = msgspec.msgpack.Decoder(Shared)
_items = msgspec.msgpack.Decoder(list[bytes])
_left = msgspec.msgpack.Decoder(list[RollbackFailure])


def pack_shared(shared: Shared) -> bytes:
    """What elements have in common, as bytes."""
    return msgspec.msgpack.encode(shared)


def read_shared(data: bytes) -> Shared:
    """The same, read again.

    Raises:
        SerializationError: it is damaged.
    """
    try:
        return _shared.decode(data)
    except msgspec.MsgspecError as error:
        raise SerializationError("what the elements of a map have in common", str(error)) from error


def pack_items(items: Sequence[bytes]) -> bytes:
    """A chunk of encoded items."""
    return msgspec.msgpack.encode(items)


def read_items(data: bytes) -> list[bytes]:
    """The items of a chunk.

    Raises:
        SerializationError: it is damaged.
    """
    try:
        return _items.decode(data) if data else []
    except msgspec.MsgspecError as error:
        raise SerializationError("the items of a map", str(error)) from error


# ---------------------------------------------------------------------- inputs


def pack_common(
    node: PlanNode, codec: PlanCodec, given: Mapping[str, Any], around: Mapping[str, Any], path: str
) -> bytes:
    """What elements have in common of their inputs: what was resolved for all of them, around them, where they are.

    Raises:
        SerializationError, PayloadTooLarge: it cannot be stored.
    """
    plan = node.fan
    assert plan is not None
    if plan.unit_of:
        data = codec.inputs(plan, {**around, PATH: path, **given})
    else:
        data = _given_codec(node).encode(given, cipher=codec.cipher)
    return check_size(node.name, data, codec.limit)


def read_common(node: PlanNode, codec: PlanCodec, data: bytes) -> dict[str, Any]:
    """The same, read again.

    Raises:
        SerializationError: it is damaged, or does not fit any more.
    """
    plan = node.fan
    assert plan is not None
    if plan.unit_of:
        return codec.inputs_back(plan, data)
    return _given_codec(node).decode(data, cipher=codec.cipher)


def _given_codec(node: PlanNode) -> FieldsCodec:
    plan = node.fan
    assert plan is not None
    types = {arg.parameter: known(arg.annotation) for arg in node.passed}
    return FieldsCodec(types, plan.fields.hidden)


def step_inputs(common: Mapping[str, Any], item: Any) -> dict[str, Any]:
    """The inputs of an element that is a single step."""
    return {**common, ITEM: item}


# ---------------------------------------------------------------------- outcomes


def value_blob(plan: Plan, codec: PlanCodec, value: Any) -> bytes:
    """An element's value; empty for None.

    Raises:
        SerializationError, PayloadTooLarge: it cannot be stored.
    """
    if value is None:
        return b""
    if plan.returns is not None:
        return codec_for(_type_of(plan.nodes[plan.returns])).store(
            value, step=plan.name, limit=codec.limit, cipher=codec.cipher
        )
    return check_size(plan.name, _results_codec(plan).encode(value, cipher=codec.cipher), codec.limit)


def value_back(plan: Plan, codec: PlanCodec, blob: bytes) -> Any:
    """An element's value, read again.

    Raises:
        SerializationError: it is damaged, or does not fit any more.
    """
    if not blob:
        return None
    if plan.returns is not None:
        return codec_for(_type_of(plan.nodes[plan.returns])).restore(blob, step=plan.name, cipher=codec.cipher)
    return _results_codec(plan).decode(blob, cipher=codec.cipher)


def _type_of(node: PlanNode) -> Any:
    return known(node.result_type if node.unit is None else node.kept_as)


def _results_codec(plan: Plan) -> FieldsCodec:
    return FieldsCodec({node.name: _type_of(node) for node in plan.nodes})


def record_of(plan: Plan, codec: PlanCodec, root: Scope, outcome: Outcome[Any], steps: Mapping[str, bytes]) -> Record:
    """What an element came to, of an execution that has ended.

    Raises:
        SerializationError, PayloadTooLarge: its value cannot be stored.
    """
    if isinstance(outcome, Success):
        skipped = bool(plan.unit_of) and root.status[0] == NodeStatus.SKIPPED
        return Record(SKIPPED if skipped else SUCCESS, value_blob(plan, codec, outcome.value), steps)
    return Record(kind_of(outcome), encode_outcome(outcome), steps)


def kind_of(outcome: Outcome[Any]) -> str:
    """Of one that did not succeed."""
    if isinstance(outcome, Halt):
        return HALT
    return CUT if outcome.status == "cancelled" else FAILURE


def outcome_back(
    node: PlanNode,
    codec: PlanCodec,
    path: str,
    index: int,
    record: Record,
    inputs: Mapping[str, Any] | None = None,
) -> Any:
    """An element's outcome as the reader of its map gets it: paths are the map's, ``inputs`` those of the map's run.

    Raises:
        SerializationError: it is damaged, or does not fit any more.
    """
    plan = node.fan
    assert plan is not None
    if record.kind == SUCCESS:
        return Success(value_back(plan, codec, record.blob))
    if record.kind == SKIPPED:
        return Skipped(value_back(plan, codec, record.blob))
    if record.kind == CUT and not record.blob:
        return Skipped(None)
    found: Any = codec_for(UNKNOWN).decode(unstamp(record.blob, "the outcome"), "the outcome")
    return placed(plan, path, index, found, inputs)


def placed(plan: Plan, path: str, index: int, outcome: Any, inputs: Mapping[str, Any] | None = None) -> Any:
    """The outcome of an element's own run, as if it were part of its parent's, which has these ``inputs``."""
    move = partial(at, plan, path, index)
    step, left = move(outcome.step), [left_at(plan, path, index, each) for each in outcome.rollback_failures]
    for error in outcome.errors:
        relocate(error, move)
    if isinstance(outcome, Halt):
        return Halt(outcome.reason, step, errors=outcome.errors, rollback_failures=left)
    assert isinstance(outcome, Failure)
    return Failure(
        outcome.error,
        step,
        retry=outcome.retryable,
        errors=outcome.errors,
        inputs=outcome.inputs if inputs is None else inputs,
        arguments=outcome.arguments,
        attempts=outcome.attempts,
        rollback_failures=left,
    )


def relocate(error: BaseException, move: Callable[[str], str]) -> None:
    """Let an error of the library, read from the store, name its step by another path, in its fields and its text."""
    origin = origin_of(error)
    fields = {name: item for name in _PLACES if isinstance(item := error.__dict__.get(name), str)}
    if origin is None or not isinstance(error, AioreactorError) or not fields:
        return
    found = _STEP.search(origin.message)
    old = fields.get("step") or (found.group(1) if found is not None else "")
    if not old:
        return
    new = move(old)
    for name, item in fields.items():
        error.__dict__[name] = new if item == old else item.replace(repr(old), repr(new))
    error.args = tuple(item.replace(repr(old), repr(new)) if isinstance(item, str) else item for item in error.args)
    error.__dict__[ORIGIN] = origin._replace(message=origin.message.replace(repr(old), repr(new)))


def at(plan: Plan, path: str, index: int, step: str | None) -> str:
    """A path inside an element, from the root of its parent's run."""
    place = f"{path}[{index}]"
    return place if not step or step == plan.unit_of else f"{place}.{step}"


def left_at(plan: Plan, path: str, index: int, failure: RollbackFailure) -> RollbackFailure:
    """What did not complete of an element's rollback, as its parent reports it."""
    if failure.map_step is not None:
        inner, number = at(plan, path, index, failure.map_step), failure.element
    else:
        inner, number = path, index
    return failure._replace(step=at(plan, path, index, failure.step), map_step=inner, element=number)


def pack_left(left: Sequence[RollbackFailure]) -> bytes:
    """What did not complete, as bytes; empty if all did."""
    return msgspec.msgpack.encode([tuple(each) for each in left]) if left else b""


def read_left(data: bytes | None) -> list[RollbackFailure]:
    """The same, read again.

    Raises:
        SerializationError: it is damaged.
    """
    try:
        return _left.decode(data) if data else []
    except msgspec.MsgspecError as error:
        raise SerializationError("what is left of an element's rollback", str(error)) from error
