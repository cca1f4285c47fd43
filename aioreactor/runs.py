"""``R.runs`` and ``aioreactor.runs``: everything about existing runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from aioreactor.definition import ports
from aioreactor.definition.markers import Value
from aioreactor.definition.reactor import Reactor
from aioreactor.errors import RunNotFound, StoreRequired
from aioreactor.starting import new_run_id
from aioreactor.trace import Status, TraceEntry

if TYPE_CHECKING:
    from aioreactor.durable import DurableRuns
    from aioreactor.explanations import Explanation
    from aioreactor.handles import RunHandle
    from aioreactor.progress import Progress
    from aioreactor.results import Outcome
    from aioreactor.snapshots import RunSnapshot

_HAS = "find, list, delete, undo, resume, cancel, retry, fork, decide, explain, events, progress"


class Runs:
    """Existing runs: of one reactor (``Checkout.runs``), or of all (``aioreactor.runs``). Needs a store."""

    __slots__ = ("_reactor",)

    def __init__(self, reactor: type[Reactor[Any]] | None = None) -> None:
        self._reactor = reactor

    def _called(self, name: str) -> str:
        return f"{'aioreactor' if self._reactor is None else self._reactor.__name__}.runs.{name}()"

    def _stored(self, name: str) -> DurableRuns:
        launcher: Any = ports.launcher()
        durable: DurableRuns | None = launcher.durable
        if durable is None:
            raise StoreRequired(self._called(name))
        return durable

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"runs has no {name!r}; it has: {_HAS}")

    async def find(self, run_id: str) -> RunSnapshot:
        """A snapshot of a run: status, inputs (redacted), results, steps, trace, and its outcome when it has ended.

        Raises:
            RunNotFound: there is no such run (any more), or it is of another reactor.
            StoreRequired: no store is configured.

        Cancellation: nothing happens.
        """
        snapshot = await self._stored("find").find(run_id)
        if not self._is_own(snapshot.reactor):
            raise RunNotFound(run_id)
        return snapshot

    async def list(
        self,
        *,
        reactor: str | None = None,
        status: Status | None = None,
        tag: str | None = None,
        parent: str | None = None,
        since: datetime | float | None = None,
        limit: int = 50,
        cursor: str = "",
        elements: bool = False,
    ) -> RunPage:
        """One page of runs that meet all that is given, newest first, without their steps and results.

        ``since`` is a moment or seconds since the epoch; ``cursor`` is that of the page before.

        Raises:
            StoreRequired: no store is configured.
            ValueError: a filter or the cursor cannot be used.

        Cancellation: nothing happens.
        """
        from aioreactor.store.answers import Query

        name = self._reactor.plan.name if self._reactor is not None else reactor
        moment = since.timestamp() if isinstance(since, datetime) else since or 0.0
        query = Query(
            reactor=name, status=status, tag=tag, parent=parent, since_ms=int(moment * 1000), elements=elements
        )
        found, following = await self._stored("list").page(query, limit, cursor)
        return RunPage(found, following)

    async def delete(self, run_id: str) -> None:
        """Remove all of a run at once.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: it is executed right now.
            StoreRequired: no store is configured.

        Cancellation: it was removed, or not.
        """
        durable = self._stored("delete")
        await self._check(durable, run_id)
        await durable.delete(run_id)

    async def progress(self, run_id: str) -> Progress:
        """How far a run is: its steps, the elements of its maps, and what its bodies say of themselves.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            UnknownReactor, SerializationError: it cannot be read here.
            StoreRequired: no store is configured.

        Cancellation: nothing happens.
        """
        durable = self._stored("progress")
        await self._check(durable, run_id)
        return await durable.progress(run_id)

    async def undo(self, run_id: str) -> Outcome[Any]:
        """Roll back, here, what still stands of a run that has ended or is paused; it ends ``cancelled``.

        What was cut off is compensated first, then what completed is undone, newest first. What was undone before is
        not touched again.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: it has not ended, or is executed, and was so for five more seconds.
            StoreRequired: no store is configured.

        Cancellation: as for `Reactor.run`; what is left stays owed.
        """
        durable = self._stored("undo")
        await self._check(durable, run_id)
        return await durable.undo(run_id)

    async def cancel(
        self,
        run_id: str,
        reason: str = "the run was cancelled",
        mode: Literal["stop", "rollback"] = "rollback",
        *,
        timeout: float | None = None,
    ) -> Outcome[Any]:
        """End a run that has not ended, wherever it is executed; gives its outcome, whose status is ``cancelled``.

        Bodies in flight are cancelled. Under ``rollback`` they are compensated and what completed is undone; under
        ``stop`` all that stays owed, for a later `undo`. A run that somebody executes is cancelled there, at once; one
        that nobody has is taken and cancelled here. Waits until that is done, at most ``timeout`` seconds.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: it has ended, also meanwhile; or it is rolling back. Nothing changed.
            TimeoutError: the time is up. The run is cancelled all the same.
            PlanChanged: nobody has it, and the code that is here does not fit. Code that fits cancels it all the same.
            StoreRequired: no store is configured.

        Cancellation: gives up the wait; once asked for, the run is cancelled all the same.
        """
        durable = self._stored("cancel")
        if mode not in ("stop", "rollback"):
            raise ValueError(f"mode={mode!r}: 'stop' or 'rollback'")
        await self._check(durable, run_id)
        return await durable.cancel(run_id, reason, mode, timeout)

    async def resume(
        self,
        run_id: str | None = None,
        step: Any = None,
        payload: Any = None,
        *,
        key: str | None = None,
        correlation_id: str | None = None,
    ) -> Outcome[Any]:
        """Answer an open interrupt of a run, given by its id or by the interrupt's correlation id.

        With ``resume="inline"`` the run goes on here, and its outcome comes back; with ``"background"``, or when
        somebody executes the run at the moment, the answer is stored for whoever has the run next: `Dispatched`.
        ``step`` is the interrupt (or its path from the root); it may be left out when one is open. The same call with
        the same ``key`` again is answered like the first.

        Raises:
            RunNotFound: there is no such run, it is of another reactor, or nobody waits for the correlation id.
            NotResumable: the interrupt is not open, its time is over, or the run has ended; nothing changed.
            AlreadyResumed: another payload was accepted before; that one counts.
            InputValidationError: the payload does not fit its type; at ``max_attempts`` of those the run rolls back.
            StoreRequired: no store is configured.
            ValueError: neither or both of ``run_id`` and ``correlation_id`` were given.

        Cancellation: before the answer is accepted nothing happens; from then on as for `Reactor.run`.
        """
        durable = self._stored("resume")
        path = None if step is None else _path_of(step)
        if (run_id is None) == (correlation_id is None):
            raise ValueError("resume() takes a run_id or a correlation_id, one of the two")
        if correlation_id is not None:
            if self._reactor is None:
                raise ValueError("a correlation id is one of a reactor's: call resume() on its own runs")
            run_id, found = await durable.correlated(self._reactor.plan, correlation_id)
            path = path or found
        assert run_id is not None
        await self._check(durable, run_id)
        return await durable.resume(run_id, path, payload, key)

    async def retry(self, run_id: str) -> RunHandle[Any]:
        """Begin, in a worker, a new run with the inputs of one that failed, was cancelled or was cut off.

        Steps whose effects still stand (they completed and were not undone) keep their results, and are undone by the
        new run if that fails; the others run again. The old run is the new one's ``parent``.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: it has not failed.
            PlanChanged, UnknownReactor, DefinitionError: no worker could execute it.
            StoreRequired: no store is configured.

        Cancellation: the new run begins, or not.
        """
        durable = self._stored("retry")
        await self._check(durable, run_id)
        new_id = new_run_id()
        return _handle(durable, new_id, await durable.retry(run_id, new_id))

    async def fork(self, run_id: str, *, from_step: Any) -> RunHandle[Any]:
        """Begin, in a worker, a new run with the inputs of one that has ended and its results before a step.

        That step, and all that depends on it, run again; so does what was undone. What is taken over belongs to the
        old run: the new one never undoes it. The old run is the new one's ``parent``.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: it has not ended.
            ValueError: it has no such step; only steps of the reactor itself can be named, not those of its children.
            PlanChanged, UnknownReactor, DefinitionError: no worker could execute it.
            StoreRequired: no store is configured.

        Cancellation: the new run begins, or not.
        """
        durable = self._stored("fork")
        await self._check(durable, run_id)
        new_id = new_run_id()
        return _handle(durable, new_id, await durable.fork(run_id, new_id, _path_of(from_step)))

    async def decide(
        self, run_id: str, step: Any, decision: Literal["retry", "skip", "fail"] | Value
    ) -> RunHandle[Any]:
        """Say what becomes of a step whose attempts were exhausted (``on_exhausted="pause"``); a worker goes on.

        ``"retry"`` tries it once more, and pauses again if that fails; ``"skip"`` goes on with None; ``Value(x)`` goes
        on with x; ``"fail"`` fails it, so that the run rolls back.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: the step does not wait for a decision.
            AlreadyResumed: something else was decided before.
            InputValidationError, SerializationError: the value, or None, does not fit the step's annotation.
            StoreRequired: no store is configured.

        Cancellation: it was decided, or not; the same call tells.
        """
        durable = self._stored("decide")
        if not isinstance(decision, Value) and decision not in ("retry", "skip", "fail"):
            raise ValueError(f"decide(…, {decision!r}): 'retry', 'skip', 'fail' or Value(x)")
        await self._check(durable, run_id)
        return _handle(durable, run_id, await durable.decide(run_id, _path_of(step), decision))

    async def events(self, run_id: str, *, after: int = -1) -> AsyncGenerator[TraceEntry, None]:
        """The trace of a run as it grows, from after the entry with that ``seq`` on, until the run has ended.

        Entries are told when they are stored; should a message be lost, they come some seconds later.

        Raises:
            RunNotFound: there is no such run (any more), or it is of another reactor.
            StoreRequired: no store is configured.
            StoreError: the store is away. Follow it again, from after the last entry that came.

        Cancellation: only the following ends.
        """
        durable = self._stored("events")
        await self._check(durable, run_id)
        async with aclosing(durable.events(run_id, after)) as entries:
            async for entry in entries:
                yield entry

    async def explain(self, run_id: str) -> Explanation:
        """Why a run does not move: what it waits for, since when, until when, and who has it. Prints as one screen.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            StoreRequired: no store is configured.

        Cancellation: nothing happens.
        """
        durable = self._stored("explain")
        await self._check(durable, run_id)
        return await durable.explain(run_id)

    async def _check(self, durable: DurableRuns, run_id: str) -> None:
        """Refuse a run of another reactor.

        Raises:
            RunNotFound: it is one, or there is none.
        """
        if self._reactor is not None and not self._is_own(await durable.reactor_of(run_id)):
            raise RunNotFound(run_id)

    def _is_own(self, name: str | None) -> bool:
        """Whether a run with this reactor name is among these, by a name that the class had before, too."""
        if self._reactor is None:
            return True
        plan = self._reactor.plan
        return name == plan.name or name in plan.options.aliases


def _path_of(step: Any) -> str:
    """A step as it is named, or its path."""
    return step if isinstance(step, str) else str(getattr(step, "label", step))


def _handle(durable: DurableRuns, run_id: str, reactor: str) -> RunHandle[Any]:
    from aioreactor.handles import RunHandle

    return RunHandle(run_id, reactor, None, None, durable=durable)


class RunPage(tuple["RunSnapshot", ...]):  # noqa: SLOT001 - a tuple with an attribute cannot have slots
    """Some runs; ``cursor`` gets the next page and is empty after the last."""

    cursor: str

    def __new__(cls, runs: Any, cursor: str = "") -> Self:
        """A page of these runs."""
        page = super().__new__(cls, runs)
        page.cursor = cursor
        return page


async def sweep(limit: int = 100) -> list[str]:
    """Go on, here and to their ends, with runs whose process died; gives the ids of those that this call took.

    Raises:
        StoreRequired: no store is configured.

    Cancellation: as for `Reactor.run`, for the run that is executed at that moment.
    """
    durable = Runs()._stored("sweep")
    found = await durable.stalled(limit)
    taken = await asyncio.gather(*map(durable.recovered, found))
    return [run_id for run_id, mine in zip(found, taken, strict=True) if mine]
