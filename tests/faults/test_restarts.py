"""A server that restarts, forgets or drops what it likes while workers are at work, with and without its data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioreactor import OwnershipLost, RunNotFound, runs
from aioreactor.embedded import EmbeddedServer
from tests.faults import reactors
from tests.faults.fanned import ALL as FANNED
from tests.faults.kit import Field, Zygote
from tests.faults.test_fans import LEGS, effects
from tests.faults.test_server import FAILS
from tests.integration.store_client.servers import Server


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Server]:
    """A server that keeps what it has acknowledged."""
    server = Server("--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path))
    yield server
    server.close()


@pytest.fixture
def forgetful() -> Iterator[Server]:
    """A server that restarts empty."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
async def fields(server: EmbeddedServer, zygote: Zygote) -> AsyncIterator[Callable[[Server], Field]]:
    """Key spaces on a server of the test's own; what bodies do is kept on another one."""
    yield lambda own: Field(own.url, zygote, ledger_url=server.url, idle_ms=500, lease_ttl=10)


def _flush(server: Server) -> None:
    server.command("SCRIPT", "FLUSH", "SYNC")


def _kill(server: Server) -> None:
    for kind in ("normal", "pubsub"):
        server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def _restart(server: Server) -> None:
    server.stop()
    server.start()


async def disturbed_under_way(waiting: asyncio.Future[Any], disturb: Any, server: Server, apart: float) -> bool:
    """Disturb the server in a moment; whether what is waited for was under way still."""
    await asyncio.wait({waiting}, timeout=apart)
    met = not waiting.done()
    await asyncio.to_thread(disturb, server)
    return met


def assert_unnoticed(log: Path) -> None:
    for event in ("carry_failed", "ownership_lost", "checkpoint_failed", "close_failed", "Traceback"):
        assert event not in log.read_text()


# What happens to the server, so many times, so many seconds apart: time to do something in between.
@pytest.mark.parametrize(("disturb", "times", "apart"), [(_flush, 50, 0.01), (_kill, 10, 0.05), (_restart, 4, 0.15)])
async def test_workers_and_their_callers_do_not_notice(
    fields: Callable[[Server], Field],
    lasting: Server,
    clinic: list[Zygote],
    disturb: Any,
    times: int,
    apart: float,
    tmp_path: Path,
) -> None:
    """Every effect is there once, in order, and whoever waits is told."""
    log = tmp_path / "log.txt"
    async with fields(lasting) as field:
        async with field.worker(clinic[0], log=str(log), concurrency=4):
            handles = [await field.enqueue("Steady", f"x{number}") for number in range(60)]
            waiting = asyncio.gather(*(handle.result(60) for handle in handles))
            met = 0
            for _ in range(times):
                met += await disturbed_under_way(waiting, disturb, lasting, apart)
            outcomes = await waiting
        assert met >= 3, "the runs had ended too soon"
        lines = {handle.run_id: await field.ledger.lines(handle.run_id) for handle in handles}
        assert lines == {handle.run_id: FAILS for handle in handles}
        assert [outcome.status for outcome in outcomes] == ["failed"] * len(handles)
        assert_unnoticed(log)
        await field.delete(lines)
        await field.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["Fanned", "FannedFails"])
@pytest.mark.parametrize(("disturb", "apart"), [(_kill, 0.05), (_restart, 0.1)])
async def test_a_fan_out_and_its_rollback_do_not_notice(
    fields: Callable[[Server], Field],
    lasting: Server,
    clinic: list[Zygote],
    disturb: Any,
    apart: float,
    name: str,
    tmp_path: Path,
) -> None:
    """Each effect of each element is there once, and nothing else."""
    log = tmp_path / "log.txt"
    async with fields(lasting) as field:
        async with field.worker(clinic[0], log=str(log)):
            handle = await FANNED[name].with_options(run_id="x", queue=field.queue()).enqueue()
            waiting = asyncio.ensure_future(handle.result(90))
            met = 0
            while not waiting.done():
                met += await disturbed_under_way(waiting, disturb, lasting, apart)
            outcome: Any = await waiting
        assert met, "it had ended too soon"
        stands, times = await effects(field, "x")
        assert set(times.values()) == {1}, times.most_common(5)
        assert outcome.status == ("completed" if name == "Fanned" else "failed")
        assert stands == ({" a", " z", *LEGS} if name == "Fanned" else set())
        assert getattr(outcome, "rollback_failures", []) == []
        assert_unnoticed(log)
        await runs.delete("x")
        await field.assert_nothing_is_left()


async def test_a_server_that_lost_everything_is_told_clearly_and_used_again(
    fields: Callable[[Server], Field], forgetful: Server, clinic: list[Zygote]
) -> None:
    """What was under way is gone: its executions stop, its callers are told; connections and workers are fine."""
    async with fields(forgetful) as field, field.worker(clinic[0]):
        here = asyncio.create_task(reactors.Cancelled.with_options(run_id="here").run())
        there = await field.enqueue("Cancelled", "there")
        later = await reactors.Chain.with_options(run_id="later", queue=field.queue(), delay=3600).enqueue()
        waiting = [asyncio.create_task(handle.result(60)) for handle in (there, later)]
        async with asyncio.timeout(30):
            for run_id in ("here", "there"):
                while await field.ledger.lines(run_id) != ["do:a", "do:b", "do:c"]:
                    await asyncio.sleep(0.005)
            await asyncio.to_thread(_restart, forgetful)
            for task in waiting:
                with pytest.raises(RunNotFound, match="was deleted"):
                    await task
            with pytest.raises(OwnershipLost, match="deleted"):
                await here
            assert (await reactors.Chain.with_options(run_id="here").run()).ok
            again = await field.enqueue("ChainFails", "there")
            assert (await again.result()).status == "failed"
        with pytest.raises(RunNotFound):
            await runs.find("later")
        forward = ["do:a", "do:b", "do:c"]
        assert await field.ledger.lines("here") == [*forward, *forward]
        assert await field.ledger.lines("there") == [*forward, *forward, "comp:c", "undo:b", "undo:a"]
