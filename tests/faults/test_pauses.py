"""A process is stopped for longer than its lease. Another one finishes its run; when it wakes up it does no harm."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from aioreactor import runs
from aioreactor.store.records import TERMINAL
from tests.faults.kit import Field


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def stopped(pid: int) -> None:
    async with asyncio.timeout(10):
        while _state(pid) != "T":
            await asyncio.sleep(0.005)


# What the process that wakes up may still write: the body that it was in the middle of may end, nothing begins.
CASES = {
    "Pauses": ("completed", ["do:a", "do:b", "stop:b", "do:b", "do:c"]),
    "PausesInUndo": (
        "failed",
        ["do:a", "do:b", "do:c", "comp:c", "undo:b", "stop:b", "undo:b", "undo:a"],
    ),
    "PausesBackingOff": ("completed", ["do:a", "do:b", "do:b", "do:b"]),
    "PausesBetweenElements": ("completed", ["do:a", "do:m[0]", "do:m[1]", "do:m[2]"]),
}


@pytest.mark.parametrize("name", CASES)
async def test_stopped_beyond_the_lease(field: Field, name: str) -> None:
    status, expected = CASES[name]
    pid = field.zygote.start({**field.base, "run_id": "x", "reactor": name, "stopping": True})
    waiting = asyncio.create_task(asyncio.to_thread(field.zygote.wait))
    try:
        await stopped(pid)
        found = await field.settle(["x"])
        assert found["x"].status == status
        assert await field.ledger.lines("x") == expected
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await waiting == 0
    assert await field.ledger.lines("x") == [*expected, "end:OwnershipLost"]
    after = await runs.find("x")
    assert (after.status, after.updated_at, len(after.trace)) == (
        found["x"].status,
        found["x"].updated_at,
        len(found["x"].trace),
    )
    assert after.status in TERMINAL
    await field.assert_clean()


async def test_stopped_for_less_than_the_lease_of_others(field: Field) -> None:
    """Its lease is over, but nobody took the run: it goes on as if nothing had been."""
    pid = field.zygote.start({**field.base, "run_id": "x", "reactor": "Pauses", "stopping": True})
    waiting = asyncio.create_task(asyncio.to_thread(field.zygote.wait))
    await stopped(pid)
    assert field.runtime.durable is not None
    async with asyncio.timeout(10):
        while (row := await field.runtime.durable.store.peek("x")) is not None and row.lease_left_ms:
            await asyncio.sleep(row.lease_left_ms / 1000)
    os.kill(pid, signal.SIGCONT)
    assert await waiting == 0
    assert await field.ledger.lines("x") == ["do:a", "do:b", "stop:b", "do:c"]
    assert (await runs.find("x")).status == "completed"
    await field.settle(["x"])
    assert await field.ledger.lines("x") == ["do:a", "do:b", "stop:b", "do:c"]
