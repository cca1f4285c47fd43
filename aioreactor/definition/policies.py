"""Policies: how often a step is tried, how a map fans out, and the keywords of a class header."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from aioreactor.failures import leaves

Backoff: TypeAlias = Literal["fixed", "linear", "exponential"]
OnFailure: TypeAlias = Literal["settle", "cancel"]
OnCancel: TypeAlias = Literal["rollback", "abort", "detach"]
OnContention: TypeAlias = Literal["raise", "enqueue"]
Durability: TypeAlias = Literal["step", "batched", "exit", "none"]
Errors: TypeAlias = tuple[type[BaseException], ...]


def _errors(given: Any) -> Errors:
    """One class or several."""
    return (given,) if isinstance(given, type) else tuple(given)


@dataclass(frozen=True, slots=True)
class Retry:
    """How a step is tried again.

    ``max_attempts`` counts the first. The wait before attempt *n+1* is ``base_delay`` (fixed), ``base_delay * n``
    (linear) or ``base_delay * 2**(n-1)`` (exponential), at most ``max_delay``; ``jitter`` is the share of the wait
    (0 to 1) that is drawn at random, upwards and downwards alike. All spans in seconds.

    ``retry_on`` and ``give_up_on`` are error classes; an exception group is retried only if every leaf may be.
    ``on_exhausted="pause"`` (needs a store) leaves the decision to a person.

    Raises:
        ValueError: a number that makes no sense; the text says which.
    """

    max_attempts: int = 1
    backoff: Backoff = "exponential"
    base_delay: float = 1.0
    max_delay: float | None = None
    jitter: float = 0.0
    retry_on: Errors | type[BaseException] = (Exception,)
    give_up_on: Errors | type[BaseException] = ()
    on_exhausted: Literal["fail", "pause"] = "fail"
    _on: Errors = field(init=False, repr=False, compare=False)
    _never: Errors = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts counts the first attempt, so it is at least 1, not {self.max_attempts}")
        if self.backoff not in {"fixed", "linear", "exponential"}:
            raise ValueError(f"backoff is 'fixed', 'linear' or 'exponential', not {self.backoff!r}")
        if self.base_delay < 0 or (self.max_delay is not None and self.max_delay < 0):
            raise ValueError("base_delay and max_delay are seconds and cannot be negative")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a share of the wait, from 0 to 1, not {self.jitter}")
        if self.on_exhausted not in {"fail", "pause"}:
            raise ValueError(f"on_exhausted is 'fail' or 'pause', not {self.on_exhausted!r}")
        object.__setattr__(self, "_on", _errors(self.retry_on))
        object.__setattr__(self, "_never", _errors(self.give_up_on))

    def delay(self, attempt: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after this attempt (from 1)."""
        factor = {"fixed": 1.0, "linear": float(attempt)}.get(self.backoff)
        if factor is None:
            factor = 2.0 ** min(attempt - 1, 1000)  # past 2**1000 a float overflows, and nobody waits that long
        wait = self.base_delay * factor
        if self.max_delay is not None:
            wait = min(wait, self.max_delay)
        if self.jitter:
            wait *= 1 + self.jitter * (rng or random).uniform(-1, 1)
        return max(0.0, wait if self.max_delay is None else min(wait, self.max_delay))

    def allows(self, error: BaseException) -> bool:
        """Whether this error may be tried again, the number of attempts aside."""
        return all(self._allows_one(leaf) for leaf in leaves(error)) and getattr(error, "retryable", True) is not False

    def _allows_one(self, error: BaseException) -> bool:
        if getattr(error, "retryable", True) is False or isinstance(error, self._never):
            return False
        return isinstance(error, self._on)


NO_RETRY = Retry()


@dataclass(frozen=True, slots=True)
class FanOut:
    """How a map is dealt to workers: at most ``batch_size`` elements outstanding, in chunks, on ``queue``."""

    batch_size: int | None = None
    chunk: int | Literal["auto"] = "auto"
    queue: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {self.batch_size}")
        if self.chunk != "auto" and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise ValueError(f"chunk is 'auto' or at least 1, not {self.chunk!r}")


CHOICES: dict[str, tuple[str, ...]] = {
    "on_failure": ("settle", "cancel"),
    "on_cancel": ("rollback", "abort", "detach"),
    "on_contention": ("raise", "enqueue"),
    "durability": ("step", "batched", "exit", "none"),
}
_SPANS = ("deadline", "settle_timeout", "undo_timeout", "rollback_timeout", "retention")


@dataclass(frozen=True, slots=True)
class Options:
    """The keywords of a reactor's class header. None means: as the settings say. Spans in seconds."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    version: str | int | None = None
    retries: Retry | None = None
    coordination: tuple[Any, ...] = ()
    middlewares: tuple[Any, ...] = ()
    max_concurrency: int | None = None
    deadline: float | None = None
    on_failure: OnFailure | None = None
    on_cancel: OnCancel | None = None
    on_contention: OnContention | None = None
    settle_timeout: float | None = None
    undo_timeout: float | None = None
    rollback_timeout: float | None = None
    durability: Durability | None = None
    retention: float | None = None
    queue: str | None = None

    def extended(self, given: Mapping[str, Any]) -> Options:
        """These options with a subclass's own keywords in place of the inherited ones; a name is never inherited."""
        own: dict[str, Any] = {key: as_tuple(item) if key in _LISTS else item for key, item in given.items()}
        return replace(self, **{"name": None, "aliases": (), **own})

    def problems(self) -> list[str]:
        """What is wrong with the values, each with its fix."""
        found = [
            problem
            for key, choices in CHOICES.items()
            if (problem := choice_problem(key, getattr(self, key), choices)) is not None
        ]
        found += [f"{key}={span!r}: seconds above 0" for key in _SPANS if not _is_span(span := getattr(self, key))]
        limit = self.max_concurrency
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            found.append(f"max_concurrency={limit!r}: a whole number from 1 (or leave it out for no bound)")
        if self.retries is not None and not isinstance(self.retries, Retry):
            found.append(f"retries={self.retries!r}: use Retry(max_attempts=…)")
        return found + alias_problem("class header", self.aliases)


_LISTS = ("aliases", "coordination", "middlewares")
OPTION_NAMES = frozenset(option.name for option in fields(Options))


def _is_span(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0)


def retry_problem(where: str, given: Any) -> list[str]:
    """Whether a ``retries=`` is one."""
    return (
        [] if given is None or isinstance(given, Retry) else [f"{where}: retries={given!r}: use Retry(max_attempts=…)"]
    )


def timeout_problem(where: str, given: Any) -> list[str]:
    """Whether a ``timeout=`` is one."""
    return [] if _is_span(given) else [f"{where}: timeout={given!r}: seconds above 0"]


def alias_problem(where: str, aliases: tuple[Any, ...]) -> list[str]:
    """Whether aliases are names."""
    return [f"{where}: aliases={item!r}: an older name, as text" for item in aliases if not isinstance(item, str)]


def choice_problem(what: str, given: Any, choices: Sequence[str]) -> str | None:
    """What is wrong with a word that is none of the choices."""
    if given is None or given in choices:
        return None
    return f"{what}={given!r}: use one of {', '.join(map(repr, choices))}"


def as_tuple(given: Any) -> tuple[Any, ...]:
    """One thing, several, or none."""
    if given is None:
        return ()
    several = isinstance(given, (Sequence, AbstractSet, Iterator)) and not isinstance(given, (str, bytes))
    return tuple(given) if several else (given,)
