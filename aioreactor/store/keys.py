"""Every name that the run store gives to something in Redis, one function each. Pure.

All keys of one run share a hash slot, because its id stands in braces. Ids and labels that users chose are
percent-encoded, so that no brace, colon or newline in them can lead to another slot or name space.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

MAX_ID_LENGTH = 200
MAX_LABEL_LENGTH = 500

_PREFIX = re.compile(r"[A-Za-z0-9_.:\-]{1,64}\Z")


class KeySpace:
    """Keys and channels under one prefix.

    Args:
        prefix: Letters, digits and ``_.:-``.
        others: Last parts of further keys that a run may have; they live, expire and go with the run.

    Raises:
        ValueError: The prefix has other characters, or none.
    """

    def __init__(self, prefix: str = "aioreactor", *, others: Sequence[str] = ()) -> None:
        if not _PREFIX.match(prefix):
            raise ValueError(f"a key prefix has 1 to 64 letters, digits and _.:- in it, not {prefix!r}")
        self.prefix = prefix
        self._others = tuple(others)
        # No id can have a colon, so that this slot is no run's.
        self._index = f"{prefix}:{{:index}}:"

    def of_run(self, run_id: str) -> tuple[str, ...]:
        """All keys of a run: scalars, steps, trace, requests, and the others.

        Raises:
            ValueError: It cannot be the id of a run.
        """
        base = f"{self.prefix}:{{{encode_id(run_id)}}}:"
        return (
            base + "run",
            base + "steps",
            base + "trace",
            base + "requests",
            *(base + other for other in self._others),
        )

    def run(self, run_id: str) -> str:
        """Hash of a run's scalars."""
        return f"{self.prefix}:{{{encode_id(run_id)}}}:run"

    def requests(self, run_id: str) -> str:
        """Hash of what operators want of a run."""
        return f"{self.prefix}:{{{encode_id(run_id)}}}:requests"

    def fan(self, run_id: str) -> tuple[str, str, str]:
        """Keys of a run's fan-outs: scalars and items, what elements came to, who has them."""
        base = f"{self.prefix}:{{{encode_id(run_id)}}}:"
        return base + "fan", base + "out", base + "busy"

    def fan_channel(self, run_id: str) -> str:
        """Channel that tells whoever holds a run, or executes elements of its fan-outs, what happens to them."""
        return f"{self.prefix}:fan:{encode_id(run_id)}"

    def rows(self) -> str:
        """Hash of what the index knows of each run; it ends in ``rows``, see ``fragments/index.lua``."""
        return self._index + "rows"

    def live(self) -> str:
        """Sorted set of runs that somebody has to move on, by when to look whether somebody does."""
        return self._index + "live"

    def expiring(self) -> str:
        """Sorted set of ended runs, by when their record is gone."""
        return self._index + "expiring"

    def lined(self) -> str:
        """Sorted set of runs that stand in lines, by when they need a sign of life."""
        return self._index + "lined"

    def listing(self, label: str) -> str:
        """Sorted set of the runs with a label, by their time of creation."""
        return self._index + label

    def done_channel(self, run_id: str) -> str:
        """Channel that tells when a run has ended, paused or gone."""
        return f"{self.prefix}:done:{encode_id(run_id)}"

    def requests_channel(self, run_id: str) -> str:
        """Channel that tells whoever holds a run of a new request."""
        return f"{self.prefix}:asked:{encode_id(run_id)}"

    def asked_channel(self) -> str:
        """Channel that tells everybody the id of each run that got a request."""
        return f"{self.prefix}:asked"

    def correlation(self, reactor: str, correlation_id: str) -> str:
        """Which interrupt of which run of a reactor waits for this correlation id."""
        return f"{self._index}correlation:{_encode_label(reactor)}:{quote(correlation_id, safe='')}"

    def schedule(self, key: str) -> str:
        """Hash of what is known of a schedule; its slot is no run's, whose ids have no colon there."""
        return f"{self.prefix}:{{:schedule:{quote(key, safe='')}}}"

    def correlations(self) -> str:
        """Sorted set of those, by when to look whether their interrupts are open still."""
        return self._index + "correlations"


ALL = "all"
TOP = "top"


def reactor_label(name: str) -> str:
    """Label of the runs of one reactor."""
    return f"reactor:{_encode_label(name)}"


def status_label(status: str) -> str:
    """Label of the runs in one status."""
    return f"status:{status}"


def tag_label(tag: str) -> str:
    """Label of the runs with one tag."""
    return f"tag:{_encode_label(tag)}"


def parent_label(run_id: str) -> str:
    """Label of the runs which one run started."""
    return f"parent:{encode_id(run_id)}"


def parent_in(labels: str) -> str:
    """The run that started one with these labels, one a line; empty if none did."""
    found = next((label for label in labels.split("\n") if label.startswith("parent:")), "")
    return unquote(found.removeprefix("parent:"))


def encode_id(run_id: str) -> str:
    """A run's id as a part of a key; different ids stay different.

    Raises:
        ValueError: It is empty, too long, or not text that can be encoded.
    """
    if not 0 < len(run_id) <= MAX_ID_LENGTH:
        raise ValueError(f"a run id has 1 to {MAX_ID_LENGTH} characters, not {len(run_id)}")
    if run_id.isascii() and run_id.isalnum():
        return run_id  # as all ids of our own making are; `quote` takes longer than all the rest
    return quote(run_id, safe="")


def run_id_for_key(reactor: str, key: str) -> str:
    """The id of the run that an idempotency key of a reactor stands for.

    So creating it decides in one slot, atomically, who is first.
    """
    name = reactor.encode()
    return "k-" + hashlib.sha256(b"%d:%b:%b" % (len(name), name, key.encode())).hexdigest()[:30]


def element_id(parent: str, path: str, index: int) -> str:
    """The id of the run that an element of a map of another run is, or would be."""
    return f"{parent}/{path}[{index}]"


def element_of(run_id: str) -> tuple[str, str, int] | None:
    """The run, the path of its map, and the index, of the element with an id; None for any other."""
    parent, _, rest = run_id.rpartition("/")
    path, _, index = rest.rpartition("[")
    if not parent or not path or not index.endswith("]") or not index[:-1].isdecimal():
        return None
    return parent, path, int(index[:-1])


FAN = "fan\n"
"""What the rings for fan-outs begin with; no run's."""


def fan_ring(run_id: str, path: str, nonce: str) -> str:
    """What is rung for the elements of a map, in place of a run's id; each time another one."""
    return f"{FAN}{nonce}\n{path}\n{run_id}"


def fan_rung(ring: str) -> tuple[str, str]:
    """The run and the path of its map that a ring is for."""
    _, _, path, run_id = ring.split("\n", 3)
    return run_id, path


def run_id_for_unit(parent: str, created_ms: int, path: str, *, independent: bool) -> str:
    """The id of the run that the node at ``path`` of a run is dispatched as.

    So creating it again, after a crash, finds the one that is there; a run that was replaced has units of its own.
    """
    name = parent.encode()
    digest = hashlib.sha256(b"%d:%b:%d:%b" % (len(name), name, created_ms, path.encode())).hexdigest()[:30]
    return f"{FREE if independent else BOUND}{digest}"


BOUND, FREE = "unit", "freeunit"
"""What the ids of units begin with: those that do not outlive a parent that rolled back, and those that do."""


@lru_cache(1024)
def _encode_label(text: str) -> str:
    if not 0 < len(text) <= MAX_LABEL_LENGTH:
        raise ValueError(f"a reactor's name or a tag has 1 to {MAX_LABEL_LENGTH} characters, not {len(text)}")
    return quote(text, safe="")
