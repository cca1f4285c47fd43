"""Fan-outs that are stopped from outside: cancelled, out of time, or because something beside them failed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from aioreactor import Context, Failure, FanOut, Reactor, map_each, runs, value
from aioreactor.store.fans import FanStore
from tests.integration.durable.fan_kit import (
    act,
    assert_nothing_is_left,
    behave,
    hands,
    ledger,
    noted,
    place_of,
    raises,
    until_ended,
)
from tests.integration.durable.fan_yard import standing
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import place

__all__ = ["place"]
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    ledger.clear()
    behave.clear()
    yield
    ledger.clear()
    behave.clear()


class Leg(Reactor[str], name="fs.Leg"):
    n: int
    e1 = noted()
    e2 = noted([e1])
    e3 = noted([e2])
    returns = e3


def legs(**options: Any) -> Any:
    class Legs(Reactor, name=f"fs.Legs{next(_numbers)}"):
        a = noted()
        m = map_each(Leg, over=value(list(range(6))), item="n", after=[a], fan_out=FanOut(batch_size=3), **options)
        z = noted([m])

    return Legs


class Moment:
    """Everything stands still once the ledger has so many lines."""

    def __init__(self, at: int) -> None:
        self.at, self.reached, self.left = at, asyncio.Event(), 0

    async def __call__(self, ctx: Context, *given: Any) -> None:
        if len(ledger) > self.at:
            self.reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left += 1


PATHS = ["a", *(f"m[{i}].e{j}" for i in range(6) for j in (1, 2, 3))]


@pytest.mark.parametrize("park_after", [0.0, 30.0], ids=["parked", "there"])
@pytest.mark.parametrize("mode", ["stop", "rollback"])
@pytest.mark.parametrize("at", [1, 3, 6, 11])
async def test_cancelled_at_any_moment(place: Place, mode: Any, at: int, park_after: float) -> None:
    reactor, moment = legs(), Moment(at)
    behave.update(dict.fromkeys(PATHS, moment))
    async with hands(place, park_after=park_after):
        handle = await reactor.enqueue()
        async with asyncio.timeout(10):
            await moment.reached.wait()
            await runs.cancel(handle.run_id, mode=mode)
            outcome = await handle.result()
        assert outcome.status == "cancelled"
        lines = list(ledger)
        for _ in range(50):
            await asyncio.sleep(0)
        assert ledger == lines
        assert len([line for line in lines if line.startswith("do:")]) <= at + 3
        if mode == "rollback":
            assert standing() == set()
            assert lines[-1] == "undo:a"
        else:
            assert not [line for line in lines if line.startswith("undo")]
            behave.clear()
            await runs.undo(handle.run_id)
            await until_ended(handle.run_id)
            assert standing() == set(), ledger
        await assert_nothing_is_left(place, handle.run_id)


@pytest.mark.parametrize("at", [9, 14])
async def test_a_cancel_during_its_rollback_is_refused(place: Place, at: int) -> None:
    from aioreactor import NotResumable

    reactor = legs()
    gate, reached = asyncio.Event(), asyncio.Event()

    async def hold(ctx: Context, *given: Any) -> None:
        reached.set()
        await gate.wait()

    behave.update({"z": raises(ValueError("z")), "undo:m[3].e2": hold})
    async with hands(place, park_after=0.0):
        handle = await reactor.enqueue()
        async with asyncio.timeout(10):
            await reached.wait()
            assert (await runs.find(handle.run_id)).status == "rolling_back"
            with pytest.raises(NotResumable, match="rollback in progress"):
                await runs.cancel(handle.run_id)
            with pytest.raises(NotResumable, match="rollback in progress"):
                await runs.undo(handle.run_id)
            assert "undo:a" not in ledger
            gate.set()
            outcome = await handle.result()
        assert outcome.status == "failed"
        assert ledger[-1] == "undo:a"
        await assert_nothing_is_left(place, handle.run_id)


@pytest.mark.parametrize("park_after", [0.0, 30.0], ids=["parked", "there"])
@pytest.mark.parametrize("mode", ["stop", "rollback", ""])
async def test_the_rollback_goes_on_when_the_store_has_lost_it(place: Place, mode: Any, park_after: float) -> None:
    """Somebody removed its keys, or the server did: this is told, and all other steps are rolled back."""
    reactor = legs()
    inside = asyncio.Event()

    async def loses(ctx: Context, *given: Any) -> None:
        for key in place.store.space.fan(ctx.run_id):
            await place.do("DEL", key)
        inside.set()
        if mode:
            await asyncio.Event().wait()
        raise ValueError("z")

    behave["z"] = loses
    async with hands(place, park_after=park_after):
        handle = await reactor.enqueue()
        async with asyncio.timeout(10):
            await inside.wait()
            if mode:
                await runs.cancel(handle.run_id, mode=mode)
            outcome = await handle.result()
            if mode == "stop":
                await runs.undo(handle.run_id)
                await until_ended(handle.run_id)
                outcome = (await runs.find(handle.run_id)).outcome
        assert isinstance(outcome, Failure)
        assert outcome.status == ("cancelled" if mode else "failed")
        left = [(each.step, each.reason) for each in outcome.rollback_failures]
        assert left == [("m", "state_unavailable")]
        assert ledger[-2:] == ["comp:z", "undo:a"]
        await assert_nothing_is_left(place, handle.run_id)


@pytest.mark.parametrize("park_after", [0.0, 30.0], ids=["parked", "there"])
async def test_it_is_not_begun_anew_when_the_store_has_lost_it(
    place: Place, park_after: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Elements may have begun: the map fails, and says so."""
    reactor, gate, moment = legs(), asyncio.Event(), asyncio.Event()

    async def hold(ctx: Context, *given: Any) -> None:
        moment.set()
        await gate.wait()

    behave.update({f"m[{i}].e1": hold for i in range(3)})
    async with hands(place, park_after=park_after, lease_ttl=3):
        handle = await reactor.enqueue()
        async with asyncio.timeout(20):
            await moment.wait()
            for key in place.store.space.fan(handle.run_id):
                await place.do("DEL", key)
            gate.set()
            outcome = await handle.result()
    assert isinstance(outcome, Failure)
    assert (outcome.status, outcome.step) == ("failed", "m")
    assert "gone from the store" in str(outcome.error)
    assert [(each.step, each.reason) for each in outcome.rollback_failures] == [("m", "state_unavailable")]
    assert max(Counter(line for line in ledger if line.startswith("do:")).values()) == 1
    assert ledger[-1] == "undo:a"
    assert "ERR " not in caplog.text


