"""What there is to see of a key: who holds it, who waits, what was counted, marked, or stands in line."""

from __future__ import annotations

from dataclasses import dataclass

from aioreactor.coordination.desk import Desk
from aioreactor.coordination.keys import SlotKind

_PER_SCAN = 1000
_ALGORITHMS = {"f": "fixed", "g": "gcra", "s": "sliding"}


@dataclass(frozen=True, slots=True)
class Holder:
    """One that holds a slot. Spans in seconds."""

    label: str
    token: int
    """Its fencing token."""
    age: float
    time_left: float


@dataclass(frozen=True, slots=True)
class Waiter:
    """One in line. ``alive_for`` is in seconds: then it counts as dead unless it asks again; below 0 it does."""

    label: str
    alive_for: float


@dataclass(frozen=True, slots=True)
class SlotReport:
    """A lock or a semaphore; the first waiter is the next."""

    kind: SlotKind
    limit: int
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """A window of a rate limit. ``rolls_in`` seconds from now it has all of its room again, if nobody spends."""

    algorithm: str
    window: float
    """Its length in seconds."""
    limit: int
    used: int
    rolls_in: float


@dataclass(frozen=True, slots=True)
class Marker:
    """A calendar bucket in which somebody succeeded. ``starts`` and ``marked_at`` are seconds since the epoch."""

    bucket: str
    starts: float
    marked_at: float
    marked_by: str


@dataclass(frozen=True, slots=True)
class Place:
    """A position in line. ``silent_for`` seconds it gave no sign of life; after ``poison_after`` it is passed over."""

    number: int
    label: str
    running: bool
    silent_for: float
    poison_after: float


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The line of an ordered lock."""

    epoch: str
    handed_out: int
    """The last position that was."""
    first_failed: int | None
    places: tuple[Place, ...]

    @property
    def in_flight(self) -> Place | None:
        """The position that is running."""
        return next((place for place in self.places if place.running), None)


@dataclass(frozen=True, slots=True)
class KeyReport:
    """Everything there is of a key; parts are None or empty where there is nothing."""

    key: str
    lock: SlotReport | None
    semaphore: SlotReport | None
    counters: tuple[Counter, ...]
    markers: tuple[Marker, ...]
    order: OrderReport | None


async def keys_in_use(desk: Desk, limit: int) -> list[str]:
    """Keys that somebody holds, waits for or stands in line for, in order, up to ``limit`` of them.

    Raises:
        StoreError: The store is away.

    Cancellation: nothing happens.
    """
    found: set[str] = set()
    cursor = b"0"
    while True:
        args = ("SCAN", cursor, "MATCH", desk.keys.pattern(), "COUNT", _PER_SCAN)
        cursor, names = await desk.client.execute(*args, repeatable=True)
        found.update(key for name in names if (key := desk.keys.held_in(name.decode())) is not None)
        if cursor == b"0" or len(found) >= limit:
            return sorted(found)[:limit]


async def inspect(desk: Desk, key: str) -> KeyReport:
    """Look at a key.

    Raises:
        StoreError: The store is away.

    Cancellation: nothing happens.
    """
    return KeyReport(
        key,
        await _slots(desk, "lock", key),
        await _slots(desk, "semaphore", key),
        await _counters(desk, key),
        await _markers(desk, key),
        await _order(desk, key),
    )


async def _slots(desk: Desk, kind: SlotKind, key: str) -> SlotReport | None:
    now_ms, limit, holding, waiting = (await desk.call("slot_inspect", desk.keys.slots(kind, key))).values
    if not holding and not waiting:
        return None
    holders = []
    for _, left_ms, fact in holding:
        fence, since_ms, label = fact.decode().split(" ", 2) if fact else ("0", now_ms, "")
        holders.append(Holder(label, int(fence), (now_ms - int(since_ms)) / 1000, left_ms / 1000))
    waiters = []
    for _, row in waiting:
        alive_ms, _, _, _, label = row.decode().split(" ", 4)
        waiters.append(Waiter(label, (int(alive_ms) - now_ms) / 1000))
    return SlotReport(kind, limit, tuple(holders), tuple(waiters))


async def _counters(desk: Desk, key: str) -> tuple[Counter, ...]:
    now_ms, rows = (await desk.call("rate_inspect", desk.keys.rate(key)[:1])).values
    found = []
    for field, row in zip(rows[::2], rows[1::2], strict=True):
        algorithm, length = field.decode()[0], int(field[1:])
        numbers = [int(part) for part in row.split()]
        if algorithm == "s":
            used, rolls_ms = await _log(desk, key, length, now_ms)
        else:
            used, rolls_ms = (_fixed if algorithm == "f" else _gcra)(numbers, length, now_ms)
        if used:
            counter = Counter(_ALGORITHMS[algorithm], length / 1000, numbers[-1], used, rolls_ms / 1000)
            found.append(counter)
    return tuple(sorted(found, key=lambda each: (each.window, each.algorithm)))


def _fixed(numbers: list[int], length: int, now_ms: int) -> tuple[int, float]:
    index, used, _ = numbers
    left = (index + 1) * length - now_ms
    return (used, left) if left > 0 else (0, 0)


def _gcra(numbers: list[int], length: int, now_ms: int) -> tuple[int, float]:
    arrival_us, limit = numbers
    left = arrival_us // 1000 - now_ms
    return (min(limit, -int(-left * limit // length)), left) if left > 0 else (0, 0)


async def _log(desk: Desk, key: str, length: int, now_ms: int) -> tuple[int, float]:
    log, oldest = desk.keys.rate_log(key, length), (now_ms - length) * 1000
    used = await desk.client.execute("ZCOUNT", log, oldest, "+inf", repeatable=True)
    last = await desk.client.execute("ZRANGE", log, -1, -1, "WITHSCORES", repeatable=True)
    return used, float(last[1]) / 1000 + length - now_ms if used and last else 0


async def _markers(desk: Desk, key: str) -> tuple[Marker, ...]:
    _, rows = (await desk.call("period_inspect", [desk.keys.period(key)])).values
    found = []
    for field, row in zip(rows[::2], rows[1::2], strict=True):
        start, marked_ms, label = row.decode().split(" ", 2)
        found.append(Marker(field.decode(), int(start) / 1000, int(marked_ms) / 1000, label))
    return tuple(sorted(found, key=lambda each: each.bucket))


async def _order(desk: Desk, key: str) -> OrderReport | None:
    now_ms, epoch, handed_out, failed, rows = (await desk.call("order_inspect", desk.keys.order(key))).values
    if not rows:
        return None
    places = []
    for number, row in rows:
        beat_ms, poison_ms, stage, _, _, label = row.decode().split(" ", 5)
        silent = (now_ms - int(beat_ms)) / 1000
        places.append(Place(int(number), label, stage == "running", silent, int(poison_ms) / 1000))
    return OrderReport(epoch.decode(), handed_out, failed or None, tuple(places))
