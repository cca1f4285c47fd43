"""``R.runs`` and ``aioreactor.runs``: everything about existing runs."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from aioreactor.definition import ports
from aioreactor.definition.reactor import Reactor
from aioreactor.errors import NotAvailable, RunNotFound, StoreRequired
from aioreactor.trace import Status

if TYPE_CHECKING:
    from aioreactor.durable import DurableRuns
    from aioreactor.results import Outcome
    from aioreactor.snapshots import RunSnapshot

_LATER = frozenset(("resume", "cancel", "retry", "fork", "decide", "explain"))


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
        raise AttributeError(f"runs has no {name!r}; it has: find, list, delete, undo, {', '.join(sorted(_LATER))}")

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
