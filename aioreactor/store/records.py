"""What the run store takes and gives: plain, immutable data. Blobs are opaque here. Times are server times in ms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from aioreactor.store import keys
from aioreactor.trace import Status

FORMAT = 1
"""Version of the record's form that this code writes; a newer one is refused by whoever decodes the blobs."""

TERMINAL: frozenset[Status] = frozenset(("completed", "failed", "halted", "cancelled", "aborted"))
STATUSES: frozenset[Status] = frozenset(get_args(Status))
LIVE: frozenset[Status] = frozenset(("pending", "running", "rolling_back"))
"""Somebody has to move such a run on; if nobody does, the sweeper rings."""

Why: TypeAlias = Literal["token", "version", "gone"]
"""Why a write was refused: held by somebody else or by nobody, written by somebody else, deleted."""

_NOTHING: Mapping[str, bytes] = {}


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint writes; what is left out stays as it is.

    Attributes:
        status: The new one; `RunStore.save` and `RunStore.release` take no terminal one.
        steps: By step path.
        dropped: Paths of steps to be forgotten.
        trace: Entries to append.
        failure: The first failure.
        state: The run's own state.
        seq: The last number on the undo stack.
        served: How many requests have been served; written together with their effects.
        version: Of the code that goes on with the run.
        fingerprint: Of the plan that goes on with the run.
        rest: The fence of who lets the run go with nothing in flight, a blank, and what the run waits for.
        gates: How far the run is with its coordination, and what it holds.
        progress: How far its bodies say they are.
        left: What of rollbacks inside it did not complete while it goes on.
    """

    status: Status | None = None
    steps: Mapping[str, bytes] = _NOTHING
    dropped: Sequence[str] = ()
    trace: Sequence[bytes] = ()
    failure: bytes | None = None
    state: bytes | None = None
    seq: int | None = None
    served: int | None = None
    version: str | None = None
    fingerprint: str | None = None
    rest: str | None = None
    gates: bytes | None = None
    progress: bytes | None = None
    left: bytes | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run to be created.

    Attributes:
        reactor: Name of its class.
        inputs: Encoded in a way that equal inputs give equal bytes: they are compared as such.
        version: Of the code.
        fingerprint: Of the plan.
        deadline_ms: From its creation; None is none.
        due_ms: From its creation; before then nobody is expected to take it.
        parent: The run that started it.
        tags: To list it by.
        queue: Of the workers that are to carry it on; empty is any.
        listed: Whether it is among the top-level runs, or an element of another.
        durability: The level that its start asked for; empty is that of who executes it.
        steps: Results that it begins with (fork, retry).
        trace: Entries that it begins with.
        state: The run's own state.
        seq: The last number on the undo stack.
        gates: See `Changes.gates`.
        element: Of which map of its parent it is which element, as text of a `Place`; empty if it is none.
        failure: Why it goes back, of one that begins with that.
    """

    reactor: str
    inputs: bytes = b""
    version: str = ""
    fingerprint: str = ""
    deadline_ms: int | None = None
    due_ms: int = 0
    parent: str = ""
    tags: tuple[str, ...] = ()
    queue: str = ""
    listed: bool = True
    durability: str = ""
    steps: Mapping[str, bytes] = _NOTHING
    trace: Sequence[bytes] = ()
    state: bytes = b""
    seq: int = 0
    gates: bytes = b""
    element: str = ""
    failure: bytes = b""
    left: bytes = b""

    def labels(self) -> str:
        """What it is listed by, apart from its status, one a line.

        Raises:
            ValueError: The reactor's name, a tag or the parent's id is empty or too long.
        """
        found = [keys.ALL, keys.reactor_label(self.reactor), *map(keys.tag_label, self.tags)]
        found += [keys.TOP] if self.listed else []
        found += [keys.parent_label(self.parent)] if self.parent else []
        return "\n".join(dict.fromkeys(found))


