"""A session: one worker's share of a fan-out for a while.

Overview. A delivery opens a session, which the store deals elements to, as many as there is room for in this worker.
They run side by side. What has ended in one iteration of the event loop is told in one script, which deals others in
their place; while that is under way, the next ones end. A session grows as long as there is more to do and room for it;
after `TURN` seconds it takes nothing new, so that other work of the queue has its turn, and has the fan-out rung again,
as often as it hears, from what it settles, that there is something to do which nobody was told of.

When it is told to end (the worker does), or its lease is lost, bodies are cancelled and nothing more is written: what
it had is dealt again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyio import create_task_group
from anyio.abc import TaskGroup

from aioreactor.durable.element_events import Listeners
from aioreactor.durable.element_records import Record, Shared, read_common, read_items, read_shared
from aioreactor.durable.room import Slots
from aioreactor.engine import orders
from aioreactor.engine.ports import JournalFailed
from aioreactor.errors import AioreactorError, OwnershipLost, SerializationError
from aioreactor.logs import note
from aioreactor.plan.model import PlanNode
from aioreactor.plan.units import may_owe
from aioreactor.redaction import secrets_of_fields
from aioreactor.results import Outcome
from aioreactor.store.claim import Claim, FanClaim, new_token
from aioreactor.store.errors import StoreClosed, StoreError
from aioreactor.store.fans import Dealt
from aioreactor.store.keys import element_id
from aioreactor.store.leases import Hold
from aioreactor.store.pushes import Bell, Pushes

if TYPE_CHECKING:
    from aioreactor.durable.element_journal import ElementJournal
    from aioreactor.durable.elements import Elements
    from aioreactor.engine.scheduler import Execution

logger = logging.getLogger("aioreactor.runs")
TURN = 1.0
"""Seconds for which a session takes new elements."""
SOON = 0.05
"""Seconds for which a session has to live before it listens: most end before."""
TICK = 0.02
"""Seconds after which a session that waits for its elements looks whether it can have more."""
PASS_ON = 0.1
"""Seconds between two rings of a session that takes nothing new."""


class Session(ABC):
    """Elements of one map that are executed in this process under one lease. `Forward` executes, `Back` rolls back."""

    back = False

    def __init__(self, runs: Elements, run_id: str, path: str, node: PlanNode) -> None:
        assert node.fan is not None
        self.runs = runs
        self.run_id = run_id
        self.path = path
        self.node = node
        self.plan = node.fan
        self.undoes = may_owe(node.fan)
        self.codec = runs._codec()
        self.claim = FanClaim(run_id, path, new_token(), ttl_ms=runs._ttl_ms(), asked_at=time.monotonic())
        self.executions: dict[int, Execution] = {}
        self.shared = Shared("", "", 0, b"")
        self.common: dict[str, Any] = {}
        self.secrets: frozenset[str] = frozenset()
        """Those in what its elements have in common."""
        self.outer: Mapping[str, Any] | None = None
        """The results of the run around it, where an element asks for them."""
        self.listeners: Listeners
        """Who is to be told of elements that have ended."""
        self.before: dict[int, Record] = {}
        """What elements came to that are rolled back."""
        self._slots = Slots(node.fan_out.chunk if node.fan_out is not None else "auto")
        self._tasks: TaskGroup
        self._told = asyncio.Event()
        self._under_way = 0
        self._more = 0
        self._turn_ends = 0.0
        self._ended: AioreactorError | None = None
        self._looking: asyncio.Task[None] | None = None
        self._begun = self._heard = False
        self._pass_on_at = 0.0

    # ------------------------------------------------------------------ the whole of it

    async def serve(self) -> bool:
        """Execute elements until there are none left for it; whether there was anything to do.

        Cancellation: bodies are cancelled, and what it had is dealt again.
        """
        loop = asyncio.get_running_loop()
        self._turn_ends = loop.time() + TURN
        self._cuts = Cuts(self.runs.store.pushes(), self.runs.store.space.fan_channel(self.run_id), self._hear)
        try:
            dealt = await self._claim(self._slots.first())
            if dealt is None:
                return False
            self._begin()
            try:
                if dealt.indexes:
                    await self._work(dealt)
                    return True
                await self._wake(dealt)
                await self._leave(quietly=True)
                return False
            finally:
                self.hold.release()
        finally:
            self._cuts.close()
            self._slots.give_back_all()

    def _begin(self) -> None:
        """Keep the lease. Not before it was claimed: until then the store knows of none, and would call it lost."""
        self.hold = self.runs._keeper().watch(self.claim, self._lost, self._asked)
        self._begun = True
        if self._heard:
            self._hear(self.path)

    async def _work(self, dealt: Dealt) -> None:
        self.shared = read_shared(dealt.shared)
        self.common = read_common(self.node, self.codec, self.shared.values)
        self.secrets = frozenset(secrets_of_fields(self.common, self.plan.fields.hidden))
        try:
            async with create_task_group() as self._tasks:
                await self._take(dealt)
                while self._under_way:
                    await self._wait()
                    try:
                        await self._go_round()
                    except Exception as error:  # its elements wait for what is told here, shielded: it has to go on
                        self.end(JournalFailed(f"no more elements can be had: {error}"))
        finally:
            await self._leave()

    async def _wait(self) -> None:
        """Until an element has ended, or it is time to see whether there is room for more, or to pass it on."""
        try:
            async with asyncio.timeout(TICK if self._more and self._ended is None else None):
                await self._told.wait()
        except TimeoutError:
            pass
        self._told.clear()
        await asyncio.sleep(0)  # what ends in the same iteration of the loop is told together

    async def _go_round(self) -> None:
        """Tell what has ended, and take others in their place."""
        wanted = self._wanted()
        dealt = await self._settle(wanted)
        if dealt is not None:
            await self._take(dealt)
        if not self._takes_more():
            self._slots.shrink(self._under_way)
            if self._more and asyncio.get_running_loop().time() >= self._pass_on_at:
                await self._ring()

    def _takes_more(self) -> bool:
        return self._ended is None and asyncio.get_running_loop().time() < self._turn_ends

    def _wanted(self) -> int:
        """How many elements it could execute besides those that are under way and have not ended."""
        if not self._takes_more():
            return 0
        busy = self._under_way - self._settling()
        if self._more:
            self._slots.grow(busy)
        return max(self._slots.count - busy, 0) if self._more or self._settling() else 0

    def hear_of_more(self, more: int) -> None:
        """So many elements may start, for whoever takes them."""
        self._more = more

    async def _take(self, dealt: Dealt) -> None:
        """Start what was dealt."""
        self._more = dealt.more
        await self._wake(dealt)
        items = {number: _readable(blob) for number, blob in dealt.items.items()}
        size = self.runs.chunk_size
        records = dict(zip(dealt.indexes, dealt.records, strict=False))
        for index in dealt.indexes:
            chunk = items.get(index // size, [])
            item = chunk[index % size] if index % size < len(chunk) else None
            self._under_way += 1
            self._tasks.start_soon(self._one, index, item, dealt, records.get(index, b""))

    async def _wake(self, dealt: Dealt) -> None:
        """Tell workers of the map's run, if there is something to do for it."""
        if dealt.wake is not None:
            await self.runs.ring(self.run_id, dealt.wake)

    async def _one(self, index: int, item: bytes | None, dealt: Dealt, record: bytes) -> None:
        try:
            await self._execute(index, item, dealt, record)
        except (OwnershipLost, StoreError) as error:
            note(logger, logging.WARNING, "element_left", str(error), run_id=self.run_id, path=self.path, element=index)
        except AioreactorError as error:
            if self._ended is not error:
                note(
                    logger,
                    logging.WARNING,
                    "element_left",
                    str(error),
                    run_id=self.run_id,
                    path=self.path,
                    element=index,
                )
        except Exception as error:
            note(logger, logging.ERROR, "carry_failed", repr(error), run_id=element_id(self.run_id, self.path, index))
        finally:
            self.executions.pop(index, None)
            self._under_way -= 1
            self._told.set()

    async def _ring(self) -> None:
        """Others are to go on: this session has had its turn. What it hears of after that is news."""
        self._more = 0
        self._pass_on_at = asyncio.get_running_loop().time() + PASS_ON
        await self.runs.ring_fan(self.run_id, self.path, self.shared.queue, 1)

    async def _leave(self, *, quietly: bool = False) -> None:
        """Give back what it has, and tell others if there is something to do for them; ``quietly``: it had nothing."""
        if self.claim.lost:
            return
        try:
            more = await self.runs.store.fans.leave(self.run_id, self.path, self.claim.token)
            if more and not quietly:
                await self._ring()
        except StoreError as error:
            note(logger, logging.WARNING, "run_swept_later", str(error), run_id=self.run_id, path=self.path)

    # ------------------------------------------------------------------ ended from outside

    def end(self, error: AioreactorError) -> None:
        """Stop at once: bodies are cancelled, nothing is written any more."""
        if self._ended is None:
            self._ended = error
            for execution in list(self.executions.values()):
                execution.lose(error)

    def _lost(self, error: OwnershipLost) -> None:
        self.end(error)

    def _asked(self) -> None:
        """The fan-out was stopped, and what is under way is to be cancelled."""
        for execution in list(self.executions.values()):
            execution.order_cancel(self._order())

    def _order(self) -> orders.Cancel:
        mode: orders.Mode = "stop" if self.claim.cut == "stop" else "rollback"
        return orders.Cancel(0, f"the map {self.path!r} of run {self.run_id} was stopped", mode)

    def _hear(self, path: str) -> None:
        """The fan-out may have been stopped: ask, in the way in which the lease is extended."""
        if path not in ("", self.path):
            return
        self._heard = True
        if self._begun and not self.claim.cut and self._ended is None and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            await self.runs.store.extend(self.claim)
        except (OwnershipLost, StoreError):
            return  # the keeper meets the same
        finally:
            self._looking = None
        if self.claim.cut:
            self._asked()

    # ------------------------------------------------------------------ what the two directions differ in

    @abstractmethod
    async def detach(self, journal: ElementJournal) -> tuple[Claim, Hold]:
        """Make an element a run of its own."""

    @abstractmethod
    async def ended(self, index: int, record: Record, outcome: Outcome[Any]) -> None:
        """Say what became of an element; returns when that is kept."""

    @abstractmethod
    async def _claim(self, wanted: int) -> Dealt | None: ...

    @abstractmethod
    def _settling(self) -> int:
        """How many elements have ended and were not told yet."""

    @abstractmethod
    async def _settle(self, wanted: int) -> Dealt | None: ...

    @abstractmethod
    async def _execute(self, index: int, item: bytes | None, dealt: Dealt, record: bytes) -> None: ...


