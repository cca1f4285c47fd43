"""``skip``, ``halt``, ``fail``, ``succeed``: end a step from any call depth.

They are ``BaseException``, so that ``except Exception`` in between cannot swallow them; ``finally`` still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NoReturn

from aioreactor.failures import leaves
from aioreactor.results import Failure, Halt, Skipped


class Signal(BaseException):
    """Base of the four; ``outcome`` is what the body would have returned."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        super().__init__(outcome)


class SucceedSignal(Signal):
    """The step succeeded with this value."""


class SkipSignal(Signal):
    """The step is skipped."""


class HaltSignal(Signal):
    """The run halts."""


class FailSignal(Signal):
    """The step failed."""


def succeed(value: Any = None) -> NoReturn:
    """End the step here with this value.

    Raises:
        SucceedSignal: always; caught by the engine.
    """
    raise SucceedSignal(value)


def skip(value: Any = None) -> NoReturn:
    """End the step here as skipped: the run goes on with this value, and the step is never undone.

    Raises:
        SkipSignal: always; caught by the engine.
    """
    raise SkipSignal(Skipped(value))


def halt(reason: Any = None) -> NoReturn:
    """Stop the run cleanly here: what was done is kept, nothing is rolled back.

    Raises:
        HaltSignal: always; caught by the engine.
    """
    raise HaltSignal(Halt(reason))


def fail(error: BaseException | str, *, retry: bool = True) -> NoReturn:
    """Fail the step here; ``retry=False`` makes it final.

    Raises:
        FailSignal: always; caught by the engine.
    """
    failure = Failure(error, retry=retry)
    raise FailSignal(failure) from failure.error


_ALWAYS: tuple[type[Signal], ...] = (FailSignal, HaltSignal)
_IF_NOTHING_ELSE: tuple[type[Signal], ...] = (SkipSignal, SucceedSignal)


def signal_in(error: BaseException) -> Signal | None:
    """The signal that an error is, or that an exception group honours.

    In a group ``fail`` counts before ``halt``, and both before everything else. ``skip`` and ``succeed`` count only
    when no sibling failed: an error is never dropped for them.
    """
    if isinstance(error, Signal):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = list(leaves(error))
    strong = next(_of_kinds(found, _ALWAYS), None)
    if strong is not None:
        return strong
    harmless = all(isinstance(leaf, (Signal, asyncio.CancelledError)) for leaf in found)
    return next(_of_kinds(found, _IF_NOTHING_ELSE), None) if harmless else None


def _of_kinds(found: list[BaseException], kinds: tuple[type[Signal], ...]) -> Iterator[Signal]:
    for kind in kinds:
        for leaf in found:
            if isinstance(leaf, kind):
                yield leaf
