"""The calls of one lane to one server: what waits, what is held back, and the wire they travel on.

Overview. Calls are appended to a queue; the first one asks the loop for a flush, and so everything that
was issued in the same iteration leaves in one write. Replies come back in order.

Order. Calls leave in the order of their issue. When some come back without having been applied (the
script was not loaded, the server was loading, the connection broke), the link *holds*: it sends nothing
more until every reply in flight is in, puts those calls back to the front of the queue in their old order,
and only then goes on. A younger call therefore never overtakes an older one on its way out. What was in
flight together is not ordered that strictly when somebody flushes the server's scripts: one call may be
refused while a younger one, of a script that has just been loaded by anyone, is applied. Who needs an
order between two calls awaits the first, or lets the script check a version.

States: *open* (a wire, nothing held), *draining* (something held, replies still in flight), *recovering*
(a task backs off, finds the server, connects) and *idle* (no wire, nothing to send). There is a task only
while recovering.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from typing import TYPE_CHECKING, Any

from aioreactor.store.calls import Call, pack
from aioreactor.store.endpoints import TROUBLE, Address, refuses
from aioreactor.store.errors import ReplyError, StoreClosed
from aioreactor.store.replies import Verdict, backoff, verdict_on
from aioreactor.store.wire import Wire

if TYPE_CHECKING:
    from aioreactor.store.hub import Hub
    from aioreactor.store.replication import Barrier

BATCH_BYTES = 128 * 1024
"""How much goes into one write; a larger batch is split, and waits for the socket in between."""

_ASKING = pack(("ASKING",))
_REDIRECTS = (Verdict.MOVED, Verdict.ASK)


class Link:
    """Sends calls to one server over one connection, which it makes and remakes as needed.

    Attributes:
        address: None if the endpoint itself knows where the server is.
        lane: Its name.
    """

    def __init__(self, hub: Hub, address: Address | None, lane: str) -> None:
        self.address = address
        self.lane = lane
        self._hub = hub
        self._loop = hub.loop
        # Timers and tasks of a link serve many callers; they must not run in the context of one of them.
        self._context = contextvars.Context()
        self._queue: deque[Call] = deque()
        self._held: list[Call] = []
        self._wire: Wire | None = None
        self._barrier: Barrier | None = None
        self._flushing = False
        self._recovery: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._failures = 0
        self._error: Exception | None = None
        self._must_wait = False
        self._must_reroute = False
        self._drop_wire = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._queue and not self._held and not (self._wire and self._wire.inflight)

    def calls(self) -> list[Call]:
        """Everything that waits for a reply here."""
        inflight = self._wire.inflight if self._wire else ()
        return [*self._held, *(call for call in inflight if call is not None), *self._queue]

    def submit(self, call: Call) -> None:
        """Queue `call`; it leaves with the others of this loop iteration."""
        self._queue.append(call)
        if self._wire is None or self._recovery is not None:
            self._recover()
        elif not self._flushing:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        self._flushing = True
        self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        self._flushing = False
        while self._queue and not self._held and self._recovery is None and self._barrier is None:
            wire = self._wire
            if wire is None or not wire.usable():
                return
            chunks, calls = self._next_batch(wire.loaded)
            if chunks:
                wire.send(chunks, calls)

    def _next_batch(self, loaded: set[str]) -> tuple[list[bytes], list[Call | None]]:
        chunks: list[bytes] = []
        calls: list[Call | None] = []
        queue, size = self._queue, 0
        writes: list[Call] = []
        while queue and size < BATCH_BYTES:
            call = queue.popleft()
            if call.future.done():
                continue
            script = call.script
            if script is not None and script.sha not in loaded:
                loaded.add(script.sha)
                chunks.append(script.load_command)
                calls.append(None)
                size += len(script.load_command)
            if call.asking:
                call.asking = False
                chunks.append(_ASKING)
                calls.append(None)
            chunks.append(call.payload)
            calls.append(call)
            size += len(call.payload)
            if call.replicated:
                writes.append(call)
        if writes:
            self._add_barrier(writes, chunks, calls)
        return chunks, calls

    def _add_barrier(self, writes: list[Call], chunks: list[bytes], calls: list[Call | None]) -> None:
        replication = self._hub.settings.replication
        assert replication is not None
        barrier = self._barrier = replication.barrier(self._loop, self.lane)
        barrier.future.add_done_callback(self._barrier_done, context=self._context)
        for call in writes:
            call.barrier = barrier
        chunks.append(barrier.payload)
        calls.append(barrier)

    def _barrier_done(self, _: asyncio.Future[Any]) -> None:
        self._barrier = None
        if self._queue and self._wire is not None and self._recovery is None and not self._flushing:
            self._schedule_flush()

    def wire_writable(self, wire: Wire) -> None:
        """The transport takes more again."""
        if self._queue and not self._flushing:
            self._schedule_flush()

    def reply_refused(self, wire: Wire, call: Call, error: ReplyError) -> None:
        """Decide about an error reply: to the caller, or once more."""
        verdict = verdict_on(error) if call is not self._barrier else Verdict.RAISE
        if verdict is Verdict.RELOAD and call.script is None:
            verdict = Verdict.RAISE
        if verdict in _REDIRECTS and not self._hub.follows_redirects:
            verdict = Verdict.RAISE
        if verdict is Verdict.RAISE or call.future.done():
            error.command = call.name
            call.fail(error)
            return
        call.failures += 1
        if verdict is Verdict.ASK or verdict is Verdict.DELAY:
            self._hub.divert(self, call, error)
            return
        if verdict is Verdict.RELOAD:
            self._reload(wire, call)
        else:
            self._error = error
        if verdict is Verdict.MOVED:
            self._hub.moved(self, error)
            self._must_reroute = True
        elif verdict is not Verdict.RELOAD:
            self._must_wait = True
            self._drop_wire |= verdict is Verdict.RECONNECT
        self._held.append(call)

    def _reload(self, wire: Wire, call: Call) -> None:
        wire.loaded.clear()
        script = call.script
        if script is not None and call.failures > 1:
            # Loading did not help: scripts are flushed all the time, or `SCRIPT LOAD` is not allowed.
            call.payload, call.script = script.as_eval(call.payload), None

    def replies_read(self, wire: Wire) -> None:
        """Go on once everything in flight is answered, if something was held."""
        if not self._held:
            self._failures = 0
        elif not wire.inflight:
            self._settle()

    def wire_lost(self, wire: Wire, calls: list[Call], unsent: list[Call], error: Exception) -> None:
        """Take back what was in flight, and find the server again if anything waits."""
        if self._wire is not wire:
            return
        self._wire = None
        now = self._loop.time()
        if self._barrier is not None:
            self._barrier.lose(now, error)
        self._held.extend(call for call in calls if call.lose(now, error))
        self._held.extend(call for call in unsent if call is not self._barrier)
        if self._held or self._queue:
            self._error = error
            self._failures += 1
            self._settle()

    def _settle(self) -> None:
        """Nothing is in flight: put back what was held, oldest first, and apply the remedy."""
        held, self._held = self._held, []
        self._queue.extendleft(reversed(held))
        wait, reroute, drop = self._must_wait, self._must_reroute, self._drop_wire
        self._must_wait = self._must_reroute = self._drop_wire = False
        if drop:
            self._discard_wire()
        if wait:
            # The server answers, but not yes: the first repetition waits as well.
            self._failures = max(2, self._failures + 1)
        if wait or self._wire is None:
            self._recover()
        elif reroute:
            self._hub.reroute(self.take_queue())
        elif not self._flushing:
            self._schedule_flush()

    def _discard_wire(self) -> None:
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    def take_queue(self) -> list[Call]:
        """Remove and return what waits, oldest first."""
        calls = [call for call in self._queue if not call.future.done()]
        self._queue.clear()
        return calls

    def _recover(self) -> None:
        """See to it that a task recovers, and that no call waits past its deadline meanwhile."""
        if not self._queue:
            return
        if self._expiry is None or self._queue[-1].deadline < self._expiry.when():
            self._arm_expiry()
        if self._recovery is None:
            self._recovery = self._loop.create_task(
                self._restore(), name=f"aioreactor-store-{self.lane}", context=self._context
            )

    async def _restore(self) -> None:
        """Back off, find the server, connect; over and over while somebody waits.

        Cancellation: whoever waits gets `StoreClosed`; the link can be used again.
        """
        try:
            while self._queue:
                await asyncio.sleep(backoff(self._failures))
                if await self._attempt():
                    return
        except asyncio.CancelledError:
            for call in self.take_queue():
                call.fail(StoreClosed(f"{call.name}: the store client was stopped while it was reconnecting"))
            raise
        except Exception as error:
            self._give_up_queue(error)
        finally:
            self._recovery = None
            self._disarm_expiry()
            if not self._queue:
                # Nobody waits: the next call tries at once, however long the server was away.
                self._failures = min(self._failures, 1)
            self._flush()

    async def _attempt(self) -> bool:
        try:
            await self._hub.relocate(self, again=self._failures > 0)
            if self._queue and self._wire is None:
                self._wire = await self._hub.connect(self)
        except TROUBLE as error:
            self._error = error
            self._failures = max(2, self._failures + 1)
            if refuses(error):
                self._give_up_queue(error)
            return False
        return True

    def _arm_expiry(self) -> None:
        self._disarm_expiry()
        if self._queue:
            earliest = min(call.deadline for call in self._queue)
            self._expiry = self._loop.call_at(earliest, self._expire, context=self._context)

    def _disarm_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        """While recovering: give up the calls whose time is over."""
        now = self._loop.time()
        waiting = self.take_queue()
        for call in waiting:
            if call.deadline <= now:
                call.give_up(now, self._error)
            else:
                self._queue.append(call)
        self._arm_expiry()

    def _give_up_queue(self, error: Exception) -> None:
        now = self._loop.time()
        for call in self.take_queue():
            call.give_up(now, error)

    def abort(self) -> list[asyncio.Future[None]]:
        """End every call with `StoreClosed` and the connection; the futures are done when all has ended."""
        ending: list[asyncio.Future[None]] = []
        calls, wire, recovery = self.calls(), self._wire, self._recovery
        self._wire = None
        self._held.clear()
        self._queue.clear()
        for call in calls:
            call.fail(StoreClosed(f"{call.name}: the store client was closed; it may have been applied"))
        if recovery is not None:
            recovery.cancel()
            ending.append(recovery)
        if wire is not None:
            ending.append(wire.abort())
        return ending
