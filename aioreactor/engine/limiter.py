"""``max_concurrency``: how many bodies run at a time in one reactor, nested ones included.

A body needs a slot of every bounded scope around it. One that finds a scope full waits in that scope's queue, holding
no slot; queues are first come, first served.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aioreactor.engine.scope import Scope

Ready: TypeAlias = "tuple[Scope, int]"


class Limiter:
    """The slots of one bounded scope, and who waits for them."""

    __slots__ = ("busy", "queue", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.busy = 0
        self.queue: deque[Ready] = deque()


def admit(ready: Ready) -> bool:
    """Take a slot in every bounded scope around; else join the queue of the first full one and take none."""
    limiters = ready[0].limiters
    for limiter in limiters:
        if limiter.busy >= limiter.size:
            limiter.queue.append(ready)
            return False
    for limiter in limiters:
        limiter.busy += 1
    return True


def release(scope: Scope) -> list[Ready]:
    """Give the slots back; give who may start now."""
    admitted: list[Ready] = []
    for limiter in scope.limiters:
        limiter.busy -= 1
    for limiter in scope.limiters:
        waiting = len(limiter.queue)
        while waiting and limiter.busy < limiter.size:
            waiting -= 1
            ready = limiter.queue.popleft()
            if admit(ready):
                admitted.append(ready)
    return admitted


def emptied(scope: Scope) -> list[Ready]:
    """Take everything out of the queues around a scope."""
    waiting: list[Ready] = []
    for limiter in scope.limiters:
        waiting += limiter.queue
        limiter.queue = deque()
    return waiting


def withdraw(scope: Scope) -> list[Ready]:
    """Take everything that waits in a stopped scope out of the queues."""
    dropped: list[Ready] = []
    for limiter in scope.limiters:
        kept: deque[Ready] = deque()
        while limiter.queue:
            ready = limiter.queue.popleft()
            (dropped if ready[0].stopped else kept).append(ready)
        limiter.queue = kept
    return dropped
