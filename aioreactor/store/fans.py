"""Fan-outs in Redis: what is to be done for each element, who does it, and what came of it.

Overview. A fan-out belongs to one run and lives in its slot, in three keys: scalars and items, who has which element,
and what the elements came to. Its run opens it and feeds it with items. Workers open **sessions**: a token with a
lease, under which the store deals elements, never more than the window at a time. A session says what its elements came
to, and gets others in their place, in one script; so each element is counted once, whoever says so and how often, and
the script that counts the last one wakes the run.

Who stands for an element is decided as for a run: a session whose lease is past has its elements dealt again, and what
it says of them later is refused. An element that has to outlive its session (it waits, it failed, it has several steps)
becomes a run of its own, `detach`, and from then on the lease of that run counts.

Going back, the same sessions are dealt the elements that have something to undo, the highest index first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aioreactor.store.calls import Value
from aioreactor.store.client import LEASE_LANE, StoreClient
from aioreactor.store.keys import KeySpace
from aioreactor.store.scripts import Reply, ScriptLibrary

FAN_KEYS = ("fan", "out", "busy")
"""Last parts of the keys that a run with fan-outs has."""

RUN = "@"
"""Stands for the session of an element that is a run of its own."""

_SCALARS = (
    "total fed given settled ok failed skipped halted again cut doomed doomed_ms halt failures owed over over_ms end "
    "cursor window chunk keep back back_over undone bad came_back taken_back began_ms"
).split()


class Settled(NamedTuple):
    """What an element came to: `kind` is one of ``skfhx``, in capitals when there is something to roll back."""

    number: int
    kind: str
    record: bytes


class Dealt(NamedTuple):
    """What a session got.

    Attributes:
        indexes: Elements to execute.
        again: Those of them that had been dealt before: they may be runs of their own.
        items: The chunks that they lie in, by number.
        more: How many others there are, for whoever takes them.
        doomed: Whether nothing new starts; then what was dealt had been started by somebody.
        wake: Queue of the run, when workers are to be told of it.
        shared: What all elements have in common; only of a claim.
        records: What the elements came to; only of those to be rolled back.
        refused: Elements that were not the session's any more.
        over: Whether nothing is under way and nothing more will be.
        counted: How many elements had not been counted before.
    """

    indexes: tuple[int, ...] = ()
    again: frozenset[int] = frozenset()
    items: Mapping[int, bytes] = {}
    more: int = 0
    doomed: bool = False
    wake: str | None = None
    shared: bytes = b""
    records: tuple[bytes, ...] = ()
    refused: tuple[int, ...] = ()
    over: bool = False
    counted: int = 0


class Fed(NamedTuple):
    """How far the source of a fan-out has been read."""

    fed: int = 0
    cursor: bytes = b""
    ended: bool = False
    opened: bool = False


class FanRow(NamedTuple):
    """A fan-out as of one moment. Times are server times in ms.

    Attributes:
        values: Scalars by name, as texts.
        waiting: Elements that could start now.
        sessions: How many sessions there are.
        runs: Elements that are runs of their own.
        now_ms: When this was.
    """

    values: Mapping[str, str]
    waiting: int
    sessions: int
    runs: tuple[int, ...]
    now_ms: int

    def number(self, name: str) -> int:
        """A scalar as a number."""
        return int(self.values.get(name) or 0)

    def indexes(self, name: str) -> list[int]:
        """A scalar as a list of elements."""
        return [int(each) for each in self.values.get(name, "").split()]

    @property
    def under_way(self) -> int:
        """How many elements have begun and have not settled."""
        return self.number("given") - self.number("settled")


class FanStore:
    """The fan-outs of one key space."""

    def __init__(self, client: StoreClient, space: KeySpace) -> None:
        self._client = client
        self._space = space
        self._scripts = ScriptLibrary("aioreactor.store")

    async def open(
        self, run_id: str, path: str, *, atomic: bool, window: int, chunk: int, keep: bool, shared: bytes
    ) -> Fed:
        """Begin a fan-out, or find how far it has come. Every coroutine here may raise `StoreError`."""
        fan, _, _ = self._space.fan(run_id)
        args: list[Value] = [path, int(atomic), window, chunk, int(keep), shared]
        reply = await self._run("fan_open", [fan], args)
        return Fed(opened=True) if reply.word == "OPENED" else _fed(reply)

    async def feed(
        self, run_id: str, path: str, before: Fed, more: int, chunks: Mapping[int, bytes], *, cursor: bytes, ended: bool
    ) -> Fed:
        """Add items, and say whether there will be others; what somebody else added meanwhile stays."""
        fan, _, _ = self._space.fan(run_id)
        args: list[Value] = [path, before.fed, more, int(ended), cursor]
        for number, blob in chunks.items():
            args += [number, blob]
        reply = await self._run("fan_feed", [fan], args)
        return _fed(reply) if reply.word == "STALE" else Fed(reply.values[0], cursor, ended)

    async def chunk(self, run_id: str, path: str, number: int) -> bytes:
        """Items of one chunk."""
        fan, _, _ = self._space.fan(run_id)
        found = await self._client.execute("HGET", fan, f"{path}\ni:{number}", repeatable=True)
        return found or b""

    async def claim(self, run_id: str, path: str, token: str, *, ttl_ms: int, wanted: int) -> Dealt | None:
        """Begin or go on with a session; None when there is nothing to be done any more."""
        fan, _, busy = self._space.fan(run_id)
        args: list[Value] = [path, token, ttl_ms, wanted, self._space.fan_channel(run_id)]
        reply = await self._run("fan_claim", [self._space.run(run_id), fan, busy], args)
        if reply.word == "GONE":
            return None
        indexes, more, doomed, wake, shared, items = reply.values
        return Dealt(*_dealt(indexes), _chunks(items), more, bool(doomed), _queue(wake), shared)

    async def settle(
        self, run_id: str, path: str, token: str, settled: Sequence[Settled], *, ttl_ms: int, wanted: int = 0
    ) -> Dealt | None:
        """Say what elements came to, and get up to ``wanted`` others; None when the fan-out is gone."""
        args: list[Value] = [path, token, ttl_ms, wanted, self._space.fan_channel(run_id), len(settled)]
        for each in settled:
            args += each
        reply = await self._run("fan_settle", [self._space.run(run_id), *self._space.fan(run_id)], args)
        if reply.word == "GONE":
            return None
        refused, over, indexes, more, doomed, wake, items, counted = reply.values
        return Dealt(
            *_dealt(indexes),
            _chunks(items),
            more,
            bool(doomed),
            _queue(wake),
            refused=_ints(refused),
            over=bool(over),
            counted=counted,
        )

    async def extend(
        self, run_id: str, path: str, token: str, ttl_ms: int, retry_for: float | None = None
    ) -> str | None:
        """Keep a session's lease; gives how what is under way is to be cancelled, if it is; None when it is lost."""
        fan, _, _ = self._space.fan(run_id)
        args: list[Value] = [path, token, ttl_ms]
        reply = await self._client.run(self._scripts["fan_extend"], [fan], args, lane=LEASE_LANE, retry_for=retry_for)
        return str(reply.values[0].decode()) if reply.word == "OK" else None

    async def detach(self, run_id: str, path: str, token: str, index: int) -> bool:
        """An element is a run of its own now; whether it was the session's to make it one."""
        fan, _, busy = self._space.fan(run_id)
        return (await self._run("fan_detach", [fan, busy], [path, token, index])).word == "DETACHED"

    async def leave(self, run_id: str, path: str, token: str) -> int:
        """End a session; gives how many elements others have to execute."""
        fan, _, busy = self._space.fan(run_id)
        return int((await self._run("fan_leave", [fan, busy], [path, token])).values[0])

    async def doom(self, run_id: str, path: str, why: str, *, cut: str = "") -> tuple[int, tuple[int, ...]]:
        """Nothing new starts; ``cut`` says how what is under way is cancelled.

        Gives how many elements are under way, and those that are runs of their own.
        """
        fan, _, busy = self._space.fan(run_id)
        reply = await self._run("fan_doom", [fan, busy], [path, why, cut, self._space.fan_channel(run_id)])
        return (0, ()) if reply.word == "GONE" else (reply.values[0], _ints(reply.values[1]))

    async def redo(self, run_id: str, path: str, index: int) -> None:
        """An element that was to be a run of its own is none."""
        fan, _, busy = self._space.fan(run_id)
        await self._run("fan_redo", [fan, busy], [path, index])

    async def look(self, run_id: str, path: str) -> FanRow | None:
        """Where a fan-out stands; None when there is none."""
        fan, _, busy = self._space.fan(run_id)
        reply = await self._run("fan_look", [fan, busy], [path, *_SCALARS])
        if reply.word == "GONE":
            return None
        now_ms, values, waiting, sessions, runs = reply.values
        texts = {name: value.decode("utf-8", "replace") for name, value in zip(_SCALARS, values, strict=True)}
        return FanRow(texts, waiting, sessions, _ints(runs), now_ms)

    async def back(self, run_id: str, path: str) -> tuple[bool, list[int]] | None:
        """Begin to roll elements back, or find it begun: whether all is done, and which ones did not go well."""
        fan, _, _ = self._space.fan(run_id)
        reply = await self._run("fan_back", [self._space.run(run_id), fan], [path])
        if reply.word == "GONE":
            return None
        over, _, bad = reply.values
        return over == b"1", [int(each) for each in bad.split()]

    async def claim_back(self, run_id: str, path: str, token: str, *, ttl_ms: int, wanted: int) -> Dealt | None:
        """As `claim`, of elements that are to be rolled back."""
        args: list[Value] = [path, token, ttl_ms, wanted, self._space.fan_channel(run_id)]
        keys = [self._space.run(run_id), *self._space.fan(run_id)]
        reply = await self._run("fan_claim_back", keys, args)
        if reply.word == "GONE":
            return None
        indexes, records, more, wake, shared, items = reply.values
        return Dealt(_ints(indexes), frozenset(), _chunks(items), more, False, _queue(wake), shared, tuple(records))

    async def settle_back(
        self, run_id: str, path: str, token: str, settled: Sequence[tuple[int, bytes, bytes]], *, ttl_ms: int
    ) -> Dealt | None:
        """Say what is left of elements that were rolled back, and what went wrong."""
        args: list[Value] = [path, token, ttl_ms, self._space.fan_channel(run_id)]
        for each in settled:
            args += each
        keys = [self._space.run(run_id), *self._space.fan(run_id)]
        reply = await self._run("fan_settle_back", keys, args)
        if reply.word == "GONE":
            return None
        refused, over, more, wake = reply.values
        return Dealt(more=more, wake=_queue(wake), refused=_ints(refused), over=bool(over))

    async def records(self, run_id: str, path: str, indexes: Sequence[int]) -> list[bytes | None]:
        """What elements came to, kind first; None where there is nothing but a success with None, or not yet that."""
        return await self._read(run_id, [f"{path}\n{index}" for index in indexes])

    async def copy(self, run_id: str, new_id: str, paths: Sequence[str], *, ttl_ms: int) -> None:
        """What elements came to, for another run that takes over the results; kept for ``ttl_ms`` until `persist`."""
        for old, new in zip(self._space.fan(run_id)[:2], self._space.fan(new_id)[:2], strict=True):
            data = await self._client.execute("DUMP", old, repeatable=True)
            if data is not None:
                await self._client.execute("RESTORE", new, ttl_ms, data, "REPLACE", repeatable=True)
        names = [f"{path}\n{name}" for path in paths for name in ("back", "back_over", "bad", "tokens")]
        await self._client.execute("HDEL", self._space.fan(new_id)[0], *names, repeatable=True)

    async def persist(self, run_id: str) -> None:
        """What was copied is the run's own now."""
        fan, out, _ = self._space.fan(run_id)
        for key in (fan, out):
            await self._client.execute("PERSIST", key, repeatable=True)

    async def busy(self, run_id: str, path: str) -> list[int]:
        """Elements that have begun and have not settled, in order."""
        _, _, busy = self._space.fan(run_id)
        found = await self._client.execute("HKEYS", busy, repeatable=True)
        pairs = (field.decode().rpartition("\n") for field in found)
        return sorted(int(index) for place, _, index in pairs if place == path)

    async def reports(self, run_id: str, path: str, indexes: Sequence[int]) -> list[bytes | None]:
        """What went wrong when elements were rolled back."""
        return await self._read(run_id, [f"{path}\nr:{index}" for index in indexes])

    async def _read(self, run_id: str, fields: list[str]) -> list[bytes | None]:
        _, out, _ = self._space.fan(run_id)
        if not fields:
            return []
        found: list[bytes | None] = await self._client.execute("HMGET", out, *fields, repeatable=True)
        return found

    async def _run(self, script: str, keys: Sequence[str], args: Sequence[Value]) -> Reply:
        return await self._client.run(self._scripts[script], keys, args, replicate=True)


def _fed(reply: Reply) -> Fed:
    fed, cursor, ended = reply.values
    return Fed(fed, cursor, bool(ended))


def _ints(found: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in found)


def _dealt(found: Sequence[bytes]) -> tuple[tuple[int, ...], frozenset[int]]:
    again = frozenset(int(each[:-1]) for each in found if each.endswith(b"a"))
    return tuple(int(each.rstrip(b"a")) for each in found), again


def _chunks(flat: Sequence[Any]) -> dict[int, bytes]:
    each = iter(flat)
    return {int(number): blob for number, blob in zip(each, each, strict=True)}


def _queue(wake: bytes) -> str | None:
    return None if wake == b"-" else wake.decode()
