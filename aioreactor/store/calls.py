"""One command on its way to the server and back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import hiredis

from aioreactor.store.errors import OutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from aioreactor.store.replication import Barrier
    from aioreactor.store.scripts import Script

Value: TypeAlias = str | bytes | int | float | memoryview
Key: TypeAlias = str | bytes


class Call:
    """A packed command, who waits for its reply, and what may be done when it is lost.

    Attributes:
        name: Script or command name, for errors and hooks.
        key: First key; decides the node in a cluster. None: any node.
        script: Set if it is an `EVALSHA`.
        lane: Which connection it travels on.
        repeatable: May be sent again although it may have been applied.
        issued: Loop time of the call.
        deadline: Loop time past which it is not sent again.
        failures: How often it came back without having been applied or answered.
        uncertain: Was sent at least once on a connection that was lost.
        asking: To be preceded by `ASKING`.
        replicated: Replicas are to have it before it counts as done.
        barrier: The `WAIT` that followed it when it was sent last.
    """

    __slots__ = (
        "asking",
        "barrier",
        "deadline",
        "failures",
        "future",
        "issued",
        "key",
        "lane",
        "name",
        "payload",
        "repeatable",
        "replicated",
        "script",
        "uncertain",
    )

    def __init__(
        self,
        future: asyncio.Future[Any],
        payload: bytes,
        name: str,
        key: Key | None,
        script: Script | None,
        lane: str,
        repeatable: bool,
        issued: float,
        retry_for: float,
    ) -> None:
        self.future = future
        self.payload = payload
        self.name = name
        self.key = key
        self.script = script
        self.lane = lane
        self.repeatable = repeatable
        self.issued = issued
        self.deadline = issued + retry_for
        self.failures = 0
        self.uncertain = False
        self.asking = False
        self.replicated = False
        self.barrier: Barrier | None = None

    def fail(self, error: BaseException) -> None:
        """End it with `error`, unless nobody waits any more."""
        if not self.future.done():
            self.future.set_exception(error)

    def give_up(self, now: float, cause: BaseException | None) -> None:
        """End it because its time, or all hope, is over."""
        self.fail(StoreUnavailable(self.name, now - self.issued, cause, may_be_applied=self.uncertain))

    def lose(self, now: float, cause: BaseException | None) -> bool:
        """The connection broke while it was in flight; tells whether it is to be sent again."""
        if self.future.done():
            return False
        self.failures += 1
        self.uncertain = True
        if self.repeatable:
            return True
        self.fail(OutcomeUnknown(self.name, now - self.issued, cause))
        return False

    def __repr__(self) -> str:
        return f"<Call {self.name} key={self.key!r} lane={self.lane} failures={self.failures}>"


class FaultHook(Protocol):
    """A seam for tests: sees every call before it is sent and after its reply was read.

    Either method may end the process, or raise: an `OSError` counts as a connection lost at this very
    point (before: nothing of this call was sent; after: it was applied and its reply is lost); any
    other exception is handed to the waiting caller in place of the reply, as if its process had died
    there. Both run synchronously in the event loop.
    """

    def before_send(self, call: Call) -> None:
        """`call` is about to be written, for the first time or again."""

    def after_reply(self, call: Call, reply: Any) -> None:
        """The server answered `call`; its caller does not know yet. `reply` may be a `ReplyError`."""


def pack(args: Sequence[Value]) -> bytes:
    """`args` as one RESP command.

    Raises:
        TypeError: An argument is not `str`, `bytes`, `int`, `float` or `memoryview`; `bool` and `None` are
            refused because the server would see their Python names.
    """
    try:
        packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]
    except TypeError:
        wrong = next((type(a).__name__ for a in args if not _packable(a)), "?")
        message = f"a command takes str, bytes, int, float or memoryview, not {wrong}: encode the value first"
        raise TypeError(message) from None
    return packed


def _packable(value: object) -> bool:
    return isinstance(value, str | bytes | int | float | memoryview) and not isinstance(value, bool)
