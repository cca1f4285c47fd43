"""Runs in memory: the same as `RunStore`, for as long as its object lives and for one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

from aioreactor.errors import RunNotFound
from aioreactor.store.answers import Accepted, Created, Exists, Held, Missing, Page, Query, Refused, Repaired
from aioreactor.store.claim import Claim, new_token
from aioreactor.store.index import cursor_of, place_of
from aioreactor.store.keys import encode_id
from aioreactor.store.ports import ANYTHING, NO_CHANGES
from aioreactor.store.pushes import Bell
from aioreactor.store.records import (
    LIVE,
    TERMINAL,
    Changes,
    NewRun,
    Request,
    RunRecord,
    RunRow,
    check_take,
    living_status,
    not_negative,
    positive,
    statuses_text,
    terminal_status,
)
from aioreactor.store.rows import BLOBS
from aioreactor.store.volatile_run import VolatileRun
from aioreactor.trace import Status


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked(run_id: str, new: NewRun, replace: Collection[Status]) -> str:
    """The labels of a new run, if all that is said of it can be used."""
    encode_id(run_id)
    statuses_text([terminal_status(status) for status in replace])
    if new.deadline_ms is not None:
        positive(new.deadline_ms)
    not_negative(new.due_ms)
    return new.labels()


class VolatileStore:
    """Keeps runs in memory.

    Args:
        now_ms: The time that decides about leases and expiry.
        idle_ms: How long a living run may be held by nobody before it is stalled.
    """

    def __init__(self, *, now_ms: Callable[[], int] = _system_ms, idle_ms: int = 10_000) -> None:
        self._now_ms = now_ms
        self._idle_ms = idle_ms
        self._runs: dict[str, VolatileRun] = {}
        self._bells: dict[tuple[str, str], set[Bell]] = {}

    # ------------------------------------------------------------------ to hold a run

    async def create(
        self, run_id: str, new: NewRun, *, hold_ms: int | None = None, owner: str = "", replace: Collection[Status] = ()
    ) -> Created | Exists:
        """Create a run unless it exists; see `Store.create`."""
        labels, now_ms, old = _checked(run_id, new, replace), self._now_ms(), self._find(run_id)
        ttl_ms = None if hold_ms is None else positive(hold_ms)
        if old is not None and old.status not in replace:
            same = old.new.inputs == new.inputs
            return Exists(run_id, old.status, old.ver, same, old.lease_left_ms(now_ms))
        ver, fence = (old.ver + 1, old.fence) if old else (1, 0)
        run = self._runs[run_id] = VolatileRun(run_id, new, labels, now_ms, ver=ver, fence=fence)
        if ttl_ms is None:
            return Created(run_id, now_ms, None)
        run.status = "running"
        run.hold(new_token(), owner, now_ms + ttl_ms)
        return Created(run_id, now_ms, _claim(run, ttl_ms))

    async def create_many(
        self, runs: Sequence[tuple[str, NewRun]], *, replace: Collection[Status] = ()
    ) -> list[Created | Exists]:
        """Create runs that nobody holds; see `Store.create_many`."""
        for run_id, new in runs:
            _checked(run_id, new, replace)
        return [await self.create(run_id, new, replace=replace) for run_id, new in runs]

    async def take(
        self, run_id: str, allowed: Collection[Status], *, ttl_ms: int, owner: str = "", status: Status | None = None
    ) -> Claim | Held | Refused | Missing:
        """Hold a run that nobody holds; see `Store.take`."""
        check_take(allowed, status)
        encode_id(run_id)
        positive(ttl_ms)
        statuses_text(allowed)
        living_status(status)
        run, now_ms = self._find(run_id), self._now_ms()
        if run is None:
            return Missing()
        if run.lease_left_ms(now_ms):
            return Held(run.lease_left_ms(now_ms), run.owner)
        if run.status not in allowed:
            return Refused(run.status)
        if run.status in TERMINAL:
            run.revive()
        elif run.token:
            run.recoveries += 1
        run.ver += 1
        run.status = status or run.status
        run.updated_ms = now_ms
        run.hold(new_token(), owner, now_ms + ttl_ms)
        claim = _claim(run, ttl_ms)
        claim.recoveries = run.recoveries
        return claim

    async def load(self, claim: Claim) -> RunRecord:
        """All of a run that we hold; see `Store.load`."""
        run = self._held(claim)
        claim.asked = len(run.requests)
        return run.record(self._now_ms())

    # ------------------------------------------------------------------ to write it

    async def save(self, claim: Claim, changes: Changes) -> None:
        """A checkpoint; see `Store.save`."""
        living_status(changes.status)
        self._write(claim, changes).lease_ms = self._now_ms() + claim.ttl_ms
        claim.trust(time.monotonic())

    async def release(self, claim: Claim, changes: Changes = NO_CHANGES, *, due_ms: int = 0) -> None:
        """A last checkpoint, and let the run go; see `Store.release`."""
        living_status(changes.status)
        not_negative(due_ms)
        before = self._held(claim).status
        run = self._write(claim, changes)
        run.let_go()
        run.due_ms = run.updated_ms + due_ms if due_ms and not run.woken else 0
        run.woken = False
        claim.ended = True
        if run.status != before:
            self._ring("done", claim.run_id)

    async def close(
        self,
        claim: Claim,
        status: Status,
        outcome: bytes,
        changes: Changes = NO_CHANGES,
        *,
        retention_ms: int | None = None,
    ) -> None:
        """A last checkpoint, the outcome and terminal status; see `Store.close`."""
        terminal_status(status)
        if retention_ms is not None:
            positive(retention_ms)
        run = self._write(claim, changes)
        run.let_go()
        run.status, run.outcome, run.ended_ms = status, outcome, run.updated_ms
        run.expires_ms = None if retention_ms is None else run.updated_ms + retention_ms
        claim.ended = True
        self._ring("done", claim.run_id)
        if run.new.parent:
            queue = await self.wake(run.new.parent)
            claim.woke = None if queue is None else (run.new.parent, queue)

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        """Extend the lease; see `Store.extend`."""
        run = self._held(claim, any_version=True)
        run.lease_ms = self._now_ms() + claim.ttl_ms
        claim.asked = len(run.requests)
        claim.trust(time.monotonic())

    def _write(self, claim: Claim, changes: Changes) -> VolatileRun:
        run = self._held(claim)
        run.write(changes, self._now_ms())
        claim.ver, claim.asked = run.ver, len(run.requests)
        return run

    def _held(self, claim: Claim, *, any_version: bool = False) -> VolatileRun:
        claim.require_open()
        run = self._find(claim.run_id)
        if run is None:
            raise claim.lose("gone")
        if run.token != claim.token:
            raise claim.lose("token")
        if run.ver != claim.ver and not any_version:
            raise claim.lose("version")
        return run

    # ------------------------------------------------------------------ to look

    async def peek(self, run_id: str, *blobs: str) -> RunRow | None:
        """A run's scalars and some blobs; see `Store.peek`."""
        encode_id(run_id)
        if unknown := set(blobs) - set(BLOBS):
            raise ValueError(f"no such blobs: {', '.join(sorted(unknown))}")
        run = self._find(run_id)
        return run.row(self._now_ms(), blobs) if run else None

    async def read(self, run_id: str) -> RunRecord | None:
        """All of a run, whoever holds it; see `Store.read`."""
        encode_id(run_id)
        run = self._find(run_id)
        return run.record(self._now_ms()) if run else None

    async def page(self, query: Query = ANYTHING, *, limit: int = 50, cursor: str = "") -> Page:
        """Some runs, newest first; see `Store.page`."""
        wanted, (at_ms, at_id) = set(query.labels()), place_of(cursor)
        limit, now_ms = positive(limit), self._now_ms()
        before = (float(at_ms), at_id.encode())
        rows = [run.row(now_ms) for run in self._alive()]
        found = [row for row in rows if wanted <= set(row.listing.split("\n")) and row.created_ms >= query.since_ms]
        found = sorted((row for row in found if _place(row) < before), key=_place, reverse=True)
        end = found[limit - 1 : limit] if len(found) > limit else []
        return Page(found[:limit], cursor_of((str(end[0].created_ms), end[0].run_id)) if end else "")

    async def wait_done(
        self, run_id: str, timeout: float | None = None, *, until: Collection[Status] = TERMINAL
    ) -> RunRow:
        """A run's scalars and outcome once its status is in ``until``; see `Store.wait_done`."""
        async with asyncio.timeout(timeout), self._listen("done", run_id) as bell:
            while True:
                row = await self.peek(run_id, "outcome")
                if row is None:
                    raise RunNotFound(run_id)
                if row.rests_in(until):
                    return row
                await bell.wait(None)

    # ------------------------------------------------------------------ from outside

    async def delete(self, run_id: str, *, force: bool = False) -> bool | Held:
        """Remove all of a run at once; see `Store.delete`."""
        encode_id(run_id)
        run = self._find(run_id)
        if run is None:
            return False
        if not force and run.lease_left_ms(self._now_ms()):
            return Held(run.lease_left_ms(self._now_ms()), run.owner)
        del self._runs[run_id]
        self._ring("done", run_id)
        return True

    async def wake(self, run_id: str) -> str | None:
        """Have a run that waits for a unit be due at once; see `Store.wake`."""
        run = self._find(run_id)
        if run is None or run.status in TERMINAL:
            return None
        if run.token:
            run.woken = True
            return None
        if not run.rest.partition(" ")[2].startswith("unit "):
            return None
        run.due_ms = 0
        return run.new.queue

    async def withdraw(self, run_id: str, outcome: bytes, *, retention_ms: int | None = None) -> Status | None:
        """End a run that nobody has taken yet; see `Store.withdraw`."""
        retention_ms = None if retention_ms is None else positive(retention_ms)
        encode_id(run_id)
        run = self._find(run_id)
        if run is None or run.status != "pending":
            return run.status if run else None
        run.ver += 1
        run.status, run.outcome, run.updated_ms = "cancelled", outcome, self._now_ms()
        run.ended_ms = run.updated_ms
        run.expires_ms = None if retention_ms is None else run.updated_ms + retention_ms
        self._ring("done", run_id)
        return "cancelled"

    async def ask(
        self,
        run_id: str,
        body: bytes,
        *,
        request_id: str | None = None,
        allowed: Collection[Status] = LIVE,
        wakes: bool = True,
        until_ms: int = 0,
    ) -> Accepted | Refused | Missing:
        """Leave a request for whoever holds the run; see `Store.ask`."""
        encode_id(run_id)
        statuses_text(allowed)
        run, request_id = self._find(run_id), request_id or new_token()
        if run is None:
            return Missing()
        left_ms = run.lease_left_ms(self._now_ms())
        for known in run.requests:
            if known.id == request_id:
                return Accepted(known.number, False, known.body == body, run.status, left_ms)
        if run.status in TERMINAL or run.status not in allowed:
            return Refused(run.status)
        if 0 < until_ms < self._now_ms():
            return Refused(run.status, late=True)
        run.requests.append(Request(len(run.requests) + 1, request_id, body))
        if wakes:
            run.wake(self._now_ms())
        self._ring("asked", run_id)
        return Accepted(len(run.requests), True, True, run.status, left_ms)

    async def rouse(self, run_id: str) -> bool:
        """What a run waits for is there; see `Store.rouse`."""
        run, now_ms = self._find(run_id), self._now_ms()
        if run is None or run.status in TERMINAL or run.token or run.due_ms <= now_ms:
            return False
        run.due_ms = now_ms
        return True

    def requests(self, run_id: str) -> contextlib.AbstractAsyncContextManager[Bell]:
        """A bell that rings when a request is left; see `Store.requests`."""
        return self._listen("asked", run_id)

    # ------------------------------------------------------------------ to mend

    async def stalled(self, limit: int = 100, *, again_ms: int = 30_000) -> list[RunRow]:
        """Runs that somebody has to move on and nobody does; see `Store.stalled`."""
        positive(limit)
        positive(again_ms)
        found, now_ms = [], self._now_ms()
        for run in self._alive():
            row = run.row(now_ms)
            if row.is_owed and not row.rests_ms(self._idle_ms) and run.told_until_ms <= now_ms:
                run.told_until_ms = now_ms + again_ms
                found.append(row)
                if len(found) == limit:
                    break
        return found

    async def repair(self, limit: int = 100) -> Repaired:
        """Nothing can be wrong here; forgets what has expired."""
        positive(limit)
        self._alive()
        return Repaired()

    async def aclose(self) -> None:
        """Nothing was opened."""

    # ------------------------------------------------------------------ inside

    def _find(self, run_id: str) -> VolatileRun | None:
        run = self._runs.get(run_id)
        if run is not None and run.expires_ms is not None and run.expires_ms <= self._now_ms():
            del self._runs[run_id]
            return None
        return run

    def _alive(self) -> list[VolatileRun]:
        return [run for run_id in list(self._runs) if (run := self._find(run_id)) is not None]

    @contextlib.asynccontextmanager
    async def _listen(self, what: str, run_id: str) -> AsyncIterator[Bell]:
        channel, bell = (what, encode_id(run_id)), Bell()
        self._bells.setdefault(channel, set()).add(bell)
        try:
            yield bell
        finally:
            self._bells[channel].discard(bell)
            if not self._bells[channel]:
                del self._bells[channel]

    def _ring(self, what: str, run_id: str) -> None:
        for bell in self._bells.get((what, encode_id(run_id)), ()):
            bell.ring()


def _claim(run: VolatileRun, ttl_ms: int) -> Claim:
    return Claim(run.run_id, run.token, ver=run.ver, fence=run.fence, ttl_ms=ttl_ms, asked_at=time.monotonic())


def _place(row: RunRow) -> tuple[Any, bytes]:
    return row.created_ms, row.run_id.encode()
