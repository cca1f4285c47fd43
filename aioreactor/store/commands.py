"""What has to be known about plain commands: their key, and whether they can share a connection. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aioreactor.store.calls import Key, Value

_KEYLESS = frozenset(
    "ACL BGREWRITEAOF BGSAVE CLIENT CLUSTER COMMAND CONFIG DBSIZE DEBUG ECHO FAILOVER FLUSHALL FLUSHDB "
    "FUNCTION INFO KEYS LASTSAVE LATENCY MODULE PING PUBLISH RANDOMKEY REPLICAOF ROLE SAVE SCAN SCRIPT "
    "SHUTDOWN SLOWLOG SWAPDB TIME WAIT WAITAOF".split()
)
_KEY_THIRD = frozenset(("OBJECT", "XGROUP", "XINFO", "BITOP", "MEMORY"))
_KEY_AFTER_COUNT = frozenset("EVAL EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO".split())
_READ_STREAMS = frozenset(("XREAD", "XREADGROUP"))

# One of these would stall, or change the meaning of, everything else on the connection.
_UNSHARABLE = frozenset(
    "ASKING AUTH BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN DISCARD EXEC HELLO MONITOR "
    "MULTI PSUBSCRIBE PSYNC PUNSUBSCRIBE QUIT READONLY READWRITE RESET SELECT SSUBSCRIBE SUBSCRIBE "
    "SUNSUBSCRIBE SYNC UNSUBSCRIBE UNWATCH WATCH".split()
)
_UNSHARABLE_CLIENT = frozenset(("REPLY", "TRACKING", "NO-EVICT", "NO-TOUCH", "SETNAME"))


def name_of(args: Sequence[Value]) -> str:
    """The command's name in capitals."""
    return _text(args[0]).upper() if args else ""


def check_sharable(args: Sequence[Value]) -> None:
    """Refuse what cannot share a connection with others.

    Raises:
        ValueError: The command blocks, subscribes, or changes the connection; or is empty.
    """
    name = name_of(args)
    if not name:
        raise ValueError("an empty command")
    blocks = name in _READ_STREAMS and any(_is_word(arg, "BLOCK") for arg in args[1:9])
    changes = name == "CLIENT" and len(args) > 1 and _text(args[1]).upper() in _UNSHARABLE_CLIENT
    if name in _UNSHARABLE or blocks or changes:
        raise ValueError(f"{name} needs a connection of its own: this one is shared by all callers")


def key_of(args: Sequence[Value]) -> Key | None:
    """The first key, where most commands have it; None if the command concerns no key."""
    name = name_of(args)
    place = 1
    if name in _KEYLESS:
        return None
    if name in _KEY_AFTER_COUNT:
        if len(args) < 3 or int(args[2]) == 0:
            return None
        place = 3
    elif name in _KEY_THIRD:
        place = 2
    elif name in _READ_STREAMS:
        place = 1 + next((i for i, arg in enumerate(args) if _is_word(arg, "STREAMS")), len(args))
    if place >= len(args):
        return None
    key = args[place]
    if isinstance(key, memoryview):
        return bytes(key)
    return key if isinstance(key, str | bytes) else str(key)


def _is_word(arg: Value, word: str) -> bool:
    return isinstance(arg, str | bytes) and len(arg) == len(word) and _text(arg).upper() == word


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | memoryview) else str(value)
