"""What a run's record holds, encoded by the types that its plan knows; and records as bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

import msgspec

from aioreactor.definition.annotations import UNKNOWN, Unresolved
from aioreactor.definition.fields import REQUIRED
from aioreactor.engine.ports import Fate
from aioreactor.engine.snapshot import Image
from aioreactor.errors import PayloadTooLarge, SerializationError
from aioreactor.logs import note
from aioreactor.map_results import FanResults, FanSummary
from aioreactor.plan.model import Plan, PlanNode
from aioreactor.redaction import Scrubber
from aioreactor.results import Dispatched, Failure, Halt, RollbackFailure, Success
from aioreactor.store.codec import FieldsCodec, ValueCodec, codec_for
from aioreactor.store.codec_records import DEFAULT_MAX_VALUE_BYTES, Cipher, check_size, stamp, unstamp
from aioreactor.store.codec_wire import pack_plain, revive
from aioreactor.store.failures_data import ErrorData, failure_to_data, pack_failure, scrubbed
from aioreactor.store.failures_revive import failure_from_data, unpack_failure
from aioreactor.trace import RawEntry

logger = logging.getLogger("aioreactor.store")
DEALT = 64
"""A list that a map fans out from may be so many times as large as any other value: each item is bounded by itself."""


class _ImageRow(msgspec.Struct, array_like=True, omit_defaults=True):
    status: int
    attempts: int = 0
    order: int = 0
    value: bytes | None = None
    error: bytes | None = None
    inputs: bytes | None = None
    item: bytes | None = None
    opened: int = 0
    due_ms: int = 0
    arguments: bytes | None = None
    correlation: str | None = None
    gates: dict[str, Any] | None = None


class _FateRow(msgspec.Struct, array_like=True):
    kind: str
    path: str
    error: ErrorData | None
    attempts: int
    reason: Any
    left: list[RollbackFailure] = []
    others: list[ErrorData] = []
    arguments: dict[str, Any] = {}
    retryable: bool = False


_images = msgspec.msgpack.Decoder(_ImageRow)
_fates = msgspec.msgpack.Decoder(_FateRow, ext_hook=revive)
_entries = msgspec.msgpack.Decoder(tuple[float, str, str, int, str])
_left = msgspec.msgpack.Decoder(list[RollbackFailure], ext_hook=revive)
_progress = msgspec.msgpack.Decoder(dict[str, tuple[float, float | None, str]])
_summaries = msgspec.msgpack.Decoder(FanSummary)
_notes = msgspec.msgpack.Decoder(dict[str, Any])


def known(annotation: Any) -> Any:
    """The annotation, or that there is none."""
    return UNKNOWN if isinstance(annotation, Unresolved) else annotation


def unconstrained(annotation: Any) -> Any:
    """The annotation without what bounds its values."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *marks = get_args(annotation)
    rest = tuple(mark for mark in marks if not isinstance(mark, msgspec.Meta))
    return Annotated[(kind, *rest)] if rest else kind


def fields_codec(plan: Plan) -> FieldsCodec:
    """The codec of a reactor's inputs; kept, unless some annotations are not known yet."""
    return _fields_codec(plan) if plan.unresolved else _known_fields_codec(plan)


def _fields_codec(plan: Plan) -> FieldsCodec:
    return FieldsCodec({field.name: known(field.annotation) for field in plan.fields.inputs}, plan.fields.hidden)


_known_fields_codec = lru_cache(256)(_fields_codec)


