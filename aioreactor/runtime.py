"""The composition root: settings, resources, and what ``R.run()`` reaches."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, NoReturn, Self, get_origin
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter

from aioreactor.clock import SYSTEM_CLOCK, Clock
from aioreactor.definition.annotations import strip
from aioreactor.definition.fields import closest_text
from aioreactor.definition.policies import Durability, OnCancel, OnFailure
from aioreactor.definition.primitives import Primitive
from aioreactor.definition.reactor import Reactor
from aioreactor.definition.steps import Step
from aioreactor.engine import once, reporting
from aioreactor.engine.arguments import cross_checked, validated, view_of
from aioreactor.engine.ports import Environment
from aioreactor.engine.scheduler import Execution
from aioreactor.errors import DefinitionError, InputValidationError, StoreRequired
from aioreactor.handles import RunHandle
from aioreactor.plan.model import Plan
from aioreactor.results import Outcome

_PREFIX = "AIOREACTOR_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a runtime can be told. ``AIOREACTOR_*`` variables fill what is not given. Spans in seconds.

    ``on_failure``, ``on_cancel``, ``settle_timeout``, ``undo_timeout``, ``rollback_timeout``, ``deadline``,
    ``max_concurrency`` and ``durability`` are defaults for reactors that say nothing in their class header.
    ``max_threads`` bounds the worker threads that blocking bodies use (None: anyio's own bound of 40).
    ``resources`` maps names, or types, to what parameters marked `Resource` receive.
    """

    redis_url: str | None = None
    middlewares: Sequence[Any] = ()
    resources: Mapping[Any, Any] = field(default_factory=dict)
    on_failure: OnFailure = "settle"
    on_cancel: OnCancel = "rollback"
    settle_timeout: float = 30.0
    undo_timeout: float = 60.0
    rollback_timeout: float | None = None
    cancel_rollback_timeout: float = 30.0
    deadline: float | None = None
    max_concurrency: int | None = None
    max_threads: int | None = None
    durability: Durability | None = None
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def from_environment(cls, **given: Any) -> Settings:
        """Settings with ``AIOREACTOR_*`` variables for what is not given.

        Raises:
            ValueError: a variable does not fit; the text names it.
        """
        known = [option.name for option in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"there is no setting {name!r}{closest_text(name, known)}")
        found = {}
        for option in fields(cls):
            text = os.environ.get(_PREFIX + option.name.upper())
            if text is not None and option.name in _FROM_TEXT and option.name not in given:
                try:
                    found[option.name] = _FROM_TEXT[option.name](text)
                except ValueError as error:
                    raise ValueError(f"{_PREFIX}{option.name.upper()}={text!r}: {error}") from error
        return cls(**found, **given)


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"use one of {', '.join(allowed)}")
        return text

    return parse


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "redis_url": str,
    "on_failure": _choice("settle", "cancel"),
    "on_cancel": _choice("rollback", "abort", "detach"),
    "settle_timeout": float,
    "undo_timeout": float,
    "rollback_timeout": float,
    "cancel_rollback_timeout": float,
    "deadline": float,
    "max_concurrency": int,
    "max_threads": int,
    "durability": _choice("step", "batched", "exit", "none"),
}


def new_run_id() -> str:
    """32 hex digits: milliseconds since the epoch first, so that ids sort by time; the rest random."""
    return f"{int(time.time() * 1000):012x}{secrets.token_hex(10)}"


