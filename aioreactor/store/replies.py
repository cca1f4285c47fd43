"""What an error reply means for the command that got it. Pure."""

from __future__ import annotations

import enum
import random

from aioreactor.store.errors import ReplyError


class Verdict(enum.Enum):
    """What is to be done about an error reply.

    Every verdict except `RAISE` rests on the server having refused the command *before* it ran, so
    that sending it again is safe whether or not it is repeatable.
    """

    RAISE = enum.auto()
    """Repeating would not help: the caller gets the error."""
    RELOAD = enum.auto()
    """The script is not on the server: load it and repeat, at once."""
    WAIT = enum.auto()
    """The whole server is not ready: hold the link, back off, repeat."""
    RECONNECT = enum.auto()
    """This is no longer the primary: find the new one, repeat there."""
    MOVED = enum.auto()
    """The slot lives on another node for good."""
    ASK = enum.auto()
    """The slot is moving: repeat this one command on the other node."""
    DELAY = enum.auto()
    """Only this command's slot is not ready: repeat it after a while, let the others pass."""


_VERDICTS = {
    "NOSCRIPT": Verdict.RELOAD,
    "LOADING": Verdict.WAIT,
    "BUSY": Verdict.WAIT,
    "NOREPLICAS": Verdict.WAIT,
    "READONLY": Verdict.RECONNECT,
    "MASTERDOWN": Verdict.RECONNECT,
    "MOVED": Verdict.MOVED,
    "ASK": Verdict.ASK,
    "TRYAGAIN": Verdict.DELAY,
    "CLUSTERDOWN": Verdict.DELAY,
}


def verdict_on(error: ReplyError) -> Verdict:
    """What to do about `error`."""
    verdict = _VERDICTS.get(error.code, Verdict.RAISE)
    if verdict is Verdict.MOVED or verdict is Verdict.ASK:
        try:
            redirect_of(error)
        except ValueError:
            return Verdict.RAISE
    return verdict


def redirect_of(error: ReplyError) -> tuple[int, str, int]:
    """Slot, host and port named by a `MOVED` or `ASK` reply; an empty host means the same host.

    Raises:
        ValueError: It is not of that form.
    """
    _, slot, address = error.message.split(" ")[:3]
    host, port = address.rsplit(":", 1)
    return int(slot), host.strip("[]"), int(port)


def backoff(failures: int, *, base: float = 0.02, cap: float = 1.0) -> float:
    """Seconds to wait after so many failures in a row: none after the first, then doubling, jittered."""
    if failures <= 1:
        return 0.0
    return float(min(cap, base * 2 ** min(failures - 2, 16)) * random.uniform(0.5, 1.0))
