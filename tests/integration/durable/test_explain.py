"""Why a run does not move: the true reason in each situation, with who has what it waits for, and since when."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioreactor import (
    Context,
    Dispatched,
    InputValidationError,
    Lock,
    OrderedLock,
    RateLimit,
    Reactor,
    Retry,
    Semaphore,
    Success,
    UnknownReactor,
    async_reactor,
    compose,
    current_runtime,
    interrupt,
    runs,
    step,
    timer,
)
from aioreactor.coordination.keys import CoordinationKeys
from aioreactor.durable.control import ASKABLE
from aioreactor.durable.requests import Body, pack
from aioreactor.explanations import Explanation, Reason, moment
from aioreactor.jobs import beats
from aioreactor.store.store import default_owner
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises
from tests.integration.durable.test_background import parked, place, working
from tests.integration.durable.test_coordination_workers import in_line

__all__ = ["place"]

FAR = 600.0


class Locked(Reactor[str], name="why.Locked"):
    key: str = "k"
    a = noted()

    @step(after=[a], coordination=[Lock(lambda s: f"account:{s.key}", wait=FAR)])
    async def b(self, key: str, ctx: Context) -> str:
        if "b" in behave:
            await behave["b"](ctx)
        return key

    @b.undo
    async def unlock(self, ctx: Context) -> None:
        ledger.append("undo:b")

    returns = b


class Whole(Reactor[str], name="why.Whole", coordination=[Lock("whole", wait=FAR)]):
    a = noted()
    returns = a


class Slots(Reactor[str], name="why.Slots"):
    a = noted()
    b = noted([a], coordination=[Semaphore("pool", 2, wait=FAR)])


class Rated(Reactor[str], name="why.Rated"):
    a = noted()
    b = noted([a], coordination=[RateLimit("api", 1, 3600)])


class Lined(Reactor[str], name="why.Lined", coordination=[OrderedLock("line", wait=FAR, poison_after=100)]):
    a = noted()
    returns = a


class Inner(Reactor[str], name="why.Inner", coordination=[Lock("inner", wait=FAR)]):
    x = noted()
    returns = x


class Outer(Reactor[str], name="why.Outer"):
    a = noted()
    inner = compose(Inner, after=[a])


class Line(Reactor[str], name="why.Line"):
    a = noted()
    b = noted([a])
    returns = b


class Retried(Reactor[str], name="why.Retried"):
    a = noted(retries=Retry(max_attempts=3, base_delay=FAR, jitter=0))


class Again(Reactor[str], name="why.Again"):
    a = noted(retries=Retry(max_attempts=2, base_delay=0.001, jitter=0))


class LeftFirst(Reactor[str], name="why.LeftFirst", coordination=[Lock("left")]):
    a = noted()
    b = noted([a], coordination=[Lock("right")])


class RightFirst(Reactor[str], name="why.RightFirst", coordination=[Lock("right")]):
    a = noted()
    b = noted([a], coordination=[Lock("left")])


class Undoing(Reactor[str], name="why.Undoing"):
    a = noted(coordination=[Lock("undone", rollback_wait=FAR)])
    b = noted([a])
    c = noted([b])


class Barrier:
    """Bodies wait for each other."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.passed = asyncio.Event()

    async def __call__(self, ctx: Context) -> None:
        self.left -= 1
        if not self.left:
            self.passed.set()
        await self.passed.wait()


class Timed(Reactor[str], name="why.Timed"):
    rest = timer(hours=1)


class Asking(Reactor[str], name="why.Asking", deadline=7200):
    a = noted()
    ok = interrupt(str, after=[a], timeout=3600, on_timeout="wait", max_attempts=5)
    b = noted([ok])


class Reserved(Reactor[str], name="why.Reserved", coordination=[Lock("reserved")]):
    a = noted()
    ok = interrupt(str, after=[a])
    b = noted([ok])


class Deciding(Reactor[str], name="why.Deciding"):
    a = noted(retries=Retry(max_attempts=2, base_delay=0.001, on_exhausted="pause"))


class Ship(Reactor[str], name="why.Ship"):
    ok = interrupt(str)
    returns = ok


class Sending(Reactor[str], name="why.Sending"):
    a = noted()
    ship = async_reactor(Ship, after=[a])

    @step
    async def read(self, ship: Any) -> str:
        return str(ship)

    returns = read


def of_kind(explanation: Explanation, kind: str) -> Reason:
    [found] = [each for each in explanation.reasons if each.kind == kind]
    return found


def kinds(explanation: Explanation) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in explanation.reasons]


