"""Fifty tasks in four processes, which are killed, paused and cancelled: never two inside, and nothing stays.

A few seconds; ``AIOREACTOR_FAULTS=deep`` makes it a minute. ``AIOREACTOR_SEED`` repeats one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from aioreactor import OrderedLock
from aioreactor.coordination.keys import SlotKind
from tests.integration.coordination.kit import Place

ROOT = Path(__file__).parents[3]
SECONDS = 60.0 if os.environ.get("AIOREACTOR_FAULTS") == "deep" else 4.0
TASKS = [13, 13, 12, 12]


async def start(place: Place, seed: int, tasks: int) -> Process:
    order = {"url": place.url, "prefix": place.prefix, "seed": seed, "tasks": tasks}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.coordination.visitor", json.dumps(order),
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=PIPE, stdout=PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"in\n"
    return process


async def end(process: Process, how: int | None = None) -> int:
    if how is None:
        assert process.stdin is not None
        process.stdin.write(b"\n")
    else:
        process.send_signal(how)
    await process.communicate()
    assert process.returncode is not None
    return process.returncode


async def harass(place: Place, dice: random.Random, processes: list[Process], done: list[str]) -> None:
    """Until the time is over: kill one and start another, or have one stand still, for longer than leases or not."""
    until = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < until:
        number = dice.randrange(len(processes))
        if dice.random() < 0.4:
            done.append("kill")
            assert await end(processes[number], signal.SIGKILL) == -signal.SIGKILL
            processes[number] = await start(place, dice.randrange(2**32), TASKS[number])
        else:
            pause = dice.choice([0.1, 0.5, 1.5])
            done.append(f"pause {pause}")
            processes[number].send_signal(signal.SIGSTOP)
            await asyncio.sleep(pause)
            processes[number].send_signal(signal.SIGCONT)
        await asyncio.sleep(dice.random() * 0.3)


async def test_fifty_tasks_in_four_processes(place: Place) -> None:
    seed = int(os.environ.get("AIOREACTOR_SEED") or random.randrange(2**32))
    dice, done = random.Random(seed), list[str]()
    processes = await asyncio.gather(*(start(place, dice.randrange(2**32), tasks) for tasks in TASKS))
    try:
        await harass(place, dice, processes, done)
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*(end(process) for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                await end(process, signal.SIGKILL)
    violations = [text.decode() for text in await place.do("LRANGE", f"{place.prefix}:violations", 0, -1)]
    assert violations == [], f"AIOREACTOR_SEED={seed}: {done}"
    assert list(ends) == [0, 0, 0, 0], f"AIOREACTOR_SEED={seed}: {done}"
    log = [int(token) for token in await place.do("LRANGE", f"{place.prefix}:register:{{v}}:log", 0, -1)]
    assert log == sorted(set(log))
    assert len(log) > 20 * SECONDS, "hardly anybody was inside"
    lines = 0
    for register in await place.do("KEYS", f"{place.prefix}:register:*"):
        if register.endswith(b":log") and register.count(b":") > 3:
            positions = [int(number) for number in await place.do("LRANGE", register, 0, -1)]
            assert positions == sorted(set(positions))
            lines += len(positions)
        await place.do("DEL", register)
    await place.do("DEL", f"{place.prefix}:violations")
    assert lines > SECONDS, "hardly anybody had a turn"

    async def take_a_turn() -> None:
        async with OrderedLock("v", poison_after=1, strict=False, wait=5):
            pass

    async def nobody_is_left() -> bool:
        # What killed processes held, or waited for, ends by itself in up to 15 s, which pass here; then somebody has to
        # come by.
        kinds: tuple[SlotKind, ...] = ("lock", "semaphore")
        for primitive in kinds:
            await place.lapse("v", primitive)
            await place.deaden("v", primitive)
            for who in range(4):
                names = place.keys.slots(primitive, "v")
                await place.coordinator.desk().call(
                    "slot_take", names, [f"look-{who}", 3, 1000, 0, 1000, 0, "nobody", ""]
                )
                await place.coordinator.desk().call("slot_release", names, [f"look-{who}"])
        await take_a_turn()
        return await place.leftovers() == []

    await place.until(nobody_is_left, 60)