def _readable(blob: bytes) -> list[bytes]:
    """The items of a chunk; none of one that is damaged: then its elements fail, one by one."""
    try:
        return read_items(blob)
    except SerializationError:
        return []


class Cuts(Bell):
    """Hears of fan-outs of a run that are stopped; it listens once its session has lived for a while."""

    __slots__ = ("_attached", "_channel", "_heard", "_pushes", "_timer")

    def __init__(self, pushes: Pushes, channel: str, heard: Callable[[str], None]) -> None:
        super().__init__()
        self._pushes = pushes
        self._channel = channel
        self._heard = heard
        self._attached = False
        self._timer = asyncio.get_running_loop().call_later(SOON, self._attach)

    def _attach(self) -> None:
        with contextlib.suppress(StoreClosed):
            subscribed = self._pushes.attach(self._channel, self)
            self._attached = True
            if subscribed.is_set():
                self.ring()  # somebody listened there already: what was said before was not heard by this one

    def hear(self, message: bytes) -> None:
        """Something happened to a fan-out."""
        what, _, path = message.decode().partition("\n")
        if what == "cut":
            self._heard(path)

    def ring(self) -> None:
        """Something may have happened: the connection is new."""
        self._heard("")

    def close(self) -> None:
        """Listen no more."""
        self._timer.cancel()
        if self._attached:
            self._attached = False
            self._pushes.detach(self._channel, self)


class Told:
    """What was said of one element, and who waits until that is kept."""

    __slots__ = ("index", "kept", "record")

    def __init__(self, index: int, record: Record) -> None:
        self.index = index
        self.record = record
        self.kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, error: Exception | None = None) -> None:
        """It was kept, or not."""
        if self.kept.done():
            return
        if error is None:
            self.kept.set_result(None)
        else:
            self.kept.set_exception(error)


def answer_all(told: Sequence[Told], refused: Sequence[int], error: Exception | None) -> None:
    """Tell who waits."""
    lost = set(refused)
    for each in told:
        gone = OwnershipLost(str(each.index), "it was dealt to another session") if each.index in lost else None
        each.answer(error or gone)
