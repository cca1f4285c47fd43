"""Whoever cancels, resumes or decides dies at each of its calls to the store, before or after that was served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aioreactor import (
    AioreactorError,
    AlreadyResumed,
    Context,
    NotResumable,
    Paused,
    Reactor,
    Retry,
    Success,
    Value,
    interrupt,
    runs,
)
from aioreactor.store.calls import Call
from tests.integration.durable.kit import Place, behave, ledger, noted, raises


class Died(RuntimeError):
    """The process is gone."""


class Dying:
    """Nothing gets through any more after so many calls; the last one may have been applied."""

    def __init__(self, calls: int, *, applied: bool) -> None:
        self.left = calls
        self.applied = applied
        self.dead = False

    def before_send(self, call: Call) -> None:
        if self.left <= 0 and not (self.applied and self.left == 0):
            self.dead = True
            raise Died
        self.left -= 1

    def after_reply(self, call: Call, reply: Any) -> None:
        if self.applied and self.left < 0:
            self.dead = True
            raise Died


class Purchase(Reactor[str], name="dying.Purchase"):
    a = noted()
    approve = interrupt(str, after=[a])
    b = noted([approve])
    c = noted([b])
    returns = approve


class Job(Reactor[str], name="dying.Job"):
    a = noted()
    b = noted([a], retries=Retry(max_attempts=1, on_exhausted="pause"))
    c = noted([b])
    returns = b


@pytest.fixture
async def place(place: Place) -> AsyncIterator[Place]:
    async with place.another(queue=f"{place.prefix}-queue"):
        yield place
    for key in await place.do("KEYS", f"{place.prefix}-queue*"):
        await place.do("DEL", key)
    for key in await place.do("KEYS", "arq:job:aioreactor*"):
        await place.do("PEXPIRE", key, 1000)


async def dies_in(place: Place, act: Callable[[], Awaitable[Any]], calls: int, *, applied: bool) -> bool:
    """Whether the process that does this died on the way."""
    hook = Dying(calls, applied=applied)
    async with place.another(hook, queue=f"{place.prefix}-queue") as runtime:
        with contextlib.suppress(Died, AioreactorError):
            await act()
        durable = runtime.durable
        assert durable is not None
        hook.left = 1_000_000  # what it closes now makes no difference
    return hook.dead


async def put_right(place: Place, run_id: str) -> None:
    """The lease of whoever died is over, and sweeps come by until nothing is left to do."""
    for _ in range(5):
        row = await place.store.peek(run_id)
        assert row is not None
        if not row.is_owed:
            return
        await place.do("HSET", place.store.space.run(run_id), "updated_ms", 1, "due_ms", 0)
        if row.lease_ms:
            await place.do("HSET", place.store.space.run(run_id), "lease_ms", 1)
        await place.do("ZADD", f"{place.prefix}:{{:index}}:live", 1, run_id)
        await place.sweep_elsewhere()
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("applied", [False, True])
async def test_an_answer_is_accepted_or_not_and_applied_once(place: Place, applied: bool) -> None:
    accepted = refused = 0
    for calls in range(60):
        ledger.clear()
        outcome = await Purchase.run()
        run_id = outcome.run_id
        died = await dies_in(place, lambda: runs.resume(run_id, "approve", "mine"), calls, applied=applied)  # noqa: B023
        await put_right(place, run_id)
        snapshot = await runs.find(run_id)
        if snapshot.status == "paused":
            refused += 1
            assert ledger == ["do:a"]
            assert await runs.resume(run_id, "approve", "second") == Success("second")
        else:
            accepted += 1
            assert snapshot.outcome == Success("mine")
            with pytest.raises(AlreadyResumed):
                await runs.resume(run_id, "approve", "second")
        ended = await runs.find(run_id)
        assert len(ended.trace.only("resume")) == 1
        assert ledger[0] == "do:a"
        assert 1 <= ledger.count("do:b") <= 2  # one in flight is entered again
        assert 1 <= ledger.count("do:c") <= 2
        assert len(ledger) <= 4
        if not died:
            break
    else:
        raise AssertionError("it died every time")
    assert accepted > 3
    assert refused > 0


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("mode", ["stop", "rollback"])
async def test_a_cancel_is_accepted_or_not_and_carried_out_once(place: Place, mode: Any, applied: bool) -> None:
    accepted = refused = 0
    for calls in range(60):
        ledger.clear()
        outcome = await Purchase.run()
        run_id = outcome.run_id
        died = await dies_in(place, lambda: runs.cancel(run_id, "enough", mode), calls, applied=applied)  # noqa: B023
        await put_right(place, run_id)
        snapshot = await runs.find(run_id)
        if snapshot.status == "paused":
            refused += 1
            assert ledger == ["do:a"]
            await runs.cancel(run_id, "enough", mode)
        else:
            accepted += 1
            assert snapshot.status == "cancelled"
            with pytest.raises(NotResumable):
                await runs.cancel(run_id)
        found = (await runs.find(run_id)).outcome
        assert found.error.reason == "enough"  # type: ignore[union-attr]
        undone = ledger[1:]
        assert ledger[0] == "do:a"
        assert set(undone) <= {"undo:a"}
        assert len(undone) in ({0} if mode == "stop" else {1, 2})  # one in flight is called again
        if not died:
            assert undone == ([] if mode == "stop" else ["undo:a"])
            break
    else:
        raise AssertionError("it died every time")
    assert accepted > 2
    assert refused > 0


async def test_a_decision_is_accepted_or_not_and_carried_out_once(place: Place) -> None:
    def no(ctx: Context) -> None:
        raise ValueError("no")

    accepted = refused = 0
    for calls in range(30):
        ledger.clear()
        behave["b"] = raises(ValueError("no"))
        outcome = await Job.run()
        run_id = outcome.run_id
        assert isinstance(outcome, Paused)
        died = await dies_in(place, lambda: runs.decide(run_id, "b", Value("mine")), calls, applied=True)  # noqa: B023
        await put_right(place, run_id)
        if (await runs.find(run_id)).status == "paused":
            refused += 1
            await runs.decide(run_id, "b", Value("second"))
            await put_right(place, run_id)
            assert (await runs.find(run_id)).outcome == Success("second")
        else:
            accepted += 1
            assert (await runs.find(run_id)).outcome == Success("mine")
        assert ledger == ["do:a", "do:b", "do:c"]
        if not died:
            break
    assert accepted > 0
    assert refused > 0


async def test_whoever_is_cancelled_while_it_answers_loses_nothing(place: Place) -> None:
    """At every turn of the loop."""
    for turns in range(400):
        ledger.clear()
        outcome = await Purchase.run()
        task = asyncio.create_task(runs.resume(outcome.run_id, "approve", "mine"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await put_right(place, outcome.run_id)
        snapshot = await runs.find(outcome.run_id)
        if snapshot.status == "paused":
            assert ledger == ["do:a"]
            await runs.cancel(outcome.run_id)
        else:
            assert snapshot.status in ("completed", "cancelled")
            left = [each for each in ledger if each.startswith("do:")]
            undone = [each for each in ledger if each.startswith(("undo:", "comp:"))]
            assert len(left) == len(set(left))
            if snapshot.status == "cancelled":
                assert [each.partition(":")[2] for each in undone] == [each.partition(":")[2] for each in left[::-1]]
    else:
        raise AssertionError("it never ended")