def near(seconds: float | None, ahead: float = 0, by: float = 30) -> bool:
    """Whether a moment is about ``ahead`` seconds from now."""
    return seconds is not None and abs(seconds - time.time() - ahead) < by


async def left(place: Place, handle: Any, worker: Any) -> None:
    """A worker has left the run."""
    await parked(place, handle.run_id)
    assert await worker.service.host.idle(30)


# ---------------------------------------------------------------------- keys


@asynccontextmanager
async def holding(place: Place, reactor: Any, path: str) -> AsyncIterator[str]:
    """A run is inside a step, and holds what that declares; gives its id."""
    behave[path] = gate = Gate()
    handle = await reactor.spawn()
    await gate.reached.wait()
    del behave[path]
    try:
        yield handle.run_id
    finally:
        gate.open.set()
        await handle.result(timeout=20)


async def test_a_parked_step_names_the_lock_and_its_holder(place: Place) -> None:
    async with holding(place, Locked, "b") as holder:
        async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
            handle = await Locked.enqueue()
            await left(place, handle, worker)
        explained = await runs.explain(handle.run_id)
        await runs.cancel(handle.run_id)
    assert kinds(explained) == [("lock", "b"), ("parked", ""), ("no_worker", "")]
    reason = of_kind(explained, "lock")
    assert reason.holder == f"{holder}:b:1"
    assert re.fullmatch(rf"waits for lock 'account:k', held by {holder}:b:1 for \d s; 1 of 1 in line", reason.text)
    assert near(reason.since)
    assert near(reason.until, 1.25 * FAR, 0.3 * FAR)
    assert near(of_kind(explained, "parked").until, 1.25 * FAR, 0.3 * FAR)


async def test_a_step_that_waits_where_it_is_executed_names_it_too(place: Place) -> None:
    async with holding(place, Locked, "b") as holder:
        handle = await Locked.spawn()
        await in_line("account:k")
        explained = await runs.explain(handle.run_id)
    assert await handle.result(timeout=20) == Success("k")
    assert kinds(explained) == [("lock", "b"), ("executed", "")]
    assert of_kind(explained, "lock").holder == f"{holder}:b:1"
    assert "executes it; its lease is good" in of_kind(explained, "executed").text


async def test_a_run_that_its_own_gates_do_not_let_in(place: Place) -> None:
    async with holding(place, Whole, "a") as holder:
        async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
            waits = await Whole.enqueue()
            await left(place, waits, worker)
        here = await Whole.spawn()
        await in_line("whole", 2)
        parked_one, here_one = await runs.explain(waits.run_id), await runs.explain(here.run_id)
        await runs.cancel(waits.run_id)
    await here.result(timeout=20)
    assert kinds(parked_one) == [("lock", ""), ("parked", ""), ("no_worker", "")]
    assert kinds(here_one) == [("lock", ""), ("executed", "")]
    for explained, position in ((parked_one, 1), (here_one, 2)):
        reason = of_kind(explained, "lock")
        assert reason.holder == holder
        assert reason.text.endswith(f"; {position} of 2 in line")
    assert near(of_kind(parked_one, "lock").since)


async def test_a_semaphore_names_its_slots(place: Place) -> None:
    async with holding(place, Slots, "b") as first, holding(place, Slots, "b") as second:
        async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
            handle = await Slots.enqueue()
            await left(place, handle, worker)
        reason = of_kind(await runs.explain(handle.run_id), "semaphore")
        await runs.cancel(handle.run_id)
    assert reason.text.startswith("waits for semaphore 'pool', held by 2 of 2 slots: ")
    assert {f"{first}:b:1", f"{second}:b:1"} == set(re.findall(r"[\w-]+:b:1", reason.text))


async def test_a_rate_limit_tells_what_is_used_and_when_it_comes_free(place: Place) -> None:
    await Rated.run()
    async with working(place, park_after=0.05) as worker:
        handle = await Rated.enqueue()
        await left(place, handle, worker)
    reason = of_kind(await runs.explain(handle.run_id), "rate_limit")
    await runs.cancel(handle.run_id)
    assert reason.path == "b"
    assert re.match(
        r"waits for rate limit 'api': 1 of 1 in 3600 s are used; all of it is free in \d+\.\d s", reason.text
    )
    assert reason.until is not None
    free = float(re.findall(r"free in ([\d.]+) s", reason.text)[0])
    assert abs(time.time() + free - reason.until) < 5


