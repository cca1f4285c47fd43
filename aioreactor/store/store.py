"""Runs in Redis: the one place that writes them.

Overview. A run is a few keys of one hash slot (`keys.KeySpace.of_run`), written by scripts that each do one whole
transition, consequences included: closing a run stores its outcome, lets it go, starts its retention and tells who
waits, or does none of it.

One writer. Whoever creates or takes a run gets a `Claim`: a token, and the version of the record that it knows. Every
write carries both, and a script compares them before it changes anything. A holder whose lease ran out remains the
holder until somebody else takes the run; from then on all that it sends is refused, however late it comes.

Lost replies. Every write has an id of its own, which the record keeps: a repeat is answered like the first and changes
nothing. So the client may send anything again, and a caller that was cancelled in the middle of a write loses nothing:
see `Claim` and `writes`.

Time is the server's. Spans are sent, moments never.

Lists and the sweeper's view are kept beside the runs and mended when wrong, see `index`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from aioreactor.errors import OwnershipLost, RunNotFound
from aioreactor.store import index as listing
from aioreactor.store.answers import Accepted, Created, Exists, Held, Missing, Page, Query, Refused, Repaired
from aioreactor.store.calls import Value
from aioreactor.store.claim import Claim, FanClaim, Write, new_token
from aioreactor.store.client import LEASE_LANE, StoreClient
from aioreactor.store.creating import NOBODY, Holding, create_all, created_of, creation_of, listed_of, replaced_text
from aioreactor.store.errors import StoreError
from aioreactor.store.fans import FanStore
from aioreactor.store.index import Entry, Listed, RunIndex
from aioreactor.store.keys import KeySpace, parent_in
from aioreactor.store.ports import ANYTHING, NO_CHANGES
from aioreactor.store.pushes import Bell, Pushes
from aioreactor.store.records import (
    LIVE,
    TERMINAL,
    Changes,
    NewRun,
    RunRecord,
    RunRow,
    check_take,
    living_status,
    not_negative,
    positive,
    statuses_text,
    terminal_status,
)
from aioreactor.store.rows import BLOBS, SCALARS, packed_changes, peeked, record_of
from aioreactor.store.scripts import Reply, ScriptLibrary
from aioreactor.store.writes import deliver
from aioreactor.trace import Status

MAX_PAGE = 1000
LIST_ROUNDS = 20
"""How often a list goes to the index before it gives a short page."""

_log = logging.getLogger("aioreactor.store")


def default_owner() -> str:
    """Who holds a run, for people: this host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


