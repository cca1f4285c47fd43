"""Both stores against a plain model, with several holders of several runs, lost replies and dead callers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aioreactor.embedded import EmbeddedServer
from aioreactor.errors import OwnershipLost
from aioreactor.store.answers import Accepted, Created, Exists, Held, Missing, Query, Refused
from aioreactor.store.claim import Claim
from aioreactor.store.records import LIVE, STATUSES, TERMINAL, Changes, NewRun
from aioreactor.trace import Status

from .kit import LONG, Crash, Kit, RedisKit, VolatileKit

RUNS = st.sampled_from(["a", "{b}"])
LIVING = st.sampled_from([None, "running", "paused", "rolling_back"])
ENDS = st.sampled_from(sorted(TERMINAL))
BLOB = st.sampled_from([b"", b"1", b"22"])
STEPS = st.dictionaries(st.sampled_from(["s", "t", "u.v[0]"]), BLOB, max_size=3)
DROPPED = st.lists(st.sampled_from(["s", "t"]), max_size=2)
FAULT = st.sampled_from(["", "", "", "lost before", "lost after", "crash before", "crash after"])


@dataclass
class Model:
    """A run as it should be. ``holder`` may write it, until somebody takes it when it is past."""

    status: Status
    inputs: bytes
    reactor: str
    holder: Holder | None = None
    past: bool = False
    ended: bool = False
    steps: dict[str, bytes] = field(default_factory=dict)
    trace: list[bytes] = field(default_factory=list)
    outcome: bytes = b""
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    woken: bool = False

    @property
    def is_owed(self) -> bool:
        return self.status in LIVE or (self.status == "paused" and self.woken)


@dataclass(eq=False)
class Holder:
    """A claim, and what it has not been told about: changes that are to be written before its next ones."""

    claim: Claim
    run_id: str
    run: Model
    kept: list[tuple[str, Any]] = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    make: Any
    holders = Bundle("holders")

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.kit: Kit = self.runner.run(_made(self.make))
        self.runs: dict[str, Model] = {}
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self._end())
            self.runner.close()

    async def _end(self) -> None:
        """Whatever happened, deleting all runs leaves no key."""
        for run_id in list(self.runs):
            await self.kit.store.delete(run_id, force=True)
        for _ in range(3):
            await self.kit.make_due()
            await self.kit.make_due("expiring")
            await self.kit.store.stalled()
            await self.kit.store.repair()
        left = await self.kit.keys()
        await self.kit.aclose()
        assert left == []

    def do(self, work: Any) -> Any:
        return self.runner.run(_awaited(work))

    def arm(self, fault: str, script: str) -> bool:
        """Have it happen; whether the caller dies of it."""
        if not fault or not isinstance(self.kit, RedisKit):
            return False
        kind, point = fault.split()
        error = ConnectionResetError() if kind == "lost" else Crash()
        getattr(self.kit.faults, point)[script] = error
        return kind == "crash"

    # ------------------------------------------------------------------ rules

    @rule(target=holders, run_id=RUNS, hold=st.booleans(), inputs=BLOB, replace=st.sets(ENDS), steps=STEPS)
    def create(self, run_id: str, hold: bool, inputs: bytes, replace: set[Any], steps: dict[str, bytes]) -> Any:
        new = NewRun(reactor=f"R{len(inputs)}", inputs=inputs, tags=("t",), steps=steps)
        made = self.do(self.kit.store.create(run_id, new, hold_ms=LONG if hold else None, replace=replace))
        run = self.runs.get(run_id)
        if run is not None and run.status not in replace:
            assert isinstance(made, Exists)
            assert (made.status, made.same_inputs) == (run.status, run.inputs == inputs)
            return None
        assert isinstance(made, Created)
        run = self.runs[run_id] = Model("running" if hold else "pending", inputs, new.reactor, steps=dict(steps))
        if made.claim is None:
            return None
        run.holder = Holder(made.claim, run_id, run)
        return run.holder

    @rule(target=holders, run_id=RUNS, allowed=st.sets(st.sampled_from(sorted(STATUSES)), min_size=1), status=LIVING)
    def take(self, run_id: str, allowed: set[Any], status: Any) -> Any:
        if status is None:
            allowed -= TERMINAL
        taken = self.do(self.kit.store.take(run_id, allowed, ttl_ms=LONG, status=status))
        run = self.runs.get(run_id)
        if run is None:
            assert taken == Missing()
        elif run.holder is not None and not run.past:
            assert isinstance(taken, Held)
        elif run.status not in allowed:
            assert taken == Refused(run.status)
        else:
            assert isinstance(taken, Claim)
            if run.status in TERMINAL:
                run.outcome = b""
            run.status, run.past = status or run.status, False
            run.holder = Holder(taken, run_id, run)
            return run.holder
        return None

    @rule(holder=holders, steps=STEPS, dropped=DROPPED, status=LIVING, fault=FAULT)
    def save(self, holder: Holder | None, steps: dict[str, bytes], dropped: list[str], status: Any, fault: str) -> None:
        if holder is not None:
            changes = Changes(steps=steps, dropped=dropped, status=status, trace=[self.mark()])
            self.write(holder, "run_save", changes, self.kit.store.save(holder.claim, changes), fault)

    @rule(holder=consumes(holders), steps=STEPS, status=LIVING, fault=FAULT)
    def release(self, holder: Holder | None, steps: dict[str, bytes], status: Any, fault: str) -> None:
        if holder is not None:
            changes = Changes(steps=steps, status=status, trace=[self.mark()])
            self.write(holder, "run_release", changes, self.kit.store.release(holder.claim, changes), fault)

    @rule(holder=holders, steps=STEPS, end=ENDS, outcome=BLOB, keep=st.booleans(), fault=FAULT)
    def close(
        self, holder: Holder | None, steps: dict[str, bytes], end: Any, outcome: bytes, keep: bool, fault: str
    ) -> None:
        if holder is not None:
            changes = Changes(steps=steps, trace=[self.mark()])
            work = self.kit.store.close(holder.claim, end, outcome, changes, retention_ms=None if keep else LONG)
            self.write(holder, "run_close", (changes, end, outcome), work, fault)

    @rule(holder=holders, fault=st.sampled_from(["", "lost before", "lost after"]))
    def extend(self, holder: Holder | None, fault: str) -> None:
        if holder is None:
            return
        ours = self.is_ours(holder)
        if ours:
            self.arm(fault, "lease_extend")
        try:
            self.do(self.kit.store.extend(holder.claim))
        except OwnershipLost:
            assert not ours
        else:
            assert ours
            holder.run.past = False

    @rule(run_id=RUNS)
    def expire_lease(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        if run is not None and run.holder is not None:
            self.do(self.kit.expire_lease(run_id))
            run.past = True

    @rule(run_id=RUNS, force=st.booleans())
    def delete(self, run_id: str, force: bool) -> None:
        run = self.runs.get(run_id)
        deleted = self.do(self.kit.store.delete(run_id, force=force))
        if run is not None and run.holder is not None and not run.past and not force:
            assert isinstance(deleted, Held)
        else:
            assert deleted is (run is not None)
            self.runs.pop(run_id, None)

    @rule(
        run_id=RUNS,
        request_id=st.sampled_from(["k", "l"]),
        body=BLOB,
        allowed=st.sets(st.sampled_from(sorted(STATUSES))),
        wakes=st.booleans(),
        late=st.booleans(),
    )
    def ask(self, run_id: str, request_id: str, body: bytes, allowed: set[Any], wakes: bool, late: bool) -> None:
        run = self.runs.get(run_id)
        asking = self.kit.store.ask(
            run_id, body, request_id=request_id, allowed=allowed, wakes=wakes, until_ms=1 if late else 0
        )
        answer = self.do(asking)
        if run is None:
            assert answer == Missing()
            return
        known = [number for number, (name, _) in enumerate(run.asked, 1) if name == request_id]
        if known:
            assert isinstance(answer, Accepted)
            assert (answer.number, answer.first, answer.same) == (known[0], False, run.asked[known[0] - 1][1] == body)
        elif run.status in TERMINAL or run.status not in allowed:
            assert answer == Refused(run.status)
        elif late:
            assert answer == Refused(run.status, late=True)
        else:
            run.woken = run.woken or wakes
            run.asked.append((request_id, body))
            assert isinstance(answer, Accepted)
            assert (answer.number, answer.first) == (len(run.asked), True)

    @precondition(lambda self: self.runs)
    @rule()
    def sweep(self) -> None:
        self.do(self.kit.make_due())
        found = {row.run_id for row in self.do(self.kit.store.stalled())}
        assert found == {run_id for run_id, run in self.runs.items() if run.is_owed and run.holder and run.past}

    # ------------------------------------------------------------------ what has to hold

    @invariant()
    def as_the_model_says(self) -> None:
        for run_id in ("a", "{b}"):
            run, record = self.runs.get(run_id), self.do(self.kit.store.read(run_id))
            if run is None:
                assert record is None
                continue
            row = record.row
            assert (row.status, row.outcome, row.inputs) == (run.status, run.outcome, run.inputs)
            assert record.steps == run.steps
            assert record.trace == run.trace
            assert [(request.id, request.body) for request in record.requests] == run.asked
            assert (row.lease_ms > 0) == (run.holder is not None)
            assert (row.lease_left_ms > 0) == (run.holder is not None and not run.past)

    @invariant()
    def listed_as_they_are(self) -> None:
        """A list mends what it meets: after one of all, those by status are right as well."""
        for query in (Query(), Query(tag="t")):
            assert {row.run_id for row in self.do(self.kit.store.page(query)).rows} == set(self.runs)
        statuses: set[Status] = {"running", "paused"}
        statuses.update(run.status for run in self.runs.values())
        for status in statuses:
            found = {row.run_id for row in self.do(self.kit.store.page(Query(status=status))).rows}
            assert found == {run_id for run_id, run in self.runs.items() if run.status == status}

    # ------------------------------------------------------------------ how a write goes

    def mark(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def is_ours(self, holder: Holder) -> bool:
        return self.runs.get(holder.run_id) is holder.run and holder.run.holder is holder

    def write(self, holder: Holder, script: str, change: Any, work: Any, fault: str) -> None:
        ours, ending = self.is_ours(holder), script != "run_save"
        # Only the first of several deliveries meets the fault, and only the last one's caller is ours.
        dies = self.arm(fault, script) if ours and not holder.kept else False
        try:
            self.do(work)
            assert not dies
        except OwnershipLost:
            assert not ours or self._ended_before(holder)
            self._deliver_kept(holder, ours)
            return
        except Crash:
            assert dies
            holder.kept.append((script, change))
            if fault == "crash after":
                self._apply(holder, script, change)
                holder.kept[-1] = (script, None)
            return
        assert ours or self._same_end(holder, script)
        if ours:
            same_end = self._same_end(holder, script)
            self._deliver_kept(holder, ours)
            if not same_end:
                self._apply(holder, script, change)
        assert not ending or self.runs[holder.run_id].holder is not holder

    def _ended_before(self, holder: Holder) -> bool:
        return any(script != "run_save" for script, _ in holder.kept)

    def _same_end(self, holder: Holder, script: str) -> bool:
        return script != "run_save" and any(kept == script for kept, _ in holder.kept)

    def _deliver_kept(self, holder: Holder, ours: bool) -> None:
        kept, holder.kept = holder.kept, []
        for script, change in kept:
            if ours and change is not None:
                self._apply(holder, script, change)

    def _apply(self, holder: Holder, script: str, change: Any) -> None:
        run, end, outcome = holder.run, None, b""
        if script == "run_close":
            change, end, outcome = change
        run.steps.update(change.steps)
        for path in change.dropped:
            run.steps.pop(path, None)
        run.trace += change.trace
        run.status = end or change.status or run.status
        run.past = False
        if script != "run_save":
            run.holder = None
        if end:
            run.outcome = outcome


async def _made(make: Any) -> Kit:
    kit: Kit = make()
    return kit


async def _awaited(work: Any) -> Any:
    return await work


@pytest.mark.parametrize("kind", ["volatile", "redis"])
def test_the_store_is_its_model(kind: str, server: EmbeddedServer) -> None:
    class Bound(Machine):
        make: Any = staticmethod(VolatileKit if kind == "volatile" else partial(RedisKit, server.url))

    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=60 if kind == "redis" else 150,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
