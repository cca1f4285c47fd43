"""What the tests of the run store share: the stores under test, time travel, faults, and looks at every key."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aioreactor.store.answers import Created
from aioreactor.store.calls import Call
from aioreactor.store.claim import Claim
from aioreactor.store.client import StoreClient
from aioreactor.store.records import TERMINAL, Changes, NewRun, RunRecord, RunRow
from aioreactor.store.store import RunStore
from aioreactor.store.volatile import VolatileStore

_numbers = itertools.count()
LONG = 600_000
NEW = NewRun(reactor="shop.Order", inputs=b"in", version="v1", fingerprint="f1")


def fresh_prefix() -> str:
    return f"t{os.getpid()}-{next(_numbers)}"


class Crash(BaseException):
    """The caller's process dies at this point."""


class Faults:
    """Loses what it is told to lose, once: by script name, before it is sent or after it was applied."""

    def __init__(self) -> None:
        self.before: dict[str, BaseException] = {}
        self.after: dict[str, BaseException] = {}
        self.on_reply: Callable[[Call], None] | None = None
        self.seen: list[str] = []

    def before_send(self, call: Call) -> None:
        self.seen.append(call.name)
        if call.name in self.before:
            raise self.before.pop(call.name)

    def after_reply(self, call: Call, reply: Any) -> None:
        if self.on_reply is not None:
            self.on_reply(call)
        if call.name in self.after:
            raise self.after.pop(call.name)


class RedisKit:
    """A run store in a key space of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self.faults = Faults()
        self.client = StoreClient(url, hook=self.faults, retry_for=5.0)
        self.prefix = fresh_prefix()
        self.options = options
        self.store = self.another_store()

    def another_store(self) -> RunStore:
        return RunStore(self.client, prefix=self.prefix, **self.options)

    async def do(self, *args: Any) -> Any:
        return await self.client.execute(*args, repeatable=True)

    async def expire_lease(self, run_id: str) -> None:
        """The lease of a run is past, as if its holder had slept."""
        await self.do("HSET", self.store.space.run(run_id), "lease_ms", 1)

    async def rest(self, run_id: str) -> None:
        """A run has been held by nobody for long."""
        await self.do("HSET", self.store.space.run(run_id), "updated_ms", 1)

    async def expire_record(self, run_id: str) -> None:
        """The retention of a run is over."""
        keys = self.store.space.of_run(run_id)
        ttls = [await self.do("PTTL", key) for key in keys]
        assert max(ttls) > 0, "it would never expire"
        assert all(ttl > 0 or ttl == -2 for ttl in ttls), f"a part of it would stay: {ttls}"
        await self.do("DEL", *keys)

    async def make_due(self, which: str = "live") -> None:
        """The sweeper's time has come for all runs."""
        key = f"{self.prefix}:{{:index}}:{which}"
        for run_id in await self.do("ZRANGE", key, 0, -1):
            await self.do("ZADD", key, 1, run_id)

    async def keys(self) -> list[str]:
        return sorted(key.decode() for key in await self.do("KEYS", f"{self.prefix}:*"))

    async def dump(self) -> dict[str, bytes]:
        return {key: await self.do("DUMP", key) for key in await self.keys()}

    async def unowned(self) -> list[str]:
        """Keys that nobody would ever remove: of no run and not of the index; or that outlive their ended run."""
        found = []
        for key in await self.keys():
            base, _, kind = key.rpartition(":")
            if "{:index}" in key or kind == "run":
                continue
            ttl = await self.do("PTTL", key)
            if ttl != await self.do("PTTL", base + ":run") and ttl < 0:
                found.append(key)
        for key in await self.keys():
            if key.endswith(":run"):
                status = (await self.do("HGET", key, "status")).decode()
                if status not in TERMINAL and await self.do("PTTL", key) != -1:
                    found.append(key)
        return found

    async def aclose(self) -> None:
        await self.store.aclose()
        await self.client.aclose(drain=0)


class VolatileKit:
    """A volatile store whose clock a test can move."""

    def __init__(self, **options: Any) -> None:
        self.time_ms = 1_790_000_000_000
        self.store = VolatileStore(now_ms=self.now_ms, **options)

    def now_ms(self) -> int:
        self.time_ms += 1
        return self.time_ms

    async def expire_lease(self, run_id: str) -> None:
        self.store._runs[run_id].lease_ms = 1

    async def rest(self, run_id: str) -> None:
        self.store._runs[run_id].updated_ms = 1

    async def expire_record(self, run_id: str) -> None:
        assert self.store._runs[run_id].expires_ms is not None
        self.store._runs[run_id].expires_ms = 1

    async def make_due(self, which: str = "live") -> None:
        for run in self.store._runs.values():
            run.told_until_ms = 0

    async def keys(self) -> list[str]:
        return sorted(self.store._runs)

    async def aclose(self) -> None:
        assert not self.store._bells


Kit = RedisKit | VolatileKit


async def held(kit: Kit, run_id: str = "r", new: NewRun = NEW, *, ttl_ms: int = LONG) -> Claim:
    """A new run that we hold."""
    created = await kit.store.create(run_id, new, hold_ms=ttl_ms, owner="test")
    assert isinstance(created, Created)
    assert created.claim is not None
    return created.claim


async def record_of(kit: Kit, run_id: str = "r") -> RunRecord:
    """All of a run that is there."""
    record = await kit.store.read(run_id)
    assert record is not None
    return record


async def row_of(kit: Kit, run_id: str = "r", *blobs: str) -> RunRow:
    """The row of a run that is there."""
    row = await kit.store.peek(run_id, *blobs)
    assert row is not None
    return row


def twin(claim: Claim, ver: int | None = None) -> Claim:
    """The claim as a process has it that slept since."""
    ver = claim.ver if ver is None else ver
    return Claim(
        claim.run_id, claim.token, ver=ver, fence=claim.fence, ttl_ms=claim.ttl_ms, asked_at=0, keys=claim.keys
    )


WRITES: dict[str, Callable[[Any, Claim], Awaitable[Any]]] = {
    "save": lambda store, claim: store.save(claim, Changes(steps={"z": b"z"}, trace=[b"z"], status="rolling_back")),
    "save nothing": lambda store, claim: store.save(claim, Changes()),
    "drop": lambda store, claim: store.save(claim, Changes(dropped=["a"])),
    "pause": lambda store, claim: store.release(claim, Changes(status="paused", trace=[b"z"])),
    "release": lambda store, claim: store.release(claim),
    "close": lambda store, claim: store.close(claim, "failed", b"z", retention_ms=1000),
    "extend": lambda store, claim: store.extend(claim),
    "load": lambda store, claim: store.load(claim),
}