class Runtime:
    """One set of settings at work. ``async with Runtime(Settings(…)):`` makes it the current one inside.

    Tasks started by ``spawn`` belong to it and are cancelled (and rolled back) when it closes.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings if settings is not None else Settings.from_environment()
        self._spawned: set[asyncio.Task[Outcome[Any]]] = set()
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()
        self._token: Token[Runtime | None] | None = None
        self._environment = self._make_environment()

    def _make_environment(self) -> Environment:
        given = {
            option.name: getattr(self.settings, option.name)
            for option in fields(Environment)
            if option.name not in {"resource", "limiter", "journal"}
        }
        return Environment(resource=self.resource, limiter=self._limiter, **given)

    def _limiter(self) -> CapacityLimiter | None:
        if self.settings.max_threads is None:
            return None
        loop = asyncio.get_running_loop()
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(self.settings.max_threads)
        return self._limiters[loop]

    async def __aenter__(self) -> Self:
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is not None:
            # A fixture or a lifespan may be left in another context than it was entered in; there it never counted.
            with suppress(ValueError):
                _current.reset(token)
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel what ``spawn`` started and wait until it has been rolled back.

        Cancellation: the spawned runs finish their rollback all the same.
        """
        mine = [task for task in self._spawned if task.get_loop() is asyncio.get_running_loop()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    # ------------------------------------------------------------------ resources

    def resource(self, name: str, annotation: Any) -> Any:
        """A resource by name, else by type.

        Raises:
            DefinitionError: there is none.
        """
        found = self._find_resource(name, annotation)
        if found is _MISSING:
            wanted = getattr(strip(annotation), "__name__", strip(annotation))
            raise DefinitionError(
                "resources",
                [f"{name!r} ({wanted}) is not configured; aioreactor.configure(resources={{{name!r}: …}})"],
            )
        return found

    def _find_resource(self, name: str, annotation: Any) -> Any:
        given = self.settings.resources
        if name in given:
            return given[name]
        kind = strip(annotation)
        kind = get_origin(kind) or kind
        if kind in given:
            return given[kind]
        if isinstance(kind, type) and kind is not object:
            for item in given.values():
                if isinstance(item, kind) and not getattr(kind, "_is_protocol", False):
                    return item
        outer = self._outer()
        return outer._find_resource(name, annotation) if outer is not None else _MISSING

    def _outer(self) -> Runtime | None:
        default = _default.get("runtime")
        return default if default is not self else None

    def _check_resources(self, plan: Plan) -> None:
        missing = {
            name: f"{where}: resource {name!r} is not configured; aioreactor.configure(resources={{{name!r}: …}})"
            for where, name, annotation in reversed(plan.resource_needs)
            if self._find_resource(name, annotation) is _MISSING
        }
        if missing:
            raise DefinitionError(plan.reactor.__qualname__, list(missing.values())[::-1])

    # ------------------------------------------------------------------ starting

    def _prepare(self, reactor: type[Reactor[Any]], options: Mapping[str, Any]) -> Plan:
        """Everything that has to hold before anything runs.

        Raises:
            DefinitionError: the plan is not complete, or a resource is missing.
            StoreRequired: something needs a store.
        """
        plan = reactor.plan
        if plan.unresolved:
            plan.check()
        self._check_store(plan, options)
        self._check_resources(plan)
        return plan

    def _check_store(self, plan: Plan, options: Mapping[str, Any]) -> None:
        reasons = list(plan.store_reasons)
        durability = options.get("durability") or plan.options.durability or self.settings.durability
        if durability not in {None, "none"}:
            reasons.append(f"durability={durability!r} was asked for")
        reasons += [f"{name}= was given" for name in _STORED_OPTIONS if options.get(name) is not None]
        if self.settings.on_cancel == "detach" and plan.options.on_cancel is None:
            reasons.append('on_cancel="detach" is set')
        if reasons:
            raise StoreRequired(f"running {plan.reactor.__qualname__}", reasons)

    def _begin(self, plan: Plan, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Execution | Outcome[Any]:
        """An execution with validated inputs, or the outcome of invalid ones."""
        run_id = options.get("run_id") or new_run_id()
        owner = plan.reactor.__qualname__
        try:
            values = validated(plan.fields, inputs, owner)
            cross_checked(view_of(plan, values), owner)
        except InputValidationError as error:
            return reporting.refused(plan, run_id, error, inputs)
        execution = Execution(self._environment, plan, run_id)
        execution.state.root.inputs = values
        return execution

    def _view(self, plan: Plan, values: Mapping[str, Any]) -> Any:
        given = {item.name: self.resource(item.name, item.annotation) for item in plan.fields.resources}
        return view_of(plan, values, given)

    async def run(
        self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Outcome[Any]:
        """Run here; see `Reactor.run`."""
        plan = self._prepare(reactor, options)
        begun = self._begin(plan, inputs, options)
        if not isinstance(begun, Execution):
            return begun
        values = begun.state.root.inputs
        return await begun.run(self._view(plan, values), values)

    async def spawn(
        self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> RunHandle[Any]:
        """Start as a task of this runtime; see `Reactor.spawn`."""
        plan = self._prepare(reactor, options)
        begun = self._begin(plan, inputs, options)
        if not isinstance(begun, Execution):
            return RunHandle(begun.run_id, plan.name, None, None, begun)
        values = begun.state.root.inputs
        task = asyncio.get_running_loop().create_task(begun.run(self._view(plan, values), values))
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return RunHandle(begun.state.run_id, plan.name, task, begun)

    async def enqueue(
        self,
        reactor: type[Reactor[Any]],
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> NoReturn:
        """Start in a worker.

        Raises:
            StoreRequired: there is no store.
        """
        raise StoreRequired(f"{reactor.__name__}.enqueue()")

    async def once(self, step: type[Step[Any]], given: Mapping[str, Any]) -> Any:
        """One attempt of a step class; see `Step.once`."""
        return await once.run_once(self._environment, step, given)

    async def enter(self, primitive: Primitive) -> NoReturn:
        """Take a primitive on its own.

        Raises:
            StoreRequired: there is no store.
        """
        raise StoreRequired(f"{type(primitive).__name__}({primitive.key!r})")

    def runs(self, reactor: type[Reactor[Any]] | None) -> Runs:
        """Access to stored runs, of one reactor or of all."""
        return Runs(None if reactor is None else reactor.__name__)


_RUN_CALLS = frozenset(("find", "list", "resume", "cancel", "undo", "retry", "fork", "decide", "explain", "delete"))


class Runs:
    """Everything about existing runs. All of it needs a store."""

    __slots__ = ("_of",)

    def __init__(self, of: str | None = None) -> None:
        self._of = of

    def __getattr__(self, name: str) -> NoReturn:
        if name in _RUN_CALLS:
            raise StoreRequired(f"{'aioreactor' if self._of is None else self._of}.runs.{name}()")
        raise AttributeError(f"runs has no {name!r}; it has: {', '.join(sorted(_RUN_CALLS))}")


_MISSING: Any = object()
_STORED_OPTIONS = ("idempotency_key", "delay", "at", "tags", "on_conflict", "queue")
_current: ContextVar[Runtime | None] = ContextVar("aioreactor_runtime", default=None)
_default: dict[str, Runtime] = {}


def configure(**settings: Any) -> Runtime:
    """Set the process-wide default runtime; a second call replaces it.

    Takes the fields of `Settings`; ``AIOREACTOR_*`` variables fill what is not given.

    Raises:
        TypeError: a setting is not known.
        ValueError: a variable does not fit.
    """
    made = Runtime(Settings.from_environment(**settings))
    _default["runtime"] = made
    return made


def current_runtime() -> Runtime:
    """The runtime in force here: that of the innermost ``async with``, else the configured or default one."""
    scoped = _current.get()
    if scoped is not None:
        return scoped
    if "runtime" not in _default:
        _default["runtime"] = Runtime()
    return _default["runtime"]


@asynccontextmanager
async def lifespan(_app: Any = None, /, **settings: Any) -> AsyncIterator[None]:
    """An ASGI lifespan: configures on start-up, and on shutdown ends what was spawned.

    ``Starlette(lifespan=aioreactor.lifespan)``, or inside one of your own:
    ``async with aioreactor.lifespan(resources={…}): yield``.

    Cancellation: spawned runs are rolled back first.
    """
    runtime = configure(**settings) if settings else current_runtime()
    try:
        yield
    finally:
        await runtime.aclose()
