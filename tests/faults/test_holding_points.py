"""A process that holds is killed at each named point, forward and on the way back; others are kept out, then let in.

Rivals want the same keys all the time, and note when they come in and leave, as the bodies of the runs do. By default
some points of all tables are tried in one go; with ``AIOREACTOR_FAULTS=deep`` all of them, table by table.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

import pytest

from aioreactor import Halt, Lock, OrderedLock, OutOfTurn, Semaphore
from aioreactor.coordination import inspect
from tests.faults.holding import POISON, TTL, Held
from tests.faults.kit import DEEP, EACH, KILLED, RANDOM, SEED, Field, Zygote, check_run
from tests.faults.points import UNCOUNTED, every_point
from tests.faults.test_points import BEGIN, TAKE, TAKE_OVER, slug

GATES = ["ask for the turn", "see the period", "spend", "acquire", "acquire", "see the period", "checkpoint"]
GIVE_BACK = ["release", "release", "advance"]
FIRST = ["spend", "acquire", "acquire", "checkpoint", "release", "release"]
SECOND = ["assign", "ask for the turn", "acquire", "checkpoint"]
DONE = ["do:a", "do:b"]
UNDONE = [*DONE, "comp:b", "undo:a"]
WHOLE = [*GATES, "checkpoint", "checkpoint", "mark", "close", "list", *GIVE_BACK]
WHOLE_BACK = [*GATES, *["checkpoint"] * 2, "list", *["checkpoint"] * 2, "close", "list", *GIVE_BACK]
STEPS = [*FIRST, *SECOND, "release", "advance", "close", "list"]
BACK = ["acquire", "release", "checkpoint", "acquire", "acquire", "release", "release", "checkpoint", "close", "list"]
STEPS_BACK = [*FIRST, *SECOND, "list", "release", "advance", *BACK]
ADOPTED = ["renew", "renew", "checkpoint", "checkpoint", "mark", "close", "list", *GIVE_BACK]
ADOPTED_BACK = ["renew", "renew", *["checkpoint"] * 3, "close", "list", *GIVE_BACK]
PARKED = [*GATES[:5], "restore", "let go", "ring"]
PARKED_STEP = ["spend", "acquire", "acquire", "restore", "checkpoint", "let go", "ring"]


class Table(NamedTuple):
    """What a process does to a run that is new to it, or that another one died of after so many effects."""

    reactor: str
    status: str
    expected: list[str]
    steps: list[str]
    worker: bool = False
    died_after: int | None = None
    parks: bool = False

    @property
    def over(self) -> list[str]:
        """Points at which the end of what has its turn may be stored, and the position is not given up."""
        points, end = every_point(*self.steps), "checkpoint 2" if "InSteps" in self.reactor else "close 1"
        if "advance 1 applied" not in points:
            return []
        first = points.index(f"{end} applied")
        return [points[first - 2], *points[first : points.index("advance 1 applied")]]

    @property
    def slow(self) -> list[str]:
        """Points at which a place in line is left that nobody knows of: who it is given to has it for some seconds."""
        points = every_point(*self.steps)
        kept = "checkpoint 1 applied" if "checkpoint" in self.steps else "let go 1 applied"
        return points[points.index("acquire 2 applied") : points.index(kept)] if self.parks else []


TABLES = {
    "caller": Table("Held", "completed", DONE, ["look", "assign", "announce", *BEGIN, *WHOLE]),
    "caller, back": Table("HeldFails", "failed", UNDONE, ["look", "assign", "announce", *BEGIN, *WHOLE_BACK]),
    "caller, steps": Table("InSteps", "completed", DONE, [*BEGIN, *STEPS]),
    "caller, steps, back": Table("InStepsFails", "failed", UNDONE, [*BEGIN, *STEPS_BACK]),
    "worker": Table("Held", "completed", DONE, [*TAKE, *WHOLE], worker=True),
    "worker, back": Table("HeldFails", "failed", UNDONE, [*TAKE, *WHOLE_BACK], worker=True),
    "worker, steps": Table("InSteps", "completed", DONE, [*TAKE, *STEPS], worker=True),
    "worker, steps, back": Table("InStepsFails", "failed", UNDONE, [*TAKE, *STEPS_BACK], worker=True),
    "taker": Table("HeldLong", "completed", DONE, [*TAKE_OVER, *ADOPTED], worker=True, died_after=0),
    "taker, back": Table("HeldLongFails", "failed", UNDONE, [*TAKE_OVER, *ADOPTED_BACK], worker=True, died_after=2),
    "parks": Table("Held", "completed", DONE, [*TAKE, *PARKED], worker=True, parks=True),
    "parks, steps": Table("InSteps", "completed", DONE, [*TAKE, *PARKED_STEP], worker=True, parks=True),
}
AT_ONCE = 12
"""Nobody gives signs of life for them before a worker goes on with them."""
FORTUNES = {name: [name] for name in TABLES} if DEEP else {"some of all": list(TABLES)}
EARLY = {"look 1 known", "assign 1 applied", "assign 1 known", "announce 1 before", "announce 1 applied"}
EARLY |= {"announce 1 known", "announce 2 before", "create 1 before"}
"""Here a caller may have a position and no run yet; it is passed over, or skipped, as nobody gives signs of life."""
OPTIONAL = UNCOUNTED | {"load"}


class Victim(NamedTuple):
    table: Table
    point: str
    run_id: str

    @property
    def key(self) -> str:
        return f"key:{self.run_id}"


class Guarded:
    """Kills victims that hold, has rivals come by, and looks at what happened to each key."""

    def __init__(self, field: Field, medic: Zygote) -> None:
        self.field = field
        self.medic = medic
        self.rivals: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ victims

    async def _process(self, victim: Victim, **order: Any) -> int:
        """The exit code of a process, whose death is noted."""
        order = {"run_id": victim.run_id, "reactor": victim.table.reactor, "inputs": {"key": victim.key}} | order
        pid = self.field.zygote.start({**self.field.base, **order})
        code = await asyncio.to_thread(self.field.zygote.wait)
        await self.field.ledger.visit("the grave", "dead", "", pid)
        return code

    async def live(self, victim: Victim) -> int:
        """Execute the run to the point, or as far as it comes; the exit code."""
        table, queue = victim.table, slug(f"-{victim.run_id}")
        if not table.worker:
            return await self._process(victim, point=victim.point)
        if table.died_after is None:
            await self.field.enqueue(table.reactor, victim.run_id, queue, key=victim.key)
        else:
            assert await self._process(victim, line=table.died_after) == KILLED
            await self.field.lapse([victim.run_id])
            await self.field.ring([victim.run_id], queue)
        order: dict[str, Any] = {"what": "work", "queue": self.field.queue(queue), "burst": not victim.point}
        if not table.parks:
            return await self._process(victim, point=victim.point, **order)
        async with Lock(victim.key):
            return await self._process(victim, point=victim.point, snooze_delay=1, park_after=0.05, **order)

    async def kill(self, victim: Victim) -> None:
        code = await self.live(victim)
        assert code == KILLED, f"{victim.run_id} did not come to {victim.point!r}: {code}"
        self.rivals.append(asyncio.create_task(self.rival(victim)))
        if victim.table.reactor.startswith("Held"):
            self.rivals.append(asyncio.create_task(self.follower(victim)))

    async def rehearse(self, name: str) -> Victim:
        """Let one live, and see that it takes the steps of its table."""
        victim = Victim(TABLES[name], "", slug(f"rehearsal {name}"))
        assert await self.live(victim) == 0
        # Who lives for long listens for requests, and loads them.
        passed, steps = await self.field.passed(), victim.table.steps
        assert [each for each in passed if each != "load"] == [each for each in steps if each not in OPTIONAL], name
        return victim

    # ------------------------------------------------------------------ rivals

    async def rival(self, victim: Victim) -> None:
        """Wants what the run holds; is let in when that is given back, or its lease ends, or between two attempts."""
        key = victim.key
        async with Lock(key, ttl=TTL, wait=90), Semaphore(key, 1, ttl=TTL, wait=90):
            await self.field.ledger.visit("a rival", "enter", key)
            await asyncio.sleep(0.02)
            await self.field.ledger.visit("a rival", "leave", key)

    async def follower(self, victim: Victim) -> None:
        """Stands in line behind the run, if that stands there."""
        if not victim.table.worker and victim.point in EARLY and await self.field.held_or_live([victim.run_id]) == []:
            if await OrderedLock.peek(victim.key) is not None:
                assert await OrderedLock.skip(victim.key) == 1
            return
        try:
            async with OrderedLock(victim.key, poison_after=POISON, wait=90):
                pass
        except OutOfTurn as error:
            if (error.reason, victim.table.status) != ("ordered_chain_failed", "failed"):
                raise
        await self.field.ledger.visit("a follower", "turn", victim.key)

    async def unblock(self, victim: Victim) -> None:
        """Pass over the position of a run that has ended, whose process died before it gave it up."""
        line = await OrderedLock.peek(victim.key) if victim.point in victim.table.over else None
        if line is not None and line.places[0].label.startswith(victim.run_id):
            assert await OrderedLock.skip(victim.key) in {1, None}

    # ------------------------------------------------------------------ what happened

    async def visits(self) -> dict[str, list[tuple[str, str, int]]]:
        """By key, in the server's order: who came in or left, and which process; deaths are in all of them."""
        found: dict[str, list[tuple[str, str, int]]] = {}
        dead: list[tuple[str, str, int]] = []
        for _, flat in await self.field.do("XRANGE", f"{self.field.base['ledger']}.visits", "-", "+"):
            row = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
            entry = (row["who"], row["what"], int(row["pid"]))
            if row["what"] == "dead":
                dead.append(entry)
                for entries in found.values():
                    entries.append(entry)
            else:
                found.setdefault(row["key"], list(dead)).append(entry)
        return found

    async def check(self, victims: list[Victim]) -> None:
        """A worker goes on with all of them; then what each did is what one does undisturbed, one body at a time."""
        await self.field.enqueue("Chain", "pulse")  # so that the worker is up when it is told to end
        async with self.field.worker(self.medic, snooze_delay=0.3, snooze_max=1000, park_after=0.1):
            found = await self.field.ended(["pulse", *(each.run_id for each in victims)], 120)
            for victim in victims:
                await self.unblock(victim)
            async with asyncio.timeout(120):
                await asyncio.gather(*self.rivals)
        visits, failures = await self.visits(), []
        for victim in victims:
            try:
                await self._one(victim, found.get(victim.run_id), visits.get(victim.key, []))
            except AssertionError as error:
                failures.append(f"{victim.run_id}: {str(error)[:300]}")
        assert not failures, "\n".join([f"seed {SEED}", *failures])
        await self.field.delete(found)
        self.rivals.clear()

    async def _one(self, victim: Victim, snapshot: Any, visits: list[tuple[str, str, int]]) -> None:
        table, lines = victim.table, await self.field.ledger.lines(victim.run_id)
        one_at_a_time(visits)
        if snapshot is None:
            assert lines == [], "it was never created"
            return
        assert snapshot.status == table.status, snapshot.outcome
        in_flight = 1 if table.died_after is None else 2
        check_run(lines, snapshot, table.expected, in_flight=in_flight)
        report, whole = await inspect(victim.key), table.reactor.startswith("Held")
        (counter,) = report.counters
        starts = 1 if whole else lines.count("do:a")
        # A run spends once, wherever it dies; of a step that did not write it is not known whether it began.
        assert starts <= counter.used <= starts + (0 if whole else in_flight), f"{counter.used} spent for {starts}"
        if whole:
            assert [marker.marked_by for marker in report.markers] == [victim.run_id] * (table.status == "completed")
            order = [who for who, what, _ in visits if what in {"leave", "turn"} and who != "a rival"]
            assert order[-1] == ("a follower" if victim.point else victim.run_id), order
        if whole and table.status == "completed":
            again = await Held.with_options(run_id="again").run(key=victim.key)
            assert (type(again), getattr(again, "reason", "")) == (Halt, "period")
            assert await self.field.ledger.lines("again") == []
            await self.field.delete(["again"])


