"""Processes that answer rings, one after the other, in one thread; one of them dies at one of its calls."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from aioreactor import Outcome, Reactor, Runtime, runs
from aioreactor.store.calls import Call
from aioreactor.store.records import TERMINAL
from tests.integration.durable.fan_kit import ledger
from tests.integration.durable.kit import Place


class Died(RuntimeError):
    """The process is gone."""


class Yard:
    """One key space whose rings are kept here, and delivered in turn, or in disorder.

    Args:
        dies_at: The process dies at this one of its calls; none does for -1.
        applied: The call at which it dies was served.
        twice: Each ring is delivered twice.
        dice: The rings come in disorder.
    """

    def __init__(
        self,
        place: Place,
        *,
        dies_at: int = -1,
        applied: bool = False,
        twice: bool = False,
        dice: random.Random | None = None,
    ) -> None:
        self.place, self.dies_at, self.applied, self.twice, self.dice = place, dies_at, applied, twice, dice
        self.rings: deque[str] = deque()
        self.calls = 0
        self.dead = False
        self.deaths = 0
        self._last: Call | None = None

    # ------------------------------------------------------------------ a process

    def before_send(self, call: Call) -> None:
        if self.dead:
            raise Died
        if self.calls == self.dies_at and not self.deaths:
            if not self.applied:
                self._die()
            self._last = call
        self.calls += 1

    def after_reply(self, call: Call, reply: Any) -> None:
        if call is self._last and not self.deaths:
            self._die()

    def _die(self) -> None:
        self.dead = True
        self.deaths += 1
        raise Died

    async def ring(self, run_ids: Iterable[str], *, due_ms: int | None = None) -> list[str]:
        if self.dead:
            raise Died
        given = list(run_ids)
        self.rings += [*given, *given] if self.twice else given
        return given

    def process(self) -> Runtime:
        runtime = self.place.another(self, park_after=0.0)
        assert runtime.durable is not None
        runtime.durable.queues = lambda _: self  # type: ignore[assignment,return-value]
        return runtime

    # ------------------------------------------------------------------ the whole

    async def end(self, reactor: type[Reactor[Any]], run_id: str) -> Outcome[Any]:
        """Start a run, and deliver rings until it has ended."""
        dies_at, self.dies_at = self.dies_at, -1
        async with self.process():
            await reactor.with_options(run_id=run_id).enqueue()
        self.dies_at, self.calls = dies_at, 0
        async with asyncio.timeout(20):
            while not await self._has_ended(run_id):
                await self._lives(run_id)
        await self._lives(run_id)  # what is delivered late comes to nothing
        return (await runs.find(run_id)).outcome  # type: ignore[return-value]

    async def _lives(self, run_id: str) -> None:
        """One process, until it dies, or has nothing to do any more."""
        if not self.rings:
            await self._sweep(run_id)
        async with self.process() as runtime:
            assert runtime.durable is not None
            while self.rings and not self.dead:
                ring = self._next()
                with contextlib.suppress(Died):
                    await runtime.durable.carry_on(ring, "by hand")
            died, self.dead = self.dead, False
        if died:
            await self._sweep(run_id)

    def _next(self) -> str:
        if self.dice is not None:
            self.rings.rotate(self.dice.randrange(len(self.rings)))
        return self.rings.popleft()

    async def _has_ended(self, run_id: str) -> bool:
        row = await self.place.store.peek(run_id)
        return row is not None and row.status in TERMINAL

    async def _sweep(self, run_id: str) -> None:
        """The leases of whoever died are past, and who sweeps rings for what has not ended."""
        do, space = self.place.do, self.place.store.space
        for key in await do("KEYS", f"{self.place.prefix}:*{run_id}*:run"):
            name = unquote(key.decode().partition("{")[2].partition("}")[0])
            status = await do("HGET", key, "status")
            if status.decode() not in TERMINAL:
                await do("HSET", key, "due_ms", 0, "updated_ms", 1)
                if await do("HGET", key, "token"):
                    await do("HSET", key, "lease_ms", 1)
                self.rings.append(name)
        fan, _, _ = space.fan(run_id)
        for field in await do("HKEYS", fan):
            if b"\nlease:" in field:
                await do("HSET", fan, field, 1)


def standing() -> set[str]:
    """The effects that stand: by path, what was done and not taken back."""
    found: set[str] = set()
    for line in ledger:
        kind, _, path = line.partition(":")
        (found.add if kind == "do" else found.discard)(path)
    return found