class Place(NamedTuple):
    """Which element of which map; ``back``: it is a run of its own in order to be rolled back."""

    path: str
    number: int
    back: bool = False

    def __str__(self) -> str:
        return f"{'back' if self.back else 'go'} {self.number} {self.path}"


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The scalars of a run as of one moment.

    Attributes:
        ver: Version of the record, grows with each write.
        fence: Grows each time that somebody takes the run.
        owner: Who holds it, for people; empty if nobody does.
        lease_ms: When its lease ends or ended; 0 if it was let go.
        deadline_ms: None is none.
        due_ms: Before then nobody is expected to take it; 0 is at once.
        recoveries: How often in a row it was taken from somebody who had not let it go, without progress in between.
        ended_ms: 0 before it has ended.
        labels: What it is listed by, apart from its status, one a line.
        asked: Number of the last request that is a reason to take the run.
        durability: The level that its start asked for; empty is that of who executes it.
        now_ms: When this was read.
        queue: Of the workers that are to carry it on; empty is any.
        rest: See `Changes.rest`; of whoever let it go last.
        gates: See `Changes.gates`.
        element: See `NewRun.element`.
        progress: See `Changes.progress`.
        left: See `Changes.left`.
        inputs, outcome, failure, state: Empty also when they were not asked for.
    """

    run_id: str
    reactor: str
    status: Status
    ver: int
    fence: int
    now_ms: int
    created_ms: int
    updated_ms: int
    ended_ms: int = 0
    owner: str = ""
    lease_ms: int = 0
    deadline_ms: int | None = None
    due_ms: int = 0
    recoveries: int = 0
    format: int = FORMAT
    version: str = ""
    fingerprint: str = ""
    parent: str = ""
    tags: tuple[str, ...] = ()
    labels: str = ""
    seq: int = 0
    served: int = 0
    asked: int = 0
    queue: str = ""
    rest: str = ""
    durability: str = ""
    gates: bytes = b""
    element: str = ""
    progress: bytes = b""
    left: bytes = b""
    inputs: bytes = b""
    outcome: bytes = b""
    failure: bytes = b""
    state: bytes = b""

    @property
    def place(self) -> Place | None:
        """Of which map of its parent it is which element, and whether it is being rolled back; None if it is none."""
        if not self.element:
            return None
        way, index, path = self.element.split(" ", 2)
        return Place(path, int(index), way == "back")

    @property
    def waits_for(self) -> str:
        """What it waits for, if it was let go with nothing in flight and nobody has taken it since."""
        fence, _, text = self.rest.partition(" ")
        return text if fence == str(self.fence) and not self.ended else ""

    @property
    def awaited_ms(self) -> int:
        """Before then nobody is expected to take it; a request that came when it was being let go is for now."""
        return 0 if self.asked > self.served else self.due_ms

    @property
    def is_owed(self) -> bool:
        """Whether somebody has to move it on, now or when it is due."""
        return self.status in LIVE or (self.status == "paused" and (self.due_ms > 0 or self.asked > self.served))

    @property
    def was_quiet(self) -> bool:
        """For who has just taken it: whether nothing was in flight before."""
        return self.rest.partition(" ")[0] == str(self.fence - 1)

    def rests_in(self, statuses: Collection[Status]) -> bool:
        """Whether it is in one of these; a paused run that got a request is on its way to another."""
        return self.status in statuses and not (self.status == "paused" and self.asked > self.served)

    @property
    def ended(self) -> bool:
        """Whether its status is terminal."""
        return self.status in TERMINAL

    @property
    def lease_left_ms(self) -> int:
        """How long its lease lasts; 0 if nobody has a live one."""
        return max(self.lease_ms - self.now_ms, 0)

    def rests_ms(self, idle_ms: int) -> int:
        """How long, from when this was read, until it is up to somebody else to move it on; 0 if it is now.

        One that was let go, or not taken yet, may be on its way to its next holder for ``idle_ms`` after it is due.
        """
        if self.lease_ms:
            return self.lease_left_ms
        return max(max(self.updated_ms, self.awaited_ms) + idle_ms - self.now_ms, 0)

    @property
    def listing(self) -> str:
        """All that it is listed by, one a line."""
        return f"{self.labels}\n{keys.status_label(self.status)}"


class Request(msgspec.Struct, frozen=True):
    """What somebody wants of a run's owner; numbered from 1 in the order of acceptance."""

    number: int
    id: str
    body: bytes


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run as of one moment."""

    row: RunRow
    steps: dict[str, bytes]
    trace: list[bytes]
    requests: list[Request]

    @property
    def waiting(self) -> list[Request]:
        """The requests that were not served yet, oldest first."""
        return self.requests[self.row.served :]


def known_status(status: Status) -> Status:
    """``status``, if there is such a one.

    Raises:
        ValueError: There is not.
    """
    if status not in STATUSES:
        raise ValueError(f"no status {status!r}: {', '.join(sorted(STATUSES))}")
    return status


def living_status(status: Status | None) -> str:
    """``status`` as a script takes it, if a run that goes on may have it.

    Raises:
        ValueError: It is terminal or unknown.
    """
    if status is None:
        return ""
    if known_status(status) in TERMINAL:
        raise ValueError(f"{status!r} ends a run: that is for close()")
    return status


def check_take(allowed: Collection[Status], status: Status | None) -> None:
    """Refuse to take an ended run without a new status: nobody may hold a run that has ended.

    Raises:
        ValueError: That was asked for.
    """
    if status is None and not TERMINAL.isdisjoint(allowed):
        raise ValueError("who takes a run that may have ended says what becomes of it: status='rolling_back'")


def positive(number: int) -> int:
    """``number``, if it is at least 1.

    Raises:
        ValueError: It is not.
    """
    if number < 1:
        raise ValueError(f"{number} is to be at least 1")
    return number


def not_negative(number: int) -> int:
    """``number``, if it is at least 0.

    Raises:
        ValueError: It is not.
    """
    if number < 0:
        raise ValueError(f"{number} is not to be negative")
    return number


def terminal_status(status: Status) -> Status:
    """``status``, if it ends a run.

    Raises:
        ValueError: It does not.
    """
    if status not in TERMINAL:
        raise ValueError(f"{status!r} does not end a run: {', '.join(sorted(TERMINAL))}")
    return status


def statuses_text(statuses: Collection[Status]) -> str:
    """Statuses as a script takes them: ``,one,other,``."""
    return f",{','.join(sorted(map(known_status, statuses)))},"
