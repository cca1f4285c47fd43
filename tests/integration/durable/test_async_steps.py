"""Dispatched steps: what their runs know, how they retry and compensate, and what their readers get."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from aioreactor import (
    Context,
    DefinitionError,
    Dispatched,
    Failure,
    Halt,
    PlanChanged,
    Reactor,
    Redact,
    Resource,
    Retry,
    Skipped,
    Step,
    StoreRequired,
    Success,
    async_reactor,
    async_step,
    compose,
    from_input,
    result,
    runs,
    step,
)
from tests.integration.durable.kit import Place, behave, ledger, noted
from tests.integration.durable.test_background import parked, place, rung, working
from tests.integration.durable.test_units import settled_everywhere

__all__ = ["place"]

seen: list[Any] = []
"""What bodies, compensates and readers were given."""


@pytest.fixture(autouse=True)
def nothing_was_seen() -> None:
    seen.clear()


def acts(key: str, ctx: Context) -> Any:
    ledger.append(f"{key}#{ctx.attempt}")
    return behave[key](ctx) if key in behave else None


class User(Struct):
    id: int
    email: str


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []


class Signup(Reactor[str], name="as.Signup"):
    email: str = "a@b.c"
    token: Annotated[str, Redact] = "tok-secret"

    @step
    async def user(self, email: str) -> User:
        ledger.append("user")
        return User(7, email)

    @user.undo
    async def remove(self, user: User) -> None:
        ledger.append("remove")

    @async_step(retries=Retry(max_attempts=3, base_delay=0.3))
    async def mail(
        self,
        ctx: Context,
        mailer: Annotated[Mailer, Resource],
        token: str,
        user: User,
        to: str = result(user, "email", transform=str.upper),
    ) -> User:
        seen.append((self.email, token, user, to, dict(ctx.results), dict(ctx.inputs), ctx.attempt))
        mailer.sent.append(to)
        found = acts("mail", ctx)
        found = await found if asyncio.iscoroutine(found) else found
        return user if found is None else found

    @mail.compensate
    async def apologise(self, error: BaseException, user: User, to: str, owner: int = result(user, "id")) -> None:
        ledger.append("apologise")
        seen.append((str(error), user, to, owner))

    @step(after=[user])
    async def other(self) -> str:
        ledger.append("other")
        return "other"

    returns = other


class Welcome(Signup, name="as.Welcome"):
    @step
    async def read(self, mail: User | Failure = result(Signup.mail)) -> str:
        ledger.append("read")
        seen.append(mail)
        return type(mail).__name__

    returns = read


def fails(times: int, text: str = "busy") -> Any:
    def act(ctx: Context) -> None:
        if ctx.attempt <= times:
            raise ValueError(text)

    return act


async def unit_of(run_id: str) -> Any:
    [unit] = await runs.list(parent=run_id)
    return await runs.find(unit.run_id)


async def test_its_run_sees_inputs_results_resources_and_typed_arguments(place: Place) -> None:
    mailer = Mailer()
    async with working(place, resources={"mailer": mailer}):
        outcome = await Welcome.run(email="x@y.z")  # the caller has no mailer
    assert outcome == Success("User")
    user = User(7, "x@y.z")
    [(email, token, given, to, results, inputs, attempt), read] = seen
    assert (email, token, given, to, attempt) == ("x@y.z", "tok-secret", user, "X@Y.Z", 1)
    assert inputs == {"email": "x@y.z", "token": "tok-secret"}
    assert results["user"] == user
    assert isinstance(results["mail"], Dispatched)
    assert (read, mailer.sent) == (user, ["X@Y.Z"])
    assert ledger[-2:] == ["mail#1", "read"]
    snapshot = await runs.find(outcome.run_id)
    assert snapshot.results["mail"] == user
    unit = await unit_of(outcome.run_id)
    assert (unit.reactor, unit.parent, unit.status) == ("as.Welcome[mail]", outcome.run_id, "completed")
    assert unit.outcome == Success(user)
    assert (unit.inputs["@to"], unit.inputs["token"], unit.inputs["@path"]) == ("X@Y.Z", "[redacted]", "mail")
    assert [str(entry) for entry in unit.trace] == ["run:mail", "success:mail"]
    assert [run.run_id for run in await runs.list()] == [outcome.run_id]  # it is shown under its parent only
    assert snapshot.children == (unit.run_id,)


async def test_it_retries_by_itself_parks_between_and_nobody_compensates(place: Place) -> None:
    behave["mail"] = fails(2)
    async with working(place, park_after=0.1, resources={"mailer": Mailer()}):
        outcome = await Welcome.run()
    assert outcome == Success("User")
    assert [line for line in ledger if line.startswith("mail")] == ["mail#1", "mail#2", "mail#3"]
    unit = await unit_of(outcome.run_id)
    kinds = [str(entry) for entry in unit.trace.only("run", "retry", "park")]
    assert kinds == ["run:mail", "retry:mail", "park:mail"] * 2 + ["run:mail"]
    assert "apologise" not in ledger


async def test_after_the_last_attempt_it_compensates_once_and_the_reader_gets_the_failure(place: Place) -> None:
    behave["mail"] = fails(3)
    async with working(place, park_after=0.1, resources={"mailer": Mailer()}):
        outcome = await Welcome.run()
    assert outcome == Success("Failure")
    assert ledger.count("apologise") == 1
    assert ledger.index("apologise") > ledger.index("mail#3")
    user = User(7, "a@b.c")
    assert seen[-2] == ("busy", user, "A@B.C", 7)
    failure = seen[-1]
    assert isinstance(failure, Failure)
    assert (failure.error_type, failure.message, failure.step, failure.attempts) == ("ValueError", "busy", "mail", 3)
    assert "remove" not in ledger
    assert isinstance((await runs.find(outcome.run_id)).results["mail"], Failure)


@pytest.mark.parametrize("times", [0, 3])
async def test_nobody_reads_it_and_its_failure_changes_nothing(place: Place, times: int) -> None:
    behave["mail"] = fails(times)
    outcome = await Signup.run()
    assert outcome == Success("other")
    unit = await unit_of(outcome.run_id)
    assert await rung(place) == [[unit.run_id]]
    async with working(place, park_after=0.1, resources={"mailer": Mailer()}):
        await settled_everywhere(place)
    assert ledger.count("apologise") == (1 if times else 0)
    assert (await runs.find(unit.run_id)).status == ("failed" if times else "completed")
    found = await runs.find(outcome.run_id)
    assert (found.status, found.outcome) == ("completed", outcome)


@pytest.mark.parametrize(
    ("given", "read"), [(Skipped(User(1, "s")), User(1, "s")), (Halt("enough"), Halt("enough", "mail"))]
)
async def test_skips_give_their_value_and_a_halt_ends_the_unit_only(place: Place, given: Any, read: Any) -> None:
    behave["mail"] = lambda ctx: given
    async with working(place, resources={"mailer": Mailer()}):
        outcome = await Welcome.run()
    assert isinstance(outcome, Success)
    assert seen[-1] == read
    assert "apologise" not in ledger
    assert (await runs.find(outcome.run_id)).results["mail"] == read


async def test_a_reader_in_a_worker_gets_it_too_and_so_does_one_after_a_crash(place: Place) -> None:
    async with working(place, resources={"mailer": Mailer()}):
        handle = await Welcome.enqueue()
        assert await handle.result(timeout=30) == Success("User")
        assert seen[-1] == User(7, "a@b.c")
        async with place.another(queue=f"{place.prefix}-queue") as other:
            behave["mail"] = lambda ctx: None
            run_id = f"{place.prefix}r"
            reached, go_on = asyncio.Event(), asyncio.Event()

            class Late:
                async def on_unit_finish(self, event: Any) -> None:
                    reached.set()
                    await go_on.wait()

            async with place.another(queue=f"{place.prefix}-queue", middlewares=[Late()]):
                running = asyncio.create_task(Welcome.with_options(run_id=run_id).run())
                await reached.wait()
                await place.lapse(run_id)
                assert await place.sweep_elsewhere() == [run_id]
                go_on.set()
                with pytest.raises(Exception, match="taken over"):
                    await running
            assert other.durable is not None
    assert seen[-1] == User(7, "a@b.c")
    assert ledger.count("mail#1") == 2  # one per run
    found = (await runs.find(run_id)).trace.only("dispatch", "settle")
    assert [str(entry) for entry in found] == ["dispatch:mail", "settle:mail"]


async def test_its_worker_dies_and_another_one_goes_on(place: Place) -> None:
    """The body of the first may have run; it is entered again, with what was stored."""
    outcome = await Signup.run()
    unit = await unit_of(outcome.run_id)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hangs() -> User:
        reached.set()
        await go_on.wait()
        return User(0, "never stored")

    behave["mail"] = lambda ctx: hangs() if not reached.is_set() else None
    async with place.another(resources={"mailer": Mailer()}) as dying:
        assert dying.durable is not None
        carrying = asyncio.create_task(dying.durable.carry_on(unit.run_id, "first"))
        while "mail#1" not in ledger:
            await asyncio.sleep(0.005)
        await place.lapse(unit.run_id)
        assert await place.sweep_elsewhere(resources={"mailer": Mailer()}) == [unit.run_id]
        go_on.set()
        await carrying
    assert (await runs.find(unit.run_id)).outcome == Success(User(7, "a@b.c"))
    assert ledger.count("mail#1") == 2


# ---------------------------------------------------------------------- step classes


class Charge(Step[int], retries=Retry(max_attempts=2, base_delay=0.01)):
    amount: Annotated[int, Meta(ge=1)]
    token: Annotated[str, Redact]
    memo: str = "none"

    def validate(self) -> None:
        if self.amount == 13:
            raise ValueError("not that one")

    async def run(self, ctx: Context) -> int:
        seen.append((self.amount, self.token, self.memo, ctx.path))
        acts("charge", ctx)
        return self.amount

    async def compensate(self, error: BaseException) -> None:
        seen.append(("compensate", self.amount, self.token, str(error)))


class Shop(Reactor[str], name="as.Shop"):
    amount: int = 5

    @step
    async def token(self) -> str:
        return "tok-secret"

    @token.undo
    async def drop(self, token: str) -> None:
        ledger.append("drop")

    charge = Charge.async_step(token=result(token))

    @step
    async def read(self, charge: int | Failure = result(charge)) -> str:
        return str(charge)

    returns = read


async def test_a_step_class_as_a_unit(place: Place) -> None:
    async with working(place):
        assert await Shop.run() == Success("5")
        assert seen == [(5, "tok-secret", "none", "charge")]
        seen.clear()
        behave["charge"] = fails(2, "tok-secret is refused")
        outcome = await Shop.run()
    assert isinstance(outcome, Success)
    assert seen[2:] == [("compensate", 5, "tok-secret", "tok-secret is refused")]
    assert len(seen) == 3
    units = [await runs.find(unit.run_id) for unit in await runs.list(parent=outcome.run_id)]
    assert [(unit.inputs["@token"], unit.inputs["amount"]) for unit in units] == [("[redacted]", 5)]
    assert units[0].outcome is not None
    assert "tok-secret" not in str(units[0].outcome.message)  # type: ignore[union-attr]


@pytest.mark.parametrize("amount", [0, 13])
async def test_arguments_that_every_attempt_would_refuse_fail_the_dispatching_step(place: Place, amount: int) -> None:
    outcome = await Shop.run(amount=amount)
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.error_type) == ("charge", "aioreactor.errors.InputValidationError")
    assert ledger == ["drop"]
    assert await runs.list(parent=outcome.run_id) == ()


# ---------------------------------------------------------------------- rollback, nesting, refusals


class Doomed(Reactor, name="as.Doomed"):
    amount: int = 5
    first = noted()
    bound = Charge.async_step(token=result(first))
    free = Charge.async_step(token=result(first), independent=True)

    @step(after=[first])
    async def last(self) -> None:
        async with asyncio.timeout(30):
            while len(await runs.list(elements=True)) < 3:
                await asyncio.sleep(0.005)
        raise ValueError("too bad")


async def test_a_failed_parent_calls_off_what_is_queued_unless_it_is_independent(place: Place) -> None:
    outcome = await Doomed.run()
    assert isinstance(outcome, Failure)
    assert [str(entry) for entry in outcome.trace.only("undo", "cancel")] == ["undo:first", "cancel:bound"]
    async with working(place):
        await settled_everywhere(place)
    assert [entry[-1] for entry in seen] == ["free"]
    units = {unit.reactor: unit.status for unit in await runs.list(parent=outcome.run_id)}
    assert units == {"as.Doomed[bound]": "cancelled", "as.Doomed[free]": "completed"}


class Inner(Reactor[int], name="as.Inner"):
    amount: int

    @step
    async def token(self) -> str:
        return "inner"

    @async_step
    async def look(self, ctx: Context, token: str) -> int:
        seen.append((ctx.path, token, ctx.results["token"], self.amount, dict(ctx.inputs)))
        return self.amount

    @step
    async def read(self, look: int | Failure = result(look)) -> int:
        assert isinstance(look, int)
        return look

    returns = read


class Nesting(Reactor[int], name="as.Nesting"):
    token: str = "outer"
    inner = compose(Inner, amount=3)
    returns = inner


@pytest.mark.parametrize("where", ["caller", "worker"])
async def test_in_a_composed_child_it_sees_that_childs_inputs_and_results(place: Place, where: str) -> None:
    async with working(place):
        handle = await (Nesting.enqueue() if where == "worker" else Nesting.spawn())
        assert await handle.result(timeout=30) == Success(3)
    assert seen == [("look", "inner", "inner", 3, {"amount": 3})]
    unit = await unit_of(handle.run_id)
    assert (unit.reactor, unit.inputs["@path"]) == ("as.Inner[look]", "inner.look")


async def test_a_unit_outlives_the_record_of_its_parent(place: Place) -> None:
    outcome = await Signup.run()
    unit = await unit_of(outcome.run_id)
    await runs.delete(outcome.run_id)
    async with working(place, resources={"mailer": Mailer()}):
        await settled_everywhere(place)
    assert (await runs.find(unit.run_id)).outcome == Success(User(7, "a@b.c"))
    assert seen[0][4] == {}  # nobody knows its parent's results any more


async def test_a_reader_whose_units_record_is_gone_fails_without_starting(place: Place) -> None:
    async with place.another(queue=f"{place.prefix}-queue") as other:
        assert other.durable is not None
        handle = await Welcome.enqueue()
        await other.durable.carry_on(handle.run_id, "by hand")
        await parked(place, handle.run_id)
        await runs.delete((await unit_of(handle.run_id)).run_id)
        assert [handle.run_id] in await rung(place)
        await other.durable.carry_on(handle.run_id, "by hand")
        outcome = (await runs.find(handle.run_id)).outcome
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.error_type) == ("read", "aioreactor.errors.ArgumentError")
    assert "RunNotFound" in outcome.message
    assert ledger[-1] == "remove"


async def test_a_step_that_is_gone_fails_the_unit_with_the_reason(place: Place) -> None:
    outcome = await Signup.run()
    unit = await unit_of(outcome.run_id)
    await place.do("HSET", place.store.space.run(unit.run_id), "reactor", "as.Signup[gone]")
    async with working(place):
        await settled_everywhere(place)
    ended = (await runs.find(unit.run_id)).outcome
    assert isinstance(ended, Failure)
    assert ended.error_type == "aioreactor.errors.UnknownReactor"
    assert "as.Signup has no async_step, and no map that fans out, 'gone' now" in ended.message


@pytest.mark.parametrize("first", ["step", "async_step"])
async def test_code_that_made_a_step_a_unit_or_back_does_not_fit(place: Place, first: str) -> None:
    """Its record means something else; the run is left for code that fits."""
    kinds: dict[str, Any] = {"step": step, "async_step": async_step}

    async def mail(self: Any) -> int:
        return 1

    async def read(self: Any, mail: Any, ctx: Context) -> int:
        raise ValueError("later")

    def define(kind: str) -> type[Reactor[Any]]:
        again = Retry(2, base_delay=3600)
        body = {"mail": kinds[kind](mail), "read": step(retries=again)(read), "__module__": __name__}
        return type("Kinds", (Reactor,), body, name=f"as.Kinds.{first}")

    run_id = f"{place.prefix}{first}"
    kept = define(first)
    async with working(place):
        await kept.with_options(run_id=run_id).enqueue()
        await parked(place, run_id)
        async with asyncio.timeout(30):
            while "retry:read" not in map(str, (await runs.find(run_id)).trace):
                await asyncio.sleep(0.005)
        await parked(place, run_id)
    changed = define("async_step" if first == "step" else "step")
    await place.do("HSET", place.store.space.run(run_id), "due_ms", 0)
    async with place.another() as other:
        assert other.durable is not None
        with pytest.raises(PlanChanged, match="mail"):
            await other.durable.recover(run_id)
    assert changed is not kept
    for unit in await runs.list(parent=run_id):
        await runs.delete(unit.run_id)
    await runs.delete(run_id)


async def test_what_keeps_nothing_dispatches_nothing(place: Place) -> None:
    with pytest.raises(StoreRequired, match='durability="none" keeps nothing'):
        await Signup.with_options(durability="none").run()
    assert ledger == []


async def test_a_unit_of_main_is_refused_before_anything_runs(place: Place) -> None:
    class Lost(Reactor):
        first = noted()
        mail = Charge.async_step(amount=1, token="t", after=[first])

    Lost.__module__ = "__main__"
    with pytest.raises(DefinitionError, match="it is defined in __main__"):
        await Lost.run()
    assert ledger == []


def test_options_of_units() -> None:
    class Fine(Reactor):
        amount: int
        one = Charge.async_step(token="t", independent=True)
        two = async_reactor(Inner, amount=from_input("amount"), independent=True)

        @async_step(independent=True)
        async def three(self) -> None: ...

        @async_step
        async def four(self) -> None: ...

    found: Mapping[str, bool] = {node.name: node.independent for node in Fine.plan}
    assert found == {"one": True, "two": True, "three": True, "four": False}
    with pytest.raises(DefinitionError, match="there is no option 'independent'"):

        class Wrong(Reactor):
            @step(independent=True)  # type: ignore[call-overload, untyped-decorator]
            async def one(self) -> None: ...
