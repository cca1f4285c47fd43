"""Requests as they are left in the store, and as the engine carries them out; and who hears that there are some."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from aioreactor.engine import orders
from aioreactor.errors import SerializationError
from aioreactor.logs import note
from aioreactor.plan.model import Plan
from aioreactor.plan.paths import node_at, present_path
from aioreactor.store.codec_records import stamp, unstamp
from aioreactor.store.errors import StoreClosed, StoreError
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.pushes import Bell, Pushes
from aioreactor.store.records import Request
from aioreactor.store.store import RunStore

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.runs")
SOON = 0.05
"""Seconds for which a run has to live before this process listens for requests: most end before."""


class Body(msgspec.Struct, array_like=True, omit_defaults=True):
    """A request as it is stored; ``text`` is the reason of a cancel, the verdict of a decision.

    ``token`` tells one caller from all others, so that a call whose reply was lost knows its own request again.
    """

    kind: str
    path: str = ""
    key: str = ""
    value: bytes = b""
    text: str = ""
    mode: str = ""
    errors: dict[str, list[str]] = {}
    token: str = ""


_bodies = msgspec.msgpack.Decoder(Body)


def pack(body: Body) -> bytes:
    """A request as bytes."""
    return stamp(msgspec.msgpack.encode(body))


def unpack(data: bytes) -> Body:
    """A request, read again.

    Raises:
        SerializationError: it is damaged, or a newer version wrote it.
    """
    try:
        return _bodies.decode(unstamp(data, "a request"))
    except msgspec.MsgspecError as error:
        raise SerializationError("a request", str(error)) from error


def answer_id(path: str) -> str:
    """The id of the request that answers an interrupt: of one id the first counts, which decides who wins."""
    return f"answer:{path}"


class RunMailbox:
    """See `orders.Mailbox`: the requests of one run."""

    def __init__(self, store: RunStore, run_id: str, plan: Plan, codec: PlanCodec) -> None:
        self._store = store
        self._run_id = run_id
        self._plan = plan
        self._codec = codec

    async def waiting(self, served: int) -> Sequence[orders.Order]:
        """See `orders.Mailbox.waiting`.

        Cancellation: nothing happens.
        """
        try:
            record = await self._store.read(self._run_id)
        except StoreError as error:
            note(logger, logging.WARNING, "requests_not_read", str(error), run_id=self._run_id)
            return ()
        return self.read(record.requests[served:]) if record is not None else ()

    def read(self, found: Sequence[Request]) -> list[orders.Order]:
        """Requests as the engine takes them."""
        return [self._order(request) for request in found]

    def _order(self, request: Request) -> orders.Order:
        try:
            return self._decoded(request.number, unpack(request.body))
        except SerializationError as error:
            note(logger, logging.ERROR, "request_unreadable", str(error), run_id=self._run_id)
            return orders.Answer(request.number, "", None)  # nobody's: the line goes on

    def _decoded(self, number: int, body: Body) -> orders.Order:
        if body.kind == "cancel":
            return orders.Cancel(number, body.text, "stop" if body.mode == "stop" else "rollback")
        path = present_path(self._plan, body.path)
        if body.kind == "mistake":
            return orders.Mistake(number, path, f"interrupt {path!r}", body.errors)
        node = node_at(self._plan, path)
        if node is None:
            return orders.Answer(number, "", None)
        value: Any = self._codec.value_back(node, body.value) if body.value else None
        if body.kind == "decision":
            return orders.Decision(number, path, body.text, value)  # type: ignore[arg-type]
        return orders.Answer(number, path, value)


class Ears(Bell):
    """Hears which runs of this event loop got requests; it listens once one of them has lived for a while."""

    __slots__ = ("_attached", "_channel", "_executions", "_pushes", "_timer")

    def __init__(self, pushes: Pushes, channel: str) -> None:
        super().__init__()
        self._pushes = pushes
        self._channel = channel
        self._executions: dict[str, Execution] = {}
        self._attached = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, run_id: str, execution: Execution) -> None:
        """Tell this execution of requests."""
        self._executions[run_id] = execution
        if not self._attached and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON, self._attach)

    def forget(self, run_id: str, execution: Execution) -> None:
        """Tell it of nothing more."""
        if self._executions.get(run_id) is execution:
            del self._executions[run_id]

    def _attach(self) -> None:
        self._timer = None
        if self._executions and not self._attached:
            try:
                self._pushes.attach(self._channel, self)
            except StoreClosed:
                return
            self._attached = True

    def hear(self, message: bytes) -> None:
        """A run got a request."""
        execution = self._executions.get(message.decode())
        if execution is not None:
            orders.heed(execution)

    def ring(self) -> None:
        """Some may have got one: the connection is new."""
        for execution in tuple(self._executions.values()):
            orders.heed(execution)

    def close(self) -> None:
        """Listen no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._attached:
            self._attached = False
            self._pushes.detach(self._channel, self)
