"""Everything a runtime can be told, and the environment variables that fill what is not given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from aioreactor.clock import SYSTEM_CLOCK, Clock
from aioreactor.definition.fields import closest_text
from aioreactor.definition.policies import Durability, OnCancel, OnFailure
from aioreactor.definition.primitives import check_limits

_PREFIX = "AIOREACTOR_"
_LONGEST_WAIT = 3.0
"""Seconds without an answer after which a server counts as hung are more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a runtime can be told. ``AIOREACTOR_*`` variables fill what is not given. Spans in seconds.

    ``on_failure``, ``on_cancel``, ``settle_timeout``, ``undo_timeout``, ``rollback_timeout``, ``deadline``,
    ``max_concurrency`` and ``durability`` are defaults for reactors that say nothing in their class header.
    ``max_threads`` bounds the worker threads that blocking bodies use (None: anyio's own bound of 40).
    ``redis_url`` makes runs durable: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or
    ``redis+cluster://``. ``key_prefix`` names the key space, ``queue`` arq's queue (its own default: ``arq:queue``),
    ``queue_url`` its server when that is another one than ``redis_url``,
    ``store_retry_for`` bounds the retries of one command, ``lease_ttl`` (at least 1) is how long a dead process keeps
    its runs, ``lease_thread`` keeps the leases of an event loop that stands still, for up to ``lease_thread_limit``
    (ten times ``lease_ttl``), ``wait_replicas`` makes a write wait until so many replicas have it, for up to
    ``wait_replicas_timeout`` (at most 3), ``max_recoveries`` how often in a row a run may lose its process
    without getting further, ``retention`` how long a run that ended is kept, ``max_value_bytes`` the
    largest value of a step; ``cipher`` encrypts marked fields.
    In a worker, a run of which nothing but waits is left is parked when they last longer than ``park_after``.
    There, a run or step whose coordination is not to be had is tried again after ``snooze_delay`` if nobody calls it
    before, and ``snooze_max`` times at most, unless the run has done things already.
    Who reads a unit (``async_step``, ``async_reactor``) waits up to ``unit_wait`` for its outcome; in a worker, parked,
    up to ``unit_park`` from when it was dispatched.
    ``rate_limits`` gives limits to the names of `RateLimit`: ``{"stripe": {"second": 3, "minute": 100}}``.
    ``resources`` maps names, or types, to what parameters marked `Resource` receive.
    """

    redis_url: str | None = None
    key_prefix: str = "aioreactor"
    queue: str | None = None
    queue_url: str | None = None
    park_after: float = 2.0
    unit_wait: float = 30.0
    unit_park: float = 3600.0
    store_retry_for: float = 10.0
    lease_ttl: float = 30.0
    lease_thread: bool = False
    lease_thread_limit: float | None = None
    wait_replicas: int = 0
    wait_replicas_timeout: float = 1.0
    max_recoveries: int = 10
    retention: float = 86400.0
    max_value_bytes: int = 1024 * 1024
    cipher: Any = None
    rate_limits: Mapping[str, Mapping[Any, int]] = field(default_factory=dict)
    middlewares: Sequence[Any] = ()
    resources: Mapping[Any, Any] = field(default_factory=dict)
    on_failure: OnFailure = "settle"
    on_cancel: OnCancel = "rollback"
    settle_timeout: float = 30.0
    undo_timeout: float = 60.0
    rollback_timeout: float | None = None
    cancel_rollback_timeout: float = 30.0
    deadline: float | None = None
    max_concurrency: int | None = None
    max_threads: int | None = None
    snooze_delay: float = 5.0
    snooze_max: int = 20
    durability: Durability | None = None
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        if self.lease_ttl < 1:
            raise ValueError(f"lease_ttl={self.lease_ttl}: the shortest lease is 1 s")
        if self.max_recoveries < 1:
            raise ValueError(f"max_recoveries={self.max_recoveries}: a run may lose its process once at least")
        if self.snooze_delay <= 0 or self.snooze_max < 1:
            raise ValueError("snooze_delay is above 0 s, and snooze_max at least 1")
        for name in ("unit_wait", "unit_park"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: seconds from 0")
        for name, limits in self.rate_limits.items():
            try:
                check_limits(limits)
            except ValueError as error:
                raise ValueError(f"rate_limits[{name!r}]: {error}") from error
        if self.lease_thread_limit is not None and self.lease_thread_limit < self.lease_ttl:
            raise ValueError(f"lease_thread_limit={self.lease_thread_limit}: at least lease_ttl, {self.lease_ttl:g} s")
        if self.wait_replicas < 0:
            raise ValueError(f"wait_replicas={self.wait_replicas}: 0 or more")
        if not 0.001 <= self.wait_replicas_timeout <= _LONGEST_WAIT:
            text = f"from 0.001 to {_LONGEST_WAIT:g} s"
            raise ValueError(f"wait_replicas_timeout={self.wait_replicas_timeout}: {text}")

    @property
    def thread_limit(self) -> float | None:
        """For how long leases are extended from a thread while the event loop stands still; None: they are not."""
        if not self.lease_thread:
            return None
        return self.lease_thread_limit if self.lease_thread_limit is not None else 10 * self.lease_ttl

    @classmethod
    def from_environment(cls, **given: Any) -> Settings:
        """Settings with ``AIOREACTOR_*`` variables for what is not given.

        Raises:
            ValueError: a variable does not fit; the text names it.
        """
        known = [option.name for option in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"there is no setting {name!r}{closest_text(name, known)}")
        found = {}
        for option in fields(cls):
            text = os.environ.get(_PREFIX + option.name.upper())
            if text is not None and option.name in _FROM_TEXT and option.name not in given:
                try:
                    found[option.name] = _FROM_TEXT[option.name](text)
                except ValueError as error:
                    raise ValueError(f"{_PREFIX}{option.name.upper()}={text!r}: {error}") from error
        return cls(**found, **given)


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"use one of {', '.join(allowed)}")
        return text

    return parse


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("use 1 or 0")


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "redis_url": str,
    "key_prefix": str,
    "queue": str,
    "queue_url": str,
    "park_after": float,
    "unit_wait": float,
    "unit_park": float,
    "store_retry_for": float,
    "lease_ttl": float,
    "lease_thread": _flag,
    "lease_thread_limit": float,
    "wait_replicas": int,
    "wait_replicas_timeout": float,
    "max_recoveries": int,
    "retention": float,
    "max_value_bytes": int,
    "on_failure": _choice("settle", "cancel"),
    "on_cancel": _choice("rollback", "abort", "detach"),
    "settle_timeout": float,
    "undo_timeout": float,
    "rollback_timeout": float,
    "cancel_rollback_timeout": float,
    "deadline": float,
    "max_concurrency": int,
    "max_threads": int,
    "snooze_delay": float,
    "snooze_max": int,
    "durability": _choice("step", "batched", "exit", "none"),
}
