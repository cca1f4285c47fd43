"""The composition root: settings, resources, and what ``R.run()`` reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aioreactor.connections import Connections
from aioreactor.definition.policies import Durability
from aioreactor.definition.primitives import Primitive
from aioreactor.definition.reactor import Reactor
from aioreactor.definition.steps import Step
from aioreactor.engine import once, reporting
from aioreactor.engine.arguments import view_of
from aioreactor.engine.scheduler import Execution
from aioreactor.errors import InputValidationError, SerializationError, StoreRequired
from aioreactor.handles import RunHandle
from aioreactor.plan.model import Plan
from aioreactor.plan.units import fans_in, units_in
from aioreactor.results import Dispatched, Outcome
from aioreactor.runs import Runs
from aioreactor.settings import Settings
from aioreactor.starting import (
    all_values_of,
    check_importable,
    check_rate_limits,
    due_ms_of,
    new_run_id,
    values_of,
)
from aioreactor.trace import RunRecord


class Runtime(Connections):
    """One set of settings at work. ``async with Runtime(Settings(…)):`` makes it the current one inside.

    Tasks started by ``spawn`` belong to it and are cancelled (and rolled back) when it closes.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings if settings is not None else Settings.from_environment())
        self._spawned: set[asyncio.Task[Outcome[Any]]] = set()
        self._token: Token[Runtime | None] | None = None

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
        await self._close_connections()

    def _outer(self) -> Runtime | None:
        default = _default.get("runtime")
        return default if default is not self else None

    # ------------------------------------------------------------------ starting

    def _prepare(self, reactor: type[Reactor[Any]], options: Mapping[str, Any], *, dispatched: bool = False) -> Plan:
        """Everything that has to hold before anything runs.

        Raises:
            DefinitionError: the plan is not complete, or a resource is missing.
            StoreRequired: something needs a store.
            UnknownRateLimit: limits are named that are not configured.
        """
        plan = reactor.plan
        if plan.unresolved:
            plan.check()
        self._check_store(plan, options, dispatched=dispatched)
        if dispatched:
            check_importable(plan)
        else:
            self._check_resources(plan)
            if plan.store_reasons:
                check_rate_limits(plan, self.settings.rate_limits)
        for unit in (*units_in(plan), *fans_in(plan)):
            sent = unit.unit if unit.unit is not None else unit.fan
            assert sent is not None
            check_importable(sent)
        return plan

    def _check_store(self, plan: Plan, options: Mapping[str, Any], *, dispatched: bool) -> None:
        reasons = list(plan.store_reasons) if self.settings.redis_url is None else []
        if self.settings.redis_url is None and self.settings.on_cancel == "detach" and plan.options.on_cancel is None:
            reasons.append('on_cancel="detach" is set')
        durability = self._durability(plan, options)
        what = f"running {plan.reactor.__qualname__}"
        if self.settings.redis_url is None:
            reasons += [f"durability={durability!r} was asked for"] if durability not in {None, "none"} else []
            reasons += [f"{name}= was given" for name in _STORED_OPTIONS if options.get(name) is not None]
            if reasons:
                raise StoreRequired(what, reasons)
            return
        if durability == "none":
            reasons += [f'{text}, and durability="none" keeps nothing' for text in plan.record_reasons]
        if reasons:
            raise StoreRequired(what, reasons)
        early = [f"{name}= is for enqueue()" for name in _WORKER_OPTIONS if options.get(name) is not None]
        if early and not dispatched:
            raise ValueError(f"{what} at once, and {' and '.join(early)}")

    def _durability(self, plan: Plan, options: Mapping[str, Any]) -> Durability | None:
        found: Durability | None = options.get("durability") or plan.options.durability or self.settings.durability
        return found

    def _is_durable(self, plan: Plan, options: Mapping[str, Any]) -> bool:
        return self.settings.redis_url is not None and self._durability(plan, options) != "none"

    def _run_id(self, plan: Plan, options: Mapping[str, Any]) -> str:
        if self._is_durable(plan, options):
            from aioreactor.durable import run_id_of

            return run_id_of(plan, options) or new_run_id()
        return options.get("run_id") or new_run_id()

    def _validated(self, plan: Plan, run_id: str, inputs: Mapping[str, Any]) -> dict[str, Any] | Outcome[Any]:
        """The inputs, or the outcome of invalid ones."""
        try:
            return values_of(plan, inputs)
        except InputValidationError as error:
            return reporting.refused(plan, run_id, error, inputs)

    def _view(self, plan: Plan, values: Mapping[str, Any]) -> Any:
        given = {item.name: self.resource(item.name, item.annotation) for item in plan.fields.resources}
        return view_of(plan, values, given)

    def _execute(
        self, plan: Plan, run_id: str, values: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[Execution | None, Coroutine[Any, Any, Outcome[Any]]]:
        """The run as a coroutine; with its execution when it is volatile."""
        view = self._view(plan, values)
        if self._is_durable(plan, options):
            assert self.durable is not None
            return None, self.durable.run(plan, run_id, view, values, options)
        execution = Execution(self._environment, plan, run_id)
        return execution, execution.run(view, values)

    async def run(
        self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Outcome[Any]:
        """Run here; see `Reactor.run`."""
        everything = reactor.plan.background == "all" and self.durable is not None
        plan = self._prepare(reactor, options, dispatched=everything)
        run_id = self._run_id(plan, options)
        values = self._validated(plan, run_id, inputs)
        if not isinstance(values, dict):
            return values
        if everything:
            return await self._dispatched(plan, run_id, values, options)
        _, work = self._execute(plan, run_id, values, options)
        return await work

    async def _dispatched(
        self, plan: Plan, run_id: str, values: dict[str, Any], options: Mapping[str, Any]
    ) -> Outcome[Any]:
        """All of it is for a worker; one that has this id already is waited for."""
        assert self.durable is not None
        try:
            job_id = await self._dispatch(plan, run_id, values, options)
        except SerializationError as error:
            return reporting.refused(plan, run_id, error, values)
        if job_id is None:
            return await self.durable.finished(run_id, None)
        return Dispatched(job_id, _record=RunRecord(run_id, plan.name, "pending"))

    async def spawn(
        self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> RunHandle[Any]:
        """Start as a task of this runtime; see `Reactor.spawn`."""
        if reactor.plan.background == "all" and self.durable is not None:
            return await self.enqueue(reactor, inputs, options)
        plan = self._prepare(reactor, options)
        run_id = self._run_id(plan, options)
        values = self._validated(plan, run_id, inputs)
        if not isinstance(values, dict):
            return RunHandle(run_id, plan.name, None, None, values)
        execution, work = self._execute(plan, run_id, values, options)
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return RunHandle(run_id, plan.name, task, execution, durable=self.durable if execution is None else None)

    async def enqueue(
        self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> RunHandle[Any]:
        """Start in a worker; see `Reactor.enqueue`."""
        if self.durable is None:
            raise StoreRequired(f"{reactor.__name__}.enqueue()")
        plan = self._prepare(reactor, options, dispatched=True)
        run_id = self._run_id(plan, options)
        values = self._validated(plan, run_id, inputs)
        if not isinstance(values, dict):
            return RunHandle(run_id, plan.name, None, None, values)
        try:
            await self._dispatch(plan, run_id, values, options)
        except SerializationError as error:
            return RunHandle(run_id, plan.name, None, None, reporting.refused(plan, run_id, error, inputs))
        return RunHandle(run_id, plan.name, None, None, durable=self.durable)

    async def enqueue_many(
        self, reactor: type[Reactor[Any]], many: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[RunHandle[Any]]:
        """Start many in workers; see `Reactor.enqueue_many`."""
        if self.durable is None:
            raise StoreRequired(f"{reactor.__name__}.enqueue_many()")
        given = [name for name in ("run_id", "idempotency_key") if options.get(name) is not None]
        if given:
            raise ValueError(f"{given[0]}= is for one run; enqueue_many() starts any number of them")
        plan, due_ms = self._prepare(reactor, options, dispatched=True), due_ms_of(options)
        runs = [(new_run_id(), values) for values in all_values_of(plan, many)]
        await self.durable.create_many(plan, runs, options, due_ms=due_ms)
        queue = self.queue(options.get("queue") or plan.options.queue)
        await queue.ring([run_id for run_id, _ in runs], due_ms=due_ms or None)
        return [RunHandle(run_id, plan.name, None, None, durable=self.durable) for run_id, _ in runs]

    async def _dispatch(
        self, plan: Plan, run_id: str, values: dict[str, Any], options: Mapping[str, Any]
    ) -> str | None:
        """Create the run, then ring, and give the job's id; a crash in between leaves it to the sweeper.

        None when there is such a run already.
        """
        assert self.durable is not None
        due_ms = due_ms_of(options)
        if not await self.durable.create(plan, run_id, values, options, due_ms=due_ms):
            return None
        return await self.durable.ring(run_id, options.get("queue") or plan.options.queue or "", due_ms)

    async def once(self, step: type[Step[Any]], given: Mapping[str, Any]) -> Any:
        """One attempt of a step class; see `Step.once`."""
        return await once.run_once(self._environment, step, given)

    def enter(self, primitive: Primitive) -> Coroutine[Any, Any, Entered]:
        """Take a primitive on its own, to be awaited; see `Primitive.__aenter__`.

        Raises:
            StoreRequired: there is no store.
        """
        if self.settings.redis_url is None:
            raise StoreRequired(f"{type(primitive).__name__}({primitive.key!r})")
        return self.coordinator().enter(primitive)

    def runs(self, reactor: type[Reactor[Any]] | None) -> Runs:
        """Access to stored runs, of one reactor or of all."""
        return Runs(reactor)


_WORKER_OPTIONS = ("delay", "at")
_STORED_OPTIONS = (*_WORKER_OPTIONS, "queue", "idempotency_key", "tags", "on_conflict")
if TYPE_CHECKING:
    from aioreactor.coordination.alone import Entered

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
