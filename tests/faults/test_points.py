"""A process is killed at each named point of the protocols; a worker process brings its run to the same end.

The tables say which steps a process takes; a rehearsal without a kill holds them to it. By default some points of
each table are tried, from a random one on; all of them with ``AIOREACTOR_FAULTS=deep``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.kit import EACH, KILLED, RANDOM, SEED, Field, Zygote, check_run
from tests.faults.points import every_point

BEGIN = ["announce", "create", "list"]
TAKE = ["look", "announce", "take", "list", "load"]
TAKE_OVER = ["look", "announce", "take", "load"]
FORWARD = ["checkpoint", "checkpoint", "checkpoint"]
BACK = ["list", "checkpoint", "checkpoint", "checkpoint"]
END = ["close", "list"]
PATHS = {"Chain": ("completed", [*FORWARD, *END]), "ChainFails": ("failed", [*FORWARD, *BACK, *END])}


def some(points: list[str]) -> list[str]:
    """All of them, or by default each `EACH`-th."""
    return points[RANDOM.randrange(EACH) :: EACH]


def slug(text: str) -> str:
    return text.replace(" ", "-")


class Ward:
    """Kills victims at points, and has a worker see to what they left."""

    def __init__(self, field: Field, medic: Zygote) -> None:
        self.field = field
        self.medic = medic
        self.ids: list[str] = []

    async def rehearse(self, steps: list[str], run_id: str = "rehearsal", **order: Any) -> list[str]:
        """Let a victim live; gives what it did to its run."""
        assert await self.field.victim(run_id, point="", **order) == 0
        passed, loads = await self.field.passed(), steps.count("load")
        # Who lives for long listens for requests, and loads them.
        extra = [place for place, each in enumerate(passed) if each == "load"][loads:]
        assert [each for place, each in enumerate(passed) if place not in extra] == steps
        return await self.field.ledger.lines(run_id)

    async def kill(self, point: str, run_id: str, **order: Any) -> None:
        code = await self.field.victim(run_id, point=point, **order)
        assert code == KILLED, f"{run_id} did not come to {point!r}: {code}"

    async def bring_to_an_end(self, ids: list[str], status: str, expected: list[str], *, in_flight: int = 1) -> None:
        """A worker goes on with these; then what they did is what one of them does undisturbed, and nothing stays."""
        async with self.field.worker(self.medic):
            found = await self.field.ended(ids)
        failures = []
        for run_id in ids:
            lines = await self.field.ledger.lines(run_id)
            try:
                if run_id not in found:
                    assert lines == [], "it was never created"
                    continue
                assert found[run_id].status == status
                check_run(lines, found[run_id], expected, in_flight=in_flight)
            except AssertionError as error:
                failures.append(f"{run_id}: {str(error).partition(chr(10))[0]}")
        assert not failures, "\n".join([f"seed {SEED}", *failures])
        await self.field.delete(found)

    async def end(self, *more: str) -> None:
        await self.field.delete(more)
        await self.field.assert_nothing_is_left()


@pytest.fixture
def at(ward: Field, clinic: list[Zygote]) -> Ward:
    return Ward(ward, clinic[0])


@pytest.mark.parametrize("name", PATHS)
async def test_a_caller_dies_at_each_point(at: Ward, name: str) -> None:
    status, steps = PATHS[name]
    expected = await at.rehearse([*BEGIN, *steps], reactor=name)
    ids = []
    for point in some(every_point(*BEGIN, *steps)):
        ids.append(slug(f"{name} at {point}"))
        await at.kill(point, ids[-1], reactor=name)
    await at.bring_to_an_end(ids, status, expected)
    await at.end("rehearsal")


async def test_who_enqueues_dies_at_each_point(at: Ward) -> None:
    """Once created it is executed, although nobody rang for it."""
    order: dict[str, Any] = {"reactor": "Chain", "what": "enqueue", "queue": at.field.queue()}
    await at.rehearse([*BEGIN, "ring"], **order)
    ids, missing = ["rehearsal"], list[str]()
    for point in every_point(*BEGIN, "ring"):
        run_id = slug(f"enqueued at {point}")
        await at.kill(point, run_id, **order)
        (missing if point in EARLY else ids).append(run_id)
    async with at.field.worker(at.medic):
        found = await at.field.ended(ids)
    assert sorted(found) == sorted(ids)
    for run_id in ids:
        assert await at.field.ledger.lines(run_id) == ["do:a", "do:b", "do:c"], run_id
    assert await at.field.ended(missing) == {}
    await at.end(*ids)


# Announced and created in one write, but seen one after the other: the second is not sent when the first one was not.
EARLY = {"announce 1 before", "create 1 before"}


@pytest.mark.parametrize("name", PATHS)
async def test_a_worker_dies_at_each_point(at: Ward, name: str) -> None:
    status, steps = PATHS[name]
    order: dict[str, Any] = {"what": "work", "queue": at.field.queue("-victims")}
    await at.field.enqueue(name, "rehearsal", "-victims")
    expected = await at.rehearse([*TAKE, *steps], burst=True, **order)
    ids = []
    for point in some(every_point(*TAKE, *steps)):
        ids.append(slug(f"{name} at {point}"))
        await at.field.enqueue(name, ids[-1], "-victims")
        await at.kill(point, ids[-1], **order)
    await at.bring_to_an_end(ids, status, expected)
    await at.end("rehearsal")


@pytest.mark.parametrize("name", ["HandedBack", "HandedBackInUndo"])
async def test_a_worker_dies_while_it_hands_back(at: Ward, name: str) -> None:
    steps = [*TAKE, "checkpoint"] if name == "HandedBack" else [*TAKE, *FORWARD, "list", "checkpoint"]
    order: dict[str, Any] = {"what": "work", "queue": at.field.queue("-victims"), "leaving": True}
    await at.field.enqueue(name, "rehearsal", "-victims")
    await at.rehearse([*steps, "let go", "ring"], **order)
    ids = []
    for point in every_point("let go", "ring"):
        ids.append(slug(f"{name} at {point}"))
        await at.field.enqueue(name, ids[-1], slug(point))  # a queue of its own, since it is rung for there again
        await at.kill(point, ids[-1], **{**order, "queue": at.field.queue(slug(point))})
    expected = {
        "HandedBack": ["do:a", "do:b", "do:c"],
        "HandedBackInUndo": ["do:a", "do:b", "do:c", "comp:c", "undo:b", "undo:a"],
    }
    status = "completed" if name == "HandedBack" else "failed"
    await at.bring_to_an_end(["rehearsal", *ids], status, expected[name])
    await at.end()


# How many effects the first process lives for, and what is left for the second one to do.
TAKEN_OVER = {
    "in its first body": ("Chain", 0, [*FORWARD, *END]),
    "before it fails": ("ChainFails", 0, [*FORWARD, *BACK, *END]),
    "in an undo": ("ChainFails", 4, ["checkpoint", "checkpoint", "checkpoint", *END]),
}


@pytest.mark.parametrize("where", TAKEN_OVER)
async def test_one_that_takes_over_dies_at_each_point(at: Ward, where: str) -> None:
    """The third process finishes what two have died of; each may have left one body in flight."""
    name, line, rest = TAKEN_OVER[where]
    expected = ["do:a", "do:b", "do:c", *(["comp:c", "undo:b", "undo:a"] if name == "ChainFails" else [])]
    order: dict[str, Any] = {"what": "work", "queue": at.field.queue("-victims")}
    points = some(every_point(*TAKE_OVER, *rest))
    ids = [slug(f"{name} at {point}") for point in points]
    for run_id in ["rehearsal", *ids]:
        assert await at.field.victim(run_id, reactor=name, line=line) == KILLED
    await at.field.lapse(["rehearsal", *ids])
    await at.field.ring(["rehearsal"], "-victims")
    await at.rehearse([*TAKE_OVER, *rest], burst=True, **order)
    for point, run_id in zip(points, ids, strict=True):
        await at.field.ring([run_id], "-victims")
        await at.kill(point, run_id, **order)
    await at.bring_to_an_end(ids, PATHS[name][0], expected, in_flight=2)
    await at.end("rehearsal")


async def test_who_sweeps_dies_at_each_point(at: Ward) -> None:
    """What was told to a sweeper that died is told to another one, half a minute later."""
    ids = []
    order: dict[str, Any] = {"what": "sweep for workers", "queue": at.field.queue()}
    for point in every_point("claim", "look", "ring"):
        ids.append(slug(f"swept at {point}"))
        assert await at.field.victim(ids[-1], reactor="Chain", line=1) == KILLED
        await at.field.lapse([ids[-1]])
        await at.kill(point, "", **order)
    await at.field.make_due()
    await at.bring_to_an_end(ids, "completed", ["do:a", "do:b", "do:c"])
    await at.end()
