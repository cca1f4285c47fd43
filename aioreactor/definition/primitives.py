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


def _positive(what: str, number: float | None) -> None:
    if number is not None and number <= 0:
        raise ValueError(f"{what} is in seconds and above 0, not {number}")


def _lease(ttl: float, wait: float) -> None:
    if ttl < SMALLEST_TTL:
        raise ValueError(f"ttl={ttl}: the shortest lease is {SMALLEST_TTL:g} s (it is renewed at a third of it)")
    if wait < 0:
        raise ValueError(f"wait={wait}: seconds from 0")


class Primitive:
    """Base of the five: a kind and a key."""

    kind: ClassVar[str]
    key: Key

    def __init__(self, key: Key) -> None:
        if not callable(key) and (not isinstance(key, str) or not key):
            raise ValueError(f"{type(self).__name__}: the key is a text that is not empty, or a callable, not {key!r}")
        self.key = key

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
        return await ports.launcher().enter(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Give it back."""

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
        self.on_lost = on_lost


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
        self.on_lost = on_lost


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
        if any(number < 1 for number in (limits or {}).values()) or (limit is not None and limit < 1) or cost < 1:
            raise ValueError("limits and cost are at least 1")
        self.limits = dict(limits) if limits else ({per: limit} if per is not None else None)
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
        self.every = every
        self.tz = tz


class OrderedLock(Primitive):
    """Strictly one after another, in the order in which the positions were handed out. Spans in seconds."""

    kind = "ordered_lock"

    def __init__(self, key: Key, poison_after: float = 600, strict: bool = True, wait: float = 0) -> None:
        super().__init__(key)
        _positive("poison_after", poison_after)
        self.poison_after = poison_after
        self.strict = strict
        self.wait = wait
