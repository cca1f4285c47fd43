"""Coordination of reactors and steps that are executed by their caller."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from aioreactor import (
    ArgumentError,
    Context,
    Failure,
    Halt,
    LeaseLost,
    Lock,
    LockUnavailable,
    NotResumable,
    OrderedLock,
    OwnershipLost,
    Period,
    RateLimit,
    RateLimited,
    Reactor,
    Retry,
    Runtime,
    Semaphore,
    Step,
    Success,
    UnknownRateLimit,
    compose,
    map_each,
    runs,
    step,
    value,
)
from aioreactor.coordination import inspect
from tests.integration.durable.kit import Gate, Place, behave, ledger, noted, raises


class Inside:
    """How many bodies are inside, and the most that were."""

    def __init__(self) -> None:
        self.now = self.most = self.entered = 0

    async def __call__(self, ctx: Context) -> None:
        self.now += 1
        self.entered += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0.001)
        self.now -= 1


class Two(Reactor, name="co.Two"):
    """Two steps, side by side, that want the same lock, by different ways to name it."""

    order: int = 7
    left = noted(coordination=[Lock("order:7", wait=20)])

    @step(coordination=[Lock(lambda a: f"order:{a.order}", wait=20)])
    async def right(self, order: int, ctx: Context) -> str:
        ledger.append(f"do:{ctx.path}")
        await behave["right"](ctx)
        return ctx.path


async def in_line(key: str, number: int = 1) -> None:
    """Wait until so many wait for a lock."""
    async with asyncio.timeout(20):
        while (report := (await inspect(key)).lock) is None or len(report.waiters) < number:
            await asyncio.sleep(0.002)


async def held(key: str) -> int:
    report = (await inspect(key)).lock
    return len(report.holders) if report is not None else 0


# ---------------------------------------------------------------------- steps


async def test_two_steps_of_one_run_take_turns(place: Place) -> None:
    inside = Inside()
    behave.update(left=inside, right=inside)
    outcome = await Two.run()
    assert isinstance(outcome, Success), outcome
    assert (inside.most, inside.entered, sorted(ledger)) == (1, 2, ["do:left", "do:right"])
    assert await held("order:7") == 0


async def test_a_step_that_is_refused_never_started(place: Place) -> None:
    class Refused(Reactor, name="co.Refused"):
        a = noted()
        b = noted([a], coordination=[Lock("k")], retries=Retry(max_attempts=5, base_delay=0))

    async with Lock("k"):
        outcome = await Refused.run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LockUnavailable)
    assert (outcome.step, outcome.attempts) == ("b", 0)
    assert ledger == ["do:a", "undo:a"]
    assert isinstance(await Refused.run(), Success)


async def test_a_second_attempt_that_is_refused_has_started_before(place: Place) -> None:
    elsewhere = Lock("k")

    class Again(Reactor, name="co.Again"):
        a = noted(coordination=[Lock("k")], retries=Retry(max_attempts=2, base_delay=0.05))

    taking: list[asyncio.Task[Any]] = []
    release = asyncio.Event()

    async def take_it() -> None:
        async with elsewhere:
            await release.wait()

    async def fails_and_is_robbed(ctx: Context) -> None:
        taking.append(asyncio.create_task(take_when_free(take_it)))
        raise ValueError("first")

    behave["a"] = fails_and_is_robbed
    running = asyncio.create_task(Again.run())
    while not ledger or await held("k") == 0 or "comp:a" not in ledger:
        await asyncio.sleep(0.005)
        if "comp:a" not in ledger and taking and (report := (await inspect("k")).lock) and report.waiters:
            release.set()  # the compensation waits for the lock, as the body would have
    release.set()
    outcome = await running
    await asyncio.gather(*taking)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LockUnavailable)
    assert ledger == ["do:a", "comp:a"]


async def take_when_free(take: Any) -> None:
    while True:
        try:
            await take()
        except LockUnavailable:
            await asyncio.sleep(0.001)
        else:
            return


async def test_a_step_waits_up_to_its_wait(place: Place) -> None:
    class Waits(Reactor, name="co.Waits"):
        a = noted(coordination=[Lock("k", wait=20)])

    async with Lock("k"):
        running = asyncio.create_task(Waits.run())
        await in_line("k")
        assert ledger == []
    assert isinstance(await running, Success)
    assert ledger == ["do:a"]


async def test_a_wait_is_cut_short_when_another_step_fails(place: Place) -> None:
    class Cut(Reactor, name="co.Cut"):
        a = noted(coordination=[Lock("k", wait=600)])
        b = noted()

    gate = Gate()

    async def fails_later(ctx: Context) -> None:
        await gate(ctx)
        raise ValueError("no")

    behave["b"] = fails_later
    async with Lock("k"):
        running = asyncio.create_task(Cut.run())
        await in_line("k")
        gate.open.set()
        outcome = await asyncio.wait_for(running, 20)
    assert isinstance(outcome, Failure)
    assert (outcome.step, ledger) == ("b", ["do:b", "comp:b"])
    assert (await inspect("k")).lock is None


async def test_a_cancelled_caller_leaves_the_line(place: Place) -> None:
    class Left(Reactor, name="co.Left"):
        a = noted()
        b = noted([a], coordination=[Lock("k", wait=600)])

    async with Lock("k"):
        running = asyncio.create_task(Left.run())
        await in_line("k")
        running.cancel("gone")
        with pytest.raises(asyncio.CancelledError, match="gone"):
            await running
    assert ledger == ["do:a", "undo:a"]
    assert (await inspect("k")).lock is None


@pytest.mark.parametrize("key", [lambda a: a.missing, lambda a: "", lambda a: None, lambda a: 7])
async def test_a_key_that_cannot_be_computed_fails_before_the_body(place: Place, key: Any) -> None:
    class Keyless(Reactor, name="co.Keyless"):
        a = noted()
        b = noted([a], coordination=[Lock(key)])

    outcome = await Keyless.run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, ArgumentError)
    assert (outcome.step, outcome.attempts, ledger) == ("b", 0, ["do:a", "undo:a"])


class Charge(Step[str], coordination=[Lock(lambda a: f"acct:{a.account}"), RateLimit("charges", 2, 1000)]):
    account: str

    async def run(self) -> str:
        report = (await inspect(f"acct:{self.account}")).lock
        return f"{len(report.holders) if report else 0} holds acct:{self.account}"


async def test_a_step_class_has_its_keys_from_its_fields(place: Place) -> None:
    class Pays(Reactor[str], name="co.Pays"):
        account: str
        charge = Charge.step()
        returns = charge

    assert await Pays.run(account="x") == Success("1 holds acct:x")
    assert await Charge.once(account="y") == "1 holds acct:y"
    with pytest.raises(RateLimited):
        await Charge.once(account="y")
    outcome = await Pays.run(account="x")
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, RateLimited)
    assert await held("acct:x") == await held("acct:y") == 0


async def test_once_is_refused_and_gives_back(place: Place) -> None:
    free = asyncio.Event()

    async def hold() -> None:
        async with Lock("acct:z"):
            await free.wait()

    holding = asyncio.create_task(hold())
    while not await held("acct:z"):
        await asyncio.sleep(0.001)
    with pytest.raises(LockUnavailable):
        await Charge.once(account="z")
    free.set()
    await holding
    async with Lock("acct:z"):  # what is called inside a hold is inside of it
        assert await Charge.once(account="z") == "1 holds acct:z"
    assert await Charge.once(account="z") == "1 holds acct:z"
    assert await held("acct:z") == 0


async def test_a_lost_hold_fails_the_attempt_which_is_tried_again(place: Place) -> None:
    class Robbed(Reactor, name="co.Robbed"):
        a = noted(coordination=[Lock("k", ttl=1)], retries=Retry(max_attempts=2, base_delay=0))

    attempts: list[int] = []

    async def is_robbed(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            from aioreactor.coordination import force_release

            assert len(await force_release("k")) == 1
            await asyncio.sleep(20)

    behave["a"] = is_robbed
    outcome = await asyncio.wait_for(Robbed.run(), 15)
    assert isinstance(outcome, Success), outcome
    assert attempts == [1, 2]
    assert [entry.detail.split(":")[0] for entry in outcome.trace.only("failure")] == ["aioreactor.errors.LeaseLost"]


async def test_a_lost_hold_compensates(place: Place) -> None:
    class Robbed(Reactor, name="co.RobbedOnce"):
        a = noted(coordination=[Lock("k", ttl=1)])

    async def is_robbed(ctx: Context) -> None:
        from aioreactor.coordination import force_release

        await force_release("k")
        await asyncio.sleep(20)

    behave["a"] = is_robbed
    outcome = await asyncio.wait_for(Robbed.run(), 15)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LeaseLost)
    assert ledger == ["do:a", "comp:a"]


async def test_a_period_skips_a_step_and_is_marked_by_success_only(place: Place) -> None:
    class Daily(Reactor, name="co.Daily"):
        a = noted(coordination=[Period("report", every="year"), Lock("report", wait=20)])
        b = noted([a])

    behave["a"] = raises(ValueError("no"))
    assert isinstance(await Daily.run(), Failure)
    behave.clear()
    outcomes = await asyncio.gather(*(Daily.run() for _ in range(20)))
    assert all(isinstance(each, Success) for each in outcomes), outcomes
    assert ledger.count("do:a") == 2
    assert ledger.count("do:b") == 20
    skipped = [each for each in outcomes if each.results["a"] is None]
    assert len(skipped) == 19
    assert [str(entry) for entry in skipped[0].trace.only("skip", "run")] == ["skip:a", "run:b"]


async def test_a_semaphore_lets_so_many_in(place: Place) -> None:
    class Geo(Reactor, name="co.Geo"):
        a = noted(coordination=[Semaphore("geo", limit=2, wait=30)])

    inside = Inside()
    behave["a"] = inside
    outcomes = await asyncio.gather(*(Geo.run() for _ in range(12)))
    assert all(isinstance(each, Success) for each in outcomes)
    assert (inside.most, inside.entered) == (2, 12)


async def test_a_body_may_enter_again_what_its_step_holds_and_nobody_elses(place: Place) -> None:
    class Enters(Reactor, name="co.Enters"):
        a = noted(coordination=[Lock("k")])
        b = noted()

    async def again(ctx: Context) -> None:
        async with Lock("k"):
            assert await held("k") == 1

    refused: list[type] = []

    async def rival(ctx: Context) -> None:
        while await held("k") == 0:
            await asyncio.sleep(0.001)
        try:
            async with Lock("k"):
                pass
        except LockUnavailable:
            refused.append(LockUnavailable)

    gate = asyncio.Event()

    async def long(ctx: Context) -> None:
        await again(ctx)
        await gate.wait()

    behave["a"] = long

    async def rival_then_open(ctx: Context) -> None:
        await rival(ctx)
        gate.set()

    behave["b"] = rival_then_open
    assert isinstance(await Enters.run(), Success)
    assert refused == [LockUnavailable]


async def test_a_run_is_another_owner_than_the_code_that_starts_it(place: Place) -> None:
    class Other(Reactor, name="co.Other"):
        a = noted(coordination=[Lock("k")])

    async with Lock("k"):
        for outcome in (await Other.run(), await Other.with_options(durability="none").run()):
            assert isinstance(outcome, Failure)
            assert isinstance(outcome.error, LockUnavailable)


# ---------------------------------------------------------------------- reactors


class Refund(Reactor[str], name="co.Refund", coordination=[Lock(lambda i: f"order:{i.order}")]):
    order: int
    a = noted()
    b = noted([a])
    returns = b


@pytest.mark.parametrize("durability", ["step", "none"])
async def test_a_reactor_holds_its_lock_from_the_first_to_the_last(place: Place, durability: Any) -> None:
    seen: list[int] = []

    async def look(ctx: Context) -> None:
        seen.append(await held("order:1"))

    async def look_and_fail(ctx: Context) -> None:
        await look(ctx)
        raise ValueError("no")

    behave.update({"a": look, "b": look_and_fail, "undo:a": look, "comp:b": look})
    outcome = await Refund.with_options(durability=durability).run(order=1)
    assert isinstance(outcome, Failure)
    assert outcome.rollback_failures == []
    assert (ledger, seen) == (["do:a", "do:b", "comp:b", "undo:a"], [1, 1, 1, 1])
    assert await held("order:1") == 0


@pytest.mark.parametrize("durability", ["step", "none"])
async def test_a_reactor_that_is_refused_raises_and_leaves_no_run(place: Place, durability: Any) -> None:
    async with Lock("order:2"):
        with pytest.raises(LockUnavailable, match="order:2"):
            await Refund.with_options(durability=durability, idempotency_key=None).run(order=2)
    assert (ledger, await runs.list()) == ([], ())
    assert await Refund.with_options(durability=durability).run(order=2) == Success("b")


async def test_steps_of_a_run_take_turns_in_what_their_reactor_holds(place: Place) -> None:
    class Holds(Reactor, name="co.Holds", coordination=[Lock("k")]):
        left = noted(coordination=[Lock("k", wait=20)])
        right = noted(coordination=[Lock("k", wait=20)])
        free = noted()

    inside = Inside()
    behave.update(left=inside, right=inside)
    outcome = await Holds.run()
    assert isinstance(outcome, Success), outcome
    assert (inside.most, inside.entered) == (1, 2)
    assert await held("k") == 0


async def test_a_hundred_starters_and_one_success_in_a_period(place: Place) -> None:
    class Nightly(Reactor, name="co.Nightly", coordination=[Period("n", every="year"), Lock("n", wait=60)]):
        a = noted()

    failures = 2

    def fails_twice(ctx: Context) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("no")

    behave["a"] = fails_twice
    outcomes = await asyncio.gather(*(Nightly.run() for _ in range(100)))
    kinds = [type(each) for each in outcomes]
    assert [kinds.count(kind) for kind in (Failure, Success, Halt)] == [2, 1, 97]
    assert {each.reason for each in outcomes if isinstance(each, Halt)} == {"period"}
    assert ledger.count("do:a") == 3
    assert {each.status for each in outcomes if isinstance(each, Halt)} == {"halted"}


async def test_a_reactor_whose_lock_is_lost_fails_and_rolls_back_under_it(place: Place) -> None:
    class Robbed(Reactor, name="co.RobbedRun", coordination=[Lock("k", ttl=1, rollback_wait=10)]):
        a = noted()
        b = noted([a])

    async def is_robbed(ctx: Context) -> None:
        from aioreactor.coordination import force_release

        await force_release("k")
        await asyncio.sleep(20)

    seen: list[int] = []

    async def look(ctx: Context) -> None:
        seen.append(await held("k"))

    behave.update({"b": is_robbed, "undo:a": look, "comp:b": look})
    outcome = await asyncio.wait_for(Robbed.run(), 15)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LeaseLost)
    assert outcome.rollback_failures == []
    assert (ledger, seen) == (["do:a", "do:b", "comp:b", "undo:a"], [1, 1])
    assert await held("k") == 0


async def test_a_caller_cancelled_at_the_gates_leaves_a_cancelled_run(place: Place) -> None:
    class Patient(Reactor, name="co.Patient", coordination=[Lock("k", wait=600)]):
        a = noted()

    async with Lock("k"):
        running = asyncio.create_task(Patient.with_options(run_id=f"{place.prefix}p").run())
        await in_line("k")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ((await runs.find(f"{place.prefix}p")).status, ledger) == ("cancelled", [])
    assert (await inspect("k")).lock is None


async def test_a_reactor_whose_key_cannot_be_computed_fails(place: Place) -> None:
    class Keyless(Reactor, name="co.KeylessRun", coordination=[Lock(lambda i: i.nothing)]):
        a = noted()

    outcome = await Keyless.run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, ArgumentError)
    assert (outcome.status, ledger) == ("failed", [])


# ---------------------------------------------------------------------- rollback


class Guarded(Reactor, name="co.Guarded"):
    order: int = 1
    a = noted(coordination=[Lock("k", ttl=1, rollback_wait=0)])
    b = noted([a])


async def test_an_undo_runs_under_the_lock_of_its_body(place: Place) -> None:
    seen: list[int] = []

    async def look(ctx: Context) -> None:
        seen.append(await held("k"))

    behave.update({"a": look, "b": raises(ValueError("no")), "undo:a": look, "comp:b": look})
    outcome = await Guarded.run()
    assert isinstance(outcome, Failure)
    assert (ledger, seen) == (["do:a", "do:b", "comp:b", "undo:a"], [1, 0, 1])


async def test_an_undo_that_cannot_have_its_lock_stays_owed(place: Place) -> None:
    behave["b"] = raises(ValueError("no"))
    gate = Gate()

    async def robbed(ctx: Context) -> None:
        await gate(ctx)
        raise ValueError("no")

    behave["b"] = robbed
    running = asyncio.create_task(Guarded.with_options(run_id=f"{place.prefix}g").run())
    await gate.reached.wait()
    async with Lock("k"):
        gate.open.set()
        outcome = await running
        assert isinstance(outcome, Failure)
        [left] = outcome.rollback_failures
        assert (left.step, left.kind, left.reason, left.key) == ("a", "undo", "coordination_unavailable", "k")
        assert ledger == ["do:a", "do:b", "comp:b"]
        again = await runs.undo(outcome.run_id)
        assert isinstance(again, Failure)
        assert [each.reason for each in again.rollback_failures] == ["coordination_unavailable"]
    undone = await runs.undo(outcome.run_id)
    assert isinstance(undone, Failure)
    assert (undone.status, undone.rollback_failures) == ("cancelled", [])
    assert ledger == ["do:a", "do:b", "comp:b", "undo:a"]


async def test_an_undo_waits_for_its_lock(place: Place) -> None:
    class Waits(Reactor, name="co.UndoWaits"):
        a = noted(coordination=[Lock(lambda x: f"of:{x.ctx.path}", rollback_wait=30)])
        b = noted([a])

    gate = Gate()

    async def fails(ctx: Context) -> None:
        await gate(ctx)
        raise ValueError("no")

    behave["b"] = fails
    running = asyncio.create_task(Waits.run())
    await gate.reached.wait()
    async with Lock("of:a"):
        gate.open.set()
        await in_line("of:a")
        assert "undo:a" not in ledger
    outcome = await running
    assert isinstance(outcome, Failure)
    assert (outcome.rollback_failures, ledger[-1]) == ([], "undo:a")


async def test_runs_undo_takes_what_the_reactor_held(place: Place) -> None:
    class Held(Reactor, name="co.Held", coordination=[Lock("k", ttl=1, rollback_wait=0)]):
        a = noted()

    seen: list[int] = []

    async def look(ctx: Context) -> None:
        seen.append(await held("k"))

    behave["undo:a"] = look
    done = await Held.run()
    async with Lock("k"):
        with pytest.raises(NotResumable, match="lock 'k' is held"):
            await runs.undo(done.run_id)
        assert (await runs.find(done.run_id)).status == "completed"
    await runs.undo(done.run_id)
    assert (ledger, seen) == (["do:a", "undo:a"], [1])
    assert ((await runs.find(done.run_id)).status, await held("k")) == ("cancelled", 0)


# ---------------------------------------------------------------------- hooks


async def test_hooks_are_told_of_holds(place: Place) -> None:
    told: list[tuple[str, str, str, str]] = []

    class Listens:
        def on_event(self, event: Any) -> None:
            if hasattr(event, "kind") and hasattr(event, "key"):
                told.append((type(event).__name__, event.path, event.kind, event.key))

    class Heard(Reactor, name="co.Heard", coordination=[Lock("outer")], middlewares=[Listens()]):
        a = noted(coordination=[Lock("inner", wait=30)])

    async with Lock("inner"):
        running = asyncio.create_task(Heard.run())
        await in_line("inner")
    assert isinstance(await running, Success)
    assert told == [
        ("HoldAcquired", "", "lock", "outer"),
        ("HoldContended", "a", "lock", "inner"),
        ("HoldAcquired", "a", "lock", "inner"),
        ("HoldReleased", "a", "lock", "inner"),
        ("HoldReleased", "", "lock", "outer"),
    ]


# ---------------------------------------------------------------------- nested reactors


class Leg(Reactor[str], name="co.Leg", coordination=[Lock(lambda i: f"leg:{i.n}", ttl=1, rollback_wait=10)]):
    n: int = 0
    l1 = noted()
    l2 = noted([l1])
    returns = l2


async def test_a_composed_child_holds_its_own_until_it_has_completed(place: Place) -> None:
    class Trip(Reactor, name="co.Trip"):
        leg = compose(Leg)
        after_it = noted([leg], coordination=[Lock("leg:0")])
        fails = noted([after_it])

    seen: list[tuple[str, int]] = []

    async def look(ctx: Context) -> None:
        seen.append((ctx.path, await held("leg:0")))

    async def fail(ctx: Context) -> None:
        await look(ctx)
        raise ValueError("no")

    behave.update({"leg.l1": look, "leg.l2": look, "after_it": look, "fails": fail})
    behave.update({"undo:after_it": look, "undo:leg.l2": look, "undo:leg.l1": look})
    outcome = await Trip.run()
    assert isinstance(outcome, Failure)
    assert outcome.rollback_failures == []
    assert seen == [
        ("leg.l1", 1),
        ("leg.l2", 1),
        ("after_it", 1),
        ("fails", 0),
        ("after_it", 1),
        ("leg.l2", 1),
        ("leg.l1", 1),
    ]
    assert await held("leg:0") == 0


async def test_a_child_that_failed_rolls_back_under_its_hold_and_gives_it_back(place: Place) -> None:
    class Trip(Reactor, name="co.TripFails"):
        leg = compose(Leg)

    seen: list[tuple[str, int]] = []

    async def look(ctx: Context) -> None:
        seen.append((ctx.path, await held("leg:0")))

    behave.update({"leg.l2": raises(ValueError("no")), "undo:leg.l1": look, "comp:leg.l2": look})
    outcome = await Trip.run()
    assert isinstance(outcome, Failure)
    assert (outcome.step, seen) == ("leg.l2", [("leg.l2", 1), ("leg.l1", 1)])
    assert await held("leg:0") == 0


async def test_a_child_enters_what_its_parent_holds_and_two_children_take_turns(place: Place) -> None:
    class Both(Reactor, name="co.Both", coordination=[Lock("leg:0")]):
        one = compose(Leg, coordination=[Lock("leg:0", wait=20)])
        two = compose(Leg, coordination=[Lock("leg:0", wait=20)])

    order: list[str] = []

    async def note_it(ctx: Context) -> None:
        assert await held("leg:0") == 1
        order.append(ctx.path)
        await asyncio.sleep(0.005)

    behave.update({f"{child}.{leg}": note_it for child in ("one", "two") for leg in ("l1", "l2")})
    outcome = await Both.run()
    assert isinstance(outcome, Success), outcome
    assert order in (["one.l1", "one.l2", "two.l1", "two.l2"], ["two.l1", "two.l2", "one.l1", "one.l2"])


async def test_a_child_that_is_refused_never_started(place: Place) -> None:
    class Trip(Reactor, name="co.TripRefused"):
        first = noted()
        leg = compose(Leg, after=[first])

    async with Lock("leg:0"):
        outcome = await Trip.run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LockUnavailable)
    assert (outcome.step, ledger) == ("leg", ["do:first", "undo:first"])


async def test_elements_hold_their_own(place: Place) -> None:
    class Legs(Reactor, name="co.Legs"):
        m = map_each(Leg, over=value([1, 2, 1, 3]), item="n", coordination=[Lock(lambda i: f"leg:{i.n}", wait=20)])

    seen: Counter[int] = Counter()
    now: Counter[int] = Counter()

    async def inside(ctx: Context) -> None:
        number = ctx.inputs["n"]
        assert await held(f"leg:{number}") == 1
        now[number] += 1
        seen[number] = max(seen[number], now[number])
        await asyncio.sleep(0.005)

    async def last(ctx: Context) -> None:
        now[ctx.inputs["n"]] -= 1

    for index in range(4):
        behave[f"m[{index}].l1"], behave[f"m[{index}].l2"] = inside, last
    outcome = await Legs.run()
    assert isinstance(outcome, Success), outcome
    assert (seen, len(ledger)) == (Counter({1: 1, 2: 1, 3: 1}), 8)
    assert [await held(f"leg:{n}") for n in (1, 2, 3)] == [0, 0, 0]


async def test_elements_that_are_steps_take_turns(place: Place) -> None:
    inside = Inside()

    class Each(Reactor, name="co.Each"):
        @map_each(over=value([1, 2, 3, 4]), coordination=[Lock("one at a time", wait=20)])
        async def each(self, item: int, ctx: Context) -> None:
            await inside(ctx)

    assert isinstance(await Each.run(), Success)
    assert (inside.most, inside.entered) == (1, 4)


async def test_an_element_that_is_refused_fails_its_map(place: Place) -> None:
    class Legs(Reactor, name="co.LegsRefused"):
        m = map_each(Leg, over=value([1, 2]), item="n", concurrency=1)

    async with Lock("leg:2"):
        outcome = await Legs.run()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LockUnavailable)
    assert [line for line in ledger if line.startswith("undo")] == ["undo:m[0].l2", "undo:m[0].l1"]


# ---------------------------------------------------------------------- ends that nobody wished for


async def test_a_holder_that_died_is_waited_out(place: Place) -> None:
    class Waits(Reactor, name="co.AfterDeath"):
        a = noted(coordination=[Lock("k", ttl=1, wait=20)])

    dying = Runtime(place.settings())
    await dying.coordinator().enter(Lock("k", ttl=1))
    await dying.aclose()  # nothing renews its lease any more
    assert await held("k") == 1
    assert isinstance(await asyncio.wait_for(Waits.run(), 15), Success)
    assert ledger == ["do:a"]


async def test_a_name_without_limits_is_refused_before_anything(place: Place) -> None:
    class Named(Reactor, name="co.Named"):
        a = noted()
        b = noted([a], coordination=[RateLimit("stripe")])

    with pytest.raises(UnknownRateLimit):
        await Named.run()
    assert (ledger, await runs.list()) == ([], ())
    async with place.another(rate_limits={"stripe": {"second": 100}}):
        assert isinstance(await Named.run(), Success)


async def test_a_run_that_loses_its_store_leaves_its_lock_to_who_goes_on(place: Place) -> None:
    """Another execution takes the run: the first one stops, and gives nothing back that is the other's now."""
    gate = Gate()
    behave["b"] = gate
    run_id = f"{place.prefix}l"
    running = asyncio.create_task(Refund.with_options(run_id=run_id).run(order=5))
    await gate.reached.wait()
    await place.lapse(run_id)
    second = Gate()
    behave["b"] = second
    sweeping = asyncio.create_task(place.sweep_elsewhere())
    await second.reached.wait()
    gate.open.set()
    with pytest.raises(OwnershipLost):
        await running
    assert await held("order:5") == 1
    second.open.set()
    assert await sweeping == [run_id]
    assert ledger == ["do:a", "do:b", "do:b"]
    assert await held("order:5") == 0