async def test_a_turn_names_the_position_that_it_waits_for(place: Place) -> None:
    async with holding(place, Lined, "a") as first:
        async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
            handle = await Lined.enqueue()
            await left(place, handle, worker)
        reason = of_kind(await runs.explain(handle.run_id), "ordered_lock")
        await runs.cancel(handle.run_id)
    assert reason.text == (
        f"waits for its turn in ordered lock 'line' at position 2; the line stands at 1, {first}, which runs"
    )
    assert (reason.path, reason.holder) == ("", first)


async def test_the_gates_of_a_composed_child(place: Place) -> None:
    async with holding(place, Outer, "inner.x") as holder:
        async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
            handle = await Outer.enqueue()
            await left(place, handle, worker)
        here = await Outer.spawn()
        await in_line("inner", 2)
        parked_one, here_one = await runs.explain(handle.run_id), await runs.explain(here.run_id)
        await runs.cancel(handle.run_id)
    await here.result(timeout=20)
    for explained in (parked_one, here_one):
        reason = of_kind(explained, "lock")
        assert (reason.path, reason.holder.partition(":")[0]) == ("inner", holder)


async def test_what_is_free_again_is_said_to_be(place: Place) -> None:
    """The lock's holder has gone, and nobody was there to be called."""
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        async with Lock("account:k"):
            handle = await Locked.enqueue()
            await left(place, handle, worker)
            await place.do("DEL", *CoordinationKeys(place.prefix).slots("lock", "account:k"))
        explained = await runs.explain(handle.run_id)
    assert of_kind(explained, "lock").text == "waits for lock 'account:k', which nobody holds now"
    await runs.cancel(handle.run_id)


async def test_an_answered_run_waits_for_what_it_held_before_it_paused(place: Place) -> None:
    """Where it is executed, and by what it was parked for."""
    outcomes = [await Reserved.run() for _ in range(2)]
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker, Lock("reserved"):
        answer = await runs.resume(outcomes[0].run_id, payload="yes")
        assert isinstance(answer, Dispatched)
        await left(place, answer, worker)
        explained = await runs.explain(answer.run_id)
        await runs.cancel(answer.run_id)
    assert kinds(explained) == [("lock", ""), ("parked", "")]
    reason = of_kind(explained, "lock")
    assert reason.text.startswith(f"waits for lock 'reserved', held by {default_owner()} for ")
    assert near(reason.since)
    await runs.cancel(outcomes[1].run_id)


async def test_a_circle_of_runs_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def overlooked(*_: Any) -> None:
        """One that is seen is broken at once; some cannot be, such as those of rollbacks."""

    monkeypatch.setattr("aioreactor.coordination.watching.find_cycle", overlooked)
    behave["a"] = both = Barrier(2)
    async with working(place, park_after=0.05, snooze_delay=FAR) as worker:
        one, two = await LeftFirst.enqueue(), await RightFirst.enqueue()
        await both.passed.wait()
        await left(place, one, worker)
        await left(place, two, worker)
    found = [await runs.explain(handle.run_id) for handle in (one, two)]
    ids = [one.run_id, two.run_id]
    for explained, (own, other) in zip(found, (ids, ids[::-1]), strict=True):
        reason = explained.reasons[0]
        assert (reason.kind, reason.holder) == ("cycle", other)
        assert reason.text == f"waits in a circle: {own} waits for {other} waits for {own}"
    for run_id in ids:
        await runs.cancel(run_id)


# ---------------------------------------------------------------------- the run itself


async def test_a_retry_that_is_due_later(place: Place) -> None:
    behave["a"] = raises(ValueError("no"))
    async with working(place, park_after=0.05) as worker:
        handle = await Retried.enqueue()
        await left(place, handle, worker)
        explained = await runs.explain(handle.run_id)
    await runs.cancel(handle.run_id)
    assert kinds(explained) == [("retry", "a"), ("parked", "")]
    reason = of_kind(explained, "retry")
    assert reason.text == "waits for attempt 2"
    assert near(reason.since)
    assert near(reason.until, FAR)


