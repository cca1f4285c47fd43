"""Middlewares: observers of a run. What they raise is logged and changes nothing; hooks nobody has cost nothing."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from aioreactor.engine.events import Event

logger = logging.getLogger("aioreactor.hooks")
Hook: TypeAlias = Callable[[Any], Any]

HOOKS = (
    "on_run_start",
    "on_run_resume",
    "on_run_finish",
    "on_run_park",
    "on_run_hand_off",
    "on_step_start",
    "on_step_success",
    "on_step_skip",
    "on_step_halt",
    "on_step_failure",
    "on_step_retry",
    "on_step_cancel",
    "on_step_park",
    "on_compensate_start",
    "on_compensate_finish",
    "on_undo_start",
    "on_undo_finish",
    "on_rollback_start",
    "on_rollback_finish",
    "on_hold_acquired",
    "on_hold_contended",
    "on_hold_released",
    "on_hold_lost",
    "on_unit_dispatched",
    "on_unit_finish",
    "on_element_finish",
    "on_interrupt_open",
    "on_interrupt_resumed",
    "on_interrupt_expired",
    "on_progress",
    "on_before_enqueue",
)
"""Every hook a middleware may have; ``on_event`` receives whatever has no hook of its own."""


class Middleware:
    """A base for those who like one; any object with some of the hooks will do."""


def instantiate(given: Iterable[Any]) -> list[Any]:
    """Middlewares of one run: a class is made anew, ``(cls, kwargs)`` too, an instance is shared."""
    made = []
    for entry in given:
        if isinstance(entry, tuple):
            cls, kwargs = entry
            made.append(cls(**kwargs))
        else:
            made.append(entry() if isinstance(entry, type) else entry)
    return made


class Hooks:
    """The hooks of some middlewares, by name; made once per run, or shared where all are instances."""

    __slots__ = ("_by_name", "middlewares")

    def __init__(self, middlewares: Iterable[Any]) -> None:
        self.middlewares = tuple(middlewares)
        self._by_name: dict[str, tuple[Hook, ...]] = {}
        for name in HOOKS:
            found = [getattr(each, name, None) or getattr(each, "on_event", None) for each in self.middlewares]
            listening = tuple(hook for hook in found if hook is not None)
            if listening:
                self._by_name[name] = listening

    def listening(self, name: str) -> tuple[Hook, ...]:
        """Who has this hook, in order."""
        return self._by_name.get(name, ())

    def and_then(self, more: Iterable[Any]) -> Hooks:
        """These, then others: a composed child's own middlewares see its events in addition."""
        extra = instantiate(more)
        return Hooks([*self.middlewares, *extra]) if extra else self


def hooks_for(middlewares: Iterable[Any]) -> Hooks | None:
    """The hooks of a run; None when nobody listens."""
    made = instantiate(middlewares)
    hooks = Hooks(made) if made else None
    return hooks if hooks is not None and hooks._by_name else None


async def tell(hooks: tuple[Hook, ...], event: Event) -> None:
    """Call each hook with the event.

    Cancellation: reaches a hook that waits; the others are not called.
    """
    for hook in hooks:
        try:
            result = hook(event)
            if inspect.isawaitable(result):
                await result
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            name = f"{type(getattr(hook, '__self__', hook)).__name__}.{getattr(hook, '__name__', hook)}"
            logger.warning(
                "hook_failed hook=%s event=%s run=%s: %r",
                name,
                type(event).__name__,
                event.run_id,
                error,
                exc_info=error,
                extra={"event": "hook_failed", "hook": name, "run_id": event.run_id},
            )
