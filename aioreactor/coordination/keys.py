"""Every name that coordination gives to something in Redis, one function each. Pure.

All names of one key share a hash slot, because the key stands in braces, percent-encoded: no brace, colon or newline in
what users chose leads to another slot or name space.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from aioreactor.store.keys import KeySpace

MAX_KEY_LENGTH = 500
_IN_USE = frozenset({"lock", "lock:queue", "semaphore", "semaphore:queue", "order"})

SlotKind: TypeAlias = Literal["lock", "semaphore"]


class SlotKeys(NamedTuple):
    """Of a lock or a semaphore, in the order in which the scripts want them."""

    holders: str
    facts: str
    queue: str
    waiters: str


@lru_cache(maxsize=4096)
def _base(prefix: str, key: str) -> str:
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise ValueError(f"a coordination key has 1 to {MAX_KEY_LENGTH} characters, not {len(key)}")
    return f"{prefix}:c:{{{quote(key, safe='')}}}:"


@lru_cache(maxsize=4096)
def _slots(prefix: str, kind: SlotKind, key: str) -> SlotKeys:
    base = _base(prefix, key) + kind
    return SlotKeys(base, f"{base}:facts", f"{base}:queue", f"{base}:waiters")


@lru_cache(maxsize=4096)
def _rate(prefix: str, key: str) -> tuple[str, str]:
    base = _base(prefix, key) + "rate"
    return base, f"{base}:spent"


class CoordinationKeys:
    """Keys and channels under one prefix.

    Raises:
        ValueError: The prefix, or later a key, cannot be one.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = KeySpace(prefix).prefix

    def slots(self, kind: SlotKind, key: str) -> SlotKeys:
        """Of a lock or a semaphore."""
        return _slots(self.prefix, kind, key)

    def rate(self, key: str) -> tuple[str, str]:
        """Of a rate limit: the windows, and what was spent lately."""
        return _rate(self.prefix, key)

    def rate_log(self, key: str, length_ms: int) -> str:
        """Log of a sliding window."""
        return f"{_base(self.prefix, key)}rate:log:{length_ms}"

    def period(self, key: str) -> str:
        """Hash of the markers."""
        return _base(self.prefix, key) + "period"

    def order(self, key: str) -> tuple[str, str, str]:
        """Of an ordered lock: the line, the seats, the state."""
        base = _base(self.prefix, key) + "order"
        return base, f"{base}:seats", f"{base}:state"

    def waits(self, token: str) -> str:
        """What is noted with a hold: who waits inside of it."""
        return f"{self.prefix}:c:{{{quote(token, safe='')}}}:waits"

    def pattern(self) -> str:
        """What the names of all of them look like, to Redis."""
        return f"{self.prefix}:c:{{*}}:*"

    def held_in(self, name: str) -> str | None:
        """The key whose holders, waiters or line have this name; None if it is the name of something else."""
        rest = name.removeprefix(f"{self.prefix}:c:{{")
        key, _, part = rest.partition("}:")
        return unquote(key) if rest != name and part in _IN_USE else None

    def inbox(self, name: str) -> str:
        """Channel on which one event loop is told what it was given."""
        return f"{self.prefix}:c:inbox:{name}"