class PlanCodec:
    """Encodes and decodes for one run; `snapshot.Codec`.

    ``scrub`` takes secrets out of stored error texts; it is asked for anew each time, since a run learns of them.
    ``ahead`` is by how many seconds the store's clock is ahead of this process's: stored times are the store's.
    """

    def __init__(self, *, limit: int = DEFAULT_MAX_VALUE_BYTES, cipher: Cipher | None = None) -> None:
        self.limit = limit
        self.cipher = cipher
        self.scrub: Scrubber | None = None
        self.ahead = 0.0

    def value(self, node: PlanNode, path: str, value: Any) -> bytes:
        """See `snapshot.Codec`."""
        if isinstance(value, (FanResults, FanSummary)):
            return stamp(msgspec.msgpack.encode(value.summary if isinstance(value, FanResults) else value))
        limit = self.limit * DEALT if node.dealt else self.limit
        return self._of(node).store(_as_kept(node, value), step=path, limit=limit, cipher=self.cipher)

    def value_back(self, node: PlanNode, data: bytes) -> Any:
        """See `snapshot.Codec`; of a map that fanned out, a `FanSummary`."""
        if node.fan is not None and node.collect is None:
            return _summary_back(node, data)
        found = self._of(node).restore(data, step=node.name, cipher=self.cipher)
        return found.value if node.kind == "async_step" and isinstance(found, Success) else found

    def is_open(self, node: PlanNode) -> bool:
        """Whether parts of its values are not annotated."""
        return self._of(node).open

    def warning(self, node: PlanNode, value: Any) -> str | None:
        """What a value would lose for want of an annotation, and the fix; None when nothing."""
        return self._of(node).warning(_as_kept(node, value))

    def _of(self, node: PlanNode) -> ValueCodec:
        return codec_for(known(node.result_type) if node.unit is None else node.kept_as)

    def inputs(self, plan: Plan, values: Mapping[str, Any]) -> bytes:
        """See `snapshot.Codec`."""
        return fields_codec(plan).encode(values, cipher=self.cipher)

    def inputs_back(self, plan: Plan, data: bytes) -> dict[str, Any]:
        """See `snapshot.Codec`. Inputs that the code got since have their defaults."""
        values = fields_codec(plan).decode(data, cipher=self.cipher)
        for field in plan.fields.inputs:
            if field.name not in values and field.default is not REQUIRED:
                values[field.name] = field.make_default()
        return values

    def item(self, node: PlanNode, path: str, item: Any) -> bytes:
        """See `snapshot.Codec`."""
        return _item_codec(node).store(item, step=path, limit=self.limit, cipher=self.cipher)

    def item_back(self, node: PlanNode, data: bytes) -> Any:
        """See `snapshot.Codec`."""
        return _item_codec(node).restore(data, step=node.name, cipher=self.cipher)

    def arguments(self, node: PlanNode, values: Mapping[str, Any]) -> bytes | None:
        """See `snapshot.Codec`."""
        try:
            return check_size(node.name, _arguments_codec(node).encode(values, cipher=self.cipher), self.limit)
        except (SerializationError, PayloadTooLarge) as error:
            text = f"an undo or compensate in another process gets what is made anew: {error}"
            note(logger, logging.WARNING, "argument_not_kept", text, step=node.name)
            return None

    def arguments_back(self, node: PlanNode, data: bytes) -> dict[str, Any]:
        """See `snapshot.Codec`."""
        return _arguments_codec(node).decode(data, cipher=self.cipher)

    def error(self, error: BaseException) -> bytes:
        """See `snapshot.Codec`."""
        return pack_failure(error, scrub=self.scrub)

    def error_back(self, data: bytes) -> BaseException:
        """See `snapshot.Codec`."""
        return unpack_failure(data)

    # ------------------------------------------------------------------ records

    def image(self, image: Image) -> bytes:
        """A node's image as a record."""
        due_ms = round((image.due + self.ahead) * 1000) if image.due else 0
        row = _ImageRow(
            image.status,
            image.attempts,
            image.order,
            image.value,
            image.error,
            image.inputs,
            image.item,
            image.opened,
            due_ms,
            image.arguments,
            image.correlation,
            dict(image.gates) if image.gates is not None else None,
        )
        return stamp(msgspec.msgpack.encode(row))

    def image_back(self, path: str, data: bytes) -> Image:
        """A node's image, read again.

        Raises:
            SerializationError: it is damaged, or a newer version wrote it.
        """
        try:
            row = _images.decode(unstamp(data, f"the record of {path!r}"))
        except msgspec.MsgspecError as error:
            raise SerializationError(f"the record of {path!r}", str(error)) from error
        due = row.due_ms / 1000 - self.ahead if row.due_ms else 0.0
        return Image(
            path,
            row.status,
            row.attempts,
            row.order,
            row.value,
            row.error,
            row.inputs,
            row.item,
            row.opened,
            due,
            row.arguments,
            row.correlation,
            row.gates,
        )

    def entry(self, entry: RawEntry) -> bytes:
        """A trace entry as a record."""
        return msgspec.msgpack.encode(entry)

    def entry_back(self, data: bytes) -> RawEntry:
        """A trace entry, read again.

        Raises:
            SerializationError: it is damaged.
        """
        try:
            return _entries.decode(data)
        except msgspec.MsgspecError as error:
            raise SerializationError("the trace", str(error)) from error

    def fate(self, fate: Fate) -> bytes:
        """Why the run goes back, as a record."""
        error = failure_to_data(fate.error, scrub=self.scrub) if fate.error is not None else None
        reason = fate.reason if _is_plain(fate.reason) else str(fate.reason)
        row = [fate.kind, fate.path, error, fate.attempts, reason, [list(each) for each in fate.left]]
        others = [failure_to_data(each, scrub=self.scrub) for each in fate.others]
        arguments = {name: scrubbed(value, self.scrub) for name, value in fate.arguments.items()}
        return stamp(pack_plain([*row, others, arguments, fate.retryable]))

    def fate_back(self, data: bytes) -> Fate:
        """Why the run goes back, read again.

        Raises:
            SerializationError: it is damaged, or a newer version wrote it.
        """
        try:
            row = _fates.decode(unstamp(data, "the run's failure"))
        except msgspec.MsgspecError as error:
            raise SerializationError("the run's failure", str(error)) from error
        found = failure_from_data(row.error) if row.error is not None else None
        others = [failure_from_data(each) for each in row.others]
        kept = (row.left, others, row.arguments, row.retryable)
        return Fate(row.kind, row.path, found, row.attempts, row.reason, *kept)  # type: ignore[arg-type]

    def left(self, left: Sequence[RollbackFailure]) -> bytes:
        """What of rollbacks did not complete, as a record."""
        return stamp(pack_plain([list(each) for each in left]))

    def left_back(self, data: bytes) -> list[RollbackFailure]:
        """The same, read again.

        Raises:
            SerializationError: it is damaged, or a newer version wrote it.
        """
        try:
            return _left.decode(unstamp(data, "what was not rolled back")) if data else []
        except msgspec.MsgspecError as error:
            raise SerializationError("what was not rolled back", str(error)) from error

    def notes(self, notes: Mapping[str, Any]) -> bytes:
        """The run's shared state (``ctx.state``) as a record.

        Raises:
            SerializationError: a part of it is no plain data.
        """
        try:
            return stamp(msgspec.msgpack.encode(dict(notes)))
        except (TypeError, ValueError) as error:
            raise SerializationError("ctx.state", str(error)) from error

    def progress(self, reported: Mapping[str, Any]) -> bytes:
        """How far bodies say they are, as a record."""
        scrub = self.scrub if self.scrub is not None else str
        rows = {path: (done, total, scrub(message)) for path, (done, total, message) in reported.items()}
        return stamp(msgspec.msgpack.encode(rows))

    def progress_back(self, data: bytes) -> dict[str, tuple[float, float | None, str]]:
        """The same, read again.

        Raises:
            SerializationError: it is damaged, or a newer version wrote it.
        """
        try:
            return _progress.decode(unstamp(data, "the run's progress")) if data else {}
        except msgspec.MsgspecError as error:
            raise SerializationError("the run's progress", str(error)) from error

    def gates(self, gates: Mapping[str, Any]) -> bytes:
        """How far the run is with its coordination, as a record."""
        return stamp(msgspec.msgpack.encode(dict(gates)))

    def gates_back(self, data: bytes) -> dict[str, Any] | None:
        """The same, read again; None before it came to that.

        Raises:
            SerializationError: it is damaged, or a newer version wrote it.
        """
        try:
            return _notes.decode(unstamp(data, "the run's coordination")) if data else None
        except msgspec.MsgspecError as error:
            raise SerializationError("the run's coordination", str(error)) from error

    def notes_back(self, data: bytes) -> dict[str, Any]:
        """The run's shared state, read again.

        Raises:
            SerializationError: it is damaged, or a newer version wrote it.
        """
        try:
            return _notes.decode(unstamp(data, "ctx.state")) if data else {}
        except msgspec.MsgspecError as error:
            raise SerializationError("ctx.state", str(error)) from error


