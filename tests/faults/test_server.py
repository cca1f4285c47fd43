"""The server forgets scripts, drops connections, loses replies, restarts: runs do not notice."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from aioreactor import Outcome, runs
from aioreactor.embedded import EmbeddedServer
from tests.faults import reactors
from tests.faults.kit import Field, Zygote
from tests.integration.store_client.servers import Server

FAILS = [*(f"do:s{n}" for n in range(6)), "comp:s5", *(f"undo:s{n}" for n in range(4, -1, -1))]


async def disturbed(field: Field, disturb: Any, times: int = 30) -> tuple[Outcome[Any], list[str]]:
    """A run during which something happens again and again."""

    async def again() -> None:
        for _ in range(times):
            await disturb()
            await asyncio.sleep(0.004)

    disturbing = asyncio.create_task(again())
    outcome = await reactors.Steady.with_options(run_id="x").run()
    disturbing.cancel()
    await asyncio.wait({disturbing})
    return outcome, await field.ledger.lines("x")


async def test_scripts_are_forgotten(field: Field) -> None:
    outcome, lines = await disturbed(field, lambda: field.do("SCRIPT", "FLUSH"))
    assert (outcome.status, lines) == ("failed", FAILS)
    await field.settle(["x"])
    await field.assert_clean()


async def test_connections_are_dropped(field: Field) -> None:
    async def kill() -> None:
        me = await field.do("CLIENT", "ID")
        for line in (await field.do("CLIENT", "LIST")).decode().splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            if int(words["id"]) != me:
                await field.do("CLIENT", "KILL", "ID", words["id"])

    outcome, lines = await disturbed(field, kill)
    assert (outcome.status, lines) == ("failed", FAILS)
    await field.settle(["x"])
    await field.assert_clean()


@pytest.mark.parametrize("name", ["Chain", "ChainFails", "ComposedFailsInside", "MappedLoosely", "Retried"])
async def test_the_reply_of_any_command_is_lost(field: Field, name: str) -> None:
    """It was applied, so it is not applied again: no body runs twice."""
    expected: list[str] = []
    ids: list[str] = []
    for number in itertools.count():
        run_id = f"x{number}"
        ids.append(run_id)
        assert await field.victim(run_id, reactor=name, lose=number) == 0
        lines = await field.ledger.lines(run_id)
        expected = expected or lines
        assert lines == expected, number
        found = await runs.find(run_id)
        told = str(found.trace.only("run", "compensate", "undo"))
        words = {"do": "run", "undo": "undo", "comp": "compensate"}
        assert told == " ".join(f"{words[line.partition(':')[0]]}:{line.partition(':')[2]}" for line in lines)
        if number > len(found.trace) + 12:
            break
    await field.settle(ids)
    await field.assert_clean()


async def test_a_restart_with_data_in_the_middle_of_runs(zygote: Zygote, tmp_path: Path) -> None:
    server = Server("--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path))
    try:
        async with Field(server.url, zygote) as field:

            async def restart() -> None:
                def act() -> None:
                    server.stop()
                    server.start()

                await asyncio.to_thread(act)

            running = asyncio.create_task(reactors.Steady.with_options(run_id="x").run())
            for _ in range(3):
                await asyncio.sleep(0.015)
                await restart()
            outcome = await running
            lines = await field.ledger.lines("x")
            # The ledger's own lines are not repeatable: one whose reply was lost fails its body.
            assert outcome.status == "failed"
            done = {line[3:] for line in lines if line.startswith("do:")}
            back = [line.partition(":")[2] for line in lines if not line.startswith("do:")]
            assert len([line for line in lines if line.startswith("do:")]) == len(done)
            left = {failure.step for failure in getattr(outcome, "rollback_failures", [])}
            assert set(back) | left == done
            found = await runs.find("x")
            assert found.status == "failed"
            await field.settle(["x"])
            await field.assert_clean()
    finally:
        server.close()


async def test_an_embedded_server_with_data_keeps_runs(zygote: Zygote, tmp_path: Path) -> None:
    with EmbeddedServer.start(data_dir=tmp_path / "data") as server:
        async with Field(server.url, zygote) as field:
            prefix = field.prefix
            assert (await reactors.Chain.with_options(run_id="x").run()).ok
            assert await field.victim("y", reactor="Chain", line=1) == -9
    with EmbeddedServer.start(data_dir=tmp_path / "data") as server:
        async with Field(server.url, zygote, prefix=prefix) as field:
            assert (await runs.find("x")).status == "completed"
            found = await field.settle(["y"])
            assert found["y"].status == "completed"
            assert await field.ledger.lines("y") == ["do:a", "do:b", "do:b", "do:c"]


async def test_two_sweepers_take_each_lost_run_once(field: Field) -> None:
    ids = [f"x{n}" for n in range(12)]
    for run_id in ids:
        assert await field.victim(run_id, reactor="Chain", line=0) == -9
    sweeps = [field.settle(ids) for _ in range(4)]
    found = await asyncio.gather(*sweeps)
    assert all(snapshot.status == "completed" for snapshot in found[0].values())
    for run_id in ids:
        assert await field.ledger.lines(run_id) == ["do:a", "do:a", "do:b", "do:c"]
    await field.assert_clean()