async def test_a_run_that_succeeded_has_marked_its_period_when_others_can_know(place: Place) -> None:
    class Monthly(Reactor, name="co.Monthly", coordination=[Period("m", every="year")]):
        a = noted()

    calls: list[str] = []

    class Spy:
        def before_send(self, call: Any) -> None:
            calls.append(call.name)

        def after_reply(self, call: Any, reply: Any) -> None: ...

    async with place.another(hook=Spy()):
        assert isinstance(await Monthly.run(), Success)
    wanted = [name for name in calls if name in {"period_check", "period_mark", "run_close"}]
    assert wanted == ["period_check", "period_mark", "run_close"]


async def test_on_a_nested_use_turns_are_ignored_with_a_warning(place: Place) -> None:
    class Inner(Reactor, name="co.InTurn", coordination=[OrderedLock("line")]):
        i1 = noted()

    with pytest.warns(UserWarning, match="its OrderedLock is ignored here"):

        class Outer(Reactor, name="co.OuterTurn", coordination=[OrderedLock("line")]):
            inner = compose(Inner)
            own = noted([inner], coordination=[OrderedLock("line")])

    assert isinstance(await Outer.run(), Success)
    assert ledger == ["do:inner.i1", "do:own"]
    assert await OrderedLock.peek("line") is None
