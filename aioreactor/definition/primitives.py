"""Declarations of the five coordination primitives: used alone (``async with``), on a reactor, or on a step.

A key is a text, or a callable that computes it from the reactor's inputs (on a reactor) or the step's arguments
(on a step). All of them need a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeAlias

from aioreactor.definition import ports

Key: TypeAlias = str | Callable[[Any], str]
OnLost: TypeAlias = Literal["cancel", "warn"]
Algorithm: TypeAlias = Literal["fixed", "sliding", "gcra"]

SMALLEST_TTL = 1.0
_UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_DAY = 86400
_WINDOWS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": _DAY,
    "week": 7 * _DAY,
    "month": 30 * _DAY,
    "year": 365 * _DAY,
}


def _positive(what: str, number: float | None) -> None:
    if number is not None and number <= 0:
        raise ValueError(f"{what} is in seconds and above 0, not {number}")


def _lease(ttl: float, wait: float) -> None:
    if ttl < SMALLEST_TTL:
        raise ValueError(f"ttl={ttl}: the shortest lease is {SMALLEST_TTL:g} s (it is renewed at a third of it)")
    if wait < 0:
        raise ValueError(f"wait={wait}: seconds from 0")


def _check_zone(tz: str) -> None:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"tz={tz!r} is no time zone that is known here") from error


def window_seconds(per: str | float) -> float:
    """How long the window of a rate limit is: a month has 30 days, a year 365.

    Raises:
        ValueError: it is no window.
    """
    if isinstance(per, str):
        if per not in _WINDOWS:
            raise ValueError(f"per={per!r}: seconds, or one of {', '.join(_WINDOWS)}")
        return _WINDOWS[per]
    if per < 0.001:
        raise ValueError(f"per={per}: seconds, at least 0.001")
    return per


def check_limits(limits: Mapping[Any, int], cost: int = 1) -> None:
    """Refuse limits that make no sense, or that ``cost`` can never fit into.

    Raises:
        ValueError: one does not.
    """
    if not limits or any(number < 1 for number in limits.values()) or cost < 1:
        raise ValueError("limits and cost are at least 1")
    for per, number in limits.items():
        window_seconds(per)
        if cost > number:
            raise ValueError(f"cost={cost} never fits into {number} per {per}")


class Primitive:
    """Base of the five: a kind and a key."""

    kind: ClassVar[str]
    key: Key

    def __init__(self, key: Key) -> None:
        if not callable(key) and (not isinstance(key, str) or not key):
            raise ValueError(f"{type(self).__name__}: the key is a text that is not empty, or a callable, not {key!r}")
        self.key = key
        self.resolved: Any = None
        """What coordination has made of it, when nothing in that depends on who uses it."""
        self._entered: list[Any] = []

    def key_for(self, subject: Any) -> str:
        """The key for these inputs or arguments; what the callable raises passes through."""
        return self.key(subject) if callable(self.key) else self.key

    async def __aenter__(self) -> Any:
        """Take it on its own.

        Raises:
            StoreRequired: no store is configured.
            ContentionError: it was not to be had within ``wait``.

        Cancellation: nothing is held afterwards.
        """
        entered = await ports.launcher().enter(self)
        self._entered.append(entered)
        return entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Give it back; also in another task than the one that took it.

        Raises:
            LeaseLost: it was lost meanwhile, and so the body was cancelled.

        Cancellation: it is given back all the same.
        """
        # One declaration serves many tasks at once: what was taken in this context is meant, innermost first.
        if len(self._entered) == 1:
            entered = self._entered.pop()
        else:
            entered = next((item for item in reversed(self._entered) if item.is_here()), self._entered[-1])
            self._entered.remove(entered)
        await entered.leave(error)

    def __repr__(self) -> str:
        key = "…" if callable(self.key) else repr(self.key)
        return f"{type(self).__name__}({key})"


def coordination_problem(where: str, given: Iterable[Any]) -> list[str]:
    """What in a ``coordination=`` is no primitive."""
    return [
        f"{where}: coordination={entry!r}: use Lock, Semaphore, RateLimit, …"
        for entry in given
        if not isinstance(entry, Primitive)
    ]


class Lock(Primitive):
    """One owner at a time; re-entrant along the scope chain. Spans in seconds."""

    kind = "lock"

    def __init__(
        self,
        key: Key,
        ttl: float = 60,
        wait: float = 0,
        auto_extend: bool = True,
        rollback_wait: float | None = None,
        on_lost: OnLost = "cancel",
    ) -> None:
        super().__init__(key)
        _lease(ttl, wait)
        self.ttl = ttl
        self.wait = wait
        self.auto_extend = auto_extend
        self.rollback_wait = rollback_wait
        self.on_lost: OnLost = on_lost


