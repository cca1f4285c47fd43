"""Cancellation from outside: everything in flight stops at once, what was done is undone, the cancel goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioreactor import Context, Failure, Page, Reactor, Retry, StepCancelled, Success, compose, map_each, skip, step


class Ledger:
    """What happened, in order; and gates that bodies wait at."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reached: dict[str, asyncio.Event] = {}

    def note(self, line: str) -> None:
        self.lines.append(line)

    def gate(self, name: str) -> asyncio.Event:
        return self.reached.setdefault(name, asyncio.Event())


async def boom() -> None:
    raise ValueError("child")


class GroupInside(Reactor):
    @step
    async def a(self) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(boom())
        return 1


class GroupCaught(Reactor[int]):
    @step
    async def a(self) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(boom())
        except* ValueError:
            pass
        return 7

    @step
    async def b(self, a: int) -> int:
        return a + 1

    returns = b


class GroupSkips(Reactor):
    @step
    async def a(self) -> int:
        async def child() -> None:
            skip(3)

        async with asyncio.TaskGroup() as group:
            group.create_task(child())
        return 1


async def test_a_task_group_that_fails_inside_a_body_is_that_bodys_failure() -> None:
    outcome = await GroupInside.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "a"
    assert isinstance(outcome.error, ExceptionGroup)


async def test_a_task_group_whose_error_the_body_handles_disturbs_nobody() -> None:
    outcome = await GroupCaught.run()
    assert isinstance(outcome, Success)
    assert outcome.value == 8


async def test_a_signal_in_a_child_of_the_bodys_task_group_is_honoured() -> None:
    outcome = await GroupSkips.run()
    assert isinstance(outcome, Success)
    assert str(outcome.trace) == "run:a skip:a"
    assert outcome.results["a"] == 3


def backing_off(ledger: Ledger, **header: Any) -> type[Reactor]:
    class BackingOff(Reactor, **header):
        @step
        async def first(self) -> None:
            ledger.note("first")

        @first.undo
        async def undo_first(self) -> None:
            ledger.note("undo first")

        @step(after=[first], retries=Retry(max_attempts=5, base_delay=3600))
        async def flaky(self) -> None:
            ledger.gate("flaky").set()
            raise ValueError("not yet")

        @flaky.compensate
        async def clean(self, error: BaseException) -> None:
            ledger.note(f"compensate {error}")

    return BackingOff


async def settled_retry(ledger: Ledger) -> None:
    """Wait until the step has failed and sleeps until its next attempt."""
    await ledger.gate("flaky").wait()
    await asyncio.sleep(0)


async def test_cancelled_while_a_step_backs_off_ends_cancelled() -> None:
    ledger = Ledger()
    handle = await backing_off(ledger).spawn()
    await settled_retry(ledger)
    await handle.cancel()
    outcome = await handle.result()
    assert outcome.status == "cancelled"
    assert ledger.lines == ["first", "compensate not yet", "undo first"]


async def test_abort_undoes_nothing_even_while_a_step_backs_off() -> None:
    ledger = Ledger()
    handle = await backing_off(ledger, on_cancel="abort").spawn()
    await settled_retry(ledger)
    await handle.cancel()
    outcome = await handle.result()
    assert outcome.status == "aborted"
    assert ledger.lines == ["first"]


async def test_all_bodies_in_flight_are_cancelled_at_once() -> None:
    ledger = Ledger()

    class Slow(Reactor):
        @step
        async def a(self) -> None:
            try:
                ledger.gate("a").set()
                await asyncio.Event().wait()
            finally:
                ledger.note("a cancelled")
                await ledger.gate("release a").wait()
                ledger.note("a cleaned")

        @step
        async def b(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ledger.note("b cancelled")
                ledger.gate("release a").set()

    task = asyncio.ensure_future(Slow.run())
    await ledger.gate("a").wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.lines == ["a cancelled", "b cancelled", "a cleaned"] or ledger.lines == [
        "b cancelled",
        "a cancelled",
        "a cleaned",
    ]


async def test_an_error_while_being_cancelled_does_not_turn_the_cancel_into_a_failure() -> None:
    ledger = Ledger()

    class Stubborn(Reactor):
        @step
        async def a(self) -> None:
            ledger.gate("a").set()
            try:
                await asyncio.Event().wait()
            finally:
                raise RuntimeError("clean-up went wrong")

        @a.compensate
        async def clean(self, error: BaseException) -> None:
            ledger.note(f"compensate {error}")

    handle = await Stubborn.spawn()
    await ledger.gate("a").wait()
    await handle.cancel()
    outcome = await handle.result()
    assert outcome.status == "cancelled"
    assert ledger.lines == ["compensate clean-up went wrong"]


class Inner(Reactor):
    @step
    async def one(self) -> None:
        return None

    @one.undo
    async def undo_one(self, ctx: Context) -> None:
        await asyncio.Event().wait()

    @step(after=[one])
    async def two(self) -> None:
        raise ValueError("no")


class OuterUndo(Reactor, undo_timeout=0.02):
    inner = compose(Inner)


class OuterRollback(Reactor, rollback_timeout=0.02):
    inner = compose(Inner)


@pytest.mark.parametrize(
    ("outer", "message"),
    [
        (OuterUndo, "it did not end within undo_timeout=0.02 s"),
        (OuterRollback, "cut off: the rollback as a whole ran out of time"),
    ],
)
async def test_limits_of_the_parent_bound_the_rollback_of_a_child(outer: type[Reactor], message: str) -> None:
    outcome = await outer.run()
    assert isinstance(outcome, Failure)
    assert [(entry.step, entry.reason, entry.message) for entry in outcome.rollback_failures] == [
        ("inner.one", "timed_out", message)
    ]


class Paged(Reactor):
    size: int

    async def pages(self, cursor: int | None, limit: int, size: int) -> Page[int]:
        start = cursor or 0
        items = list(range(start, min(start + limit, size)))
        return Page(items, start + limit if start + limit < size else None)

    @map_each(over=pages, concurrency=3)
    async def double(self, n: int) -> int:
        return n * 2


async def test_a_page_source_may_take_further_parameters() -> None:
    outcome = await Paged.run(size=8)
    assert isinstance(outcome, Success)
    assert outcome.value["double"].values() == [0, 2, 4, 6, 8, 10, 12, 14]


async def test_a_deadline_names_the_step_in_flight_with_its_attempt_and_arguments() -> None:
    class Late(Reactor, deadline=0.02):
        size: int

        @step(retries=Retry(max_attempts=2, base_delay=0))
        async def slow(self, size: int, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise ValueError("once")
            await asyncio.Event().wait()

    outcome = await Late.run(size=3)
    assert isinstance(outcome, Failure)
    assert (outcome.step, outcome.attempts, dict(outcome.arguments)) == ("slow", 2, {"size": 3})


async def test_a_cancelled_step_is_compensated_with_the_reason() -> None:
    seen: list[BaseException] = []

    class Other(Reactor, on_failure="cancel"):
        @step
        async def waits(self) -> None:
            await asyncio.Event().wait()

        @waits.compensate
        async def clean(self, error: BaseException) -> None:
            seen.append(error)

        @step
        async def fails(self) -> None:
            raise ValueError("no")

    outcome = await Other.run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "fails"
    assert [type(error) for error in seen] == [StepCancelled]
    assert str(outcome.trace.only("run", "cancel", "compensate")) == (
        "run:waits run:fails cancel:waits compensate:waits"
    )
