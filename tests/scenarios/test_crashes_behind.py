"""The table of ``test_crashes`` under every level of durability, with the real journals over a store in memory.

At a chosen write the run turns out to be somebody else's, before the write is applied or after. Then another execution
takes it and goes on. Bodies may have to run again; effects end as they would have, undisturbed. One exception, for
levels that write behind: a body whose end was not stored, and that the second pass does not reach, since there a
failure comes first that had come later. Nobody knows of its effect.
"""

from __future__ import annotations

from typing import Any

import pytest

from aioreactor import Failure, Outcome, OwnershipLost, Reactor
from aioreactor.engine.arguments import validated, view_of
from aioreactor.engine.ports import Environment
from aioreactor.engine.recovery import restoring
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.scope import NodeStatus
from aioreactor.store.answers import Created
from aioreactor.store.behind import KINDS
from aioreactor.store.claim import Claim
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.records import LIVE, Changes, NewRun
from aioreactor.store.volatile import VolatileStore
from tests.scenarios.test_crashes import CASES, failing, world

HOUR = 3_600_000


class Stolen(VolatileStore):
    """Somebody else has the run at the n-th write of its first holder."""

    def __init__(self, stop_at: int = -1, *, after: bool = False) -> None:
        super().__init__()
        self.stop_at, self.after = stop_at, after
        self.writes = 0

    async def save(self, claim: Claim, changes: Changes) -> None:
        await self._pass(claim, super().save, changes)

    async def close(self, claim: Claim, *given: Any, **options: Any) -> None:
        await self._pass(claim, super().close, *given, **options)

    async def _pass(self, claim: Claim, write: Any, *given: Any, **options: Any) -> None:
        number, self.writes = self.writes, self.writes + 1
        if number == self.stop_at and not self.after:
            raise claim.lose("the test said so")
        await write(claim, *given, **options)
        if number == self.stop_at:
            raise claim.lose("the test said so")


def executing(store: Stolen, claim: Claim, reactor: type[Reactor[Any]], level: str) -> Execution:
    hold = LeaseKeeper(store).watch(claim, lambda error: None)
    journal = KINDS[level](store, claim, hold, PlanCodec(), lambda outcome: b"end", retention_ms=HOUR)
    execution = Execution(Environment(), reactor.plan, "r", journal)
    journal.failed = execution.lose
    return execution


async def begin(store: Stolen, reactor: type[Reactor[Any]], level: str) -> Outcome[Any] | None:
    """Run until the end, or until the run is lost (None)."""
    plan = reactor.plan
    created = await store.create("r", NewRun(reactor=plan.name), hold_ms=HOUR)
    assert isinstance(created, Created)
    assert created.claim is not None
    execution = executing(store, created.claim, reactor, level)
    values = validated(plan.fields, {}, plan.name)
    try:
        return await execution.run(view_of(plan, values), values)
    except OwnershipLost:
        return None
    finally:
        execution.journal.let_go()  # type: ignore[attr-defined]


async def go_on(store: Stolen, reactor: type[Reactor[Any]], level: str) -> Outcome[Any]:
    """Another execution takes the run, and comes to its end."""
    store._runs["r"].lease_ms = 1
    claim = await store.take("r", LIVE, ttl_ms=HOUR)
    assert isinstance(claim, Claim)
    record, codec, plan = await store.load(claim), PlanCodec(), reactor.plan
    images = {path: codec.image_back(path, data) for path, data in record.steps.items()}
    entries = [codec.entry_back(data) for data in record.trace]
    fate = codec.fate_back(record.row.failure) if record.row.failure else None
    execution = executing(store, claim, reactor, level)
    values = validated(plan.fields, {}, plan.name)
    try:
        return await execution.resume(values, restoring(execution, codec, images, entries, values, fate))
    finally:
        execution.journal.let_go()  # type: ignore[attr-defined]


async def known(store: Stolen) -> set[str]:
    """The steps of which the record says that they have begun."""
    record, codec = await store.read("r"), PlanCodec()
    assert record is not None
    images = [codec.image_back(path, data) for path, data in record.steps.items()]
    return {image.path for image in images if image.status not in (NodeStatus.WAITING, NodeStatus.READY)}


def fresh() -> None:
    world.__init__()  # type: ignore[misc]
    failing.clear()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("level", KINDS)
@pytest.mark.parametrize("case", CASES)
async def test_wherever_it_stops_it_ends_the_same(case: str, level: str, after: bool) -> None:
    reactor, fails, standing, kind = CASES[case]
    fresh()
    failing.update(fails)
    whole = Stolen()
    assert isinstance(await begin(whole, reactor, level), kind)
    assert world.standing == standing
    actions = [line for line in world.entered if line.startswith("back:")]
    stopped = 0
    for stop_at in range(whole.writes):
        fresh()
        failing.update(fails)
        store = Stolen(stop_at, after=after)
        if await begin(store, reactor, level) is not None:
            continue  # fewer writes this time, since more was pending
        stopped += 1
        row = await store.peek("r")
        assert row is not None
        if row.ended:
            continue  # its end was stored: only its holder does not know
        first, stored = set(world.entered), await known(store)
        before = len(world.entered)
        outcome = await go_on(store, reactor, level)
        assert type(outcome) is kind, (stop_at, outcome)
        second = set(world.entered[before:])
        assert standing <= world.standing, (stop_at, world.entered)
        for orphan in world.standing - standing:
            assert level != "step", (stop_at, world.entered)
            assert f"run:{orphan}" in first - second, (stop_at, orphan)
            assert orphan not in stored, (stop_at, orphan)
        assert isinstance(outcome, Failure) or outcome.status == "completed"
        assert getattr(outcome, "rollback_failures", []) == []
        back = [line for line in world.entered if line.startswith("back:")]
        assert len(back) <= len(actions) + 1, (stop_at, back)
        assert (await store.peek("r")).status == outcome.status  # type: ignore[union-attr]
    assert stopped >= 1
    fresh()