class RunStore:
    """Keeps runs in Redis. May be used from several event loops; it does not own its client.

    Args:
        client: Where.
        prefix: Of all keys and channels.
        others: Last parts of further keys that a run may have, see `KeySpace`.
        idle_ms: How long a living run may be held by nobody before it is stalled.
        recheck: Seconds after which `wait_done` looks although nobody rang.
    """

    def __init__(
        self,
        client: StoreClient,
        *,
        prefix: str = "aioreactor",
        others: Sequence[str] = (),
        idle_ms: int = 10_000,
        recheck: float = 5.0,
    ) -> None:
        self.space = KeySpace(prefix, others=others)
        self._client = client
        self._idle_ms = idle_ms
        self._recheck = recheck
        self._scripts = ScriptLibrary("aioreactor.store")
        self._index = RunIndex(client, self.space, self._scripts)
        self.fans = FanStore(client, self.space)
        self._cluster = client._settings.endpoint.kind == "cluster"
        self._pushes: WeakKeyDictionary[asyncio.AbstractEventLoop, Pushes] = WeakKeyDictionary()

    # ------------------------------------------------------------------ to hold a run

    async def create(
        self, run_id: str, new: NewRun, *, hold_ms: int | None = None, owner: str = "", replace: Collection[Status] = ()
    ) -> Created | Exists:
        """Create a run unless it exists; see `Store.create`."""
        holding = NOBODY if hold_ms is None else Holding(new_token(), positive(hold_ms), owner or default_owner())
        making = creation_of(self.space, run_id, new, replaced_text(replace), self._idle_ms, holding)
        asked_at = time.monotonic()
        reply = await self._begin(run_id, making.live_in_ms, "run_create", making.keys, making.args)
        if reply.word == "CREATED":
            await self._index.put_all([listed_of(making, reply, "running" if holding.token else "pending")])
        return created_of(making, reply, holding, asked_at)

    async def create_many(
        self, runs: Sequence[tuple[str, NewRun]], *, replace: Collection[Status] = ()
    ) -> list[Created | Exists]:
        """Create runs that nobody holds; see `Store.create_many`."""
        replaced = replaced_text(replace)
        makings = [creation_of(self.space, run_id, new, replaced, self._idle_ms) for run_id, new in runs]
        return await create_all(self._client, self._scripts["run_create"], self._index, makings)

    async def take(
        self, run_id: str, allowed: Collection[Status], *, ttl_ms: int, owner: str = "", status: Status | None = None
    ) -> Claim | Held | Refused | Missing:
        """Hold a run that nobody holds; see `Store.take`."""
        check_take(allowed, status)
        keys, token = self.space.of_run(run_id), new_token()
        args: list[Value] = [token, positive(ttl_ms), owner or default_owner()]
        args += [living_status(status), statuses_text(allowed)]
        asked_at = time.monotonic()
        reply = await self._begin(run_id, ttl_ms, "lease_take", keys, args)
        match reply.word:
            case "HELD":
                return Held(reply.values[0], reply.values[1].decode())
            case "REFUSED":
                return Refused(reply.values[0].decode())
            case "MISSING":
                return Missing()
        ver, fence, after, _, recoveries = reply.values[:5]
        claim = Claim(run_id, token, ver=ver, fence=fence, ttl_ms=ttl_ms, asked_at=asked_at, keys=keys)
        claim.recoveries = recoveries
        if reply.word == "MOVED":
            created_ms, labels = reply.values[5:]
            listed = Listed(run_id, created_ms, ver, labels.decode(), after.decode(), ttl_ms)
            await self._index.put_all([listed])
        return claim

    async def _begin(self, run_id: str, in_ms: int, script: str, keys: Sequence[str], args: Sequence[Value]) -> Reply:
        """A script that may make a run live; the sweeper is told before, lest nobody knew of it after a crash."""
        expected = self._index.expect(run_id, in_ms)
        if self._cluster:
            await expected
            return await self._client.run(self._scripts[script], keys, args, replicate=True)
        # In this order on one connection, and in one write; neither goes on behind the back of a caller that failed.
        answers = await asyncio.gather(
            expected, self._client.run(self._scripts[script], keys, args, replicate=True), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return cast("Reply", answers[1])

    async def load(self, claim: Claim) -> RunRecord:
        """All of a run that we hold; see `Store.load`."""
        claim.require_open()
        record = await self._load(claim.run_id, claim)
        if record is None:
            raise claim.lose("gone")
        claim.asked = len(record.requests)
        return record

    async def _load(self, run_id: str, claim: Claim | None = None) -> RunRecord | None:
        script, keys = self._scripts["run_load"], self.space.of_run(run_id)[:4]
        reply = await self._client.run(script, keys, [claim.token if claim else ""])
        if claim and reply.word == "LOST":
            raise claim.lose(reply.values[0])
        return record_of(run_id, reply.values) if reply.word == "OK" else None

    # ------------------------------------------------------------------ to write it

    async def save(self, claim: Claim, changes: Changes) -> None:
        """A checkpoint; see `Store.save`."""
        status = living_status(changes.status)
        args: list[Value] = [claim.ttl_ms, status, *packed_changes(changes)]
        await self._deliver(claim, Write(self._scripts["run_save"], claim.keys[:4], args, status))

    async def release(self, claim: Claim, changes: Changes = NO_CHANGES, *, due_ms: int = 0) -> None:
        """A last checkpoint, and let the run go; see `Store.release`."""
        status = living_status(changes.status)
        args: list[Value] = [self.space.done_channel(claim.run_id), not_negative(due_ms), status]
        args += packed_changes(changes)
        await self._deliver(claim, Write(self._scripts["run_release"], claim.keys[:4], args, status, ends=True))

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
        retention_ms = 0 if retention_ms is None else positive(retention_ms)
        args: list[Value] = [self.space.done_channel(claim.run_id), terminal_status(status), outcome, retention_ms]
        args += packed_changes(changes)
        write = Write(self._scripts["run_close"], claim.keys, args, status, ends=True, retention_ms=retention_ms)
        await self._deliver(claim, write)

    def _deliver(self, claim: Claim, write: Write) -> Coroutine[Any, Any, None]:
        return deliver(self._client, claim, write, self._moved)

    async def _moved(self, claim: Claim, write: Write, created_ms: int, labels: str) -> None:
        in_ms = self._idle_ms if write.ends else claim.ttl_ms
        parent = parent_in(labels) if write.status in TERMINAL else ""
        if parent and not await self._told(claim, parent):
            return  # it stays in the sweeper's view, which tells instead
        listed = Listed(claim.run_id, created_ms, claim.ver, labels, write.status, in_ms, write.retention_ms)
        await self._index.put_all([listed])

    async def _told(self, claim: Claim, parent: str) -> bool:
        try:
            queue = await self.wake(parent)
        except StoreError as error:
            _log.warning("run %s, which may wait for %s, is woken by the sweeper: %s", parent, claim.run_id, error)
            return False
        claim.woke = None if queue is None else (parent, queue)
        return True

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        """Extend the lease; see `Store.extend`."""
        claim.require_open()
        if isinstance(claim, FanClaim):
            await self._extend_session(claim, retry_for)
            return
        run, _, _, requests = claim.keys[:4]
        asked_at = time.monotonic()
        reply = await self._client.run(
            self._scripts["lease_extend"],
            [run, requests],
            [claim.token, claim.ttl_ms],
            lane=LEASE_LANE,
            retry_for=retry_for,
        )
        if reply.word == "OK":
            claim.asked = reply.values[1]
            claim.trust(asked_at)
        elif claim.ended:
            # It was let go in the meantime, over another connection.
            raise OwnershipLost(claim.run_id, "it was released or closed by this execution itself")
        else:
            raise claim.lose(reply.values[0])

    async def _extend_session(self, claim: FanClaim, retry_for: float | None) -> None:
        asked_at = time.monotonic()
        cut = await self.fans.extend(claim.run_id, claim.path, claim.token, claim.ttl_ms, retry_for)
        if cut is None:
            raise claim.lose("token")
        if cut and not claim.cut:
            claim.cut, claim.asked = cut, claim.asked + 1  # its owner is told, as of a request
        claim.trust(asked_at)

    # ------------------------------------------------------------------ to look

    async def peek(self, run_id: str, *blobs: str) -> RunRow | None:
        """A run's scalars and some blobs; see `Store.peek`."""
        fields = [*SCALARS, *(blob for blob in BLOBS if blob in blobs)]
        if unknown := set(blobs) - set(BLOBS):
            raise ValueError(f"no such blobs: {', '.join(sorted(unknown))}")
        reply = await self._client.run(self._scripts["run_peek"], [self.space.run(run_id)], fields)
        return peeked(run_id, fields, reply.values) if reply.word == "OK" else None

    async def read(self, run_id: str) -> RunRecord | None:
        """All of a run, whoever holds it; see `Store.read`."""
        return await self._load(run_id)

    async def page(self, query: Query = ANYTHING, *, limit: int = 50, cursor: str = "") -> Page:
        """Some runs, newest first; see `Store.page`."""
        labels, limit = query.labels(), min(positive(limit), MAX_PAGE)
        place: listing.Place | None = listing.place_of(cursor)
        rows: list[RunRow] = []
        for _ in range(LIST_ROUNDS):
            if place is None or len(rows) >= limit:
                break
            entries, place = await self._index.page(labels, place, query.since_ms, limit - len(rows))
            found, _ = await self._heal(entries)
            rows += [row for row in found if set(labels) <= set(row.listing.split("\n"))]
        return Page(rows, listing.cursor_of(place))

    async def wait_done(
        self, run_id: str, timeout: float | None = None, *, until: Collection[Status] = TERMINAL
    ) -> RunRow:
        """A run's scalars and outcome once its status is in ``until``; see `Store.wait_done`."""
        async with asyncio.timeout(timeout):
            row = await self._known(run_id)
            if row.rests_in(until):
                return row
            async with self._listen(self.space.done_channel(run_id)) as bell:
                while not (row := await self._known(run_id)).rests_in(until):
                    await bell.wait(self._recheck)
            return row

    async def _known(self, run_id: str) -> RunRow:
        row = await self.peek(run_id, "outcome")
        if row is None:
            raise RunNotFound(run_id)
        return row

    # ------------------------------------------------------------------ from outside

    async def delete(self, run_id: str, *, force: bool = False) -> bool | Held:
        """Remove all of a run at once; see `Store.delete`."""
        keys, channel = self.space.of_run(run_id), self.space.done_channel(run_id)
        reply = await self._client.run(self._scripts["run_delete"], keys, [channel, int(force)])
        if reply.word == "LIVE":
            return Held(reply.values[0], reply.values[1].decode())
        await self._index.forget(run_id)
        return reply.word == "DELETED"

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
        keys, statuses = [self.space.run(run_id), self.space.requests(run_id)], statuses_text(allowed)
        channels = [self.space.requests_channel(run_id), self.space.asked_channel()]
        args: list[Value] = [request_id or new_token(), body, *channels, run_id, statuses, int(wakes), until_ms]
        if wakes:
            await self._index.expect(run_id, self._idle_ms)
        reply = await self._client.run(self._scripts["request_push"], keys, args, replicate=True)
        if wakes and reply.word == "OK":
            # A sweeper that looked just before may have taken a paused run out of its view.
            await self._index.expect(run_id, self._idle_ms)
        return self._accepted(reply)

    def _accepted(self, reply: Reply) -> Accepted | Refused | Missing:
        match reply.word:
            case "MISSING":
                return Missing()
            case "LATE":
                return Refused(reply.values[0].decode(), late=True)
            case "REFUSED":
                return Refused(reply.values[0].decode())
            case "KNOWN":
                number, same, status, ms_left = reply.values
                return Accepted(number, False, bool(same), status.decode(), ms_left)
        number, status, ms_left = reply.values
        return Accepted(number, True, True, status.decode(), ms_left)

    async def rouse(self, run_id: str) -> bool:
        """What a run waits for is there; see `Store.rouse`."""
        reply = await self._client.run(self._scripts["run_rouse"], [self.space.run(run_id)])
        return reply.word == "ROUSED"

    async def wake(self, run_id: str) -> str | None:
        """Have a run that waits for a unit be due at once; see `Store.wake`."""
        reply = await self._client.run(self._scripts["run_wake"], [self.space.run(run_id)], [], replicate=True)
        if reply.word != "DUE":
            return None
        await self._index.look_again([(run_id, self._idle_ms)])
        return str(reply.values[0].decode())

    async def withdraw(self, run_id: str, outcome: bytes, *, retention_ms: int | None = None) -> Status | None:
        """End a run that nobody has taken yet; see `Store.withdraw`."""
        retention_ms = 0 if retention_ms is None else positive(retention_ms)
        args: list[Value] = [self.space.done_channel(run_id), outcome, retention_ms]
        keys = self.space.of_run(run_id)
        reply = await self._client.run(self._scripts["run_withdraw"], keys, args, replicate=True)
        if reply.word == "ENDED":
            ver, created_ms, labels = reply.values
            listed = Listed(run_id, created_ms, ver, labels.decode(), "cancelled", 0, retention_ms)
            await self._index.put_all([listed])
            return "cancelled"
        return cast("Status", reply.values[0].decode()) if reply.word == "REFUSED" else None

    def requests(self, run_id: str) -> contextlib.AbstractAsyncContextManager[Bell]:
        """A bell that rings when a request is left; see `Store.requests`."""
        return self._listen(self.space.requests_channel(run_id))

    # ------------------------------------------------------------------ to mend

    async def stalled(self, limit: int = 100, *, again_ms: int = 30_000) -> list[RunRow]:
        """Runs that somebody has to move on and nobody does; see `Store.stalled`."""
        entries = await self._index.claim(self.space.live(), positive(limit), positive(again_ms))
        rows, _ = await self._heal(entries)
        await asyncio.gather(*(self._ended(row) for row in rows if not row.is_owed))
        living = [(row, row.rests_ms(self._idle_ms)) for row in rows if row.is_owed]
        await self._index.look_again([(row.run_id, rests_ms) for row, rests_ms in living if rests_ms > 0])
        return [row for row, rests_ms in living if rests_ms <= 0]

    async def repair(self, limit: int = 100) -> Repaired:
        """Mend a part of the index; see `Store.repair`."""
        expired = await self._index.claim(self.space.expiring(), positive(limit), 60_000)
        entries = {**dict(await self._index.scan(limit)), **dict(expired)}
        rows, repaired = await self._heal(list(entries.items()))
        await asyncio.gather(*(self._relist(row) for row in rows if row.run_id in dict(expired)))
        return repaired

    async def _heal(self, entries: Sequence[Entry]) -> tuple[list[RunRow], Repaired]:
        """The runs behind entries of the index; entries that are wrong are mended on the way."""
        peeks = await asyncio.gather(*(self.peek(run_id) for run_id, _ in entries))
        rows = [row for row in peeks if row is not None]
        gone = [entry for entry, row in zip(entries, peeks, strict=True) if row is None]
        seen = dict(entries)
        stale = [row for row in rows if listing.listing_in(seen[row.run_id]) != row.listing]
        dropped = await self._index.drop_all(gone)
        await asyncio.gather(*map(self._relist, stale))
        return rows, Repaired(len(entries), dropped, len(stale))

    async def _ended(self, row: RunRow) -> None:
        """A run has ended whose entry says otherwise: perhaps nobody has told its parent either."""
        if row.parent and row.ended:
            await self.wake(row.parent)
        await self._relist(row)

    async def _relist(self, row: RunRow) -> None:
        expire_in_ms = 0
        if row.ended:
            left_ms: int = await self._client.execute("PTTL", self.space.run(row.run_id), repeatable=True)
            expire_in_ms = max(left_ms, 0)
        await self._index.put_row(row, idle_ms=self._idle_ms, expire_in_ms=expire_in_ms)

    # ------------------------------------------------------------------ inside

    def pushes(self) -> Pushes:
        """The subscriptions of this event loop, which others may share."""
        loop = asyncio.get_running_loop()
        pushes = self._pushes.get(loop)
        if pushes is None:
            pushes = self._pushes[loop] = Pushes(self._client._settings.endpoint)
        return pushes

    @contextlib.asynccontextmanager
    async def _listen(self, channel: str) -> AsyncIterator[Bell]:
        async with self.pushes().listen(channel) as bell:
            yield bell

    async def aclose(self) -> None:
        """Close the subscriptions of this event loop; the client stays open."""
        pushes = self._pushes.pop(asyncio.get_running_loop(), None)
        if pushes is not None:
            await pushes.aclose()
