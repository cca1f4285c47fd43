"""Interrupts on a real server: opened, answered once, expired, counted, found by correlation id, across crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec import Struct

from aioreactor import (
    AlreadyResumed,
    Default,
    Dispatched,
    Failure,
    InputValidationError,
    NotResumable,
    Paused,
    Reactor,
    RunNotFound,
    StoreRequired,
    Success,
    compose,
    from_input,
    interrupt,
    runs,
    step,
    timer,
)
from aioreactor.durable.correlating import RunCorrelations
from aioreactor.durable.requests import Body, answer_id, pack
from aioreactor.errors import CorrelationTaken, InterruptTimeout
from aioreactor.results import OpenInterrupt
from aioreactor.runtime import Runtime
from aioreactor.settings import Settings
from aioreactor.store.answers import Accepted
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted
from tests.integration.durable.test_background import place, working

__all__ = ["place"]


class Approval(Struct):
    by: str
    amount: int = 0


class Purchase(Reactor[str], name="pause.Purchase"):
    order: str = "o"
    submit = noted()
    approve = interrupt(Approval, after=[submit], max_attempts=3)

    @step
    async def pay(self, approve: Approval) -> str:
        ledger.append(f"pay:{approve.by}")
        return f"{approve.by} {approve.amount}"

    @pay.undo
    async def repay(self) -> None:
        ledger.append("undo:pay")

    ship = noted([pay])
    returns = pay


class Background(Purchase, name="pause.Background"):
    approve = interrupt(Approval, after=[Purchase.submit], resume="background")


class Two(Reactor, name="pause.Two"):
    a = noted()
    first = interrupt(int, after=[a])
    second = interrupt(int, after=[a])
    slow = noted([a])

    @step
    async def total(self, first: int, second: int) -> int:
        ledger.append("total")
        return first + second

    returns = total


class Chain(Reactor, name="pause.Chain"):
    a = noted()
    one = interrupt(str, after=[a])
    b = noted([one])
    two = interrupt(str, after=[b])
    c = noted([two])
    returns = two


class Correlated(Reactor, name="pause.Correlated"):
    number: str
    a = noted()
    ready = interrupt(str, after=[a], correlation_id=lambda ctx: f"req-{ctx.inputs['number']}")
    b = noted([ready])
    returns = ready


class Trip(Reactor, name="pause.Trip"):
    hotel = noted()
    approve = interrupt(Approval, after=[hotel])
    book = noted([approve])
    returns = approve


class Journey(Reactor, name="pause.Journey"):
    a = noted()
    trip = compose(Trip, after=[a])
    z = noted([trip])


async def ends(run_id: str) -> Any:
    return (await runs.find(run_id)).outcome


async def test_the_run_pauses_and_an_answer_goes_on_with_it_here(place: Place) -> None:
    outcome = await Purchase.with_options(run_id=f"{place.prefix}p").run()
    assert isinstance(outcome, Paused)
    assert outcome.interrupts == (OpenInterrupt("approve"),)
    assert (outcome.status, dict(outcome.results), ledger) == ("paused", {"submit": "submit"}, ["do:submit"])
    snapshot = await runs.find(outcome.run_id)
    assert (snapshot.status, snapshot.interrupts) == ("paused", outcome.interrupts)
    assert isinstance(snapshot.outcome, Paused)
    assert snapshot.waits_for == "an answer to 'approve'"
    assert [each.run_id for each in await runs.list(status="paused")] == [outcome.run_id]
    ended = await Purchase.runs.resume(outcome.run_id, "approve", {"by": "ann", "amount": 3})
    assert ended == Success("ann 3")
    assert ledger == ["do:submit", "pay:ann", "do:ship"]
    assert [str(e) for e in ended.trace.only("interrupt", "resume", "run")] == [
        "run:submit",
        "interrupt:approve",
        "resume:approve",
        "run:pay",
        "run:ship",
    ]
    assert ended.results["approve"] == Approval("ann", 3)
    assert (await runs.find(outcome.run_id)).interrupts == ()


async def test_a_paused_run_is_left_alone_by_sweeps_and_strays(place: Place) -> None:
    outcome = await Purchase.run()
    await place.do("HSET", place.store.space.run(outcome.run_id), "updated_ms", 1)
    for _ in range(2):
        await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, outcome.run_id)
        assert await place.sweep_elsewhere() == []
        assert await place.do("ZSCORE", f"{place.prefix}:{{:index}}:live", outcome.run_id) is None
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(outcome.run_id, "stray")
    row = await place.store.peek(outcome.run_id)
    assert row is not None
    assert (row.status, row.fence, ledger) == ("paused", 1, ["do:submit"])
    assert await Purchase.with_options(run_id=outcome.run_id).run() == outcome  # attaches, and is told
    await runs.cancel(outcome.run_id)
    assert ledger == ["do:submit", "undo:submit"]


async def test_of_two_hundred_answers_one_wins(place: Place) -> None:
    outcome = await Purchase.run()
    found: list[Any] = await asyncio.gather(
        *(runs.resume(outcome.run_id, "approve", Approval(f"p{n}", n)) for n in range(200)), return_exceptions=True
    )
    kinds = Counter(type(each) for each in found)
    assert kinds == {Success: 1, AlreadyResumed: 199}
    winner = next(each for each in found if isinstance(each, Success))
    by = winner.results["approve"].by
    assert ledger == ["do:submit", f"pay:{by}", "do:ship"]
    assert len(winner.trace.only("resume")) == 1
    with pytest.raises(AlreadyResumed):
        await runs.resume(outcome.run_id, "approve", Approval("late"))
    with pytest.raises(AlreadyResumed):
        await runs.resume(outcome.run_id, payload=Approval("late"))


async def test_answers_from_many_processes_one_wins(place: Place) -> None:
    outcome = await Purchase.run()

    async def elsewhere(number: int) -> Any:
        async with place.another():
            return await runs.resume(outcome.run_id, "approve", Approval(f"p{number}"))

    found = await asyncio.gather(*map(elsewhere, range(20)), return_exceptions=True)
    assert Counter(map(type, found)) == {Success: 1, AlreadyResumed: 19}
    assert len(ledger) == 3


async def test_the_same_call_again_is_answered_like_the_first(place: Place) -> None:
    outcome = await Purchase.run()
    answers = await asyncio.gather(
        *(runs.resume(outcome.run_id, "approve", Approval("ann", n), key="click") for n in range(20))
    )
    assert len({each.value for each in answers if isinstance(each, Success)}) == 1
    assert Counter(map(type, answers)) == {Success: 20}
    assert await runs.resume(outcome.run_id, "approve", Approval("bob"), key="click") == answers[0]
    with pytest.raises(AlreadyResumed):
        await runs.resume(outcome.run_id, "approve", Approval("ann"), key="another click")
    assert ledger.count("do:ship") == 1


async def test_what_does_not_fit_is_refused_and_counted(place: Place) -> None:
    outcome = await Purchase.run()
    with pytest.raises(InputValidationError) as first:
        await runs.resume(outcome.run_id, "approve", {"amount": "many"})
    assert first.value.field_errors == {"by": ["is required"], "amount": ["Expected `int`, got `str`"]}
    with pytest.raises(InputValidationError):
        await runs.resume(outcome.run_id, "approve", "yes")
    snapshot = await runs.find(outcome.run_id)
    assert (snapshot.status, ledger) == ("paused", ["do:submit"])
    with pytest.raises(InputValidationError):
        await runs.resume(outcome.run_id, "approve", None)
    ended = await ends(outcome.run_id)
    assert isinstance(ended, Failure)
    assert (ended.status, ended.step, type(ended.error)) == ("failed", "approve", InputValidationError)
    assert ledger == ["do:submit", "undo:submit"]
    with pytest.raises(NotResumable, match="is failed: it has ended"):
        await runs.resume(outcome.run_id, "approve", Approval("ann"))


async def test_a_fitting_one_after_two_that_did_not(place: Place) -> None:
    outcome = await Purchase.run()
    for _ in range(2):
        with pytest.raises(InputValidationError):
            await runs.resume(outcome.run_id, "approve", 1)
    assert await runs.resume(outcome.run_id, "approve", Approval("ann")) == Success("ann 0")


async def test_many_that_do_not_fit_at_once_end_it_once(place: Place) -> None:
    outcome = await Purchase.run()
    found = await asyncio.gather(
        *(runs.resume(outcome.run_id, "approve", n) for n in range(40)), return_exceptions=True
    )
    assert all(isinstance(each, (InputValidationError, NotResumable)) for each in found)
    assert sum(isinstance(each, InputValidationError) for each in found) >= 3
    row = await place.store.wait_done(outcome.run_id, 10)
    assert (row.status, ledger) == ("failed", ["do:submit", "undo:submit"])


async def test_what_cannot_be_resumed_says_why(place: Place) -> None:
    with pytest.raises(RunNotFound):
        await runs.resume("nobody", "approve", 1)
    chain = await Chain.run()
    assert isinstance(chain, Paused)
    with pytest.raises(NotResumable, match="is paused: 'two' is not open yet"):
        await runs.resume(chain.run_id, "two", "x")
    with pytest.raises(NotResumable, match="it has no interrupt 'b'"):
        await runs.resume(chain.run_id, "b", "x")
    with pytest.raises(NotResumable, match="it has no interrupt 'nothing'"):
        await runs.resume(chain.run_id, "nothing", "x")
    with pytest.raises(ValueError, match="one of the two"):
        await runs.resume()
    with pytest.raises(RunNotFound):
        await Purchase.runs.resume(chain.run_id, "one", "x")
    assert (await place.store.peek(chain.run_id)).asked == 0  # type: ignore[union-attr]
    await runs.cancel(chain.run_id)
    with pytest.raises(NotResumable, match="is cancelled: it has ended"):
        await runs.resume(chain.run_id, "one", "x")


async def test_one_after_another(place: Place) -> None:
    chain = await Chain.run()
    second = await runs.resume(chain.run_id, payload="x")
    assert isinstance(second, Paused)
    assert [each.name for each in second.interrupts] == ["two"]
    with pytest.raises(AlreadyResumed):
        await runs.resume(chain.run_id, Chain.one, "x")
    assert await runs.resume(chain.run_id, Chain.two, "y") == Success("y")
    assert ledger == ["do:a", "do:b", "do:c"]


async def test_several_are_open_at_once_and_branches_run_to_their_ends_first(place: Place) -> None:
    behave["slow"] = gate = Gate()
    running = asyncio.create_task(Two.with_options(run_id=f"{place.prefix}2").run())
    await gate.reached.wait()
    assert await runs.resume(f"{place.prefix}2", "first", 20) == Dispatched("")  # busy: the owner applies it
    while "first" not in (await runs.find(f"{place.prefix}2")).results:
        await asyncio.sleep(0.01)
    assert not running.done()
    gate.open.set()
    outcome = await running
    assert isinstance(outcome, Paused)
    assert [each.name for each in outcome.interrupts] == ["second"]
    assert await runs.resume(outcome.run_id, payload=22) == Success(42)
    assert ledger == ["do:a", "do:slow", "total"]


async def test_both_answers_at_once(place: Place) -> None:
    outcome = await Two.run()
    assert isinstance(outcome, Paused)
    with pytest.raises(NotResumable, match="several interrupts are open: first, second"):
        await runs.resume(outcome.run_id, payload=1)
    found = await asyncio.gather(runs.resume(outcome.run_id, "first", 1), runs.resume(outcome.run_id, "second", 2))
    assert await place.store.wait_done(outcome.run_id, 10)
    assert any(each == Success(3) for each in found) or await ends(outcome.run_id) == Success(3)
    assert ledger.count("total") == 1


async def test_in_the_background_it_is_for_a_worker(place: Place) -> None:
    outcome = await Background.run()
    answered = await runs.resume(outcome.run_id, "approve", Approval("ann", 1))
    assert isinstance(answered, Dispatched)
    assert answered.job_id
    assert ledger == ["do:submit"]
    async with working(place):
        assert (await place.store.wait_done(outcome.run_id, 20)).status == "completed"
    assert ledger == ["do:submit", "pay:ann", "do:ship"]


async def test_a_run_that_pauses_in_a_worker(place: Place) -> None:
    async with working(place):
        handle = await Purchase.enqueue()
        paused = await handle.result(timeout=20)
        assert isinstance(paused, Paused)
        assert await runs.resume(handle.run_id, "approve", Approval("ann")) == Success("ann 0")
        assert await handle.result(timeout=20) == Success("ann 0")
    assert ledger == ["do:submit", "pay:ann", "do:ship"]


async def test_what_was_accepted_survives_whoever_accepted_it(place: Place) -> None:
    outcome = await Purchase.run()
    assert place.runtime.durable is not None
    value = place.runtime.durable._codec().value(Purchase.plan["approve"], "approve", Approval("ann"))
    body = pack(Body("answer", "approve", value=value))
    allowed: Any = ("paused", "running")
    asked = await place.store.ask(outcome.run_id, body, request_id=answer_id("approve"), allowed=allowed)
    assert isinstance(asked, Accepted)
    with pytest.raises(AlreadyResumed):
        await runs.resume(outcome.run_id, "approve", Approval("bob"))
    assert ledger == ["do:submit"]
    await place.do("HSET", place.store.space.run(outcome.run_id), "updated_ms", 1)
    await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, outcome.run_id)
    assert await place.sweep_elsewhere() == [outcome.run_id]
    assert await ends(outcome.run_id) == Success("ann 0")
    assert ledger == ["do:submit", "pay:ann", "do:ship"]


async def test_what_came_while_it_was_being_let_go_does_not_wait_until_it_is_due(place: Place) -> None:
    async with place.another() as other:
        outcome = await Long.run()
        assert other.durable is not None
        value = other.durable._codec().value(Long.plan["wait"], "wait", "x")
        allowed: Any = ("paused",)
        body = pack(Body("answer", "wait", value=value))
        await place.store.ask(outcome.run_id, body, request_id=answer_id("wait"), allowed=allowed)
        row = await place.store.peek(outcome.run_id)
        assert row is not None
        run = place.store.space.run(outcome.run_id)
        # As if the answer had been accepted a moment before the run was let go.
        await place.do("HSET", run, "due_ms", row.now_ms + 3600_000, "updated_ms", 1)
        await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, outcome.run_id)
        assert await place.sweep_elsewhere() == [outcome.run_id]
    assert await ends(outcome.run_id) == Success("x")


@pytest.mark.parametrize("at", ["pay", "ship"])
async def test_an_applied_answer_is_not_applied_again_after_a_crash(place: Place, at: str) -> None:
    class Crashing(Purchase, name=f"pause.Crashing{at}"):
        pay = noted([Purchase.approve])
        returns = pay

    outcome = await Crashing.run()
    behave[at] = gate = Gate()
    resuming = asyncio.create_task(runs.resume(outcome.run_id, "approve", Approval("ann")))
    await gate.reached.wait()
    await place.lapse(outcome.run_id)
    del behave[at]
    assert await place.sweep_elsewhere() == [outcome.run_id]
    gate.open.set()
    await asyncio.gather(resuming, return_exceptions=True)
    ended = await ends(outcome.run_id)
    assert ended == Success("pay")
    assert len(ended.trace.only("resume")) == 1
    assert ledger.count(f"do:{at}") == 2  # the body in flight
    assert ledger.count("do:submit") == 1


# ---------------------------------------------------------------------- time


class Expiring(Reactor, name="pause.Expiring"):
    a = noted()
    wait = interrupt(str, after=[a], timeout=0.3)
    b = noted([wait])
    returns = wait


class Defaulting(Expiring, name="pause.Defaulting"):
    wait = interrupt(str, after=[Expiring.a], timeout=0.3, on_timeout=Default("nobody"))


class Lasting(Expiring, name="pause.Lasting"):
    wait = interrupt(str, after=[Expiring.a], timeout=0.3, on_timeout="wait")


class Long(Expiring, name="pause.Long"):
    wait = interrupt(str, after=[Expiring.a], timeout=3600)


class Busy(Expiring, name="pause.Busy"):
    slow = noted([Expiring.a])


async def test_its_time_is_enforced_by_a_worker(place: Place) -> None:
    async with working(place):
        failing, defaulting = await Expiring.run(), await Defaulting.run()
        assert isinstance(failing, Paused)
        assert failing.interrupts[0].deadline is not None
        assert (await place.store.wait_done(failing.run_id, 20)).status == "failed"
        assert (await place.store.wait_done(defaulting.run_id, 20)).status == "completed"
    ended = await ends(failing.run_id)
    assert (type(ended.error), ended.step) == (InterruptTimeout, "wait")
    assert await ends(defaulting.run_id) == Success("nobody")
    assert Counter(ledger) == {"do:a": 2, "undo:a": 1, "do:b": 1}


async def test_its_time_is_enforced_by_a_sweep_when_its_job_is_lost(place: Place) -> None:
    outcome = await Expiring.run()
    await asyncio.sleep(0.4)
    await place.do("HSET", place.store.space.run(outcome.run_id), "updated_ms", 1, "due_ms", 1)
    await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, outcome.run_id)
    assert await place.sweep_elsewhere() == [outcome.run_id]
    assert (await runs.find(outcome.run_id)).status == "failed"
    assert ledger == ["do:a", "undo:a"]


async def test_late_answers_are_refused_also_where_time_is_not_enforced(place: Place) -> None:
    late, lasting = await Expiring.run(), await Lasting.run()
    assert isinstance(lasting, Paused)
    row = await place.store.peek(lasting.run_id)
    assert row is not None
    assert row.due_ms == 0
    await asyncio.sleep(0.35)
    for run_id in (late.run_id, lasting.run_id):
        with pytest.raises(NotResumable, match="the time of the interrupt is over"):
            await runs.resume(run_id, "wait", "late")
        await runs.cancel(run_id)


async def test_its_time_passes_while_other_branches_run(place: Place) -> None:
    behave["slow"] = gate = Gate()
    running = asyncio.create_task(Busy.run())
    await gate.reached.wait()
    while True:
        [found] = await runs.list(reactor="pause.Busy")
        if (await runs.find(found.run_id)).trace.only("timeout"):
            break
        await asyncio.sleep(0.02)
    gate.open.set()
    outcome = await running
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, InterruptTimeout)
    assert ledger == ["do:a", "do:slow", "undo:slow", "undo:a"]


async def test_an_answer_in_time_counts_although_it_is_met_late(place: Place) -> None:
    outcome = await Expiring.run()
    assert place.runtime.durable is not None
    value = place.runtime.durable._codec().value(Expiring.plan["wait"], "wait", "in time")
    body = pack(Body("answer", "wait", value=value))
    allowed: Any = ("paused",)
    await place.store.ask(outcome.run_id, body, request_id=answer_id("wait"), allowed=allowed)
    await asyncio.sleep(0.4)
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(outcome.run_id, "job")
    assert await ends(outcome.run_id) == Success("in time")


class Deadlined(Expiring, name="pause.Deadlined", deadline=0.3):
    wait = interrupt(str, after=[Expiring.a])


async def test_the_deadline_of_the_run_counts_on_while_it_is_paused(place: Place) -> None:
    async with working(place):
        outcome = await Deadlined.run()
        assert isinstance(outcome, Paused)
        assert (await place.store.wait_done(outcome.run_id, 20)).status == "failed"
    assert ledger == ["do:a", "undo:a"]


# ---------------------------------------------------------------------- correlation ids, children, the rest


async def test_found_by_its_correlation_id(place: Place) -> None:
    outcome = await Correlated.run(number="9")
    assert isinstance(outcome, Paused)
    assert outcome.interrupts == (OpenInterrupt("ready", "req-9"),)
    with pytest.raises(RunNotFound):
        await Correlated.runs.resume(correlation_id="req-8", payload="x")
    with pytest.raises(ValueError, match="one of a reactor's"):
        await runs.resume(correlation_id="req-9", payload="x")
    assert await Correlated.runs.resume(correlation_id="req-9", payload="x") == Success("x")
    with pytest.raises(AlreadyResumed):
        await Correlated.runs.resume(correlation_id="req-9", payload="y")


async def test_a_correlation_id_is_one_runs_at_a_time(place: Place) -> None:
    first = await Correlated.run(number="1")
    second = await Correlated.run(number="1")
    assert isinstance(second, Failure)
    assert isinstance(second.error, CorrelationTaken)
    assert second.error.run_id == first.run_id
    assert ledger == ["do:a", "do:a", "undo:a"]
    assert await Correlated.runs.resume(correlation_id="req-1", payload="x") == Success("x")
    third = await Correlated.run(number="1")  # free again
    assert isinstance(third, Paused)
    await runs.cancel(third.run_id)
    fourth = await Correlated.run(number="1")
    assert isinstance(fourth, Paused)
    await runs.delete(fourth.run_id)
    fifth = await Correlated.run(number="1")
    assert await Correlated.runs.resume(correlation_id="req-1", payload="z") == Success("z")
    assert fifth.run_id != fourth.run_id


async def test_of_many_that_open_the_same_id_one_does(place: Place) -> None:
    found = await asyncio.gather(*(Correlated.run(number="5") for _ in range(20)))
    assert Counter(map(type, found)) == {Paused: 1, Failure: 19}
    assert await Correlated.runs.resume(correlation_id="req-5", payload="x") == Success("x")


async def looked_at(place: Place) -> int:
    """A sweeper looks at all correlation ids; gives how many are to be looked at again."""
    watched = place.store.space.correlations()
    for key in await place.do("ZRANGE", watched, 0, -1):
        await place.do("ZADD", watched, 1, key)
    assert await place.sweep_elsewhere() == []
    assert await place.do("ZCOUNT", watched, "-inf", 1) == 0
    return int(await place.do("ZCARD", watched))


@pytest.mark.parametrize("end", ["resume", "cancel", "delete"])
async def test_an_id_that_nobody_let_go_of_goes_after_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """As after a crash between the end of the interrupt and the end of its entry."""

    async def died(self: Any) -> None:
        self._answered.clear()

    monkeypatch.setattr(RunCorrelations, "settle", died)
    outcome = await Correlated.run(number="7")
    entry = place.store.space.correlation("pause.Correlated", "req-7")
    assert (await looked_at(place), await place.do("PTTL", entry)) == (1, -1)  # it is open, and stays
    if end == "resume":
        await Correlated.runs.resume(correlation_id="req-7", payload="x")
    else:
        await getattr(runs, end)(outcome.run_id)
    assert await place.do("PTTL", entry) == -1
    assert await looked_at(place) == 0
    assert 0 < await place.do("PTTL", entry) <= 24 * 3_600_000


async def test_an_id_that_was_claimed_by_a_process_that_died_is_let_go_of(place: Place) -> None:
    """It died before the interrupt was open; who goes on fails before it comes to that."""
    durable = place.runtime.durable
    assert durable is not None
    outcome = await Correlated.run(number="6")
    await durable.correlations.claim("pause.Correlated", "req-66", outcome.run_id, "elsewhere")
    assert await looked_at(place) == 2  # its run may be about to open it
    await runs.cancel(outcome.run_id)
    await looked_at(place)
    assert await place.do("ZCARD", place.store.space.correlations()) == 0
    assert await place.do("PTTL", place.store.space.correlation("pause.Correlated", "req-66")) > 0


async def test_inside_a_composed_child_by_its_path(place: Place) -> None:
    outcome = await Journey.run()
    assert isinstance(outcome, Paused)
    assert outcome.interrupts == (OpenInterrupt("trip.approve"),)
    ended = await runs.resume(outcome.run_id, "trip.approve", {"by": "ann"})
    assert isinstance(ended, Success)
    assert ended.results["trip"] == Approval("ann")
    assert ledger == ["do:a", "do:trip.hotel", "do:trip.book", "do:z"]


async def test_a_failure_elsewhere_closes_it(place: Place) -> None:
    class Failing(Two, name="pause.Failing"):
        @step(after=[Two.slow])
        async def bad(self) -> None:
            raise ValueError("bad")

    outcome = await Failing.run()
    assert isinstance(outcome, Failure)
    assert str(outcome.error) == "bad"
    assert ledger == ["do:a", "do:slow", "undo:slow", "undo:a"]
    with pytest.raises(NotResumable, match="is failed"):
        await runs.resume(outcome.run_id, "first", 1)


async def test_it_may_be_undone_while_it_is_paused(place: Place) -> None:
    outcome = await Purchase.run()
    ended = await runs.undo(outcome.run_id)
    assert (ended.status, ledger) == ("cancelled", ["do:submit", "undo:submit"])


async def test_an_answer_whose_reader_fails_is_rolled_back(place: Place) -> None:
    outcome = await Purchase.run()
    behave["ship"] = lambda ctx: (_ for _ in ()).throw(ValueError("no ship"))
    ended = await runs.resume(outcome.run_id, "approve", Approval("ann"))
    assert isinstance(ended, Failure)
    assert ledger == ["do:submit", "pay:ann", "do:ship", "comp:ship", "undo:pay", "undo:submit"]


async def test_hooks_tell_of_it(place: Place) -> None:
    told: list[str] = []

    class Listener:
        def on_interrupt_open(self, event: Any) -> None:
            told.append(f"open {event.path} {event.correlation_id}")

        def on_interrupt_resumed(self, event: Any) -> None:
            told.append(f"resumed {event.path} {event.value}")

        def on_interrupt_expired(self, event: Any) -> None:
            told.append(f"expired {event.path} {event.timeout}")

    async with place.another(middlewares=[Listener()]):
        await Correlated.run(number="3")
        await Correlated.runs.resume(correlation_id="req-3", payload="x")
        outcome = await Defaulting.run()
        await asyncio.sleep(0.4)
        assert await sweep_one(place, outcome.run_id) == Success("nobody")
    assert told == ["open ready req-3", "resumed ready x", "open wait None", "expired wait 0.3"]


async def sweep_one(place: Place, run_id: str) -> Any:
    async with place.another() as other:
        assert other.durable is not None
    from aioreactor.runtime import current_runtime

    durable = current_runtime().durable
    assert durable is not None
    await durable.carry_on(run_id, "job")
    return await ends(run_id)


async def test_they_need_a_store(place: Place) -> None:
    async with Runtime(Settings()):
        with pytest.raises(StoreRequired, match="is an interrupt"):
            await Purchase.run()
    with pytest.raises(StoreRequired, match='durability="none" keeps nothing'):
        await Purchase.with_options(durability="none").run()
    assert ledger == []


# ---------------------------------------------------------------------- timers


class Napping(Reactor, name="pause.Napping"):
    a = noted()
    nap = timer(seconds=0.2, after=[a])
    b = noted([nap])


class Sleeping(Reactor, name="pause.Sleeping"):
    a = noted()
    rest = timer(hours=24, after=[a])
    b = noted([rest])
    returns = b


class Until(Reactor, name="pause.Until"):
    moment: Any
    a = noted()
    rest = timer(until=from_input("moment"), after=[a])
    b = noted([rest])
    returns = b


async def test_a_short_timer_sleeps_in_the_caller(place: Place) -> None:
    outcome = await Napping.run()
    assert isinstance(outcome, Success)
    entries = {str(entry): entry.at for entry in outcome.trace}
    assert entries["run:b"] - entries["success:a"] >= 0.2
    assert ledger == ["do:a", "do:b"]


async def test_a_long_timer_leaves_the_run_until_it_is_due(place: Place) -> None:
    outcome = await Sleeping.run()
    assert isinstance(outcome, Dispatched)
    snapshot = await runs.find(outcome.run_id)
    assert snapshot.status == "running"
    assert snapshot.waits_for.startswith("timer 'rest', due 20")
    row = await place.store.peek(outcome.run_id)
    assert row is not None
    assert 23.9 * 3600_000 < row.due_ms - row.now_ms <= 24 * 3600_000
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(outcome.run_id, "too early")
    assert ledger == ["do:a"]
    ended = await runs.cancel(outcome.run_id)
    assert (ended.status, ledger) == ("cancelled", ["do:a", "undo:a"])


async def test_its_moment_survives_a_crash(place: Place) -> None:
    running = asyncio.create_task(Napping.with_options(run_id=f"{place.prefix}n").run())
    while True:
        record = await place.store.read(f"{place.prefix}n")
        if record is not None and "nap" in record.steps:
            break
        await asyncio.sleep(0.005)
    await place.lapse(f"{place.prefix}n")
    assert await place.sweep_elsewhere() == [f"{place.prefix}n"]
    ended = await ends(f"{place.prefix}n")
    entries = {str(entry): entry.at for entry in ended.trace}
    assert 0.19 <= entries["run:b"] - entries["success:a"] < 5
    await asyncio.gather(running, return_exceptions=True)
    assert ledger == ["do:a", "do:b"]


async def test_until_a_moment_that_an_input_names(place: Place) -> None:
    from datetime import UTC, datetime, timedelta

    past = await Until.run(moment=datetime.now(UTC) - timedelta(hours=1))
    assert past == Success("b")
    odd = await Until.run(moment="tomorrow")
    assert isinstance(odd, Failure)
    assert odd.step == "rest"
    assert ledger == ["do:a", "do:b", "do:a", "undo:a"]


class Both(Reactor, name="pause.Both"):
    a = noted()
    nap = timer(seconds=0.3, after=[a])
    wait = interrupt(str, after=[a])
    b = noted([nap])
    c = noted([wait])
    returns = wait


async def test_a_run_pauses_when_its_timers_are_over(place: Place) -> None:
    outcome = await Both.run()
    assert isinstance(outcome, Paused)
    assert ledger == ["do:a", "do:b"]
    assert await runs.resume(outcome.run_id, payload="x") == Success("x")


async def test_a_worker_parks_a_run_that_has_both_and_an_answer_moves_it(place: Place) -> None:
    class Slow(Both, name="pause.Slow"):
        nap = timer(hours=1, after=[Both.a])

    async with working(place, park_after=0.1):
        handle = await Slow.enqueue()
        while not (await runs.find(handle.run_id)).waits_for.startswith("timer"):
            await asyncio.sleep(0.02)
        answered = await runs.resume(handle.run_id, "wait", "x")
        assert isinstance(answered, Dispatched)  # it is parked again, for the timer
        snapshot = await runs.find(handle.run_id)
        assert (snapshot.results["wait"], snapshot.status) == ("x", "running")
        assert ledger == ["do:a", "do:c"]
        await runs.cancel(handle.run_id)
