"""Running a body: in a context of its own, under its timeout, until the engine cuts it; and checking what it gave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.engine import wishes
from aioreactor.engine.arguments import FATAL
from aioreactor.engine.drive import EngineClosed, in_thread, run_in
from aioreactor.engine.scope import Scope
from aioreactor.errors import OutputValidationError, StepTimeout
from aioreactor.failures import error_text
from aioreactor.plan.model import PlanNode

if TYPE_CHECKING:
    from aioreactor.engine.attempt import Bound
    from aioreactor.engine.gating import Gate
    from aioreactor.engine.preparing import Prepared
    from aioreactor.engine.scheduler import Execution

_MISSING: Any = object()


async def enter(
    ex: Execution,
    scope: Scope,
    index: int,
    node: PlanNode,
    prepared: Prepared,
    bound: Bound,
    gate: Gate | None = None,
) -> Any:
    """Run the body in a context of its own, under its timeout; give what it returned.

    Raises:
        StepTimeout: it took too long, and was cancelled.
        CutShort: the engine cancelled it.
        LeaseLost: what it held was lost, and so it was cancelled.
        BaseException: whatever it raises itself.

    Cancellation: goes to the body.
    """
    if gate is not None:
        await gate.checked()
    context = (ex.base if scope.guard is None else scope.guard.base).copy()
    if gate is not None:
        wishes.coordinator_of(ex).settle(context, gate.place)
    if prepared.is_async:
        body = context.run(prepared.fn, bound.owner, *bound.positional, **bound.keywords)
    else:
        call = partial(prepared.fn, bound.owner, *bound.positional, **bound.keywords)
        grace = ex.span(scope, "settle_timeout")
        body = in_thread(call, limiter=ex.environment.limiter(), grace=grace, name=scope.path_of(index))
    if prepared.scoped or scope.parent is not None:
        return await _within(ex, scope, index, node.timeout, run_in(context, body), gate)
    return await run_in(context, body)


class CutShort(BaseException):
    """The engine cancelled this body; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


async def _within(ex: Execution, scope: Scope, index: int, timeout: float | None, body: Any, gate: Gate | None) -> Any:
    limit = CancelScope() if timeout is None else CancelScope(deadline=asyncio.get_running_loop().time() + timeout)
    ex.bodies[limit] = scope
    if gate is not None:
        gate.limit = limit
    value = _MISSING
    cause: BaseException | None = None
    try:
        with limit:
            value = await body
    except (asyncio.CancelledError, EngineClosed):
        raise
    except Exception as error:
        if not limit.cancel_called or limit in ex.cutting:
            raise
        cause = error
    finally:
        del ex.bodies[limit]
        if gate is not None:
            gate.limit = None
    if not limit.cancel_called:
        return value
    reason = ex.cutting.pop(limit, None)
    if reason is None and gate is not None and gate.lost is not None:
        raise gate.lost from cause
    if reason is None:
        assert timeout is not None
        raise StepTimeout(scope.path_of(index), timeout) from cause
    if value is _MISSING:
        raise CutShort(reason)
    return value


def output_error(check: Callable[[Any], Any], value: Any, path: str) -> OutputValidationError | None:
    """What is wrong with a body's result."""
    try:
        check(value)
    except FATAL:
        raise
    except BaseException as error:
        found = OutputValidationError(path, error_text(error) or type(error).__name__)
        found.__cause__ = error
        return found
    return None


def unawaited(value: Any) -> TypeError:
    """The error of a body that returned a coroutine or a generator, which is closed."""
    name = getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, (CoroutineType, GeneratorType)):
        value.close()
    kind = "coroutine" if isinstance(value, CoroutineType) else "generator"
    return TypeError(f"the body returned the {kind} {name!r} instead of a value; await it (or return a list)")
