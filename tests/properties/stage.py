"""The real engine on a stage where nothing ends by itself: every body, undo and timer waits for its cue."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aioreactor import (
    ArgumentError,
    Context,
    Failure,
    Halt,
    MapResults,
    Outcome,
    OutputValidationError,
    Reactor,
    Retry,
    Runtime,
    Settings,
    Skipped,
    Success,
    compose,
    fail,
    halt,
    map_each,
    result,
    skip,
    step,
    value,
)
from tests.properties.graphs import Behaviour, ComposeSpec, Graph, Item, MapSpec, StepSpec

CALM = 14
"""How many turns of the loop without a change count as calm; more than any chain of callbacks in the engine."""


class OwnBase(BaseException):
    """A user's own exception outside ``Exception``."""


def make_reactor(name: str, body: dict[str, Any], inputs: dict[str, Any] | None = None, **options: Any) -> Any:
    """A reactor class made of these nodes."""

    def fill(space: dict[str, Any]) -> None:
        space["__module__"] = __name__
        space["__annotations__"] = inputs or {}
        space.update(body)

    return types.new_class(name, (Reactor,), options, fill)


async def calm(look: Callable[[], Any], turns: int = CALM) -> None:
    """Let the loop run until what ``look`` shows has not changed for some turns."""
    before, still = look(), 0
    for _ in range(5000):
        await asyncio.sleep(0)
        now = look()
        still = still + 1 if now == before else 0
        before = now
        if still >= turns:
            return
    raise AssertionError("the loop does not come to rest")


