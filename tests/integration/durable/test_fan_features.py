"""What elements of a map that fans out can do: everything that inline ones can, with the same effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from aioreactor import (
    Context,
    Lock,
    MapResults,
    Page,
    Reactor,
    Redact,
    Resource,
    Retry,
    Semaphore,
    Step,
    Success,
    async_reactor,
    from_input,
    interrupt,
    map_each,
    result,
    runs,
    step,
    timer,
    value,
)
from tests.integration.durable.fan_kit import (
    ONE,
    WIDE,
    act,
    assert_nothing_is_left,
    behave,
    compare_lines,
    compared,
    differences,
    fails_until,
    hands,
    ledger,
    noted,
    place_of,
    raises,
    twins,
    until_ended,
    whole,
)
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def clean(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    ledger.clear()
    behave.clear()
    yield
    ledger.clear()
    behave.clear()
    assert [record.getMessage() for record in caplog.records if "carry_failed" in record.getMessage()] == []


BOTH = pytest.mark.parametrize("options", [ONE, WIDE], ids=["one", "wide"])


class Leg(Reactor[str], name="ff.Leg"):
    n: int
    e1 = noted()
    e2 = noted([e1])
    returns = e2


# ---------------------------------------------------------------------- values


def summing(name: str, **options: Any) -> Any:
    class Summing(Reactor[int], name=name):
        items: list[int]

        @map_each(over=from_input("items"), **options)
        async def m(self, n: int, ctx: Context) -> int:
            await act("do", ctx)
            return n * n

        @m.undo
        async def undo_m(self, result: int, n: int, ctx: Context) -> None:
            assert result == n * n
            await act("undo", ctx)

        @m.collect
        async def total(self, results: MapResults[int]) -> int:
            if "collect" in behave:
                raise ValueError("no total")
            return sum(results.values()) + 1000 * len(results)

        @step
        async def z(self, ctx: Context, total: Any = result(m)) -> Any:
            await act("do", ctx)
            return total

        returns = z

    return Summing


@BOTH
@pytest.mark.parametrize("fails", ["", "collect", "z"])
async def test_collected(place: Place, options: Any, fails: str) -> None:
    if fails:
        behave[fails] = raises(ValueError(fails))
    outcome, _ = await compared(place, summing, options, items=[1, 2, 3])
    assert outcome.status == ("failed" if fails else "completed")
    if not fails:
        assert outcome.value == 3014


@BOTH
async def test_an_empty_source(place: Place, options: Any) -> None:
    outcome, lines = await compared(place, summing, options, items=[])
    assert (outcome.value, lines) == (0, ["do:z"])


@pytest.mark.parametrize("fails", ["", "z", "m[1]"])
@pytest.mark.parametrize("bad", [False, True])
async def test_all_undone_together(place: Place, fails: str, bad: bool) -> None:
    def build(name: str, **options: Any) -> Any:
        class Together(Reactor, name=name):
            a = noted()

            @map_each(over=value([5, 6, 7]), after=[a], **options)
            async def m(self, n: int, ctx: Context) -> int:
                await act("do", ctx)
                return n * 10

            @m.compensate
            async def comp(self, ctx: Context, error: BaseException) -> None:
                await act("comp", ctx)

            @m.undo_all
            async def back(self, results: AsyncIterator[int]) -> None:
                ledger.append(f"all:{[each async for each in results]}")
                if bad:
                    raise OSError("not all")

            z = noted([m])

        return Together

    if fails:
        behave[fails] = raises(ValueError(fails))
    outcome, lines = await compared(place, build, ONE)
    assert ("all:[50, 60, 70]" in lines, "all:[50]" in lines) == (fails == "z", fails == "m[1]")
    if fails:
        assert [entry.kind for entry in outcome.rollback_failures] == ["undo_all"] * bad


class Order(Struct):
    number: int
    cents: int


@BOTH
async def test_typed_items_and_results_survive(place: Place, options: Any) -> None:
    def build(name: str, **more: Any) -> Any:
        class Typed(Reactor[list[Any]], name=name):
            @step
            async def load(self) -> list[Order]:
                return [Order(n, 100 * n) for n in range(3)]

            @map_each(over=result(load), **more)
            async def m(self, order: Order, base: int = value(7)) -> Order:
                return Order(order.number + base, order.cents)

            @step
            async def z(self, m: MapResults[Order]) -> list[Any]:
                return [type(each).__name__ for each in m.values()] + [each.number for each in m.values()]

            returns = z

        return Typed

    outcome, _ = await compared(place, build, options)
    assert outcome.value == ["Order", "Order", "Order", 7, 8, 9]


@BOTH
@pytest.mark.parametrize("count", [0, 1, 7, 20])
async def test_pages(place: Place, options: Any, count: int) -> None:
    def build(name: str, **more: Any) -> Any:
        async def pages(self: Any, cursor: int | None, limit: int) -> Page[int]:
            first = cursor or 0
            last = min(first + 3, count)
            return Page(list(range(first, last)), last if last < count else None)

        class Paged(Reactor, name=name):
            a = noted()

            @map_each(over=pages, after=[a], **more)
            async def m(self, n: int, ctx: Context) -> int:
                await act("do", ctx)
                return n

            @m.undo
            async def undo_m(self, result: int, ctx: Context) -> None:
                await act("undo", ctx)

            z = noted([m])

        return Paged

    behave["z"] = raises(ValueError("z"))
    outcome, lines = await compared(place, build, options, park_after=0.0)
    assert len([line for line in lines if line.startswith("undo:m")]) == count
    assert outcome.results["m"].succeeded == count


async def test_a_page_source_that_raises_on_the_way(place: Place) -> None:
    def build(name: str, **more: Any) -> Any:
        async def pages(self: Any, cursor: int | None, limit: int) -> Page[int]:
            if cursor == 4:
                raise OSError("no page")
            return Page([1, 2], (cursor or 0) + 2)

        class Paged(Reactor, name=name):
            a = noted()
            m = map_each(Leg, over=pages, item="n", after=[a], **more)

        return Paged

    outcome, _ = await compared(place, build, ONE)
    assert outcome.error_type.endswith("ArgumentError")


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("kind", ["reactor", "step class", "method"])
async def test_elements_whose_inputs_are_refused(place: Place, kind: str, atomic: bool) -> None:
    class Small(Reactor, name=f"ff.Small{atomic}{kind}"):
        n: Annotated[int, Meta(le=20)]
        e1 = noted()

        def validate(self) -> None:
            if self.n == 15:
                raise ValueError("fifteen")

    class SmallStep(Step[int]):
        n: Annotated[int, Meta(le=20)]

        def validate(self) -> None:
            if self.n == 15:
                raise ValueError("fifteen")

        async def run(self, ctx: Context) -> int:
            await act("do", ctx)
            return self.n

    targets: dict[str, Any] = {"reactor": Small, "step class": SmallStep}

    def build(name: str, **more: Any) -> Any:
        class Refusing(Reactor, name=name):
            items: list[int]
            a = noted()
            if kind == "method":

                @map_each(over=from_input("items"), atomic=atomic, after=[a], **more)
                async def m(self, n: Annotated[int, Meta(le=20)], ctx: Context) -> int:
                    await act("do", ctx)
                    if n == 15:
                        raise ValueError("fifteen")
                    return n
            else:
                m = map_each(targets[kind], over=from_input("items"), item="n", atomic=atomic, after=[a], **more)
            z = noted([m])

        return Refusing

    await compared(place, build, ONE, items=[10, 30, 12])
    await compared(place, build, ONE, items=[10, 15, 12])


# ---------------------------------------------------------------------- what surrounds an element


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_resources_context_and_results_of_the_run_around(place: Place) -> None:
    def build(name: str, **more: Any) -> Any:
        class Around(Reactor[list[Any]], name=name):
            who: str

            @step
            async def a(self) -> int:
                return 41

            @map_each(over=value([1, 2]), after=[a], **more)
            async def m(
                self, n: int, ctx: Context, pool: Annotated[Pool, Resource], seen: int = result(a)
            ) -> list[Any]:
                return [n, seen, dict(ctx.results), dict(ctx.inputs), pool.name, self.who]

            @m.undo
            async def undo_m(self, ctx: Context, pool: Annotated[Pool, Resource], seen: int = result(a)) -> None:
                around = [ctx.results["a"], *ctx.results["m"].values()[0][:2], dict(ctx.inputs), pool.name, self.who]
                ledger.append(f"undo:{place_of(ctx)} {seen} {around}")

            @step
            async def z(self, m: MapResults[list[Any]]) -> list[Any]:
                if "z" in behave:
                    raise ValueError("z")
                return [*m.values()]

            returns = z

        return Around

    outcome, _ = await compared(place, build, ONE, resources={"pool": Pool("p")}, who="me")
    assert outcome.value == [[n, 41, {"a": 41}, {"who": "me"}, "p", "me"] for n in (1, 2)]
    behave["z"] = raises(ValueError("z"))
    _, lines = await compared(place, build, ONE, resources={"pool": Pool("p")}, who="me")
    assert len(lines) == 2


async def test_an_undo_alone_that_asks_for_the_results_around(place: Place) -> None:
    def build(name: str, **more: Any) -> Any:
        class Around(Reactor, name=name):
            a = noted()

            @map_each(over=value([1, 2]), after=[a], **more)
            async def m(self, n: int) -> int:
                return n

            @m.undo
            async def undo_m(self, n: int, ctx: Context) -> None:
                ledger.append(f"undo {n} {ctx.results.get('a')}")

            z = noted([m])

        return Around

    behave["z"] = raises(ValueError("z"))
    _, lines = await compared(place, build, ONE)
    assert lines[-3:] == ["undo 2 a", "undo 1 a", "undo:a"]


@pytest.mark.parametrize("options", [ONE, WIDE], ids=["one", "wide"])
async def test_a_lock_on_elements(place: Place, options: Any) -> None:
    inside: list[str] = []

    def enters(ctx: Context) -> Any:
        async def stay() -> None:
            assert inside == []
            inside.append(place_of(ctx))
            for _ in range(5):
                await asyncio.sleep(0)
            inside.remove(place_of(ctx))

        return stay()

    class Locked(Reactor, name=f"ff.Locked{id(options)}", coordination=[Lock("one at a time", ttl=5, wait=10)]):
        n: int
        e1 = noted()
        e2 = noted([e1])

    def build(name: str, **more: Any) -> Any:
        class Locking(Reactor, name=name):
            a = noted()
            m = map_each(Locked, over=value([1, 2, 3]), item="n", after=[a], **more)
            z = noted([m])

        return Locking

    behave.update({f"m[{i}].{e}": enters for i in range(3) for e in ("e1", "e2")})
    behave["z"] = raises(ValueError("z"))
    await compared(place, build, options)


@pytest.mark.parametrize("options", [ONE, WIDE], ids=["one", "wide"])
async def test_a_lock_that_the_map_gives_its_elements(place: Place, options: Any) -> None:
    inside: list[str] = []
    most = [0]

    def enters(ctx: Context) -> Any:
        async def stay() -> None:
            inside.append(place_of(ctx))
            most[0] = max(most[0], len(inside))
            for _ in range(5):
                await asyncio.sleep(0)
            inside.remove(place_of(ctx))

        return stay()

    def build(name: str, **more: Any) -> Any:
        class Locking(Reactor, name=name):
            a = noted()
            m = map_each(
                Leg, over=value([1, 2, 3]), item="n", after=[a], coordination=[Lock("given", ttl=5, wait=10)], **more
            )

        return Locking

    behave.update({f"m[{i}].{e}": enters for i in range(3) for e in ("e1", "e2")})
    await compared(place, build, options)
    assert most == [1]


async def test_a_semaphore_on_the_method(place: Place) -> None:
    inside, most = [0], [0]

    async def stay(ctx: Context) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        for _ in range(5):
            await asyncio.sleep(0)
        inside[0] -= 1

    def build(name: str, **more: Any) -> Any:
        class Few(Reactor, name=name):
            @map_each(over=value(list(range(6))), coordination=[Semaphore("few", limit=2, ttl=5, wait=10)], **more)
            async def m(self, n: int, ctx: Context) -> int:
                await act("do", ctx)
                return n

        return Few

    behave.update({f"m[{i}]": stay for i in range(6)})
    await compared(place, build, WIDE)
    assert most == [2]


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("attempts", [2, 3])
async def test_elements_that_try_again(place: Place, attempts: int) -> None:
    def build(name: str, **more: Any) -> Any:
        class Trying(Reactor, name=name, retries=Retry(max_attempts=2, base_delay=0.01)):
            a = noted()

            @map_each(over=value([1, 2, 3]), after=[a], **more)
            async def m(self, n: int, ctx: Context) -> int:
                await act("do", ctx)
                return n

            @m.undo
            async def undo_m(self, ctx: Context) -> None:
                await act("undo", ctx)

            @m.compensate
            async def comp_m(self, ctx: Context) -> None:
                await act("comp", ctx)

        return Trying

    behave.update({f"m[{i}]": fails_until(attempts if i == 1 else 2) for i in range(3)})
    outcome, _ = await compared(place, build, ONE, park_after=0.0)
    assert outcome.ok == (attempts == 2)


async def test_elements_that_time_out(place: Place) -> None:
    class Slow(Reactor, name="ff.Slow"):
        n: int
        e1 = noted()
        e2 = noted([e1], timeout=0.02)

    def build(name: str, **more: Any) -> Any:
        class Timing(Reactor, name=name):
            a = noted()
            m = map_each(Slow, over=value([1, 2, 3]), item="n", after=[a], **more)

        return Timing

    behave["m[1].e2"] = lambda ctx: asyncio.sleep(10)
    outcome, _ = await compared(place, build, ONE)
    assert str(outcome.error) == "step 'm[1].e2' did not finish within its timeout of 0.02 s"
    assert outcome.error.step == outcome.step == "m[1].e2"


async def test_elements_with_a_deadline(place: Place) -> None:
    class Bounded(Reactor, name="ff.Bounded", deadline=0.3):
        n: int
        e1 = noted()
        e2 = noted([e1])

    def build(name: str, **more: Any) -> Any:
        class Bounding(Reactor, name=name):
            a = noted()
            m = map_each(Bounded, over=value([1, 2]), item="n", after=[a], **more)

        return Bounding

    behave["m[1].e2"] = lambda ctx: asyncio.sleep(10)
    outcome, _ = await compared(place, build, ONE)
    assert outcome.error_type.endswith("DeadlineExceeded")


async def test_elements_that_wait_for_a_timer(place: Place) -> None:
    class Cooling(Reactor, name="ff.Cooling"):
        n: int
        e1 = noted()
        cool = timer(seconds=0.05, after=[e1])
        e2 = noted([cool])

    def build(name: str, **more: Any) -> Any:
        class Waiting(Reactor, name=name):
            a = noted()
            m = map_each(Cooling, over=value([1, 2]), item="n", after=[a], **more)
            z = noted([m])

        return Waiting

    behave["z"] = raises(ValueError("z"))
    await compared(place, build, ONE, live=False, park_after=0.0)


class Approval(Struct):
    ok: bool


class Asking(Reactor, name="ff.Asking"):
    n: int
    e1 = noted()
    approve = interrupt(Approval, after=[e1])
    e2 = noted([approve])


async def test_elements_that_ask_are_answered_by_their_own_ids(place: Place) -> None:
    class Approving(Reactor, name="ff.Approving"):
        a = noted()
        m = map_each(Asking, over=value([1, 2]), item="n", after=[a], fan_out=True)
        z = noted([m])

    behave["z"] = raises(ValueError("z"))
    async with hands(place, park_after=0.0):
        handle = await Approving.enqueue()
        ids = [f"{handle.run_id}/m[{i}]" for i in range(2)]
        for run_id in ids:
            async with asyncio.timeout(10):
                while (row := await place.store.peek(run_id)) is None or row.status != "paused":
                    await asyncio.sleep(0.005)
            snapshot = await runs.find(run_id)
            assert [each.name for each in snapshot.interrupts] == ["approve"]
        assert sorted(row.run_id for row in await runs.list(parent=handle.run_id, elements=True)) == ids
        assert handle.run_id in {row.run_id for row in await runs.list()}
        for run_id in ids:
            await runs.resume(run_id, "approve", Approval(ok=True))
        outcome = await handle.result(timeout=10)
        assert outcome.status == "failed"
        assert sorted(ledger) == sorted(
            [
                "do:a",
                "do:z",
                "comp:z",
                "undo:a",
                *(f"{k}:m[{i}].{e}" for k in ("do", "undo") for i in (0, 1) for e in ("e1", "e2")),
            ]
        )
        await assert_nothing_is_left(place, handle.run_id)


class Mail(Step[str]):
    to: str

    async def run(self, ctx: Context) -> str:
        ledger.append(f"mail:{self.to}")
        return self.to


class Provision(Reactor[int], name="ff.Provision"):
    n: int

    @step
    async def p(self, n: int) -> int:
        ledger.append(f"provision:{n}")
        return 100 * n

    returns = p


class Dispatching(Reactor[Any], name="ff.Dispatching"):
    n: int
    e1 = noted()
    mail = Mail.async_step(to=result(e1))
    provision = async_reactor(Provision, n=from_input("n"), after=[e1])

    @step
    async def e2(self, ctx: Context, provision: Any = result(provision), mail: Any = result(mail)) -> list[Any]:
        await act("do", ctx)
        return [provision.value, mail]

    returns = e2


async def test_elements_with_units(place: Place) -> None:
    class Units(Reactor, name="ff.Units"):
        a = noted()
        m = map_each(Dispatching, over=value([1, 2, 3]), item="n", after=[a], fan_out=True)

    async with hands(place, park_after=0.0):
        handle = await Units.enqueue()
        outcome = await handle.result(timeout=10)
        assert isinstance(outcome, Success), outcome
        assert outcome.results["m"].values() == [[100, "m[0].e1"], [200, "m[1].e1"], [300, "m[2].e1"]]
        assert sorted(line for line in ledger if line.startswith("mail")) == [f"mail:m[{i}].e1" for i in range(3)]
        for row in await runs.list(elements=True):
            await runs.delete(row.run_id)


# ---------------------------------------------------------------------- undone later


@pytest.mark.parametrize("case", ["well", "bad"])
@pytest.mark.parametrize("options", [ONE, WIDE], ids=["one", "wide"])
async def test_a_completed_run_undone_by_hand(place: Place, options: Any, case: str) -> None:
    def build(name: str, **more: Any) -> Any:
        class Twice(Reactor, name=name):
            a = noted()
            m = map_each(Leg, over=value([1, 2, 3]), item="n", after=[a], **more)
            b = noted([m])

            @map_each(over=value([1, 2]), after=[b], **more)
            async def k(self, n: int, ctx: Context) -> int:
                await act("do", ctx)
                return n

            @k.undo
            async def undo_k(self, result: int, n: int, ctx: Context) -> None:
                await act("undo", ctx)

        return Twice

    shown: list[Any] = []
    lines: list[list[str]] = []
    async with hands(place, park_after=0.0):
        for reactor in twins(build, options).values():
            mine: list[Any] = []
            ledger.clear()
            behave.clear()
            if case == "bad":
                behave.update({"undo:m[1].e2": raises(OSError("1")), "undo:k[0]": raises(OSError("2"))})
            handle = await reactor.enqueue()
            assert (await handle.result(timeout=10)).ok
            await runs.undo(handle.run_id)
            await until_ended(handle.run_id)
            mine.append(whole((await runs.find(handle.run_id)).outcome))
            behave.clear()
            await runs.undo(handle.run_id)
            await until_ended(handle.run_id)
            mine.append(whole((await runs.find(handle.run_id)).outcome))
            shown.append(mine)
            lines.append(list(ledger))
            await assert_nothing_is_left(place, handle.run_id)
    assert differences(shown[1], shown[0]) == []
    compare_lines(lines[1], lines[0], exact=options is ONE)


@pytest.mark.parametrize("fails", ["m[1].e2", "z"])
async def test_what_a_failed_run_owes_is_undone_by_hand(place: Place, fails: str) -> None:
    def build(name: str, **more: Any) -> Any:
        class Owing(Reactor, name=name):
            a = noted()
            m = map_each(Leg, over=value([1, 2, 3]), item="n", after=[a], **more)
            z = noted([m])

        return Owing

    shown: list[Any] = []
    lines: list[list[str]] = []
    async with hands(place, park_after=0.0):
        for reactor in twins(build, ONE).values():
            ledger.clear()
            behave.update({fails: raises(ValueError(fails)), "undo:m[0].e1": raises(OSError("1"))})
            behave.update({"undo:m[1].e1": raises(OSError("3")), "comp:m[1].e2": raises(OSError("2"))})
            handle = await reactor.enqueue()
            first = await handle.result(timeout=10)
            assert first.status == "failed"
            behave.clear()
            await runs.undo(handle.run_id)
            await until_ended(handle.run_id)
            shown.append([whole(first), whole((await runs.find(handle.run_id)).outcome)])
            lines.append(list(ledger))
            await assert_nothing_is_left(place, handle.run_id)
    assert differences(shown[1], shown[0]) == []
    compare_lines(lines[1], lines[0], exact=True)


# ---------------------------------------------------------------------- secrets


class Cipher:
    def encrypt(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)

    def decrypt(self, data: bytes) -> bytes:
        return self.encrypt(data)


class Card(Struct):
    number: Annotated[str, Redact]


async def test_secrets_are_neither_shown_nor_stored(place: Place) -> None:
    class Pay(Reactor[str], name="ff.Pay"):
        token: Annotated[str, Redact]
        e1 = noted()

        @step(after=[e1])
        async def pay(self, token: str, ctx: Context) -> str:
            await act("do", ctx)
            if token.endswith("2"):
                raise ValueError(f"declined {token}")
            return "paid"

        returns = pay

    class Paying(Reactor, name="ff.Paying"):
        secret: Annotated[str, Redact]

        @step
        async def load(self, secret: str) -> list[Annotated[str, Redact]]:
            return [f"{secret}{i}" for i in range(3)]

        m = map_each(Pay, over=result(load), item="token", atomic=False, fan_out=True)

        @map_each(over=value([1]), atomic=False, after=[m], fan_out=True)
        async def k(self, n: int, secret: str) -> str:
            raise ValueError(f"not {secret}")

    async with hands(place, cipher=Cipher()):
        handle = await Paying.enqueue(secret="swordfish")
        outcome = await handle.result(timeout=10)
        assert isinstance(outcome, Success), outcome
        [(_, declined)], [(_, other)] = outcome.results["m"].failures(), outcome.results["k"].failures()
        assert (declined.message, other.message) == ("declined [redacted]", "not [redacted]")
        assert (declined.inputs, declined.arguments) == ({"secret": "[redacted]"}, {"token": "[redacted]"})
        for key in await place.do("KEYS", f"{place.prefix}:*"):
            if not key.endswith(b":steps"):  # what the source gave is a list, which is not marked as a whole
                assert b"swordfish" not in repr(await _all_of(place, key)).encode(), key
        await assert_nothing_is_left(place, handle.run_id)


async def _all_of(place: Place, key: bytes) -> Any:
    kind = await place.do("TYPE", key)
    commands: dict[bytes, list[Any]] = {
        b"hash": ["HGETALL"],
        b"list": ["LRANGE", 0, -1],
        b"string": ["GET"],
        b"zset": ["ZRANGE", 0, -1],
    }
    name, *more = commands[kind]
    return await place.do(name, key, *more)
