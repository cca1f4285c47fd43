"""A step blocks its event loop for longer than the lease lasts: what is told, what goes on, what does not."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioreactor import OwnershipLost, Reactor, sweep
from aioreactor.store.claim import Claim
from aioreactor.store.client import StoreClient
from aioreactor.store.store import RunStore
from tests.integration.durable import blocker
from tests.integration.durable.kit import Place, behave, ledger, noted

ROOT = Path(__file__).parents[3]


class Child:
    """The blocking process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, place: Place, seconds: float, **variables: str) -> Child:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AIOREACTOR_REDIS_URL": place.url,
            "AIOREACTOR_KEY_PREFIX": place.prefix,
            "AIOREACTOR_LEASE_TTL": "1",
            **variables,
        }
        command = [sys.executable, "-m", "tests.integration.durable.blocker", "x", str(seconds)]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdout=pipe, env=environment, cwd=ROOT))

    async def until(self, word: str) -> None:
        """Read until it says so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            while word not in self.lines:
                line = await self.process.stdout.readline()
                assert line, self.lines
                self.lines.append(line.decode().rstrip("\n"))

    async def end(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            self.lines += (await self.process.stdout.read()).decode().splitlines()
            assert await self.process.wait() == 0, self.lines

    def said(self) -> list[str]:
        """Without the log."""
        return [line for line in self.lines if " " not in line or line.startswith("Success")]

    def events(self) -> list[str]:
        return [line.split()[1] for line in self.lines if line.startswith("aioreactor.")]

    def line(self, event: str) -> str:
        return next(line for line in self.lines if f" {event} " in line)


async def swept(until: Callable[[], bool] = lambda: False) -> list[str]:
    """Sweep as another process until a run was taken, or until that is so."""
    async with asyncio.timeout(30):
        while not (taken := await sweep()) and not until():
            await asyncio.sleep(0.02)
    return taken


async def test_who_blocks_is_told_and_does_nothing_more_once_somebody_else_has_the_run(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    child = await Child.start(place, 3.5)
    await child.until("block")
    assert await swept() == ["x"]
    assert capsys.readouterr().out.split() == ["block", "unblocked", "sibling", "last"]
    await child.end()
    assert child.said() == ["first", "block", "unblocked", "OwnershipLost"]
    assert child.events()[:2] == ["loop_blocked", "loop_resumed"] or child.events()[:2] == [
        "loop_blocked",
        "ownership_lost",
    ]
    assert child.events().count("loop_blocked") == 1
    assert child.events().count("ownership_lost") == 1
    assert "run_id=x path=block kind=run" in child.line("loop_blocked")
    assert "    time.sleep(SECONDS)" in child.lines
    assert not any("aioreactor/engine" in line for line in child.lines)


async def test_with_a_lease_thread_the_run_is_kept(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    child = await Child.start(place, 6, AIOREACTOR_LEASE_TTL="2.5", AIOREACTOR_LEASE_THREAD="1")
    await child.until("block")
    reading = asyncio.create_task(child.end())
    assert await swept(reading.done) == []
    await reading
    assert child.said() == ["first", "block", "unblocked", "sibling", "last", "Success(value='done')"]
    assert child.events() == ["loop_blocked", "loop_resumed"]
    assert capsys.readouterr().out == ""


async def test_a_lease_thread_gives_up_a_loop_that_hangs(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    child = await Child.start(place, 6, AIOREACTOR_LEASE_THREAD="1", AIOREACTOR_LEASE_THREAD_LIMIT="1.5")
    await child.until("block")
    assert await swept() == ["x"]
    assert capsys.readouterr().out.split() == ["block", "unblocked", "sibling", "last"]
    await child.end()
    assert child.said() == ["first", "block", "unblocked", "OwnershipLost"]
    assert child.events()[:2] == ["loop_blocked", "lease_thread_stopped"]


# ---------------------------------------------------------------------- in this process


class Two(Reactor):
    a = noted()
    b = noted()
    c = noted(after=[a, b])


def _claim(place: Place, run_id: str) -> Claim:
    assert place.runtime.durable is not None
    (keeper,) = place.runtime.durable._keepers.values()
    (hold,) = [hold for hold in keeper._holds if hold.claim.run_id == run_id]
    return hold.claim


def _take(place: Place, run_id: str) -> None:
    """As another process; while this loop stands still."""

    async def take() -> None:
        async with StoreClient(place.url) as client:
            store = RunStore(client, prefix=place.prefix)
            await client.execute("HSET", store.space.run(run_id), "lease_ms", 1, repeatable=True)
            claim = await store.take(run_id, ["running", "rolling_back"], ttl_ms=60_000)
            assert isinstance(claim, Claim)
            await store.close(claim, "completed", b"", retention_ms=60_000)
            await store.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(take()))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("taken", [True, False])
async def test_a_body_that_was_ready_is_not_entered_before_the_lease_is_checked(place: Place, taken: bool) -> None:
    def block(ctx: Any) -> None:
        if taken:
            _take(place, "x")
        _claim(place, "x").trusted_until = 0.0  # as if the lease had ended meanwhile

    behave["a"] = block
    run = Two.with_options(run_id="x").run()
    if not taken:
        assert (await run).ok
        assert ledger == ["do:a", "do:b", "do:c"]
        return
    with pytest.raises(OwnershipLost):
        await run
    assert ledger == ["do:a"]


@pytest.mark.parametrize("moment", ["on_undo_start", "on_undo_finish"])
async def test_an_undo_is_not_called_before_the_lease_is_checked(place: Place, moment: str) -> None:
    class Hook:
        async def on_undo_finish(self, event: Any) -> None:
            await self.on("on_undo_finish", event.path)

        async def on_undo_start(self, event: Any) -> None:
            await self.on("on_undo_start", event.path)

        async def on(self, what: str, path: str) -> None:
            if (what, path) == (moment, "b"):
                _take(place, "x")
                _claim(place, "x").trusted_until = 0.0

    class Back(Reactor, middlewares=[Hook()]):
        a = noted()
        b = noted(after=[a])
        c = noted(after=[b])

    def fail(ctx: Any) -> None:
        raise ValueError("no")

    behave["c"] = fail
    with pytest.raises(OwnershipLost):
        await Back.with_options(run_id="x").run()
    assert ledger == ["do:a", "do:b", "do:c", "comp:c", *(["undo:b"] if moment == "on_undo_finish" else [])]


def test_the_child_blocks_only_as_a_child() -> None:
    assert blocker.SECONDS == 0.0