def one_at_a_time(visits: list[tuple[str, str, int]]) -> None:
    """Nobody came in while somebody was in there, unless that one's process had died before."""
    inside: Counter[tuple[str, int]] = Counter()
    for who, what, pid in visits:
        if what == "dead":
            inside = Counter({each: number for each, number in inside.items() if each[1] != pid})
        elif what == "enter":
            assert not inside.total(), f"{who} came in while {dict(inside)} was there"
            inside[who, pid] += 1
        elif what == "leave":
            inside[who, pid] -= 1
            inside = +inside


@pytest.fixture
def guarded(ward: Field, clinic: list[Zygote]) -> Guarded:
    ward.base["default_queue"] = ward.queue()  # where those ring that leave a run
    return Guarded(ward, clinic[0])


@pytest.mark.parametrize("fortune", FORTUNES)
async def test_who_holds_dies_at_each_point(guarded: Guarded, fortune: str) -> None:
    rehearsed = FORTUNES[fortune] if DEEP else [RANDOM.choice(FORTUNES[fortune])]
    lived = [await guarded.rehearse(name) for name in rehearsed]
    victims = [
        Victim(table, point, slug(f"{name} at {point}"))
        for name, table in TABLES.items()
        if name in FORTUNES[fortune]
        for point in every_point(*table.steps)
        if DEEP or point not in table.slow
    ]
    each = 1 if DEEP else 6 * EACH
    chosen = victims[RANDOM.randrange(each) :: each]
    for first in range(0, len(chosen), AT_ONCE):
        for victim in chosen[first : first + AT_ONCE]:
            await guarded.kill(victim)
        await guarded.check([*lived, *chosen[first : first + AT_ONCE]])
        lived = []
    await guarded.field.assert_nothing_is_left()


async def test_the_check_finds_two_inside() -> None:
    one_at_a_time([("a", "enter", 1), ("", "dead", 1), ("b", "enter", 2), ("b", "leave", 2), ("c", "enter", 2)])
    with pytest.raises(AssertionError, match="b came in while"):
        one_at_a_time([("a", "enter", 1), ("", "dead", 2), ("b", "enter", 2)])
