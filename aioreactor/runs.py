"""``R.runs`` and ``aioreactor.runs``: everything about existing runs."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from aioreactor.definition import ports
from aioreactor.definition.reactor import Reactor
from aioreactor.errors import NotAvailable, RunNotFound, StoreRequired
from aioreactor.trace import Status

if TYPE_CHECKING:
    from aioreactor.durable import DurableRuns
    from aioreactor.results import Outcome
    from aioreactor.snapshots import RunSnapshot

_LATER = frozenset(("retry", "fork", "decide", "explain"))

_HAS = "find, list, delete, undo, resume, cancel"


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
        if name in _LATER:
            self._stored(name)
            raise NotAvailable(self._called(name))
        raise AttributeError(f"runs has no {name!r}; it has: {_HAS}, {', '.join(sorted(_LATER))}")

    async def find(self, run_id: str) -> RunSnapshot:
        """A snapshot of a run: status, inputs (redacted), results, steps, trace, and its outcome when it has ended.

        Raises:
            RunNotFound: there is no such run (any more), or it is of another reactor.
            StoreRequired: no store is configured.

        Cancellation: nothing happens.
        """
        snapshot = await self._stored("find").find(run_id)
        if self._reactor is not None and snapshot.reactor != self._reactor.plan.name:
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
        from aioreactor.store.records import Query

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

    async def undo(self, run_id: str) -> Outcome[Any]:
        """Roll back, here, what still stands of a run that has ended; it ends ``cancelled``.

        What was cut off is compensated first, then what completed is undone, newest first. What was undone before is
        not touched again.

        Raises:
            RunNotFound: there is no such run, or it is of another reactor.
            NotResumable: it has not ended, or is executed right now.
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
        path = step if isinstance(step, str) or step is None else step.label
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

    async def _check(self, durable: DurableRuns, run_id: str) -> None:
        """Refuse a run of another reactor.

        Raises:
            RunNotFound: it is one, or there is none.
        """
        if self._reactor is not None and await durable.reactor_of(run_id) != self._reactor.plan.name:
            raise RunNotFound(run_id)


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
