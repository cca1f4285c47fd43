"""Handles of runs that were started and not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from aioreactor.engine.ending import cancelled_outcome
from aioreactor.engine.progress import progress_of
from aioreactor.errors import NotResumable, RunNotFound, StepCancelled
from aioreactor.progress import Progress
from aioreactor.results import Dispatched, Failure, Outcome, Paused
from aioreactor.trace import RunRecord, Status, Trace, TraceEntry

if TYPE_CHECKING:
    from aioreactor.durable import DurableRuns
    from aioreactor.engine.scheduler import Execution

T = TypeVar("T")
EVERY = 0.25
"""Seconds between two looks at a volatile run that is followed."""
_LEFT = (Dispatched, Paused)
"""What a task here came to, and the run did not."""


class RunHandle(Generic[T]):
    """A run started by ``spawn`` or ``enqueue``: its id, its outcome, its status, and a way to cancel it."""

    __slots__ = ("_durable", "_execution", "_outcome", "_task", "reactor", "run_id")

    def __init__(
        self,
        run_id: str,
        reactor: str,
        task: asyncio.Task[Outcome[T]] | None,
        execution: Execution | None,
        outcome: Outcome[T] | None = None,
        *,
        durable: DurableRuns | None = None,
    ) -> None:
        self.run_id = run_id
        self.reactor = reactor
        self._task = task
        self._execution = execution
        self._outcome = outcome
        self._durable = durable

    async def result(self, timeout: float | None = None) -> Outcome[T]:
        """Wait for the outcome; at most ``timeout`` seconds. That of a paused run is `Paused`.

        Raises:
            TimeoutError: the time is up. The run goes on.

        Cancellation: gives up the wait; the run goes on.
        """
        if self._outcome is not None:
            return self._outcome
        if self._task is None:
            return await self._found(timeout)
        done, _ = await asyncio.wait({self._task}, timeout=timeout)
        if not done:
            raise TimeoutError(f"run {self.run_id} has no outcome after {timeout:g} s; it goes on")
        return await self._settled(self._task, timeout)

    async def _settled(self, task: asyncio.Task[Outcome[T]], timeout: float | None) -> Outcome[T]:
        if not task.cancelled() and not isinstance(task.result(), _LEFT):
            return task.result()
        if self._durable is not None:
            try:
                # It may have only attached, or have left the run to a worker: that goes on, and so does the wait.
                return await self._found(timeout)
            except RunNotFound:
                self._outcome = self._never_began()
            return self._outcome
        assert self._execution is not None
        self._outcome = cancelled_outcome(self._execution)
        return self._outcome

    async def _found(self, timeout: float | None) -> Outcome[T]:
        """The outcome from the store; that of a paused run is not its last."""
        assert self._durable is not None
        outcome = await self._durable.finished(self.run_id, timeout)
        self._outcome = None if isinstance(outcome, Paused) else outcome
        return outcome

    def _never_began(self) -> Failure:
        error = StepCancelled(self.reactor, "the run was cancelled before it began")
        return Failure(error, None, retry=False, _record=RunRecord(self.run_id, self.reactor, "cancelled"))

    async def status(self) -> Status:
        """The run's status now."""
        if self._outcome is not None:
            return self._outcome.status
        task, done = self._task, self._task is not None and self._task.done()
        if task is not None and done and not task.cancelled() and not isinstance(task.result(), _LEFT):
            return task.result().status
        if self._durable is not None:
            row = await self._durable.store.peek(self.run_id)
            if row is not None:
                return row.status
            return "cancelled" if done else "pending"  # it never began; or it was not written yet
        assert self._execution is not None
        return cancelled_outcome(self._execution).status if done else self._execution.status

    async def events(self, *, after: int = -1) -> AsyncGenerator[TraceEntry, None]:
        """The run's trace as it grows, from after the entry with that ``seq`` on, until the run has ended.

        Entries are told when they are stored; should a message be lost, they come some seconds later. Those of a
        volatile run come at most a quarter of a second after they happened.

        Raises:
            RunNotFound: it was deleted.
            StoreError: the store is away. Follow it again, from after the last entry that came.

        Cancellation: only the following ends; the run goes on.
        """
        if self._durable is not None and self._outcome is None:
            while self._task is not None and not self._task.done() and not await self._exists():
                await asyncio.wait({self._task}, timeout=EVERY / 10)  # its task has not created it yet
            if await self._exists():
                async with aclosing(self._durable.events(self.run_id, after)) as entries:
                    async for entry in entries:
                        yield entry
                return
        following = after + 1
        while True:
            is_over = self._outcome is not None or self._task is None or self._task.done()
            for entry in self._told()[following:]:
                yield entry
                following += 1
            if is_over:
                return
            await asyncio.sleep(EVERY)

    async def progress(self) -> Progress:
        """How far the run is: its steps, the elements of its maps, and what its bodies say of themselves.

        Raises:
            RunNotFound: it was deleted, or has not begun.
            UnknownReactor, SerializationError: it cannot be read here.

        Cancellation: nothing happens.
        """
        if self._durable is not None:
            return await self._durable.progress(self.run_id)
        assert self._execution is not None
        return progress_of(self._execution.state, await self.status(), {})

    async def _exists(self) -> bool:
        assert self._durable is not None
        return await self._durable.reactor_of(self.run_id) is not None

    def _told(self) -> Trace:
        if self._outcome is not None:
            return self._outcome.trace
        return Trace.of(self._execution.state.trace) if self._execution is not None else Trace()

    async def cancel(self, reason: str = "cancelled through its handle") -> None:
        """Cancel the run, and wait until that is done. Harmless when it has ended, or is going back already.

        One that was spawned here is cancelled as its ``on_cancel`` says; one that is elsewhere is rolled back there.

        Raises:
            RunNotFound: it was deleted.

        Cancellation: the run is cancelled all the same.
        """
        task = self._task
        left = task is not None and task.done() and not task.cancelled() and isinstance(task.result(), _LEFT)
        if self._durable is not None and self._outcome is None and (task is None or left):
            with suppress(NotResumable):
                await self._durable.cancel(self.run_id, reason, "rollback")
        if self._task is not None and not self._task.done():
            self._task.cancel(reason)
            await asyncio.wait({self._task})

    def __repr__(self) -> str:
        state = "ended" if self._outcome is not None or (self._task is not None and self._task.done()) else "running"
        return f"<RunHandle {self.run_id} of {self.reactor}: {state}>"
