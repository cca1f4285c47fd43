"""The fan-outs of one run, as its owner sees them: begun, fed, looked at, stopped, rolled back, read.

What is lost on the way is mended by whoever looks, and the run of a fan-out looks now and then for as long as it lasts:
elements of dead sessions are dealt again, elements whose own runs have ended without a word are settled, and workers
are told when there is something to do and nobody does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aioreactor.definition.annotations import UNKNOWN
from aioreactor.durable.base import store_needed
from aioreactor.durable.element_records import (
    Record,
    Shared,
    at,
    outcome_back,
    pack_common,
    pack_items,
    pack_shared,
    read_items,
    read_left,
)
from aioreactor.engine.fans import FanState, Source
from aioreactor.engine.mapping import window_of
from aioreactor.engine.ports import FanGone
from aioreactor.map_results import ElementOutcome, FanResults, FanSummary
from aioreactor.plan.model import PlanNode
from aioreactor.plan.units import may_owe
from aioreactor.progress import MapProgress
from aioreactor.results import RollbackFailure
from aioreactor.store.codec import codec_for
from aioreactor.store.fans import FanRow, Fed
from aioreactor.store.keys import element_id
from aioreactor.store.plan_codec import PlanCodec
from aioreactor.store.unique import UniqueTexts

if TYPE_CHECKING:
    from aioreactor.durable.elements import Elements

CHUNK = 64
"""Items that are kept in one value."""
CHUNKS = 64
"""Chunks that are written by one script."""
FIRST = 4
"""So many workers are told of a fan-out at first; each tells another one when there is more than it can do."""
START = 8
"""Elements that a session begins with."""

_nonces = UniqueTexts()


class RunFans:
    """See `engine.fans.Fans`."""

    def __init__(
        self, runs: Elements, run_id: str, reactor: str, created_ms: int, queue: str, codec: PlanCodec
    ) -> None:
        self.look_each = self.patience = runs.settings.lease_ttl
        self._runs = runs
        self._store = runs.store.fans
        self._run_id = run_id
        self._reactor = reactor
        self._created_ms = created_ms
        self._queue = queue
        self._codec = codec
        self._mended: dict[str, float] = {}

    async def open(self, path: str, node: PlanNode, given: Mapping[str, Any], around: Mapping[str, Any]) -> Source:
        """See `Fans.open`."""
        assert node.fan is not None
        values = pack_common(node, self._codec, given, around, path)
        queue = _queue_of(node) or self._queue
        shared = pack_shared(Shared(self._reactor, queue, self._created_ms, values))
        with store_needed("begin a fan-out"):
            fed = await self._store.open(
                self._run_id,
                path,
                atomic=node.atomic,
                window=window_of(node),
                chunk=CHUNK,
                keep=may_owe(node.fan),
                shared=shared,
            )
        return _source(fed)

    async def feed(
        self, path: str, node: PlanNode, before: Source, items: Sequence[Any], *, cursor: Any, ended: bool
    ) -> Source:
        """See `Fans.feed`."""
        encoded = [self._codec.item(node, f"{path}[{before.fed + i}]", item) for i, item in enumerate(items)]
        mark = codec_for(UNKNOWN).encode(cursor)
        fed = Fed(before.fed)
        with store_needed("keep the items of a map"):
            tail = before.fed % CHUNK
            begun = read_items(await self._store.chunk(self._run_id, path, before.fed // CHUNK)) if tail else []
            rest = [*begun[:tail], *encoded]
            number, left = before.fed // CHUNK, len(encoded)
            while True:
                some, rest = rest[: CHUNK * CHUNKS], rest[CHUNK * CHUNKS :]
                chunks = {
                    number + i: pack_items(some[i * CHUNK : (i + 1) * CHUNK]) for i in range(-(-len(some) // CHUNK))
                }
                more = min(left, number * CHUNK + len(some) - fed.fed)
                last = not rest
                wanted = mark if last else codec_for(UNKNOWN).encode(before.cursor)
                told = await self._store.feed(
                    self._run_id, path, fed, more, chunks, cursor=wanted, ended=ended and last
                )
                number, left = number + CHUNKS, left - more
                if last or told.fed != fed.fed + more:
                    break
                fed = told
        return _source(told)

    async def look(self, path: str, node: PlanNode) -> FanState:
        """See `Fans.look`."""
        with store_needed("look at a fan-out"):
            row = await self._row(path)
            is_time = self._is_time(path)
            if row.runs and is_time:
                await self._mend(path, row)
            if row.waiting and (is_time or not row.sessions):
                await self.ring(path, node, min(FIRST, -(-row.waiting // START)) if not row.sessions else 1)
        return _state(row, paged=node.paged)

    async def _row(self, path: str) -> FanRow:
        row = await self._store.look(self._run_id, path)
        if row is None:
            raise FanGone(f"what is kept of the fan-out {path!r} is gone from the store")
        return row

    def _is_time(self, path: str) -> bool:
        now = self._runs.environment.clock.monotonic()
        due = self._mended.get(path, -self.look_each) + self.look_each <= now
        if due:
            self._mended[path] = now
        return due

    async def _mend(self, path: str, row: FanRow) -> None:
        """Settle elements whose runs have ended although nobody said so, and have those without a run dealt again."""
        await asyncio.gather(*(self._mend_one(path, index) for index in row.runs))

    async def _mend_one(self, path: str, index: int) -> None:
        run_id = element_id(self._run_id, path, index)
        found = await self._runs.store.peek(run_id)
        if found is None:
            await self._store.redo(self._run_id, path, index)
        elif found.ended:
            await self._runs.settle_and_ring(run_id)

    async def ring(self, path: str, node: PlanNode, count: int) -> None:
        """Tell so many workers that there are elements to execute."""
        queue = _queue_of(node) or self._queue
        await self._runs.ring_fan(self._run_id, path, queue, count)

    async def changed(self, path: str, timeout: float) -> bool:
        """See `Fans.changed`."""
        with store_needed("hear of a fan-out"):
            async with self._runs.store.pushes().listen(self._runs.store.space.fan_channel(self._run_id)) as bell:
                bell.silence()  # it rings when it is subscribed, too
                return _is_due(await self._row(path)) or await bell.wait(timeout)

    async def stop(self, path: str, node: PlanNode, why: str, cut: str = "") -> None:
        """See `Fans.stop`."""
        with store_needed("stop a fan-out"):
            _, runs = await self._store.doom(self._run_id, path, why, cut=cut)
            if cut:
                reason = f"the map {path!r} of run {self._run_id} was stopped"
                ids = [element_id(self._run_id, path, index) for index in runs]
                await asyncio.gather(*(self._runs.cancel_element(run_id, reason, cut) for run_id in ids))

    async def failure(self, path: str, node: PlanNode, index: int) -> Any:
        """See `Fans.failure`."""
        with store_needed("read an element"):
            [data] = await self._store.records(self._run_id, path, [index])
        return outcome_back(node, self._codec, path, index, Record.read(data))

    async def go_back(self, path: str, node: PlanNode) -> Sequence[RollbackFailure] | None:
        """See `Fans.go_back`."""
        with store_needed("roll a fan-out back"):
            found = await self._store.back(self._run_id, path)
            if found is None:
                text = "what is kept of its elements is gone"
                return [RollbackFailure(path, "undo", "state_unavailable", text, None, path, None)]
            over, bad = found
            if not over:
                row = await self._row(path)
                is_time = self._is_time(path)
                if row.runs and is_time:
                    await self._mend(path, row)
                if is_time or not row.sessions:
                    await self.ring(path, node, FIRST if not row.sessions else 1)
                return None
            reports = await self._store.reports(self._run_id, path, sorted(bad, reverse=True))
        assert node.fan is not None
        left = []
        for index, report in zip(sorted(bad, reverse=True), reports, strict=True):
            left += read_left(report) or [_lost(node, path, index)]
        return left

    async def in_flight(self, path: str) -> Sequence[int]:
        """See `Fans.in_flight`."""
        with store_needed("look at a fan-out"):
            return await self._store.busy(self._run_id, path)

    def results(self, path: str, node: PlanNode, summary: FanSummary, inputs: Mapping[str, Any]) -> FanResults[Any]:
        """See `Fans.results`."""

        async def read(first: int, stop: int) -> Sequence[ElementOutcome[Any]]:
            indexes = range(first, stop)
            with store_needed("read the results of a map"):
                found = await self._store.records(self._run_id, path, indexes)
            records = [Record.read(data) for data in found]
            return [
                outcome_back(node, self._codec, path, index, record, inputs)
                for index, record in zip(indexes, records, strict=True)
            ]

        return FanResults(summary, read)

    async def progress(self, path: str) -> MapProgress | None:
        """How far a map is; None when nothing is known of it.

        Raises:
            StoreError: the store is away.

        Cancellation: nothing happens.
        """
        row = await self._store.look(self._run_id, path)
        return None if row is None else _progress(path, row)

    async def parted(self) -> None:
        """See `Fans.parted`."""
        await self._runs.ring_if_due(self._run_id, self._queue)


def _is_due(row: FanRow) -> bool:
    """Whether there is something to do for the run already."""
    if row.values["back"]:
        return bool(row.values["back_over"])
    if row.values["over"]:
        return True
    hungry = row.number("fed") - row.number("given") < row.number("window")
    return hungry and not row.values["end"] and not row.values["doomed"]


def _queue_of(node: PlanNode) -> str:
    return (node.fan_out.queue if node.fan_out is not None else None) or ""


def _lost(node: PlanNode, path: str, index: int) -> RollbackFailure:
    assert node.fan is not None
    place = at(node.fan, path, index, None)
    return RollbackFailure(place, "undo", "state_unavailable", "its record cannot be read", None, path, index)


def _source(fed: Fed) -> Source:
    cursor = codec_for(UNKNOWN).decode(fed.cursor) if fed.cursor else None
    return Source(fed.fed, cursor, fed.ended)


def _progress(path: str, row: FanRow) -> MapProgress:
    total = row.number("fed") if row.values["end"] else None
    done = row.number("settled")
    spent = ((row.number("over_ms") or row.now_ms) - row.number("began_ms")) / 1000
    rate = done / spent if spent > 0 else 0.0
    left = None if total is None else total - done
    over = bool(row.values["over"])
    remaining = 0.0 if over else left / rate if left is not None and rate else None
    return MapProgress(
        path,
        total,
        started=row.number("given"),
        done=done,
        failed=row.number("failed"),
        skipped=row.number("skipped"),
        rate=rate,
        remaining=remaining,
        undone=row.number("undone"),
    )


def _state(row: FanRow, *, paged: bool) -> FanState:
    doomed = bool(row.values["doomed"])
    total = row.number("given") if doomed or not row.values["end"] else row.number("fed")
    summary = FanSummary(total, row.number("ok"), row.number("failed"), row.number("skipped"))
    waiting = row.number("fed") - row.number("given")
    return FanState(
        over=bool(row.values["over"]) and not row.under_way,
        under_way=row.under_way,
        hungry=paged and not doomed and not row.values["end"] and waiting < row.number("window"),
        summary=summary,
        failures=row.indexes("failures"),
        owed=row.indexes("owed"),
        halt=int(row.values["halt"]) if row.values["halt"] else None,
        doomed_for=(row.now_ms - row.number("doomed_ms")) / 1000 if row.values["doomed_ms"] else None,
    )