def _summary_back(node: PlanNode, data: bytes) -> FanSummary:
    where = f"the stored value of map {node.name!r}"
    try:
        return _summaries.decode(unstamp(data, where))
    except msgspec.MsgspecError as error:
        raise SerializationError(where, str(error)) from error


def _as_kept(node: PlanNode, value: Any) -> Any:
    """A unit is kept as an outcome, or as what stands for it; a dispatched step's reader has its bare value."""
    bare = node.kind == "async_step" and not isinstance(value, (Failure, Halt, Dispatched))
    return Success(value) if bare else value


def _item_codec(node: PlanNode) -> ValueCodec:
    """Items are encoded by the annotation of the parameter, or field, that receives them.

    Without its constraints: an item that breaks them is refused by its element, and does not fail the map.
    """
    from aioreactor.plan.model import Source

    arg = next((arg for arg in node.args if arg.source is Source.ITEM and not arg.path and arg.transform is None), None)
    return codec_for(unconstrained(known(arg.annotation)) if arg is not None else UNKNOWN)


def _arguments_codec(node: PlanNode) -> FieldsCodec:
    known_types = {arg.parameter: known(arg.annotation) for arg in node.args}
    if node.step_class is None:
        return FieldsCodec(known_types)
    fields = node.step_class.__aioreactor_fields__
    return FieldsCodec({**known_types, **{f.name: known(f.annotation) for f in fields.inputs}}, fields.hidden)


def _is_plain(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError):
        return False
    return True
