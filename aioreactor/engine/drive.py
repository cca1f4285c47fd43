"""Running the user's callables: each body in a context of its own, blocking ones in a thread.

A body is driven by hand under ``Context.run`` instead of being made a task: what it sets in a ``ContextVar`` stays
its own, and a chain of steps goes on in one task.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from aioreactor.logs import note

logger = logging.getLogger("aioreactor.engine")
R = TypeVar("R")


class EngineClosed(GeneratorExit):
    """The engine's own coroutine is being closed; told apart from a body that raises ``GeneratorExit``."""


@coroutine
def resume(body: Coroutine[Any, Any, R], context: Context, yielded: Any) -> Generator[Any, Any, R]:
    """Go on with a body that is suspended on ``yielded``, in its context, until it ends."""
    while True:
        try:
            received = yield yielded
        except GeneratorExit:
            context.run(body.close)
            raise EngineClosed from None
        except BaseException as error:
            action: Any = body.throw
            argument: Any = error
        else:
            action, argument = body.send, received
        try:
            yielded = context.run(action, argument)
        except StopIteration as stop:
            result: R = stop.value
            return result
        finally:
            del action, argument


async def run_in(context: Context, body: Coroutine[Any, Any, R]) -> R:
    """Await a coroutine in this context.

    Cancellation: goes to the body.
    """
    try:
        yielded = context.run(body.send, None)
    except StopIteration as stop:
        result: R = stop.value
        return result
    return await resume(body, context, yielded)


async def shielded(work: Coroutine[Any, Any, R]) -> R:
    """Await ``work`` out of the reach of cancel scopes; when it need not wait, that costs no scope.

    Cancellation: of the task itself, goes to ``work``.
    """
    try:
        yielded = work.send(None)
    except StopIteration as stop:
        result: R = stop.value
        return result
    with CancelScope(shield=True):
        return await resume(work, copy_context(), yielded)
    raise AssertionError("nobody cancels this scope")


@coroutine
def tick() -> Generator[None, None, None]:
    """Let the tasks that are ready run first."""
    yield


class _Job:
    """A call on its way to a thread. It may wait for one long after its body was cancelled: then it must not begin."""

    __slots__ = ("_abandoned", "_begun", "_call", "_decide")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._begun = False
        self._abandoned = False
        self._decide = threading.Lock()

    def __call__(self) -> tuple[BaseException | None, Any]:
        """Whatever it raises comes back as a value: raised in a helper task it could stop the event loop."""
        with self._decide:
            self._begun = not self._abandoned
        try:
            return None, self._call() if self._begun else None
        except BaseException as error:
            return error, None

    def abandon(self) -> bool:
        """Whether the call was kept from beginning."""
        with self._decide:
            self._abandoned = not self._begun
            return self._abandoned


async def in_thread(call: Callable[[], R], *, limiter: CapacityLimiter | None, grace: float, name: str) -> R:
    """Run a blocking callable in a worker thread, with the contextvars of the caller.

    A thread cannot be stopped.

    Cancellation: waits up to ``grace`` seconds for the thread to end, then leaves it running and says so in the log.
    """
    job = _Job(call)
    work = asyncio.ensure_future(to_thread.run_sync(job, limiter=limiter))
    try:
        error, value = await asyncio.shield(work)
    except asyncio.CancelledError:
        if job.abandon():
            work.cancel()
        else:
            await _let_end(work, grace, name)
        raise
    if error is not None:
        try:
            raise error
        finally:
            del error
    result: R = value
    return result


async def _let_end(work: asyncio.Future[Any], grace: float, name: str) -> None:
    if not work.done():
        with CancelScope(shield=True):
            await asyncio.wait({work}, timeout=grace)
    if not work.done():
        text = "a blocking body cannot be stopped; it goes on in its thread while the step counts as ended"
        note(logger, logging.WARNING, "thread_still_running", text, path=name, grace=grace)