class Semaphore(Primitive):
    """At most ``limit`` owners at a time. Spans in seconds."""

    kind = "semaphore"

    def __init__(
        self,
        key: Key,
        limit: int,
        ttl: float = 60,
        wait: float = 0,
        auto_extend: bool = True,
        rollback_wait: float | None = None,
        on_lost: OnLost = "cancel",
    ) -> None:
        super().__init__(key)
        _lease(ttl, wait)
        if limit < 1:
            raise ValueError(f"limit={limit}: at least 1")
        self.limit = limit
        self.ttl = ttl
        self.wait = wait
        self.auto_extend = auto_extend
        self.rollback_wait = rollback_wait
        self.on_lost: OnLost = on_lost


class RateLimit(Primitive):
    """At most so many starts per window: ``RateLimit(key, limit, per)``, several ``limits``, or a configured name."""

    kind = "rate_limit"

    def __init__(
        self,
        key: Key,
        limit: int | None = None,
        per: str | float | None = None,
        *,
        limits: Mapping[str, int] | None = None,
        algorithm: Algorithm = "fixed",
        cost: int = 1,
        wait: float = 0,
    ) -> None:
        super().__init__(key)
        if (limit is None) != (per is None):
            raise ValueError("RateLimit takes limit and per together: RateLimit(key, 3, 'second')")
        if limit is not None and limits is not None:
            raise ValueError("RateLimit takes either limit and per, or limits={…}, not both")
        if algorithm not in {"fixed", "sliding", "gcra"}:
            raise ValueError(f"algorithm is 'fixed', 'sliding' or 'gcra', not {algorithm!r}")
        self.limits: dict[Any, int] | None = dict(limits) if limits is not None else None
        if per is not None and limit is not None:
            self.limits = {per: limit}
        if cost < 1:
            raise ValueError("limits and cost are at least 1")
        if self.limits is not None:
            check_limits(self.limits, cost)
        if wait < 0:
            raise ValueError(f"wait={wait}: seconds from 0")
        self.algorithm = algorithm
        self.cost = cost
        self.wait = wait


class Period(Primitive):
    """At most one success per calendar bucket (``minute`` … ``year``) or number of seconds."""

    kind = "period"

    def __init__(self, key: Key, every: str | float = "day", tz: str = "UTC") -> None:
        super().__init__(key)
        if isinstance(every, str) and every not in _UNITS:
            raise ValueError(f"every={every!r}: seconds, or one of {', '.join(_UNITS)}")
        if not isinstance(every, str):
            _positive("every", every)
        _check_zone(tz)
        self.every = every
        self.tz = tz


class OrderedLock(Primitive):
    """Strictly one after another, in the order in which the positions were handed out. Spans in seconds."""

    kind = "ordered_lock"

    def __init__(self, key: Key, poison_after: float = 600, strict: bool = True, wait: float = 0) -> None:
        super().__init__(key)
        _positive("poison_after", poison_after)
        if poison_after < SMALLEST_TTL:
            raise ValueError(
                f"poison_after={poison_after}: at least {SMALLEST_TTL:g} s (signs of life come at a third)"
            )
        if wait < 0:
            raise ValueError(f"wait={wait}: seconds from 0")
        self.poison_after = poison_after
        self.strict = strict
        self.wait = wait

    @staticmethod
    async def peek(key: str) -> Any:
        """The line of a key: an `aioreactor.coordination.OrderReport`, or None if nothing is in line.

        Raises:
            StoreRequired: no store is configured.

        Cancellation: nothing happens.
        """
        return (await ports.launcher().coordinator().inspect(key)).order

    @staticmethod
    async def skip(key: str) -> int | None:
        """Pass over the first position, whatever it is doing; its number, or None if nothing is in line. Logged.

        Raises:
            StoreRequired: no store is configured.

        Cancellation: it was passed over, or not.
        """
        skipped: int | None = await ports.launcher().coordinator().skip(key)
        return skipped

    @staticmethod
    async def reset(key: str) -> int:
        """Forget all positions, so that whoever has one is out; how many there were. Logged.

        Raises:
            StoreRequired: no store is configured.

        Cancellation: they were forgotten, or not.
        """
        dropped: int = await ports.launcher().coordinator().reset(key)
        return dropped
