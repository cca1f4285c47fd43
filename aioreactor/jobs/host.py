"""Where runs live in a worker: a bounded number of executions, apart from the jobs that brought them.

A delivery starts what there is room for and ends; how long a run lives concerns no job. What runs here is known to the
rest of the world by its lease only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from aioreactor.jobs.ports import Carrier
from aioreactor.rooms import room_here

HAND_BACK = 15.0
"""Seconds that a cancelled execution gets for saving and letting go; then its lease has to run out."""

_log = logging.getLogger("aioreactor.jobs")


class Host:
    """Executions of one worker, in one event loop.

    Args:
        carrier: Executes them.
        max_concurrency: How many at a time.
        on_room: Called when one has ended.

    Raises:
        ValueError: ``max_concurrency`` is not positive.
    """

    def __init__(self, carrier: Carrier, *, max_concurrency: int, on_room: Callable[[], None] | None = None) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency is to be at least 1, not {max_concurrency}")
        self.max_concurrency = max_concurrency
        self.on_room = on_room
        self.closed = False
        self._carrier = carrier
        self._running: dict[str, asyncio.Task[None]] = {}
        self._rung_again: set[str] = set()
        self._many = 0
        """How many deliveries are executions of their own many times over: those may borrow."""
        self._lent = 0
        self._ended = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more fit in; none after `drain` began."""
        return 0 if self.closed else max(self.max_concurrency - len(self._running) - self._lent, 0)

    @property
    def most(self) -> int:
        """See `Room.most`: an eighth, or one at least, is left for other work."""
        return max(1, self.max_concurrency - max(1, self.max_concurrency // 8))

    def enter(self) -> bool:
        """See `Room.enter`."""
        if self._many + self._lent >= self.most:
            return False
        self._many += 1
        return True

    def leave(self) -> None:
        """See `Room.leave`."""
        self._many -= 1

    def lend(self, wanted: int) -> int:
        """See `Room.lend`."""
        lent = max(min(wanted, self.free, self.most - self._many - self._lent), 0)
        self._lent += lent
        return lent

    def give_back(self, count: int) -> None:
        """See `Room.give_back`."""
        self._lent -= count
        if count and self.on_room is not None:
            self.on_room()
        self._ended.set()

    @property
    def running(self) -> int:
        """How many live here."""
        return len(self._running)

    def admit(self, run_ids: Sequence[str], delivery: str) -> list[str]:
        """Start as many of them as there is room for; gives the others.

        One that lives here already is looked at once more when it has ended: it may have let the run go just before
        the ring, and then the ring is for whoever comes next.
        """
        left: list[str] = []
        for run_id in run_ids:
            if run_id in self._running and not self.closed:
                self._rung_again.add(run_id)
            elif self.free:
                self._start(run_id, delivery)
            else:
                left.append(run_id)
        return left

    def _start(self, run_id: str, delivery: str) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(run_id, delivery), name=f"aioreactor-run-{run_id}")
        self._running[run_id] = task
        # Only for a task that was cancelled before its first step; all others have left by themselves.
        task.add_done_callback(lambda done: self._leave(run_id, done))

    async def _carry(self, run_id: str, delivery: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        room_here.set(self)
        try:
            while True:
                self._rung_again.discard(run_id)
                await self._carrier.carry_on(run_id, delivery)
                if self.closed or run_id not in self._rung_again:
                    break
        except Exception:
            _log.exception("run %s (job %s): the carrier raised; the run is swept", run_id, delivery)
        finally:
            # In the same step as the last look at the rings, so that none can fall in between.
            self._leave(run_id, task)

    def _leave(self, run_id: str, task: asyncio.Task[None]) -> None:
        if self._running.get(run_id) is task:
            del self._running[run_id]
            self._ended.set()
            if self.on_room is not None:
                self.on_room()

    async def room(self, timeout: float) -> bool:
        """Wait until there is room; False if there was none within ``timeout`` seconds, or never will be.

        Cancellation: nothing happens.
        """
        return await self._until(lambda: self.closed or self.free > 0, timeout) and not self.closed

    async def idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs; False if something still does after ``timeout`` seconds.

        Cancellation: nothing happens.
        """
        return await self._until(lambda: not self._running, timeout)

    async def _until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while not reached():
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            return reached()
        return True

    def hurry(self) -> None:
        """End the grace of `drain` at once."""
        self._hurry.set()

    async def drain(self, grace: float) -> list[str]:
        """Take nothing any more, and empty the house; gives the runs that are to be rung again.

        What runs gets ``grace`` seconds to end, then it is cancelled, which hands it back.

        Cancellation: what runs is cancelled at once and not waited for.
        """
        self.closed = True
        self._ended.set()
        try:
            await self._grace(grace)
        finally:
            tasks = dict(self._running)
            for task in tasks.values():
                task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks.values(), timeout=HAND_BACK)
            for run_id in (run_id for run_id, task in tasks.items() if task in stuck):
                _log.warning("run %s was not handed back within %g s; its lease has to run out", run_id, HAND_BACK)
        # Those that got a ring while they ended by themselves may have more to do.
        return list(dict.fromkeys([*tasks, *self._rung_again]))

    async def _grace(self, grace: float) -> None:
        if not self._running or grace <= 0:
            return
        waits = {asyncio.ensure_future(self.idle()), asyncio.ensure_future(self._hurry.wait())}
        try:
            await asyncio.wait(waits, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
