"""Cases that were thought up rather than drawn: what a run must survive without losing an undo or a cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from msgspec import Struct

from aioreactor import (
    Context,
    Failure,
    Halt,
    Outcome,
    Retry,
    Runtime,
    Settings,
    Step,
    Success,
    compose,
    fail,
    halt,
    map_each,
    result,
    step,
    succeed,
    value,
)
from tests.properties.stage import OwnBase, make_reactor

SHOWN = ("run", "compensate", "undo", "undo_all")
Play = Callable[[Context], Any]


async def _play(play: Play | None, ctx: Context) -> Any:
    if play is None:
        return ctx.path
    found = play(ctx)
    return await found if hasattr(found, "__await__") else found


def act(
    play: Play | None = None,
    after: Sequence[Any] = (),
    undo: Play | None = None,
    compensate: Play | None = None,
    **options: Any,
) -> Any:
    """A step with all three functions."""

    async def body(_: Any, ctx: Context) -> Any:
        return await _play(play, ctx)

    async def undo_it(_: Any, ctx: Context) -> Any:
        return await _play(undo, ctx)

    async def compensate_it(_: Any, ctx: Context, error: BaseException) -> Any:
        return await _play(compensate, ctx)

    node = step(after=after, **options)(body)
    node.undo(undo_it)
    node.compensate(compensate_it)
    return node


def raises(error: BaseException) -> Play:
    def play(_: Context) -> Any:
        raise error

    return play


async def hang(_: Any = None) -> Any:
    await asyncio.Event().wait()


def pause(seconds: float, then: Play | None = None) -> Play:
    async def play(ctx: Context) -> Any:
        await asyncio.sleep(seconds)
        return await _play(then, ctx)

    return play


class Ear:
    """Remembers the outcome also of a run whose caller was cancelled."""

    def __init__(self) -> None:
        self.outcome: Outcome[Any] | None = None

    def on_run_finish(self, event: Any) -> None:
        self.outcome = event.outcome


def reactor(inputs: dict[str, Any] | None = None, **given: Any) -> Any:
    options = {name[1:]: given.pop(name) for name in list(given) if name.startswith("_")}
    return make_reactor("R", given, inputs, **options)


def element(**steps: Any) -> Any:
    return make_reactor("Element", steps, {"n": object})


def sequence(outcome: Any) -> str:
    return " ".join(map(str, outcome.trace.only(*SHOWN)))


async def cancelled_after(seconds: float, cls: Any, *, times: int = 1) -> None:
    """Run it, cancel it, and see the cancellation arrive."""
    task = asyncio.create_task(cls.run())
    for _ in range(times):
        await asyncio.sleep(seconds)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ---------------------------------------------------------------------- errors of the engine's own, and users' odd ones


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BadAttribute(Exception):
    @property
    def retryable(self) -> bool:
        raise RuntimeError("no answer")


class BadValue:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


class BadSource:
    def __iter__(self) -> Any:
        raise ValueError("cannot be iterated now")


class BadChildMiddleware:
    def __init__(self) -> None:
        raise RuntimeError("no such collector")

    def on_step_start(self, event: Any) -> None:
        """Never called."""


class BadPayload(Struct):
    x: int

    def __post_init__(self) -> None:
        raise RuntimeError("refused by the type itself")


class RefusingStep(Step[int]):
    def validate(self) -> None:
        fail("refused")

    async def run(self) -> int:
        return 1


class PayloadStep(Step[int]):
    payload: BadPayload

    async def run(self) -> int:
        return 1


def refuse_with(error: BaseException | None) -> Callable[[Any], Any]:
    def transform(_: Any) -> Any:
        if error is None:
            fail("refused")
        raise error

    return transform


def reads(source: Any, transform: Callable[[Any], Any]) -> Any:
    async def body(_: Any, p: Any = result(source, transform=transform)) -> Any:
        return p

    return step(body)


async def source_that_fails(_: Any) -> Any:
    fail("no source")


async def source_that_is_interrupted(_: Any) -> Any:
    raise OwnBase("no source")


def closing_badly(_: Any) -> Any:
    try:
        yield 1
        yield 2
    finally:
        raise OwnBase("closed badly")


ONE: dict[str, Any] = {"over": value([1]), "item": "n"}
LATER: dict[str, Callable[[Any], Any]] = {
    "an error without a text": lambda a: act(raises(BadText()), [a]),
    "an error whose retryable raises": lambda a: act(raises(BadAttribute()), [a]),
    "a source that cannot be iterated": lambda a: map_each(element(e=act()), over=BadSource(), item="n", after=[a]),
    "a child whose middleware cannot be made": lambda a: compose(
        make_reactor("Child", {"x": act()}, middlewares=[BadChildMiddleware]), after=[a]
    ),
    "a signal in a transform": lambda a: reads(a, refuse_with(None)),
    "an own BaseException in a transform": lambda a: reads(a, refuse_with(OwnBase("t"))),
    "a signal in an output check": lambda a: act(after=[a], output=refuse_with(None)),
    "a signal in a source": lambda a: map_each(element(e=act()), over=source_that_fails, item="n", after=[a]),
    "an own BaseException in a source": lambda a: map_each(
        element(e=act()), over=source_that_is_interrupted, item="n", after=[a]
    ),
    "a source that closes badly": lambda a: map_each(
        element(e=act(raises(ValueError()))), over=closing_badly, item="n", concurrency=1, after=[a]
    ),
    "a signal in validate": lambda a: RefusingStep.step(after=[a]),
    "a type that refuses": lambda a: PayloadStep.step(payload=result(a, transform=lambda _: {"x": 1})),
}


@pytest.mark.parametrize("what", list(LATER))
async def test_whatever_goes_wrong_after_a_step_completed_is_a_failure_and_a_is_undone(what: str) -> None:
    undone = []
    a = act(undo=lambda ctx: undone.append(ctx.path))
    try:
        outcome = await reactor(a=a, b=LATER[what](a)).run()
    except BaseException as error:
        pytest.fail(f"run() raised {error!r}; undone: {undone}")
    assert isinstance(outcome, Failure)
    assert undone == ["a"]


async def test_a_halt_reason_without_a_text() -> None:
    outcome = await reactor(a=act(), b=act(lambda _: halt(BadValue()))).run()
    assert isinstance(outcome, Halt)


async def test_an_undo_whose_error_has_no_text_does_not_stop_the_rest() -> None:
    undone = []
    a = act(undo=lambda ctx: undone.append(ctx.path))
    b = act(after=[a], undo=raises(BadText()))
    outcome = await reactor(a=a, b=b, c=act(raises(ValueError()), [b])).run()
    assert undone == ["a"]
    assert [entry.step for entry in outcome.rollback_failures] == ["b"]


async def test_a_value_that_cannot_be_shown_is_no_failure_of_the_run() -> None:
    a = act(lambda _: BadValue())
    outcome = await reactor(a=a, b=act(raises(ValueError("b")), [a]), _middlewares=[Ear()]).run()
    assert isinstance(outcome, Failure)
    assert sequence(outcome) == "run:a run:b compensate:b undo:a"


HOOKS = (
    "on_run_start",
    "on_step_start",
    "on_step_success",
    "on_step_failure",
    "on_rollback_start",
    "on_compensate_start",
    "on_compensate_finish",
    "on_undo_start",
    "on_undo_finish",
    "on_rollback_finish",
    "on_run_finish",
)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("hook"),
        asyncio.CancelledError("leaked"),
        OwnBase("hook"),
        None,
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_middleware_raises_changes_nothing(hook: str, error: BaseException | None) -> None:
    def listen(_: Any) -> None:
        if error is None:
            fail("hook")
        raise error

    middleware = type("M", (), {hook: staticmethod(listen)})()
    a = act()
    try:
        outcome = await reactor(a=a, b=act(raises(ValueError("b")), [a]), _middlewares=[middleware]).run()
    except BaseException as escaped:
        pytest.fail(f"run() raised {escaped!r}")
    assert sequence(outcome) == "run:a run:b compensate:b undo:a"


@pytest.mark.parametrize("error", [OwnBase("b"), MemoryError("b"), GeneratorExit("b"), asyncio.CancelledError("b")])
@pytest.mark.parametrize("nested", [False, True])
async def test_odd_exceptions_of_a_body_are_failures(error: BaseException, nested: bool) -> None:
    a = act()
    b = act(raises(error), [a])
    if nested:
        outcome = await reactor(k=compose(make_reactor("C", {"a": a, "b": b}))).run()
        assert sequence(outcome) == "run:k.a run:k.b compensate:k.b undo:k.a"
    else:
        outcome = await reactor(a=a, b=b).run()
        assert sequence(outcome) == "run:a run:b compensate:b undo:a"
    assert outcome.error is error


@pytest.mark.parametrize("error", [OwnBase("u"), MemoryError("u"), GeneratorExit("u"), asyncio.CancelledError("u")])
async def test_odd_exceptions_of_an_undo_are_reported(error: BaseException) -> None:
    a = act()
    b = act(after=[a], undo=raises(error))
    outcome = await reactor(a=a, b=b, c=act(raises(ValueError()), [b])).run()
    assert sequence(outcome) == "run:a run:b run:c compensate:c undo:b undo:a"
    assert [(entry.step, entry.reason) for entry in outcome.rollback_failures] == [("b", "raised")]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["body", "nested", "element", "compensate", "undo", "nested undo"])
async def test_an_interruption_aborts_the_run_and_comes_out(interruption: Any, where: str) -> None:
    undone: list[str] = []

    def mine(ctx: Context) -> None:
        undone.append(ctx.path)

    ear, a = Ear(), act(undo=mine)
    bad = act(raises(interruption()), [a])
    if where == "body":
        made = reactor(a=a, b=bad, h=act(hang), _middlewares=[ear])
    elif where == "nested":
        child = make_reactor("C", {"x": act(raises(interruption()))})
        made = reactor(a=a, k=compose(child, after=[a]), h=act(hang), _middlewares=[ear])
    elif where == "element":
        m = map_each(element(e=act(raises(interruption()))), after=[a], **ONE)
        made = reactor(a=a, m=m, h=act(hang), _middlewares=[ear])
    elif where == "compensate":
        made = reactor(a=a, b=act(raises(ValueError()), [a], compensate=raises(interruption())), _middlewares=[ear])
    elif where == "undo":
        b = act(after=[a], undo=raises(interruption()))
        made = reactor(a=a, b=b, c=act(raises(ValueError()), [b]), _middlewares=[ear])
    else:
        x = act(undo=raises(interruption()))
        child = make_reactor("C", {"x": x, "y": act(raises(ValueError()), [x])})
        made = reactor(a=a, k=compose(child, after=[a]), h=act(hang), _middlewares=[ear])
    with pytest.raises(interruption):
        await made.run()
    assert undone == []
    assert ear.outcome is not None
    assert ear.outcome.status == "aborted"


async def test_signals_in_a_group_of_the_bodys_own_tasks() -> None:
    async def halting(_: Context) -> None:
        async with asyncio.TaskGroup() as group:

            async def inner() -> None:
                halt("enough")

            group.create_task(inner())
            group.create_task(hang())

    async def succeeding(_: Context) -> None:
        async with anyio.create_task_group() as group:

            async def inner() -> None:
                succeed(7)

            group.start_soon(inner)
            group.start_soon(hang)

    outcome = await reactor(s=act(succeeding)).run()
    assert isinstance(outcome, Success)
    assert outcome.results["s"] == 7
    assert isinstance(await reactor(a=act(), h=act(halting)).run(), Halt)


# ---------------------------------------------------------------------- cancellation


async def test_a_body_that_swallows_its_cancellation_ends_the_run_all_the_same() -> None:
    async def stubborn(ctx: Context) -> str:
        with suppress(asyncio.CancelledError):
            await hang()
        return ctx.path

    ear, a = Ear(), act(stubborn)
    await cancelled_after(0.02, reactor(a=a, b=act(after=[a]), _middlewares=[ear]))
    assert sequence(ear.outcome) == "run:a undo:a"


async def test_a_swallowed_cancellation_in_another_task_starts_nothing_new() -> None:
    async def stubborn(ctx: Context) -> str:
        with suppress(asyncio.CancelledError):
            await hang()
        return ctx.path

    ear, b = Ear(), act(stubborn)
    await cancelled_after(0.02, reactor(a=act(), b=b, c=act(after=[b]), _middlewares=[ear]))
    assert sequence(ear.outcome) == "run:a run:b undo:b undo:a"


async def test_nothing_new_starts_when_cancelled_during_an_elements_own_rollback() -> None:
    ear = Ear()
    m = map_each(element(e=act(raises(ValueError()), compensate=pause(0.06))), atomic=False, **ONE)
    z = act(after=[m])
    await cancelled_after(0.02, reactor(m=m, z=z, y=act(after=[z]), _middlewares=[ear]))
    assert sequence(ear.outcome) == "run:m[0].e compensate:m[0].e"


async def test_what_is_cut_in_a_child_that_halted_and_is_skipped_is_compensated() -> None:
    ear = Ear()
    child = make_reactor("C", {"h": act(hang), "x": act(pause(0.01, lambda _: halt("x")))})
    await cancelled_after(0.05, reactor(a=act(), k=compose(child, on_halt="skip"), _middlewares=[ear]))
    assert "compensate:k.h" in sequence(ear.outcome)


async def test_what_is_cut_by_a_failure_in_a_child_that_halted_is_compensated() -> None:
    child = make_reactor("C", {"h": act(hang), "x": act(pause(0.01, lambda _: halt("x")))})
    b = act(pause(0.04, raises(ValueError("b"))))
    outcome = await reactor(a=act(), k=compose(child, on_halt="skip"), b=b, _on_failure="cancel").run()
    assert "compensate:k.h" in sequence(outcome)


@pytest.mark.parametrize(
    "what",
    [
        "hangs",
        "backs off",
        "raises when cancelled",
        "outlives the deadline",
    ],
)
async def test_abort_undoes_nothing(what: str) -> None:
    async def raising(_: Context) -> None:
        try:
            await hang()
        finally:
            raise ValueError("clean-up")

    async def slow(_: Context) -> None:
        try:
            await hang()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.1)

    steps = {
        "hangs": act(hang),
        "backs off": act(raises(ValueError()), retries=Retry(3, base_delay=100)),
        "raises when cancelled": act(raising),
        "outlives the deadline": act(slow),
    }
    ear = Ear()
    options: dict[str, Any] = {"_deadline": 0.07} if what == "outlives the deadline" else {}
    await cancelled_after(0.02, reactor(a=act(), b=steps[what], _on_cancel="abort", _middlewares=[ear], **options))
    assert ear.outcome is not None
    assert ear.outcome.status == "aborted"
    assert sequence(ear.outcome) == "run:a run:b"


async def test_a_run_cancelled_while_a_step_backs_off_is_cancelled() -> None:
    ear = Ear()
    b = act(raises(ValueError()), retries=Retry(3, base_delay=100))
    await cancelled_after(0.02, reactor(a=act(), b=b, _middlewares=[ear]))
    assert sequence(ear.outcome) == "run:a run:b compensate:b undo:a"
    assert ear.outcome is not None
    assert ear.outcome.status == "cancelled"


async def test_cancelled_during_a_nested_rollback_everything_is_undone_once() -> None:
    ear = Ear()
    x = act(undo=pause(0.06))
    child = make_reactor("C", {"x": x, "y": act(raises(ValueError("y")), [x], compensate=pause(0.06))})
    a = act()
    made = reactor(a=a, k=compose(child, after=[a]), h=act(hang), _middlewares=[ear])
    await cancelled_after(0.02, made, times=3)
    assert sequence(ear.outcome) == "run:a run:h run:k.x run:k.y compensate:k.y undo:k.x compensate:h undo:a"


async def test_cancelling_every_task_of_the_loop_does_not_lose_an_undo() -> None:
    undone = []
    a = act(undo=lambda ctx: undone.append(ctx.path))
    b = act(after=[a], undo=pause(0.05))
    made = reactor(a=a, b=b, c=act(raises(ValueError()), [b]))
    before = asyncio.all_tasks()
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0.02)
    for each in asyncio.all_tasks() - before:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["a"]


async def test_a_rollback_that_an_anyio_cancellation_waits_for_is_bounded() -> None:
    a = act(undo=pause(30.0))
    made = reactor(a=a, c=act(raises(ValueError()), [a]))
    began = time.monotonic()
    async with Runtime(Settings(cancel_rollback_timeout=0.05)):
        with anyio.move_on_after(0.02):
            await made.run()
    assert time.monotonic() - began < 10


async def test_a_second_cancel_still_waits_for_the_thread() -> None:
    seen = []

    def body(_: Any) -> None:
        time.sleep(0.15)
        seen.append("end of the thread")

    async def compensate(_: Any) -> None:
        seen.append("compensate")

    node = step(body)
    node.compensate(compensate)
    await cancelled_after(0.03, reactor(n=node), times=2)
    await asyncio.sleep(0.2)
    assert seen == ["end of the thread", "compensate"]


# ---------------------------------------------------------------------- halts, deadlines, maps


async def test_a_halt_does_not_wait_for_the_next_attempt_of_another_step() -> None:
    began = time.monotonic()
    b = act(raises(ValueError("b")), retries=Retry(3, base_delay=30))
    outcome = await reactor(b=b, h=act(lambda _: halt("h"))).run()
    assert isinstance(outcome, Halt)
    assert sequence(outcome) == "run:b run:h compensate:b"
    assert time.monotonic() - began < 10


async def test_a_halted_run_stays_halted_when_a_source_raises_later() -> None:
    async def source(_: Any) -> Any:
        yield 1
        await asyncio.sleep(0.05)
        raise ValueError("source")

    m = map_each(element(e=act()), over=source, item="n")
    outcome = await reactor(a=act(), m=m, h=act(pause(0.02, lambda _: halt("h")))).run()
    assert isinstance(outcome, Halt)
    assert "undo:a" not in sequence(outcome)


async def test_a_step_that_fails_after_the_run_halted_is_compensated_and_the_rest_kept() -> None:
    late = act(pause(0.03, raises(ValueError("late"))))
    outcome = await reactor(a=act(), late=late, h=act(pause(0.01, lambda _: halt("h")))).run()
    assert isinstance(outcome, Halt)
    assert sequence(outcome) == "run:a run:late run:h compensate:late"


async def test_a_step_that_fails_after_its_skippable_child_halted_is_compensated_and_the_rest_kept() -> None:
    late = act(pause(0.03, raises(ValueError("late"))))
    child = make_reactor("C", {"late": late, "h": act(pause(0.01, lambda _: halt("h")))})
    outcome = await reactor(a=act(), k=compose(child, on_halt="skip")).run()
    assert isinstance(outcome, Success)
    assert sequence(outcome) == "run:a run:k.late run:k.h compensate:k.late"


async def hanging_source(_: Any) -> Any:
    await hang()
    yield 1


async def test_a_childs_deadline_ends_a_source_that_waits() -> None:
    child = make_reactor("C", {"m": map_each(element(e=act()), over=hanging_source, item="n")}, deadline=0.05)
    began = time.monotonic()
    outcome = await asyncio.wait_for(reactor(k=compose(child), _settle_timeout=30).run(), 20)
    assert isinstance(outcome, Failure)
    assert time.monotonic() - began < 10


async def test_an_elements_deadline_ends_a_source_that_waits() -> None:
    inner = map_each(element(e=act()), over=hanging_source, item="n")
    child = make_reactor("C", {"m": inner}, {"n": object}, deadline=0.05)
    outcome = await asyncio.wait_for(reactor(k=map_each(child, atomic=False, **ONE)).run(), 0.5)
    assert isinstance(outcome, Success)


async def test_none_is_an_item_like_any_other() -> None:
    seen = []
    inner = map_each(element(e=act(lambda ctx: seen.append(ctx.inputs["n"]))), over=value([None, 1]), item="n")
    outcome = await reactor(m=map_each(element(m=inner), over=value(["outer"]), item="n")).run()
    assert isinstance(outcome, Success)
    assert seen == [None, 1]


async def test_a_collect_that_raises_rolls_the_elements_back() -> None:
    def collect(results: Any) -> Any:
        raise ValueError("collect")

    a = act()
    m = map_each(element(e=act()), over=value([0, 1]), item="n", collect=collect, after=[a])
    outcome = await reactor(a=a, m=m).run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "m"
    assert sequence(outcome) == "run:a run:m[0].e run:m[1].e undo:m[1].e undo:m[0].e undo:a"


async def test_a_source_that_raises_mid_way_rolls_the_elements_back() -> None:
    def source(_: Any) -> Any:
        yield 0
        yield 1
        raise ValueError("source")

    a = act()
    m = map_each(element(e=act()), over=source, item="n", concurrency=1, atomic=False, after=[a])
    outcome = await reactor(a=a, m=m).run()
    assert isinstance(outcome, Failure)
    assert outcome.step == "m"
    assert sequence(outcome) == "run:a run:m[0].e run:m[1].e undo:m[1].e undo:m[0].e undo:a"


# ---------------------------------------------------------------------- order, progress, context


async def test_what_is_ready_together_starts_in_definition_order() -> None:
    order, cues = [], {}

    async def wait(ctx: Context) -> None:
        cues[ctx.path] = asyncio.Event()
        await cues[ctx.path].wait()

    p, q = act(wait), act(wait)

    def mine(after: Any) -> Any:
        return act(lambda ctx: order.append(ctx.path), [after])

    task = asyncio.create_task(reactor(p=p, q=q, a=mine(p), b=mine(p), c=mine(q), d=mine(q), e=mine(q)).run())
    await asyncio.sleep(0.01)
    cues["p"].set()
    cues["q"].set()
    await task
    assert [name for name in order if name in "cde"] == ["c", "d", "e"]


async def test_a_childs_steps_start_in_definition_order() -> None:
    order: list[str] = []

    def mine() -> Any:
        return act(lambda ctx: order.append(ctx.path))

    child = make_reactor("C", {"x": mine(), "y": mine()})
    await reactor(a=mine(), k=compose(child), b=mine()).run()
    assert order.index("k.x") < order.index("k.y")


async def test_an_undo_may_report_progress() -> None:
    heard, problems = [], []
    ear = type("M", (), {"on_progress": lambda _, event: heard.append(event.path)})()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    a = act(undo=lambda ctx: ctx.progress(1))
    await reactor(a=a, b=act(raises(ValueError()), [a]), _middlewares=[ear]).run()
    await asyncio.sleep(0.01)
    assert not problems
    assert heard == ["a"]


VAR: contextvars.ContextVar[int] = contextvars.ContextVar("props_nasty", default=0)


@pytest.mark.parametrize("where", ["hook", "source", "transform"])
async def test_the_callers_context_is_left_as_it_was(where: str) -> None:
    def source(_: Any) -> Any:
        VAR.set(5)
        yield 1

    def transform(found: Any) -> Any:
        VAR.set(5)
        return found

    ear = type("M", (), {"on_step_start": lambda *_: VAR.set(5) and None})()
    a = act()
    made = {
        "hook": lambda: reactor(a=a, _middlewares=[ear]),
        "source": lambda: reactor(m=map_each(element(e=act()), over=source, item="n")),
        "transform": lambda: reactor(a=a, b=reads(a, transform)),
    }[where]()
    assert isinstance(await made.run(), Success)
    assert VAR.get() == 0


# ---------------------------------------------------------------------- threads, hooks that hang, runs inside bodies


def blocking(seen: list[str], name: str, seconds: float, **options: Any) -> Any:
    """A step whose body blocks a thread."""

    def body(_: Any) -> None:
        time.sleep(seconds)
        seen.append(f"effect {name}")

    async def compensate(_: Any) -> None:
        seen.append(f"compensate {name}")

    node = step(**options)(body)
    node.compensate(compensate)
    return node


async def test_a_blocking_body_that_got_no_thread_before_it_was_cancelled_never_runs() -> None:
    seen: list[str] = []
    made = reactor(a=blocking(seen, "a", 0.15), b=blocking(seen, "b", 0.0))
    async with Runtime(Settings(max_threads=1, settle_timeout=0.01)):
        await cancelled_after(0.03, made)
    await asyncio.sleep(0.3)
    assert "effect b" not in seen


async def test_a_blocking_body_that_got_no_thread_before_its_timeout_never_runs() -> None:
    seen: list[str] = []
    b = blocking(seen, "b", 0.0, timeout=0.03, retries=Retry(2, base_delay=0.01))
    async with Runtime(Settings(max_threads=1, settle_timeout=0.01)):
        assert isinstance(await reactor(a=blocking(seen, "a", 0.2), b=b).run(), Failure)
    await asyncio.sleep(0.3)
    assert "effect b" not in seen


@pytest.mark.parametrize("hook", ["on_rollback_start", "on_compensate_start", "on_undo_start", "on_undo_finish"])
async def test_a_hook_that_hangs_in_a_rollback_does_not_hang_the_run(hook: str) -> None:
    ear = type("M", (), {hook: staticmethod(hang)})()
    a = act()
    made = reactor(
        a=a, b=act(raises(ValueError()), [a]), _middlewares=[ear], _rollback_timeout=0.05, _undo_timeout=0.05
    )
    task = asyncio.create_task(made.run())
    done, _ = await asyncio.wait({task}, timeout=0.5)
    try:
        assert done
    finally:
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
        await asyncio.wait({task}, timeout=0.5)


@pytest.mark.parametrize("how", ["cancel", "anyio", "deadline", "failure", "timeout"])
async def test_a_run_inside_a_body_is_rolled_back_when_the_body_is_cancelled(how: str) -> None:
    seen: list[str] = []

    def mine(name: str) -> Callable[[Context], None]:
        return lambda _: seen.append(name)

    inner = reactor(x=act(undo=mine("undo x")), y=act(hang, compensate=mine("compensate y")))

    async def runs_another(_: Context) -> Any:
        return await inner.run()

    options: dict[str, Any] = {"timeout": 0.03} if how == "timeout" else {}
    steps = {
        "a": act(undo=mine("undo a")),
        "b": act(runs_another, compensate=mine("compensate b"), **options),
        "_on_failure": "cancel",
    }
    if how == "failure":
        steps["z"] = act(pause(0.03, raises(ValueError("z"))))
    if how == "deadline":
        steps["_deadline"] = 0.03
    made = reactor(**steps)
    if how == "cancel":
        await cancelled_after(0.03, made)
    elif how == "anyio":
        with anyio.move_on_after(0.03) as scope:
            await made.run()
        assert scope.cancelled_caught
    else:
        assert isinstance(await made.run(), Failure)
    assert seen == ["compensate y", "undo x", "compensate b", "undo a"]


async def test_a_body_that_turns_its_cancellation_into_an_error_is_not_tried_again() -> None:
    entered = []

    async def converting(ctx: Context) -> None:
        entered.append(ctx.attempt)
        try:
            await hang()
        except asyncio.CancelledError:
            raise ValueError("converted") from None

    h = act(converting, retries=Retry(5, base_delay=0))
    await cancelled_after(0.02, reactor(a=act(), h=h))
    assert entered == [1]


async def test_limits_of_a_rollback_leave_nothing_unsaid() -> None:
    async def stubborn(_: Context) -> None:
        for _again in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    a = act()
    b = act(after=[a], undo=stubborn)
    made = {"a": a, "b": b, "c": act(raises(ValueError()), [b])}
    outcome = await reactor(**made, _undo_timeout=0.03).run()
    assert [(f.step, f.reason) for f in outcome.rollback_failures] == [("b", "timed_out")]
    assert sequence(outcome) == "run:a run:b run:c compensate:c undo:b undo:a"

    a = act()
    b = act(after=[a], undo=hang)
    outcome = await reactor(a=a, b=b, c=act(raises(ValueError()), [b]), _rollback_timeout=0.03).run()
    assert [(f.step, f.reason) for f in outcome.rollback_failures] == [("b", "timed_out"), ("a", "timed_out")]
