"""Coordination of rollback actions: an undo or a compensate runs under the same locks and semaphores as its body did.

What the scopes around still hold is entered; what they held and have given back, or lost, is taken for the action. It
waits, and never comes back later: what cannot be had leaves the action undone, and owed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from anyio import CancelScope

from aioreactor.engine.arguments import FATAL, Frame, resolve
from aioreactor.engine.coordinating import Asking, Holding, Wish
from aioreactor.engine.drive import EngineClosed
from aioreactor.engine.gating import released
from aioreactor.engine.guarding import locks_of
from aioreactor.engine.preparing import instance_of
from aioreactor.engine.wishes import coordinator_of, hear, place_around, wishes_of
from aioreactor.errors import ArgumentError, ContentionError, InputValidationError, LeaseLost
from aioreactor.failures import describe

if TYPE_CHECKING:
    from aioreactor.engine.rollback_order import Action
    from aioreactor.engine.scheduler import Execution


class Uncovered(Exception):
    """What an action is to run under cannot be had; ``key`` says which."""

    def __init__(self, message: str, key: str | None) -> None:
        self.message = message
        self.key = key
        super().__init__(message)


class Cover:
    """What an action runs under, and in which place. ``limit`` is that of the action, while it runs."""

    __slots__ = ("holding", "limit", "lost", "place")

    def __init__(self, place: Any) -> None:
        self.place = place
        self.holding: Holding | None = None
        self.limit: CancelScope | None = None
        self.lost: LeaseLost | None = None

    def lose(self, error: LeaseLost) -> None:
        """A hold is lost: the action is cut off."""
        self.lost = self.lost or error
        if self.limit is not None:
            self.limit.cancel()


async def covered(ex: Execution, action: Action, attempt: int, whole: float) -> Cover | None:
    """Take what an action needs, waiting until ``whole`` at most; None if it needs nothing.

    Raises:
        Uncovered: it cannot be had.

    Cancellation: nothing is held.
    """
    wishes = _wishes(ex, action, attempt)
    if not wishes:
        return None
    cover = Cover(
        coordinator_of(ex).place(place_around(action.scope), f"{ex.state.run_id}:{action.kind}:{action.path}")
    )
    hear(ex, action.scope, action.index, attempt, cover.place)
    asking = Asking(cover.place, cover.place.name, cover.lose, admitted=True, undoing=True, outer=ex.outer_holds)
    limit = CancelScope(deadline=whole)
    ex.rollback_scopes.add(limit)
    try:
        with limit:
            cover.holding = await coordinator_of(ex).acquire(wishes, asking)
    except (EngineClosed, asyncio.CancelledError, *FATAL):
        raise
    except ContentionError as error:
        raise Uncovered(str(error), error.key) from error
    except Exception as error:
        raise Uncovered(describe(error), wishes[0].key) from error
    finally:
        ex.rollback_scopes.discard(limit)
        if cover.holding is None:
            coordinator_of(ex).listen(cover.place, None)
    if cover.holding is None:
        raise Uncovered("the rollback as a whole ran out of time", wishes[0].key)
    return cover


async def uncover(ex: Execution, cover: Cover | None) -> None:
    """Give back what an action ran under.

    Cancellation: noted with the execution.
    """
    if cover is not None:
        await released(ex, cover.place, cover.holding, "halt")


def _wishes(ex: Execution, action: Action, attempt: int) -> list[Wish]:
    """The step's own locks and semaphores, and those of the scopes around that they do not hold any more.

    Raises:
        Uncovered: a key cannot be computed again.
    """
    scope, node = action.scope, action.scope.plan.nodes[action.index]
    found: dict[str, Wish] = {}
    if node.coordination and node.kind == "step":
        try:
            own = wishes_of(node.coordination, lambda: _subject(ex, action, attempt), action.path)
        except (ArgumentError, InputValidationError) as error:
            raise Uncovered(str(error), None) from error
        found = {wish.name: wish for wish in locks_of(own)}
    guard = scope.guard
    while guard is not None:
        found |= {wish.name: wish for wish in guard.missing() if wish.name not in found}
        guard = guard.outer
    return list(found.values())


def _subject(ex: Execution, action: Action, attempt: int) -> Any:
    """What the keys were computed from: the arguments that the forward attempt saw."""
    scope, index = action.scope, action.index
    node = scope.plan.nodes[index]
    recorded: Mapping[str, Any] | None = scope.arguments.get(index) if scope.arguments else None
    if recorded is None:
        recorded = resolve(node.args, Frame(ex, scope, index, attempt=attempt))
    return instance_of(ex, node, recorded) if node.step_class is not None else SimpleNamespace(**recorded)
