"""Rate limits: all windows are checked, then all are counted, in one script; a refusal spends nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from aioreactor.coordination.desk import Desk, new_token, settled
from aioreactor.definition.primitives import RateLimit, check_limits, window_seconds
from aioreactor.errors import RateLimited, UnknownRateLimit
from aioreactor.store.calls import Value
from aioreactor.store.errors import StoreError

RESTORABLE = 90.0
"""Seconds for which what was spent is remembered: a lost reply is told from a second try, and it can be given back.

Longer than it takes by default until a run is taken over whose process died.
"""

_JITTER = 0.02


class Spender(NamedTuple):
    """Who spends once, though it may ask in several processes, one after the other.

    Attributes:
        name: The same in each of them; nobody else's.
        fence: Larger in each one that goes on. The one with the largest owns what was spent.
    """

    name: str
    fence: int


@dataclass(frozen=True, slots=True)
class Windows:
    """What a rate limit counts: names, limits and lengths in ms, in one order."""

    key: str
    algorithm: str
    cost: int
    names: tuple[str, ...]
    pairs: tuple[int, ...]
    """limit, length in ms, limit, …"""

    @classmethod
    def of(cls, primitive: RateLimit, key: str, named: Mapping[str, Mapping[str | float, int]]) -> Windows:
        """What a declaration asks for; limits that are not given are those that are configured under the key.

        Raises:
            UnknownRateLimit: None are.
            ValueError: The configured ones make no sense.
        """
        if primitive.resolved is not None:
            resolved: Windows = primitive.resolved
            return resolved
        limits = primitive.limits
        if limits is None:
            if key not in named:
                raise UnknownRateLimit(key)
            limits = dict(named[key])
            check_limits(limits, primitive.cost)
        pairs: list[int] = []
        for per, limit in limits.items():
            pairs += [limit, int(window_seconds(per) * 1000)]
        names = tuple(per if isinstance(per, str) else f"{per:g} s" for per in limits)
        made = cls(key, primitive.algorithm, primitive.cost, names, tuple(pairs))
        if primitive.limits is not None and primitive.key == key:
            primitive.resolved = made
        return made

    def names_of(self, desk: Desk) -> Sequence[str]:
        """The keys that the scripts want."""
        keys = desk.keys.rate(self.key)
        if self.algorithm == "sliding":
            return [*keys, *(desk.keys.rate_log(self.key, length) for length in self.pairs[1::2])]
        return keys


class Spent:
    """What was spent once; it can be given back for a while."""

    __slots__ = ("desk", "spender", "windows")

    def __init__(self, desk: Desk, windows: Windows, spender: Spender) -> None:
        self.desk = desk
        self.windows = windows
        self.spender = spender

    async def restore(self) -> bool:
        """Give it back; False if it was before, is too long ago, or is somebody else's who goes on with it.

        Raises:
            StoreError: The store is away.

        Cancellation: it was given back, or not.
        """
        windows = self.windows
        args: list[Value] = [*self.spender, windows.cost, windows.algorithm[0], *windows.pairs]
        reply = await self.desk.call("rate_restore", windows.names_of(self.desk), args)
        return reply.word == "RESTORED"


async def spend(
    desk: Desk,
    windows: Windows,
    scope: str = "",
    *,
    wait: float = 0,
    keep: float = RESTORABLE,
    spender: Spender | None = None,
) -> Spent:
    """Spend the cost, at once or within ``wait`` seconds.

    Args:
        desk: Of this event loop.
        windows: What is counted.
        scope: Name of who spends, for the observer.
        wait: Seconds from now; if there is no room by then, it is refused at once.
        keep: Seconds for which it can be given back, and a spender is known again.
        spender: Spends nothing if it has spent before; None is another one each time.

    Raises:
        RateLimited: There is no room within ``wait``.
        StoreError: The store is away.

    Cancellation: nothing is spent.
    """
    began, refused = time.monotonic(), False
    while True:
        who = spender or Spender(new_token(), 0)
        args: list[Value] = [*who, windows.cost, int(keep * 1000), *windows.pairs]
        try:
            reply = await desk.call(f"rate_{windows.algorithm}", windows.names_of(desk), args)
        except asyncio.CancelledError:
            # Whether it was sent is not known.
            await settled(_unspend(Spent(desk, windows, who)))
            raise
        waited = time.monotonic() - began
        if reply.word == "SPENT":
            desk.tell("acquired", "rate_limit", windows.key, scope, waited)
            return Spent(desk, windows, who)
        window, retry_ms = reply.values
        if not refused:
            desk.tell("contended", "rate_limit", windows.key, scope)
            refused = True
        if waited + retry_ms / 1000 > wait:
            name, limit = windows.names[window], windows.pairs[2 * window]
            raise RateLimited(windows.key, retry_after=retry_ms / 1000, window=name, limit=limit)
        # All who wait for one window would come at the same moment.
        pause = retry_ms / 1000 + random.uniform(0, _JITTER)
        await asyncio.sleep(min(pause, max(wait - waited, retry_ms / 1000)))


async def _unspend(spent: Spent) -> None:
    with suppress(StoreError):
        await spent.restore()
