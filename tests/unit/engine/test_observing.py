"""Middlewares and the context: what is told, in which order, with what."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

import pytest

from aioreactor import Context, Halt, Reactor, Redact, Retry, Runtime, Settings, Skipped, compose, map_each, step, value
from aioreactor.engine.hooks import HOOKS, Hooks, hooks_for


class Listener:
    """Hears everything through the catch-all."""

    def __init__(self, keep: int = 1000) -> None:
        self.events: list[Any] = []
        self.keep = keep

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    @property
    def told(self) -> list[str]:
        return [f"{type(event).__name__}:{event.path}" for event in self.events]


class Child(Reactor):
    @step
    async def inner(self) -> int:
        return 1

    @inner.undo
    async def undo_inner(self) -> None: ...


class Parent(Reactor):
    secret: Annotated[str, Redact]
    bad: bool = False

    @step(retries=Retry(max_attempts=2, base_delay=0))
    async def flaky(self, ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return 1

    child = compose(Child, after=[flaky])

    @step(after=[child])
    async def skipped(self) -> Skipped[str]:
        return Skipped("nothing to do")

    @map_each(over=value([1, 2]), concurrency=1, after=[skipped])
    async def each(self, n: int) -> int:
        return n

    @step(after=[each])
    async def last(self, bad: bool) -> None:
        if bad:
            raise ValueError("bad")

    @last.compensate
    async def clean(self) -> None: ...


async def test_every_event_of_a_run_that_succeeds_in_order() -> None:
    ear = Listener()
    async with Runtime(Settings(middlewares=[ear])):
        await Parent.run(secret="tok_secret")
    assert ear.told == [
        "RunStarted:",
        "StepStarted:flaky",
        "StepFailed:flaky",
        "StepRetried:flaky",
        "StepStarted:flaky",
        "StepSucceeded:flaky",
        "StepStarted:child.inner",
        "StepSucceeded:child.inner",
        "StepStarted:skipped",
        "StepSkipped:skipped",
        "StepStarted:each[0]",
        "StepSucceeded:each[0]",
        "ElementFinished:each",
        "StepStarted:each[1]",
        "StepSucceeded:each[1]",
        "ElementFinished:each",
        "StepStarted:last",
        "StepSucceeded:last",
        "RunFinished:",
    ]
    assert [event.attempt for event in ear.events[1:6]] == [1, 1, 1, 2, 2]
    assert len({event.run_id for event in ear.events}) == 1
    assert ear.events[0].inputs == {"secret": "[redacted]", "bad": False}
    assert "tok_secret" not in repr(ear.events)


async def test_every_event_of_a_rollback_in_order() -> None:
    ear = Listener()
    async with Runtime(Settings(middlewares=[ear])):
        await Parent.run(secret="tok_secret", bad=True)
    assert ear.told[-9:] == [
        "StepStarted:last",
        "StepFailed:last",
        "RollbackStarted:",
        "CompensateStarted:last",
        "CompensateFinished:last",
        "UndoStarted:child.inner",
        "UndoFinished:child.inner",
        "RollbackFinished:",
        "RunFinished:",
    ]
    assert ear.events[-1].status == "failed"


async def test_a_childs_own_middlewares_see_its_events_in_addition() -> None:
    outer, inner = Listener(), Listener()

    class Watched(Child, middlewares=[inner]):
        pass

    class Around(Reactor, middlewares=[outer]):
        child = compose(Watched)

    await Around.run()
    assert inner.told == ["StepStarted:child.inner", "StepSucceeded:child.inner"]
    assert outer.told == ["RunStarted:", *inner.told, "RunFinished:"]


async def test_a_class_is_made_anew_for_each_run_and_arguments_can_be_given() -> None:
    made: list[int] = []

    class Counting(Listener):
        def __init__(self, keep: int = 0) -> None:
            super().__init__(keep)
            made.append(keep)

    class Counted(Child, middlewares=[Counting, (Counting, {"keep": 5})]):
        pass

    await Counted.run()
    await Counted.run()
    assert made == [0, 5, 0, 5]


async def test_a_hook_of_its_own_takes_the_event_from_the_catch_all_and_may_be_async() -> None:
    heard: list[str] = []

    class Both(Listener):
        async def on_step_start(self, event: Any) -> None:
            await asyncio.sleep(0)
            heard.append(event.path)

    ear = Both()

    class Watched(Child, middlewares=[ear]):
        pass

    await Watched.run()
    assert heard == ["inner"]
    assert ear.told == ["RunStarted:", "StepSucceeded:inner", "RunFinished:"]


def test_nobody_listening_costs_nothing() -> None:
    assert hooks_for([]) is None
    assert hooks_for([object()]) is None
    assert Hooks([Listener()]).listening("on_run_start") != ()
    assert Hooks([]).listening(HOOKS[0]) == ()


async def test_progress_is_told_while_the_body_runs() -> None:
    ear = Listener()

    class Working(Reactor, middlewares=[ear]):
        @step
        async def work(self, ctx: Context) -> None:
            ctx.progress(1, 4, "quarter")
            while "ProgressReported:work" not in ear.told:
                await asyncio.sleep(0)

        @step(after=[work])
        def blocking(self, ctx: Context) -> None:
            ctx.progress(2)

    await Working.run()
    told = [(event.done, event.total, event.message) for event in ear.events if hasattr(event, "message")]
    assert told == [(1, 4, "quarter"), (2, None, "")]


async def test_the_context_says_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    seen: dict[str, Any] = {}

    class Inner(Reactor, name="inner-reactor"):
        n: int

        @step
        async def look(self, ctx: Context, n: int) -> int:
            seen.update(
                reactor=ctx.reactor,
                step=ctx.step,
                path=ctx.path,
                inputs=dict(ctx.inputs),
                results=dict(ctx.results),
                key=ctx.idempotency_key == f"{ctx.run_id}:{ctx.path}",
                deadline=ctx.deadline is not None,
                text=repr(ctx).startswith("<Context m[0].look attempt 1 of run "),
            )
            ctx.logger.warning("hello")
            with pytest.raises(TypeError):
                ctx.inputs["n"] = 2  # type: ignore[index]
            return n

    class Outer(Reactor, deadline=60):
        @step
        async def first(self, ctx: Context) -> str:
            ctx.state["shared"] = 1
            return "one"

        m = map_each(Inner, over=value([5]), item="n", after=[first])

        @map_each(over=value([5]), after=[m])
        async def single(self, n: int, ctx: Context) -> None:
            seen["single"] = (ctx.step, ctx.path, dict(ctx.state), sorted(ctx.results))

    with caplog.at_level(logging.WARNING, "aioreactor.step"):
        await Outer.run()
    assert seen == {
        "reactor": "inner-reactor",
        "step": "look",
        "path": "m[0].look",
        "inputs": {"n": 5},
        "results": {},
        "key": True,
        "deadline": True,
        "text": True,
        "single": ("single[0]", "single[0]", {"shared": 1}, ["first", "m"]),
    }
    (record,) = [record for record in caplog.records if record.name == "aioreactor.step"]
    assert record.__dict__["path"] == "m[0].look"


async def test_a_halt_is_told() -> None:
    ear = Listener()

    class Halting(Reactor, middlewares=[ear]):
        @step
        async def stop(self) -> Halt:
            return Halt("enough")

    outcome = await Halting.run()
    assert isinstance(outcome, Halt)
    assert ear.told == ["RunStarted:", "StepStarted:stop", "StepHalted:stop", "RunFinished:"]
    assert [event.reason for event in ear.events if hasattr(event, "reason")] == ["enough"]