async def test_a_second_attempt_at_work_waits_for_nothing(place: Place) -> None:
    """Its record still tells when it was due."""
    behave["a"] = gate = Gate()

    async def once_more(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("no")
        await gate(ctx)

    behave["a"] = once_more
    handle = await Again.spawn()
    await gate.reached.wait()
    await asyncio.sleep(0.002)
    explained = await runs.explain(handle.run_id)
    gate.open.set()
    await handle.result(timeout=20)
    assert kinds(explained) == [("executed", "")]
    assert "executes it at 'a'" in explained.reasons[0].text


async def test_a_timer(place: Place) -> None:
    outcome = await Timed.run()
    reason = of_kind(await runs.explain(outcome.run_id), "timer")
    assert reason.path == "rest"
    assert near(reason.until, 3600)
    await runs.cancel(outcome.run_id)


async def test_an_interrupt_with_its_deadline_and_what_did_not_fit(place: Place) -> None:
    outcome = await Asking.run()
    for _ in range(2):
        with pytest.raises(InputValidationError):
            await runs.resume(outcome.run_id, payload=7)
    explained = await runs.explain(outcome.run_id)
    assert kinds(explained) == [("interrupt", "ok")]
    assert near(explained.deadline, 7200)
    assert f"is paused, its deadline is {moment(explained.deadline or 0)}\n" in str(explained)
    reason = of_kind(explained, "interrupt")
    assert reason.text == "waits for an answer (runs.resume); 2 payloads did not fit"
    assert near(reason.since)
    assert near(reason.until, 3600)
    await runs.cancel(outcome.run_id)


async def test_a_decision(place: Place) -> None:
    behave["a"] = raises(ValueError("no"))
    outcome = await Deciding.run()
    explained = await runs.explain(outcome.run_id)
    assert kinds(explained) == [("decision", "a")]
    assert of_kind(explained, "decision").text == "waits for a decision after 2 attempts (runs.decide)"
    assert near(of_kind(explained, "decision").since)
    await runs.cancel(outcome.run_id)


async def test_a_unit_that_is_not_done(place: Place) -> None:
    async with working(place, park_after=0.05) as worker:
        handle = await Sending.enqueue()
        await left(place, handle, worker)
        [unit_id] = (await runs.find(handle.run_id)).children
        while (await runs.find(unit_id)).status != "paused":
            await asyncio.sleep(0.005)
        explained = await runs.explain(handle.run_id)
        assert kinds(explained) == [("unit", "read"), ("parked", "")]
        reason = of_kind(explained, "unit")
        assert reason.text == f"waits for unit 'ship', run {unit_id}, which is paused and waits for an answer to 'ok'"
        assert reason.holder == unit_id
        assert near(reason.since)
        assert near(reason.until, 3600)
        await runs.resume(unit_id, payload="sent")
        assert await handle.result(timeout=20) == Success("Success(value='sent')")


async def test_a_run_that_waits_for_a_worker_of_a_queue_that_is_served(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only place of the only worker is taken, and says so."""
    monkeypatch.setattr(beats, "EVERY", 0.01)
    behave["a"] = gate = Gate()
    async with working(place, worker_options={"max_concurrency": 1}):
        busy = await Line.enqueue()
        await gate.reached.wait()
        queued = await Line.enqueue()
        full = re.compile(r": 1 there, with 1 of 1 places taken; (\d+ jobs wait there|no job waits there)")
        async with asyncio.timeout(20):
            while not full.search((await runs.explain(queued.run_id)).reasons[-1].text):
                await asyncio.sleep(0.005)
        explained = await runs.explain(queued.run_id)
        assert kinds(explained) == [("worker", "")]
        assert near(explained.reasons[0].since)
        gate.open.set()
        await busy.result(timeout=20)
        await queued.result(timeout=20)


async def test_no_worker_on_the_queue(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = await Line.enqueue()
    reason = of_kind(await runs.explain(handle.run_id), "no_worker")
    assert reason.text == f"no worker serves queue '{place.prefix}-queue': none was seen for an hour"
    assert near(reason.since)
    await current_runtime().queue().beat("h:1:x", 0, 1, alive=-1)  # one that was killed
    reason = of_kind(await runs.explain(handle.run_id), "no_worker")
    assert ": one was last seen at 20" in reason.text
    await runs.cancel(handle.run_id)


async def test_a_job_that_is_lost_is_told_of(place: Place) -> None:
    await current_runtime().queue().beat("h:1:x", 0, 9, alive=60)
    handle = await Line.enqueue()
    assert "0 of 9 places taken; 1 jobs wait there" in str(await runs.explain(handle.run_id))
    await place.do("DEL", f"{place.prefix}-queue")
    assert "no job waits there, so that a sweep has to ring again" in str(await runs.explain(handle.run_id))
    await runs.cancel(handle.run_id)


async def test_a_delayed_start(place: Place) -> None:
    handle = await Line.with_options(delay=3600).enqueue()
    explained = await runs.explain(handle.run_id)
    assert kinds(explained) == [("start", ""), ("no_worker", "")]
    assert near(of_kind(explained, "start").until, 3600)
    await handle.cancel()


async def test_who_executes_it_and_where_it_is(place: Place) -> None:
    behave["b"] = gate = Gate()
    handle = await Line.spawn()
    await gate.reached.wait()
    explained = await runs.explain(handle.run_id)
    reason = of_kind(explained, "executed")
    assert reason.text == f"{reason.holder} executes it at 'b'; its lease is good"
    assert reason.holder == default_owner()
    assert near(reason.until, 30)
    await place.lapse(handle.run_id)
    explained = await runs.explain(handle.run_id)
    assert kinds(explained) == [("lost", ""), ("no_worker", "")]
    assert of_kind(explained, "lost").holder == default_owner()
    gate.open.set()
    await handle.result()


async def test_a_run_that_goes_back_names_its_next_undo_and_what_that_waits_for(place: Place) -> None:
    behave["c"] = raises(ValueError("no"))
    async with holding(place, Whole, "a"):
        pass
    handle = await Undoing.spawn()
    behave["undo:b"] = gate = Gate()
    await gate.reached.wait()
    explained = await runs.explain(handle.run_id)
    reason = of_kind(explained, "rolling_back")
    assert (reason.text, reason.path) == ("goes back after 'c' failed: its undo is next", "b")
    assert of_kind(explained, "executed").text.endswith("rolls it back; its lease is good")
    async with Lock("undone") as held:
        del held
        gate.open.set()
        await in_line("undone")
        explained = await runs.explain(handle.run_id)
    assert (await handle.result(timeout=20)).status == "failed"
    assert kinds(explained) == [("rolling_back", "a"), ("lock", "a"), ("executed", "")]
    assert of_kind(explained, "lock").holder == default_owner()


async def test_a_rollback_that_nobody_goes_on_with(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    behave["undo:a"] = gate = Gate()
    handle = await Line.spawn()
    await gate.reached.wait()
    await place.lapse(handle.run_id)
    explained = await runs.explain(handle.run_id)
    gate.open.set()
    await handle.result()
    assert kinds(explained) == [("rolling_back", "a"), ("lost", ""), ("no_worker", "")]


async def test_a_request_that_is_not_carried_out_yet(place: Place) -> None:
    outcome = await Asking.run()
    await place.store.ask(outcome.run_id, pack(Body("cancel", text="r", mode="rollback")), allowed=ASKABLE)
    explained = await runs.explain(outcome.run_id)
    assert kinds(explained) == [("request", ""), ("interrupt", "ok"), ("no_worker", "")]
    assert of_kind(explained, "request").text == "a cancel was accepted and is not carried out yet"
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(outcome.run_id, "job")


async def test_code_that_does_not_fit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await Asking.run()
    monkeypatch.setattr("aioreactor.durable.taking.find_plan", lambda *_: Line.plan)
    explained = await runs.explain(outcome.run_id)
    reason = of_kind(explained, "plan")
    assert "it is kept until code that fits is back: " in reason.text
    assert reason.text.endswith(": ok")
    monkeypatch.undo()

    def unknown(name: str, version: str = "") -> Any:
        raise UnknownReactor(name, "import it")

    monkeypatch.setattr("aioreactor.durable.taking.find_plan", unknown)
    assert kinds(await runs.explain(outcome.run_id)) == [("unknown_reactor", "")]
    monkeypatch.undo()
    steps = place.store.space.of_run(outcome.run_id)[1]
    await place.do("HSET", steps, "a", b"\x63junk")
    explained = await runs.explain(outcome.run_id)
    await runs.delete(outcome.run_id)
    assert kinds(explained) == [("unreadable", "")]


async def test_one_that_has_ended_or_was_cut_off(place: Place) -> None:
    outcome = await Line.run()
    explained = await runs.explain(outcome.run_id)
    assert kinds(explained) == [("ended", "")]
    assert near(explained.reasons[0].since)
    behave["a"] = raises(SystemExit())
    handle = Line.with_options(run_id=f"{place.prefix}x")
    with pytest.raises(SystemExit):
        await handle.run()
    explained = await runs.explain(f"{place.prefix}x")
    assert kinds(explained) == [("aborted", "")]
    assert "stands until runs.undo" in explained.reasons[0].text


async def test_it_is_one_screen(place: Place) -> None:
    reasons = tuple(Reason("timer", "waits", f"t{number}") for number in range(50))
    lines = str(Explanation("r", "R", "running", reasons)).split("\n")
    assert (len(lines), lines[0], lines[-1]) == (22, "run r of R is running", "  and 30 more")
    assert max(map(len, str(await runs.explain((await Line.run()).run_id)).split("\n"))) < 120