async def test_a_session_that_begins_slowly_is_not_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server is away for longer than a third of a lease, nobody asks for more of what there is not yet."""
    claims, waited = {name: getattr(FanStore, name) for name in ("claim", "claim_back")}, Counter[str]()
    extended = asyncio.Event()
    extend = FanStore.extend

    async def heard(*given: Any) -> Any:
        found = await extend(*given)
        extended.set()
        return found

    def slowly(name: str) -> Any:
        async def claim(*given: Any, **options: Any) -> Any:
            waited[name] += 1
            if waited[name] == 1:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(extended.wait(), 0.7)  # at a third of the lease
            return await claims[name](*given, **options)

        return claim

    monkeypatch.setattr(FanStore, "extend", heard)
    for name in claims:
        monkeypatch.setattr(FanStore, name, slowly(name))
    behave["z"] = raises(ValueError("z"))
    async with hands(place, lease_ttl=1):
        handle = await legs().enqueue()
        outcome = await handle.result(timeout=20)
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.rollback_failures) == ("z", [])
    assert min(waited["claim"], waited["claim_back"]) >= 1
    assert max(Counter(ledger).values()) == 1
    assert "ownership_lost" not in caplog.text
    await assert_nothing_is_left(place, handle.run_id)


@pytest.mark.parametrize("park_after", [0.0, 30.0], ids=["parked", "there"])
async def test_the_deadline_of_the_run_passes(place: Place, park_after: float) -> None:
    moment = Moment(4)
    behave.update(dict.fromkeys(PATHS, moment))

    class Late(Reactor, name=f"fs.Late{next(_numbers)}", deadline=0.8):
        a = noted()
        m = map_each(Leg, over=value(list(range(6))), item="n", after=[a], fan_out=FanOut(batch_size=3))

    async with hands(place, park_after=park_after):
        handle = await Late.enqueue()
        async with asyncio.timeout(15):
            outcome = await handle.result()
        assert outcome.status == "failed"
        assert outcome.error_type.endswith("DeadlineExceeded")
        assert standing() == set()
        assert outcome.rollback_failures == []
        assert moment.left > 0
        await assert_nothing_is_left(place, handle.run_id)


@pytest.mark.parametrize("park_after", [0.0, 30.0], ids=["parked", "there"])
@pytest.mark.parametrize("policy", ["settle", "cancel"])
async def test_a_step_beside_it_fails(place: Place, policy: Any, park_after: float) -> None:
    reached, go = asyncio.Event(), asyncio.Event()
    cut: list[str] = []

    async def wait(ctx: Context, *given: Any) -> None:
        if len([line for line in ledger if line.startswith("do:m")]) == 3:
            reached.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            cut.append(place_of(ctx))
            raise

    async def fail(ctx: Context) -> None:
        await reached.wait()
        if policy == "settle":
            asyncio.get_running_loop().call_later(0.1, go.set)
        raise ValueError("beside")

    class Beside(Reactor, name=f"fs.Beside{next(_numbers)}", on_failure=policy):
        a = noted()
        b = noted([a])

        @map_each(over=value(list(range(6))), after=[a], fan_out=FanOut(batch_size=3))
        async def m(self, n: int, ctx: Context) -> int:
            await act("do", ctx)
            return n

        @m.undo
        async def undo_m(self, ctx: Context) -> None:
            await act("undo", ctx)

        @m.compensate
        async def comp_m(self, ctx: Context) -> None:
            await act("comp", ctx)

    behave.update({f"m[{i}]": wait for i in range(6)})
    behave["b"] = fail
    async with hands(place, park_after=park_after):
        handle = await Beside.enqueue()
        async with asyncio.timeout(10):
            outcome = await handle.result()
        assert (outcome.step, [str(error) for error in outcome.errors]) == ("b", ["beside"])
        assert outcome.rollback_failures == []
        assert sorted(cut) == ([f"m[{i}]" for i in range(3)] if policy == "cancel" else [])
        assert standing() == set()
        assert len([line for line in ledger if line.startswith("do:m")]) == 3
        assert ledger[-1] == "undo:a"
        await assert_nothing_is_left(place, handle.run_id)
