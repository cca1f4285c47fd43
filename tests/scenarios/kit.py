"""Reactors for scenario tables: every step has run, undo and compensate, and does what the table says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aioreactor import Context, Outcome, Retry, step

Behaviour = Callable[[Context], Any]
SHOWN = ("run", "compensate", "undo", "undo_all")


class Script:
    """What the steps of a run do, by path; anything that is not scripted succeeds with its own path."""

    def __init__(self) -> None:
        self.body: dict[str, Behaviour] = {}
        self.undo: dict[str, Behaviour] = {}
        self.compensate: dict[str, Behaviour] = {}

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


script = Script()


async def _play(table: dict[str, Behaviour], ctx: Context) -> Any:
    behaviour = table.get(ctx.path)
    if behaviour is None:
        return ctx.path
    found = behaviour(ctx)
    return await found if hasattr(found, "__await__") else found


def scripted(after: Sequence[Any] = (), retries: Retry | None = None, **options: Any) -> Any:
    """A step with all three functions."""

    async def body(self: Any, ctx: Context) -> Any:
        return await _play(script.body, ctx)

    async def undo(self: Any, ctx: Context, result: Any) -> Any:
        return await _play(script.undo, ctx)

    async def compensate(self: Any, ctx: Context, error: BaseException) -> Any:
        return await _play(script.compensate, ctx)

    node = step(after=after, retries=retries, **options)(body)
    node.undo(undo)
    node.compensate(compensate)
    return node


def raises(error: BaseException) -> Behaviour:
    """A behaviour that raises."""

    def behave(ctx: Context) -> Any:
        raise error

    return behave


def sequence(outcome: Outcome[Any]) -> str:
    """The trace of bodies and rollback actions, as one text."""
    return " ".join(map(str, outcome.trace.only(*SHOWN)))
