"""One open connection: bytes out, replies in, in the same order.

redis-py makes the connection (address, TLS, AUTH, HELLO, SELECT); after its handshake this protocol
takes the transport over, so that replies are parsed where they arrive and reach their futures without
a reader task in between. A wire lives once: what goes wrong with it ends it, never is it repaired,
and so no reply can ever reach the wrong call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import hiredis
from redis.exceptions import RedisError

from aioreactor.store.calls import Call, FaultHook
from aioreactor.store.errors import ReplyError

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

WRITE_BUFFER = 256 * 1024
"""Bytes that may wait in the transport before no more is handed to it."""

_MORE = object()
# Timers may run before a readable socket is read (a process that was stopped, a blocked loop): a wire
# which looks dead gets this much longer to prove that its replies are already there.
_SECOND_LOOK = 0.05


class WireOwner(Protocol):
    """Who sends on a wire and decides about what comes back wrong."""

    def reply_refused(self, wire: Wire, call: Call, error: ReplyError) -> None:
        """`call` was answered with an error."""

    def replies_read(self, wire: Wire) -> None:
        """A chunk of replies was dispatched."""

    def wire_writable(self, wire: Wire) -> None:
        """The transport takes more again."""

    def wire_lost(self, wire: Wire, calls: list[Call], unsent: list[Call], error: Exception) -> None:
        """The wire ended; `calls` had been sent and were not answered, `unsent` had not; oldest first."""


class Wire(asyncio.Protocol):
    """An established connection and the calls in flight on it.

    Attributes:
        loaded: Hashes of the scripts which were loaded over this wire.
        writable: Whether the transport takes more bytes.
        inflight: What was sent and not answered, oldest first; None for commands of our own whose reply
            nobody needs.
    """

    def __init__(
        self, transport: asyncio.Transport, owner: WireOwner, timeout: float | None, hook: FaultHook | None
    ) -> None:
        self.loaded: set[str] = set()
        self.writable = True
        self.inflight: deque[Call | None] = deque()
        self._transport = transport
        self._writer: asyncio.StreamWriter | None = None
        self._owner = owner
        self._timeout = timeout
        self._hook = hook
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=_protocol_error, replyError=ReplyError, notEnoughData=_MORE)
        self._alive = True
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._watchdog: asyncio.TimerHandle | None = None
        self._progress_at = 0.0
        self._unsent = 0
        self._suspect = False

    @classmethod
    def adopt(
        cls, connection: AbstractConnection, owner: WireOwner, timeout: float | None, hook: FaultHook | None
    ) -> Wire:
        """Take over the transport of a connection whose handshake is complete.

        Raises:
            ConnectionResetError: It was closed in between.
        """
        # The one place that touches redis-py's private side: it offers no other way to the transport.
        reader, writer = connection._reader, connection._writer
        connection._reader = connection._writer = None
        if writer is None or reader is None:
            raise ConnectionResetError("connection closed during its handshake")
        transport = cast("asyncio.Transport", writer.transport)
        if reader.at_eof() or transport.is_closing():
            transport.abort()
            raise ConnectionResetError("connection closed during its handshake")
        wire = cls(transport, owner, timeout, hook)
        # A stream writer closes its transport when it is collected.
        wire._writer = writer
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        transport.set_protocol(wire)
        return wire

    def usable(self) -> bool:
        """Whether it can be written to; one that the server has closed ends here, before anything is lost."""
        if self._transport.is_closing():
            self.fail(ConnectionResetError("connection closed by the server"))
        return self.writable

    def send(self, chunks: list[bytes], calls: Sequence[Call | None]) -> None:
        """Write `chunks` at once and expect a reply for each of `calls`."""
        if self._hook is not None:
            self._send_hooked(self._hook, chunks, calls)
            return
        self._write(chunks, calls)

    def _write(self, chunks: list[bytes], calls: Sequence[Call | None]) -> None:
        if not self.inflight:
            self._progress_at = self._loop.time()
            if self._watchdog is None and self._timeout is not None:
                self._watchdog = self._loop.call_later(self._timeout, self._look, self._timeout)
        self.inflight.extend(calls)
        self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _send_hooked(self, hook: FaultHook, chunks: list[bytes], calls: Sequence[Call | None]) -> None:
        for place, (chunk, call) in enumerate(zip(chunks, calls, strict=True)):
            if call is not None:
                try:
                    hook.before_send(call)
                except OSError as lost:
                    self.fail(lost, unsent=calls[place:])
                    return
                except BaseException as crash:
                    call.fail(crash)
                    continue
            self._write([chunk], [call])

    def data_received(self, data: bytes) -> None:
        """Dispatch every complete reply."""
        if not self._alive:
            return
        self._progress_at = self._loop.time()
        self._suspect = False
        try:
            self._reader.feed(data)
            self._dispatch()
        except RedisError as broken:
            self.fail(ConnectionResetError(f"not the Redis protocol: {broken}"))
            return
        self._owner.replies_read(self)

    def _dispatch(self) -> None:
        gets, inflight, hook = self._reader.gets, self.inflight, self._hook
        while (reply := gets()) is not _MORE:
            if reply.__class__ is hiredis.PushNotification:
                continue
            if not inflight:
                raise RedisError("a reply that nobody asked for")
            call = inflight.popleft()
            if call is None or (hook is not None and not self._passes(hook, call, reply)):
                continue
            if reply.__class__ is ReplyError:
                self._refuse(call, reply)
            elif not call.future.done():
                call.future.set_result(reply)

    def _refuse(self, call: Call, reply: ReplyError) -> None:
        try:
            self._owner.reply_refused(self, call, reply)
        except Exception as bug:
            # The call is in no queue any more: without this its caller would wait for ever.
            call.fail(bug)

    def _passes(self, hook: FaultHook, call: Call, reply: Any) -> bool:
        try:
            hook.after_reply(call, reply)
        except OSError as lost:
            self.inflight.appendleft(call)
            self.fail(lost)
            return False
        except BaseException as crash:
            call.fail(crash)
            return False
        return True

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.writable = False

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self.writable = True
        self._progress_at = self._loop.time()
        if self._alive:
            self._owner.wire_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed."""
        if not self._closed.done():
            self._closed.set_result(None)
        self.fail(exc or ConnectionResetError("connection closed by the server"))

    def fail(self, error: Exception, unsent: Sequence[Call | None] = ()) -> None:
        """End the wire at once and hand back what was in flight and `unsent`."""
        if not self._alive:
            return
        self._retire()
        calls = [call for call in self.inflight if call is not None]
        self.inflight.clear()
        self._owner.wire_lost(self, calls, [call for call in unsent if call is not None], error)

    def _retire(self) -> None:
        self._alive = self.writable = False
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if not self._closed.done():
            # asyncio's transports do not bear being aborted once they are closed.
            self._transport.abort()

    def abort(self) -> asyncio.Future[None]:
        """Close it without telling the owner; the future is done when the socket is closed."""
        self._retire()
        self.inflight.clear()
        return self._closed

    def _look(self, timeout: float) -> None:
        """Notice a server that answers nothing, with one timer per wire instead of one per call."""
        self._watchdog = None
        if not self.inflight:
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._progress_at = self._loop.time()
        self._unsent = unsent
        idle = self._loop.time() - self._progress_at
        if idle < timeout:
            again = timeout - idle
        elif not self._suspect:
            self._suspect = True
            again = _SECOND_LOOK
        else:
            self.fail(TimeoutError(f"no reply from the server within {timeout:g} s"))
            return
        self._watchdog = self._loop.call_later(again, self._look, timeout)


def _protocol_error(message: str) -> RedisError:
    return RedisError(message)
