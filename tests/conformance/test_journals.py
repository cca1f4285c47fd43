"""The journals of all levels of durability, over each store: what is kept when, in which order; and after failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from aioreactor import OwnershipLost, Reactor, Success, step
from aioreactor.engine.ports import Checkpoint, Fate, JournalFailed
from aioreactor.engine.scope import NodeStatus
from aioreactor.engine.state import RunState
from aioreactor.store import behind
from aioreactor.store.behind import KINDS, Pace, WriteBehind
from aioreactor.store.claim import Claim
from aioreactor.store.errors import ReplyError, StoreUnavailable
from aioreactor.store.journal import RunJournal
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.ports import NO_CHANGES
from aioreactor.store.records import Changes

from .kit import Kit, held, record_of, row_of

LENGTH = 40
KIB = 1024
STEP = 3 * KIB
"""What a step of these weighs, its own bytes apart: its record and two entries."""


def _chain() -> Any:
    async def body(self: Any) -> str:
        return "v"

    nodes: dict[str, Any] = {}
    for number in range(LENGTH):
        nodes[f"s{number}"] = step(after=list(nodes.values())[-1:])(body)
    make: Any = type(Reactor)
    return make("Chain", (Reactor,), {"__module__": __name__, "__qualname__": "Chain", **nodes})


PLAN = _chain().plan


class Watched:
    """A store that tells what is written through it, waits at its gate, and fails as it is told."""

    def __init__(self, store: Any) -> None:
        self.inner = store
        self.log: list[tuple[str, list[str]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()
        self.error: Exception | None = None

    async def _pass(self, name: str, changes: Changes, write: Callable[[], Any]) -> None:
        self.log.append((name, list(changes.steps)))
        self.reached.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        await write()

    async def save(self, claim: Claim, changes: Changes) -> None:
        await self._pass("save", changes, lambda: self.inner.save(claim, changes))

    async def release(self, claim: Claim, changes: Changes = NO_CHANGES, *, due_ms: int = 0) -> None:
        await self._pass("release", changes, lambda: self.inner.release(claim, changes, due_ms=due_ms))

    async def close(self, claim: Claim, status: Any, blob: bytes, changes: Changes, *, retention_ms: int) -> None:
        await self._pass(
            "close", changes, lambda: self.inner.close(claim, status, blob, changes, retention_ms=retention_ms)
        )

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        self.log.append(("extend", []))
        await self.inner.extend(claim, retry_for=retry_for)

    @property
    def written(self) -> list[str]:
        """Steps in the order in which they were handed to the store."""
        return [path for _, steps in self.log for path in steps]


class Played:
    """A run whose steps complete when they are told to."""

    def __init__(self, journal: RunJournal, store: Watched) -> None:
        self.journal, self.store = journal, store
        self.state = RunState(PLAN, "r", time.time, recording=True)
        self.state.open_root(None, {})
        self.failures: list[Exception] = []
        journal.failed = self.failures.append
        self.done = 0

    async def step(self, value: Any = "v", *, firm: bool = False) -> None:
        """The next step completes and is saved."""
        index, self.done = self.done, self.done + 1
        root, node = self.state.root, PLAN.nodes[self.done - 1]
        self.state.enter(root, index, 1)
        root.blobs = root.blobs or {}
        root.blobs[index] = self.journal.prepare(node, node.name, value)
        self.state.log("success", node.name)
        self.state.complete(root, index, value)
        await self.save(firm=firm)

    async def save(self, *, firm: bool = False, status: Any = "running", fate: Fate | None = None) -> None:
        await self.journal.save(Checkpoint(*self.state.take_changes(), status, fate, firm=firm))

    async def close(self) -> None:
        await self.journal.close(Checkpoint(*self.state.take_changes(), "completed"), Success("v"))


async def played(kit: Kit, kind: type[RunJournal]) -> Played:
    claim, store = await held(kit), Watched(kit.store)
    hold = LeaseKeeper(store).watch(claim, lambda error: None)
    journal = kind(store, claim, hold, PlanCodec(), lambda outcome: b"end", retention_ms=60_000)  # type: ignore[arg-type]
    return Played(journal, store)


def at_pace(begin: int, wait: int) -> type[WriteBehind]:
    return type("AtPace", (WriteBehind,), {"pace": Pace(begin, wait)})


@pytest.fixture(params=KINDS)
async def run(kit: Kit, request: pytest.FixtureRequest) -> Any:
    run = await played(kit, KINDS[request.param])
    yield run
    run.store.gate.set()
    run.journal.let_go()


@pytest.fixture(params=["batched", "exit"])
async def lazy(kit: Kit, request: pytest.FixtureRequest) -> Any:
    run = await played(kit, KINDS[request.param])
    yield run
    run.store.gate.set()
    run.journal.let_go()


@pytest.fixture
async def batched(kit: Kit) -> Any:
    run = await played(kit, KINDS["batched"])
    yield run
    run.store.gate.set()
    run.journal.let_go()


def paths(first: int, last: int) -> list[str]:
    return [f"s{number}" for number in range(first, last)]


async def test_everything_is_kept_once_in_order_when_it_has_ended(kit: Kit, run: Played) -> None:
    for _ in range(10):
        await run.step()
    await run.close()
    record = await record_of(kit)
    assert sorted(record.steps) == sorted(paths(0, 10))
    codec = PlanCodec()
    assert [codec.image_back(path, data).status for path, data in record.steps.items()] == [NodeStatus.COMPLETED] * 10
    entries = [codec.entry_back(data)[1:3] for data in record.trace]
    assert entries == [(kind, path) for path in paths(0, 10) for kind in ("run", "success")]
    assert (record.row.status, record.row.outcome) == ("completed", b"end")
    assert run.store.written == paths(0, 10)
    assert run.store.log[-1][0] == "close"
    assert run.failures == []


async def test_who_writes_behind_does_not_wait_for_the_store(kit: Kit, run: Played) -> None:
    run.store.gate.clear()
    saving = asyncio.create_task(run.step())
    if isinstance(run.journal, WriteBehind):
        await saving
    else:
        await run.store.reached.wait()
        await asyncio.sleep(0)
        assert not saving.done()
    assert (await record_of(kit)).steps == {}
    run.store.gate.set()
    await saving
    await run.close()
    assert list((await record_of(kit)).steps) == ["s0"]


async def test_what_happens_during_a_write_shares_the_next(kit: Kit, batched: Played) -> None:
    run = batched
    run.store.gate.clear()
    await run.step()
    await run.store.reached.wait()
    for _ in range(20):
        await run.step()
    assert run.store.log == [("save", ["s0"])]
    run.store.gate.set()
    await run.save(firm=True)
    assert run.store.log == [("save", ["s0"]), ("save", paths(1, 21))]
    assert len((await record_of(kit)).steps) == 21
    await run.close()


async def test_at_exit_nothing_is_written_before(kit: Kit) -> None:
    run = await played(kit, KINDS["exit"])
    for _ in range(20):
        await run.step()
        await asyncio.sleep(0)
    await run.close()
    assert run.store.log == [("close", paths(0, 20))]


async def test_what_would_take_too_much_memory_is_written_before_the_exit(kit: Kit) -> None:
    run = await played(kit, at_pace(10 * STEP, 1000 * STEP))
    for number in range(LENGTH):
        await run.step("v" * 100)
        assert len(run.store.log) <= (number + 1) // 9
        if (number + 1) % 10 == 0:
            await run.store.reached.wait()
            run.store.reached.clear()
    assert [name for name, _ in run.store.log] == ["save"] * 4
    await run.close()
    assert run.store.written == paths(0, LENGTH)


async def test_too_much_pending_makes_who_saves_wait(kit: Kit) -> None:
    run = await played(kit, at_pace(1, 10 * STEP))
    run.store.gate.clear()

    async def go() -> None:
        for _ in range(LENGTH):
            await run.step()

    going = asyncio.create_task(go())
    await run.store.reached.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not going.done()
    assert run.done <= 22  # ten under way, ten pending, one that waits
    run.store.gate.set()
    await going
    await run.close()
    assert run.store.written == paths(0, LENGTH)


async def test_who_gives_up_waiting_has_it_written_all_the_same(kit: Kit) -> None:
    run = await played(kit, at_pace(1, 1))
    run.store.gate.clear()
    await run.step()
    await run.store.reached.wait()
    await run.step()
    waiting = asyncio.create_task(run.step())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    run.store.gate.set()
    await run.close()
    assert run.store.written == ["s0", "s1", "s2"]


async def test_a_firm_checkpoint_is_kept_when_it_returns_and_all_before_it(kit: Kit, run: Played) -> None:
    for _ in range(5):
        await run.step()
    await run.save(firm=True, status="rolling_back", fate=Fate("cancelled"))
    record = await record_of(kit)
    assert sorted(record.steps) == paths(0, 5)
    assert record.row.status == "rolling_back"
    assert record.row.failure
    await run.step(firm=True)
    assert "s5" in (await record_of(kit)).steps
    await run.close()


async def test_a_firm_checkpoint_waits_for_the_write_under_way(kit: Kit, batched: Played) -> None:
    run = batched
    run.store.gate.clear()
    await run.step()
    await run.store.reached.wait()
    firm = asyncio.create_task(run.save(firm=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not firm.done()
    run.store.gate.set()
    await firm
    assert list((await record_of(kit)).steps) == ["s0"]
    await run.close()


async def test_the_end_takes_along_what_is_pending(kit: Kit, lazy: Played) -> None:
    """Also what a write behind was about to take."""
    for _ in range(3):
        await lazy.step()
    await lazy.close()
    for _ in range(20):
        await asyncio.sleep(0)
    assert lazy.store.log == [("close", paths(0, 3))]
    assert lazy.failures == []


async def test_the_end_waits_for_the_write_under_way(kit: Kit, batched: Played) -> None:
    batched.store.gate.clear()
    await batched.step()
    await batched.store.reached.wait()
    await batched.step()
    closing = asyncio.create_task(batched.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert batched.store.log == [("save", ["s0"])]
    batched.store.gate.set()
    await closing
    assert batched.store.log == [("save", ["s0"]), ("close", ["s1"])]
    assert batched.failures == []


async def test_a_hand_off_writes_what_is_pending_and_lets_go_in_one(kit: Kit, run: Played) -> None:
    for _ in range(3):
        await run.step()
    await run.journal.hand_back()
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.store.log[-1][0] == "release"
    assert run.store.written == paths(0, 3)
    record = await record_of(kit)
    assert sorted(record.steps) == paths(0, 3)
    assert (record.row.status, record.row.lease_left_ms) == ("running", 0)
    assert run.failures == []


ERRORS = [
    StoreUnavailable("run_save", 1.0, OSError("away"), may_be_applied=False),
    ReplyError("OOM command not allowed"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_after_a_write_that_failed_nothing_is_written(kit: Kit, batched: Played, error: Exception) -> None:
    run = batched
    run.store.gate.clear()
    await run.step()
    await run.store.reached.wait()
    firm = asyncio.create_task(run.step(firm=True))
    closing = asyncio.create_task(run.close())
    await asyncio.sleep(0)
    run.store.error = error
    run.store.gate.set()
    for doomed in (firm, closing):
        with pytest.raises(JournalFailed) as caught:
            await doomed
        assert caught.value.__cause__ is error
    run.store.error = None
    with pytest.raises(JournalFailed):
        await run.step()
    with pytest.raises(JournalFailed):
        await run.journal.hand_back()
    for _ in range(20):
        await asyncio.sleep(0)
    assert [type(each) for each in run.failures] == [JournalFailed]
    assert run.store.log == [("save", ["s0"])]
    record = await record_of(kit)
    assert (record.steps, record.row.status) == ({}, "running")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_end_that_cannot_be_written_is_none(kit: Kit, run: Played, error: Exception) -> None:
    await run.step()
    run.store.error = error
    with pytest.raises(JournalFailed):
        await run.close()
    assert (await row_of(kit)).status == "running"


async def test_a_run_that_was_taken_over_is_told_at_once(kit: Kit, batched: Played) -> None:
    run = batched
    await kit.expire_lease("r")
    other = await kit.store.take("r", ["running"], ttl_ms=60_000)
    assert isinstance(other, Claim)
    told: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    run.journal.failed = told.set_result
    await run.step()
    assert isinstance(await told, OwnershipLost)
    with pytest.raises(OwnershipLost):
        await run.close()
    assert (await record_of(kit)).steps == {}


async def test_nothing_goes_on_when_the_lease_may_be_over(kit: Kit, run: Played) -> None:
    """A process that slept asks whose the run is, before anything else starts."""
    run.journal.claim.trusted_until = 0.0
    await run.step()
    assert ("extend", []) in run.store.log
    assert run.journal.claim.trusted
    await run.save(firm=True)
    await kit.expire_lease("r")
    assert isinstance(await kit.store.take("r", ["running"], ttl_ms=60_000), Claim)
    run.journal.claim.trusted_until = 0.0
    with pytest.raises(OwnershipLost):
        await run.step()


async def test_a_part_that_cannot_be_kept_is_told_to_who_saves_and_the_rest_is_kept(kit: Kit, run: Played) -> None:
    run.state.notes["odd"] = object()
    index = 0
    run.state.enter(run.state.root, index, 1)
    run.state.root.blobs = {index: run.journal.prepare(PLAN.nodes[0], "s0", "v")}
    run.state.complete(run.state.root, index, "v")
    with pytest.raises(Exception, match="state"):
        await run.journal.save(Checkpoint(*run.state.take_changes(), "running", notes=run.state.notes))
    await run.close()
    assert list((await record_of(kit)).steps) == ["s0"]


@pytest.mark.parametrize(("patience", "written"), [(-1.0, True), (1e9, False)])
async def test_steps_that_never_wait_let_writes_go_on(
    kit: Kit, batched: Played, monkeypatch: pytest.MonkeyPatch, patience: float, written: bool
) -> None:
    monkeypatch.setattr(behind, "PATIENCE", patience)
    for _ in range(LENGTH):
        await batched.step()
    assert bool(batched.store.log) is written
    await batched.close()
    assert batched.store.written == paths(0, LENGTH)