class StageClock:
    """Waits between attempts become cues; every other timer (``settle_timeout``) never rings."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        return _Timer(self.stage, delay, callback)


class _Timer:
    def __init__(self, stage: Stage, delay: float, callback: Callable[[], object]) -> None:
        self.stage = stage
        self.item = stage.backing_off.pop(delay, None)
        if self.item is not None:
            stage.timers[self.item] = callback

    def cancel(self) -> None:
        if self.item is not None:
            self.stage.timers.pop(self.item, None)


class Stage:
    """One run of one graph."""

    def __init__(self, graph: Graph, behaviour: Behaviour, hooks: str = "none", **settings: Any) -> None:
        self.behaviour = behaviour
        self.cues: dict[Item, asyncio.Future[None]] = {}
        self.timers: dict[Item, Callable[[], object]] = {}
        self.backing_off: dict[float, Item] = {}
        self.attempts: dict[str, int] = {}
        self.log: list[str] = []
        self.cuts: list[Item] = []
        self.complaints: list[str] = []
        self.finished: list[Outcome[Any]] = []
        self.reactor = self._build(graph, "")
        choices: dict[str, list[Any]] = {"none": [], "plain": [_Plain(self)], "yielding": [_Yielding(self)]}
        self.settings = Settings(clock=StageClock(self), middlewares=choices[hooks], **settings)
        self.task: asyncio.Task[Outcome[Any]]

    # ------------------------------------------------------------------ driving

    async def begin(self) -> None:
        async def play() -> Outcome[Any]:
            async with Runtime(self.settings):
                outcome: Outcome[Any] = await self.reactor.run()
                return outcome

        self.tasks_before = set(asyncio.all_tasks())
        self.task = asyncio.create_task(play())
        await self.calm()

    async def calm(self) -> None:
        await calm(lambda: (len(self.log), set(self.items), len(self.cuts), len(self.finished), self.task.done()))

    @property
    def items(self) -> set[Item]:
        return {*self.cues, *self.timers}

    async def release(self, item: Item) -> list[Item]:
        """End this item; give the bodies that the engine cancelled in consequence."""
        known = len(self.cuts)
        if item in self.timers:
            self.timers.pop(item)()
        else:
            self.cues[item].set_result(None)
        await self.calm()
        return self.cuts[known:]

    async def cancel(self) -> list[Item]:
        known = len(self.cuts)
        self.task.cancel()
        await self.calm()
        return self.cuts[known:]

    def leaked_tasks(self) -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() - self.tasks_before if task is not self.task}

    async def tear_down(self) -> None:
        """After a failed comparison: end what hangs, so that the next example starts clean."""
        for _ in range(200):
            if self.task.done():
                break
            for cue in list(self.cues.values()):
                if not cue.done():
                    cue.set_result(None)
            for ring in list(self.timers.values()):
                ring()
            self.behaviour.body.clear()
            await asyncio.sleep(0)
        with suppress(BaseException):
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=1)

    # ------------------------------------------------------------------ what the users' functions do

    async def wait(self, item: Item) -> None:
        if item in self.cues:
            self.complaints.append(f"{item} is entered twice at a time")
        cue = self.cues[item] = asyncio.get_running_loop().create_future()
        self.log.append(str(item))
        try:
            await cue
        finally:
            self.cues.pop(item, None)

    async def body(self, path: str, spec: StepSpec) -> Any:
        number = self.attempts[path] = self.attempts.get(path, 0) + 1
        item = Item("run", path, number)
        try:
            await self.wait(item)
        except asyncio.CancelledError:
            self.cuts.append(item)
            raise
        what = self.behaviour.attempt(path, number)
        self.backing_off[spec.delay] = Item("wait", path, number)
        return _act(what, path)

    async def action(self, kind: str, path: str) -> Any:
        try:
            await self.wait(Item(kind, path))
        except asyncio.CancelledError:
            self.complaints.append(f"{kind}:{path} was cancelled")
            raise
        return _act(self.behaviour.action(path, kind), path)

    # ------------------------------------------------------------------ building

    def _build(self, graph: Graph, prefix: str | None, inputs: dict[str, Any] | None = None) -> Any:
        """``prefix`` is the path so far, or None below a map, where only the context knows it."""
        made: dict[str, Any] = {}
        for node in graph.nodes:
            after = [made[name] for name in node.after]
            path = None if prefix is None else f"{prefix}{node.name}"
            if isinstance(node, StepSpec):
                made[node.name] = self._step(graph, node, path, after)
            elif isinstance(node, ComposeSpec):
                inner = self._build(node.child, None if path is None else f"{path}.")
                made[node.name] = compose(inner, after=after, on_halt=node.on_halt)
            else:
                made[node.name] = self._map(node, after, made)
        options: dict[str, Any] = {"on_failure": graph.on_failure}
        if graph.max_concurrency is not None:
            options["max_concurrency"] = graph.max_concurrency
        return make_reactor("R", made, inputs, **options)

    def _options(self, spec: StepSpec) -> dict[str, Any]:
        retries = Retry(spec.attempts, backoff="fixed", base_delay=spec.delay) if spec.attempts > 1 else None
        return {"retries": retries, "output": _check if spec.checked else None}

    def _step(self, graph: Graph, spec: StepSpec, path: str | None, after: list[Any]) -> Any:
        stage = self
        options = self._options(spec)
        if spec.unresolved:

            async def unresolved(_: Any, p: Any = result(after[0], transform=_refuse)) -> Any:
                stage.complaints.append(f"{spec.name} was entered without arguments")

            node = step(after=after[1:], **options)(unresolved)
        elif path is not None and after and isinstance(graph.by_name(spec.after[0]), StepSpec):
            expected = path[: len(path) - len(spec.name)] + spec.after[0]

            async def with_result(_: Any, p: Any = result(after[0])) -> Any:
                if p != expected:
                    stage.complaints.append(f"{path} was given {p!r} instead of {expected!r}")
                return await stage.body(path, spec)

            node = step(after=after[1:], **options)(with_result)
        elif path is not None:

            async def plain(_: Any) -> Any:
                return await stage.body(path, spec)

            node = step(after=after, **options)(plain)
        else:

            async def somewhere(_: Any, ctx: Context) -> Any:
                if ctx.attempt != stage.attempts.get(ctx.path, 0) + 1:
                    stage.complaints.append(f"{ctx.path}: ctx.attempt is {ctx.attempt}")
                return await stage.body(ctx.path, spec)

            node = step(after=after, **options)(somewhere)
        self._register(node, spec)
        return node

    def _register(self, node: Any, spec: StepSpec) -> None:
        stage = self
        if spec.undo:

            async def undo(_: Any, ctx: Context, result: Any) -> Any:
                if result != ctx.path:
                    stage.complaints.append(f"the undo of {ctx.path} was given {result!r}")
                return await stage.action("undo", ctx.path)

            node.undo(undo)
        if spec.compensate:

            async def compensate(_: Any, ctx: Context, error: BaseException) -> Any:
                if not isinstance(error, BaseException):
                    stage.complaints.append(f"the compensate of {ctx.path} was given {error!r}")
                return await stage.action("compensate", ctx.path)

            node.compensate(compensate)

    def _map(self, spec: MapSpec, after: list[Any], made: dict[str, Any]) -> Any:
        stage = self
        options: dict[str, Any] = {
            "over": value(list(range(spec.size))),
            "concurrency": spec.concurrency,
            "atomic": spec.atomic,
            "after": after,
        }
        if isinstance(spec.element, Graph):
            return map_each(self._build(spec.element, None, {"n": int}), item="n", **options)
        element = spec.element

        async def each(_: Any, it: int, ctx: Context) -> Any:
            if f"[{it}]" != ctx.path[ctx.path.rindex("[") :]:
                stage.complaints.append(f"{ctx.path} was given item {it}")
            return await stage.body(ctx.path, element)

        node = map_each(**options, **self._options(element))(each)
        self._register(node, element)
        if spec.undo_all:

            async def undo_all(_: Any, ctx: Context, results: Any) -> Any:
                given = [found async for found in results]
                if given != sorted(given, key=lambda path: int(path[path.rindex("[") + 1 : -1])):
                    stage.complaints.append(f"undo_all of {ctx.path} was given {given}")
                return await stage.action("undo_all", ctx.path)

            node.undo_all(undo_all)
            made[f"{spec.name}_undo_all"] = undo_all
        return node


class _Plain:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def on_event(self, event: Any) -> Any:
        """Listen to everything."""

    def on_run_finish(self, event: Any) -> Any:
        self.stage.finished.append(event.outcome)


class _Yielding(_Plain):
    async def on_event(self, event: Any) -> None:
        await asyncio.sleep(0)

    async def on_run_finish(self, event: Any) -> None:
        self.stage.finished.append(event.outcome)
        await asyncio.sleep(0)


def _refuse(_: Any) -> Any:
    raise LookupError("there is no such thing")


def _check(given: Any) -> None:
    if isinstance(given, str) and given.startswith("!"):
        raise ValueError("not a good value")


def _act(what: str, path: str) -> Any:
    if what == "ok":
        return path
    if what == "skip":
        return Skipped(path) if len(path) % 2 else skip(path)
    if what == "halt":
        return Halt(path) if len(path) % 2 else halt(path)
    if what == "returned":
        return Failure(ValueError(path))
    if what == "invalid":
        return f"!{path}"
    if what == "fail":
        return fail(path)
    if what == "final":
        return fail(path, retry=False)
    errors: dict[str, Callable[[], BaseException]] = {
        "raise": lambda: ValueError(path),
        "leak": lambda: asyncio.CancelledError(path),
        "base": lambda: OwnBase(path),
        "group": lambda: ExceptionGroup("several", [ValueError(path), KeyError(path)]),
    }
    raise errors[what]()


# ---------------------------------------------------------------------- reading what came out


def origin(error: BaseException) -> str:
    """Path of the step that an error comes from."""
    if isinstance(error, BaseExceptionGroup):
        return origin(error.exceptions[0])
    if isinstance(error, OutputValidationError):
        return str(error.owner).partition("'")[2].rpartition("'")[0]
    if isinstance(error, ArgumentError):
        return error.step
    return str(error.args[0])


def plain_value(found: Any) -> Any:
    """A result as the model writes it."""
    if isinstance(found, MapResults):
        return [_plain_outcome(entry) for entry in found.outcomes()]
    if isinstance(found, dict):
        return {name: plain_value(item) for name, item in found.items()}
    return found


def _plain_outcome(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, Success):
        return "completed", plain_value(entry.value)
    if isinstance(entry, Skipped):
        return "skipped", plain_value(entry.value)
    return "failed", origin(entry.error)
