"""Runs that another process goes on with: what is kept, what is refused, what is told."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgspec
import pytest

import aioreactor
from aioreactor import (
    Context,
    DeadlineExceeded,
    Failure,
    OwnershipLost,
    PlanChanged,
    Reactor,
    Retry,
    Success,
    UnknownReactor,
    compose,
    map_each,
    result,
    step,
    sweep,
    value,
)
from aioreactor.store.calls import Call
from tests.integration.durable.kit import Gate, Place, behave, every_turn, ledger, noted, raises


class Chain(Reactor):
    a = noted()
    b = noted(after=[a])
    c = noted(after=[b])


class Late(Reactor, deadline=0.6):
    a = noted()
    b = noted(after=[a])


class Tries(Reactor):
    a = noted(retries=Retry(3, backoff="fixed", base_delay=0.0))
    z = noted(after=[a])


async def begun(place: Place, reactor: Any, gate: Gate, run_id: str = "x", **inputs: Any) -> asyncio.Task[Any]:
    """A run whose body waits at the gate, and whose process counts as dead."""
    task = asyncio.create_task(reactor.with_options(run_id=run_id).run(**inputs))
    await gate.reached.wait()
    await place.lapse(run_id)
    return task


async def lost(task: asyncio.Task[Any], gate: Gate) -> None:
    """The old process wakes up: whatever it wants to write is refused."""
    gate.open.set()
    with pytest.raises(OwnershipLost):
        await task


async def test_a_run_that_nobody_holds_is_finished_elsewhere_and_its_old_holder_ends(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    task = await begun(place, Chain, gate)
    behave.clear()
    assert await place.sweep_elsewhere() == ["x"]
    assert ledger == ["do:a", "do:b", "do:b", "do:c"]
    await lost(task, gate)
    assert ledger == ["do:a", "do:b", "do:b", "do:c"]
    assert (await Chain.runs.find("x")).status == "completed"


async def test_state_and_idempotency_keys_are_stable(place: Place) -> None:
    seen: list[Any] = []
    gate = Gate()

    def first(ctx: Context) -> None:
        ctx.state["count"] = [1, {"deep": "x"}]
        ctx.state["gone"] = 1

    def keep(ctx: Context) -> None:
        seen.append((dict(ctx.state), ctx.idempotency_key, ctx.attempt))

    async def second(ctx: Context) -> None:
        keep(ctx)
        await gate(ctx)

    behave["a"], behave["b"] = first, second
    task = await begun(place, Chain, gate)
    behave["b"] = keep
    await place.sweep_elsewhere()
    assert seen[0] == seen[1] == ({"count": [1, {"deep": "x"}], "gone": 1}, "x:b", 1)
    await lost(task, gate)


async def test_state_that_was_emptied_stays_empty(place: Place) -> None:
    def empties(ctx: Context) -> str:
        ctx.state.clear()
        return "b"

    seen: list[Any] = []
    gate = Gate()
    behave["a"] = lambda ctx: ctx.state.update(n=1) or "a"
    behave["b"] = empties
    behave["c"] = gate
    task = await begun(place, Chain, gate)
    behave["c"] = lambda ctx: seen.append(dict(ctx.state))
    await place.sweep_elsewhere()
    assert seen == [{}]
    await lost(task, gate)


async def test_attempts_count_across_a_crash(place: Place) -> None:
    seen: list[int] = []
    gate = Gate()

    async def act(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if ctx.attempt == 2 and not gate.reached.is_set():
            await gate(ctx)
        raise ValueError("no")

    behave["a"] = act
    task = await begun(place, Tries, gate)
    assert [each.failed_attempts for each in (await Tries.runs.find("x")).steps] == [1]
    await place.sweep_elsewhere()
    assert seen == [1, 2, 2, 3]
    found = await Tries.runs.find("x")
    assert found.status == "failed"
    assert found.outcome.attempts == 3
    await lost(task, gate)
    assert ledger[-1] == "comp:a"


async def test_a_deadline_counts_across_processes(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    deadlines: list[float | None] = []
    behave["a"] = lambda ctx: deadlines.append(ctx.deadline)
    task = await begun(place, Late, gate)
    other = Gate()

    async def again(ctx: Context) -> None:
        deadlines.append(ctx.deadline)
        await other(ctx)

    behave["b"] = again
    assert await place.sweep_elsewhere() == ["x"]
    assert deadlines[0] == pytest.approx(deadlines[1], abs=0.2)
    found = await Late.runs.find("x")
    assert isinstance(found.outcome.error, DeadlineExceeded)
    assert ledger == ["do:a", "do:b", "do:b", "comp:b", "undo:a"]
    gate.open.set()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_runs_of_a_living_process_are_never_swept(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    async with place.another(lease_ttl=1.0):
        task = asyncio.create_task(Chain.with_options(run_id="x").run())
        await gate.reached.wait()
        async with asyncio.timeout(20):
            swept = await asyncio.gather(*(sweep() for _ in range(100)))
            loop = asyncio.get_running_loop()
            until = loop.time() + 1.5
            while loop.time() < until:
                swept.append(await sweep())
                await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, "x")
        assert not any(swept)
        gate.open.set()
        assert (await task).ok
    assert ledger == ["do:a", "do:b", "do:c"]


async def test_an_attached_caller_gets_the_outcome_of_whoever_finished_it(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    task = await begun(place, Chain, gate)
    attached = asyncio.create_task(Chain.with_options(run_id="x").run())
    await asyncio.sleep(0.02)
    behave["c"] = raises(ValueError("no"))
    behave.pop("b")
    await place.sweep_elsewhere()
    outcome = await attached
    assert isinstance(outcome, Failure)
    assert outcome.step == "c"
    assert str(outcome.trace.only("run", "compensate", "undo")) == "run:a run:b run:c compensate:c undo:b undo:a"
    await lost(task, gate)


# ---------------------------------------------------------------------- arguments, maps, children


class Doubled(Reactor):
    n: int
    a = noted()

    @step(after=[a])
    async def b(self, n: int, twice: Any = result(a, transform=lambda found: found * 2)) -> str:
        ledger.append(f"do:b {n} {twice}")
        return "b"

    @b.undo
    async def _b(self, n: int, twice: Any, result: str) -> None:
        ledger.append(f"undo:b {n} {twice} {result}")

    c = noted(after=[b])


async def test_an_undo_gets_the_arguments_that_its_body_had(place: Place) -> None:
    gate = Gate()
    behave["c"] = gate
    task = await begun(place, Doubled, gate, n=4)
    behave["c"] = raises(ValueError("no"))
    await place.sweep_elsewhere()
    await lost(task, gate)
    assert ledger == ["do:a", "do:b 4 aa", "do:c", "do:c", "comp:c", "undo:b 4 aa b", "undo:a"]


class Leg(Reactor):
    k: int
    t1 = noted()
    t2 = noted(after=[t1])


class Tour(Reactor):
    legs = map_each(Leg, over=value([1, 2]), item="k")
    returns = legs


class Journey(Reactor):
    tour = compose(Tour)
    loose = map_each(Leg, over=value([1, 2, 3]), item="k", atomic=False, concurrency=1)

    @step
    async def look(self, tour: Any, loose: Any) -> Any:
        ledger.append(
            f"look {type(tour).__name__} {[list(each) if isinstance(each, tuple) else each for each in tour]}"
        )
        ledger.append(f"loose {[type(each).__name__ for each in loose.outcomes()]}")
        return None

    z = noted(after=[look])


async def test_a_dependant_gets_the_values_of_maps_and_children_after_a_crash(place: Place) -> None:
    behave["loose[1].t2"] = raises(ValueError("no"))
    await Journey.with_options(run_id="whole").run()
    expected = [line for line in ledger if line.startswith(("look", "loose"))]
    assert expected[1] == "loose ['Success', 'Failure', 'Success']"
    ledger.clear()
    gate = Gate()
    behave["loose[2].t2"] = gate
    task = await begun(place, Journey, gate)
    behave["loose[2].t2"] = lambda ctx: None
    await place.sweep_elsewhere()
    assert [line for line in ledger if line.startswith(("look", "loose"))] == expected
    ledger.clear()
    gate = Gate()
    behave["z"] = gate
    task2 = await begun(place, Journey, gate, "y")
    behave["z"] = lambda ctx: None
    await place.sweep_elsewhere()
    assert str((await Journey.runs.find("y")).results) == str((await Journey.runs.find("whole")).results)
    for each in (task, task2):
        gate.open.set()
        each.cancel()
        await asyncio.gather(each, return_exceptions=True)


@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails later"])
async def test_what_an_element_left_undone_is_told_of_after_a_crash(place: Place, fails: bool) -> None:
    """While the run goes on nothing goes back but that element."""
    broken = {"loose[1].t2": raises(ValueError("no")), "undo:loose[1].t1": raises(OSError("stays"))}
    behave.update(broken)
    gate = Gate()
    behave["z"] = gate
    task = await begun(place, Journey, gate)
    behave["z"] = raises(KeyError("z")) if fails else lambda ctx: None
    ledger.clear()
    await place.sweep_elsewhere()
    outcome: Any = (await Journey.runs.find("x")).outcome
    entry = ("loose[1].t1", "undo", "raised", "OSError: stays")
    if fails:
        assert [each[:4] for each in outcome.rollback_failures] == [entry]
        assert ledger.count("undo:loose[1].t1") == 0, "it was tried before"
    else:
        assert outcome.status == "completed"
    element = list(outcome.results["loose"].outcomes())[1]
    assert [each[:4] for each in element.rollback_failures] == [entry]
    gate.open.set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Checked(Reactor):
    k: int

    def validate(self) -> None:
        if self.k == 2:
            raise ValueError("two is not allowed")

    t = noted()


class LooseChecked(Reactor):
    m = map_each(Checked, over=value([1, 2, 3]), item="k", atomic=False, concurrency=1)
    z = noted(after=[m])


async def test_an_element_that_was_refused_stays_refused(place: Place) -> None:
    gate = Gate()
    behave["m[2].t"] = gate
    task = await begun(place, LooseChecked, gate)
    behave.clear()
    assert await place.sweep_elsewhere() == ["x"]
    assert ledger == ["do:m[0].t", "do:m[2].t", "do:m[2].t", "do:z"]
    found = await LooseChecked.runs.find("x")
    assert found.status == "completed"
    assert [type(each).__name__ for each in found.results["m"].outcomes()] == ["Success", "Failure", "Success"]
    await lost(task, gate)


# ---------------------------------------------------------------------- code that does not fit


def _define(name: str, body: dict[str, Any]) -> Any:
    make: Any = type(Reactor)
    return make(name, (Reactor,), {"__module__": __name__, "__qualname__": name, **body})


async def _stuck(place: Place, reactor: Any, at: str) -> None:
    """A run of this reactor whose process died in a body, without a trace of that in the ledger."""
    gate = Gate()
    behave[at] = gate
    task = await begun(place, reactor, gate)
    await place.do("HSET", place.store.space.run("x"), "token", "taken")  # whoever wakes up is refused
    await lost(task, gate)
    behave.clear()
    ledger.clear()


def _changing(*names: str, inner: tuple[str, ...] = ("t1", "t2")) -> Any:
    made: dict[str, Any] = {}
    child: dict[str, Any] = {}
    for name in inner:
        child[name] = noted(after=list(child.values()))
    trip = _define("ChangingTrip", child)
    for name in names:
        made[name] = compose(trip, after=list(made.values())) if name == "trip" else noted(after=list(made.values()))
    return _define("Changing", made)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"names": ("a", "b", "c")}, {"names": ("b", "c")}),
        ({"names": ("a", "trip", "c")}, {"names": ("a", "c")}),
        ({"names": ("a", "trip", "c")}, {"names": ("a", "trip", "c"), "inner": ("t2",)}),
    ],
)
async def test_a_run_whose_steps_are_gone_is_kept_and_goes_on_when_they_are_back(
    place: Place, before: Any, after: Any
) -> None:
    old = _changing(*before["names"], inner=before.get("inner", ("t1", "t2")))
    await _stuck(place, old, "c")
    changed = _changing(*after["names"], inner=after.get("inner", ("t1", "t2")))
    assert changed.plan.name == old.plan.name
    await place.lapse("x")
    assert await place.sweep_elsewhere() == []
    row = await place.store.peek("x")
    assert row is not None
    assert (row.status, row.lease_left_ms) == ("running", 0)
    assert ledger == []
    assert [run.run_id for run in await aioreactor.runs.list()] == ["x"]
    back = _changing(*before["names"], inner=before.get("inner", ("t1", "t2")))
    await place.lapse("x")
    assert await place.sweep_elsewhere() == ["x"]
    assert ledger == ["do:c"]
    assert (await back.runs.find("x")).status == "completed"


async def test_other_code_that_fits_goes_on_and_is_noted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    old = _changing("a", "c")
    await _stuck(place, old, "c")
    changed = _changing("a", "c", "d")
    assert changed.plan.fingerprint != old.plan.fingerprint
    await place.lapse("x")
    with caplog.at_level("INFO", "aioreactor.runs"):
        assert await place.sweep_elsewhere() == ["x"]
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("plan_changed") == 1
    row = await place.store.peek("x")
    assert row is not None
    assert (row.status, row.fingerprint) == ("completed", changed.plan.fingerprint)


async def test_undo_by_code_that_does_not_fit_is_refused_and_changes_nothing(place: Place) -> None:
    await _changing("a", "b").with_options(run_id="x").run()
    before = await place.store.peek("x", "outcome")
    changed = _changing("b")
    with pytest.raises(PlanChanged):
        await aioreactor.runs.undo("x")
    row = await place.store.peek("x")
    assert row is not None
    assert await place.store.peek("x", "outcome") == before or row.status == "completed"
    del changed


async def test_a_run_of_an_unknown_reactor_ends_with_the_reason(place: Place) -> None:
    gate = Gate()
    behave["b"] = gate
    task = await begun(place, Chain, gate)
    await place.do("HSET", place.store.space.run("x"), "reactor", "nobody.Knows")
    attached = asyncio.create_task(place.store.wait_done("x"))
    await place.sweep_elsewhere()
    assert (await attached).status == "failed"
    found = await aioreactor.runs.find("x")
    assert found.status == "failed"
    await lost(task, gate)
    with pytest.raises(UnknownReactor):
        await aioreactor.runs.undo("x")


@pytest.mark.parametrize("what", ["inputs", "steps", "trace", "state"])
async def test_a_run_that_cannot_be_read_ends_with_the_reason_and_the_sweep_goes_on(place: Place, what: str) -> None:
    gate, other = Gate(), Gate()
    behave["b"] = gate
    task = await begun(place, Chain, gate)
    gate.reached.clear()
    task2 = await begun(place, Chain, gate, "y")
    keys = place.store.space.of_run("x")
    if what in {"inputs", "state"}:
        await place.do("HSET", keys[0], what, b"\xc1broken")
    elif what == "steps":
        await place.do("HSET", keys[1], "a", b"\xc1broken")
    else:
        await place.do("RPUSH", keys[2], b"\xc1broken")
    behave.clear()
    assert sorted(await place.sweep_elsewhere()) == ["x", "y"]
    broken, intact = await place.store.peek("x"), await place.store.peek("y")
    assert broken is not None
    assert broken.status == "failed"
    assert intact is not None
    assert intact.status == "completed"
    gate.open.set()
    await asyncio.gather(task, task2, return_exceptions=True)
    assert isinstance(task.exception(), OwnershipLost)
    assert other is not gate


class Was(msgspec.Struct):
    n: int


class Becomes(msgspec.Struct):
    n: str


def _returning(kind: Any, made: Any) -> Any:
    async def a(self: Any) -> Any:
        return made

    a.__annotations__["return"] = kind
    first = step(a)
    return _define("Returning", {"a": first, "b": noted(after=[first])})


async def test_a_run_whose_values_do_not_fit_the_code_ends_with_the_reason(place: Place) -> None:
    await _stuck(place, _returning(Was, Was(1)), "b")
    changed = _returning(Becomes, Becomes("1"))
    await place.lapse("x")
    assert await place.sweep_elsewhere() == ["x"]
    row = await place.store.peek("x")
    assert row is not None
    assert row.status == "failed"
    assert ledger == []
    del changed
    gc.collect()


async def test_cancelling_a_sweep_leaves_no_lease(place: Place) -> None:
    for turns in every_turn():
        run_id = f"x{turns}"
        gate = Gate()
        behave["b"] = gate
        task = await begun(place, Chain, gate, run_id)
        behave.clear()
        ledger.clear()
        async with place.another():
            sweeping = asyncio.create_task(sweep())
            for _ in range(turns):
                await asyncio.sleep(0)
            ended = sweeping.done()
            sweeping.cancel()
            await asyncio.wait({sweeping})
            row = await place.store.peek(run_id)
            assert row is not None
            held = await place.do("HGET", place.store.space.run(run_id), "lease_ms")
            assert row.status in {"completed", "cancelled"} or int(held) <= 1, (turns, row)
            if row.status == "cancelled":
                assert sorted(line[5:] for line in ledger if line[:3] != "do:") >= ["a"], (turns, ledger)
            if row.status == "running":
                await place.lapse(run_id)
                await sweep()
        gate.open.set()
        await asyncio.gather(task, return_exceptions=True)
        if ended:
            return


async def test_success_is_told_like_the_first_time(place: Place) -> None:
    outcome = await Chain.with_options(run_id="x").run()
    again = await Chain.with_options(run_id="x").run()
    assert isinstance(outcome, Success)
    assert isinstance(again, Success)
    assert (again.value, again.run_id, str(again.trace)) == (outcome.value, "x", str(outcome.trace))


class LostMeanwhile:
    """The keeper of the lease is told that the run is lost, just before the answer to a write comes in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runtime: Any = None

    def before_send(self, call: Call) -> None:
        """Not yet."""

    def after_reply(self, call: Call, reply: Any) -> None:
        if call.name == self.name:
            self.runtime.durable._executing_here["x"].journal.claim.lose(b"token")


@pytest.mark.parametrize("name", ["run_save", "run_close"])
async def test_a_run_that_is_lost_while_a_write_is_under_way_is_left(
    place: Place, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = LostMeanwhile(name)
    hook.runtime = place.another(hook)
    async with hook.runtime:
        with pytest.raises(OwnershipLost):
            await Chain.with_options(run_id="x").run()
    assert {getattr(record, "event", "") for record in caplog.records} == {"ownership_lost"}
    if name == "run_save":
        assert ledger == ["do:a"]
        await place.lapse("x")
        assert await place.sweep_elsewhere() == ["x"]
    assert ledger == ["do:a", "do:b", "do:c"]
