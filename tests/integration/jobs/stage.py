"""What the tests of the jobs share: a carrier of fake runs on the real store, and how workers are started.

A fake run says in its inputs what it does: ``quick`` ends at once, ``hold`` lives until it is cancelled, ``gate`` until
a token is pushed for it. Whatever happens is pushed to a list, for which a test waits instead of sleeping.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from aioreactor.errors import OwnershipLost
from aioreactor.jobs.ports import Backing
from aioreactor.store.claim import Claim
from aioreactor.store.client import StoreClient
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.records import LIVE, NewRun
from aioreactor.store.store import RunStore

PATIENCE = 30.0


class FakeCarrier:
    """Carries fake runs on as the real one does: under their lease, released when cancelled."""

    def __init__(self, store: RunStore, redis: Any, prefix: str, *, ttl_ms: int = 30_000) -> None:
        self.store = store
        self.redis = redis
        self.prefix = prefix
        self.ttl_ms = ttl_ms
        self.keeper = LeaseKeeper(store)
        self.calls = 0

    async def tell(self, what: str, run_id: str) -> None:
        await self.redis.rpush(f"{self.prefix}-events", f"{what} {run_id} {os.getpid()}")

    async def carry_on(self, run_id: str, delivery: str) -> None:
        self.calls += 1
        claim = await self.store.take(run_id, LIVE, ttl_ms=self.ttl_ms, status="running")
        if not isinstance(claim, Claim):
            await self.tell("elsewhere", run_id)
            return
        hold = self.keeper.watch(claim, on_lost=lambda error: None)
        try:
            await self.tell("begun", run_id)
            record = await self.store.load(claim)
            if record.row.inputs == b"hold":
                await asyncio.Event().wait()
            elif record.row.inputs == b"gate":
                await self.redis.blpop(f"{self.prefix}-gate-{run_id}")
            hold.release()
            await self.store.close(claim, "completed", b"done", retention_ms=600_000)
            await self.tell("done", run_id)
        except asyncio.CancelledError:
            hold.release()
            await self.store.release(claim)
            await self.tell("handed", run_id)
        except OwnershipLost:
            await self.tell("lost", run_id)
        finally:
            hold.release()


class Stage:
    """A store, a queue and the events of one test."""

    def __init__(self, url: str, prefix: str, *, idle_ms: int = 600_000) -> None:
        self.url = url
        self.prefix = prefix
        self.queue_name = f"{prefix}-queue"
        self.client = StoreClient(url)
        self.store = RunStore(self.client, prefix=prefix, idle_ms=idle_ms)
        self.redis: Any = Redis.from_url(url)

    async def create(self, run_id: str, does: bytes = b"quick") -> str:
        await self.store.create(run_id, NewRun(reactor="fake", inputs=does))
        return run_id

    async def event(self) -> list[str]:
        """The next thing that happened: what, run, process."""
        found = await self.redis.blpop(f"{self.prefix}-events", timeout=PATIENCE)
        assert found is not None, "nothing happened"
        return found[1].decode().split()  # type: ignore[no-any-return]

    async def until(self, what: str, run_id: str) -> str:
        """Wait for this to happen; gives the process."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event = await self.event()
                if event[:2] == [what, run_id]:
                    return event[2]

    async def counted(self, what: str, number: int) -> list[list[str]]:
        """Wait until so many of these have happened; gives all that happened until then."""
        events: list[list[str]] = []
        async with asyncio.timeout(PATIENCE):
            while sum(event[0] == what for event in events) < number:
                events.append(await self.event())
        return events

    async def open_gate(self, run_id: str) -> None:
        await self.redis.rpush(f"{self.prefix}-gate-{run_id}", "1")

    async def queued(self) -> int:
        return int(await self.redis.zcard(self.queue_name))

    async def aclose(self) -> None:
        await self.store.aclose()
        await self.client.aclose()
        await self.redis.aclose()


@asynccontextmanager
async def fake_backing(
    url: str, prefix: str, *, ttl_ms: int = 30_000, idle_ms: int = 600_000
) -> AsyncIterator[Backing]:
    stage = Stage(url, prefix, idle_ms=idle_ms)
    carrier = FakeCarrier(stage.store, stage.redis, prefix, ttl_ms=ttl_ms)
    try:
        yield Backing(carrier, stage.store)
    finally:
        await carrier.keeper.aclose()
        with contextlib.suppress(OSError):
            await stage.aclose()
