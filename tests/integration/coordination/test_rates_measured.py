"""What rate limits of several windows admit, measured by the server's own log of commands, with its clock."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from asyncio.subprocess import PIPE
from bisect import bisect_right
from collections import Counter
from typing import Any

import pytest
import redis

from aioreactor import RateLimit, RateLimited
from aioreactor.coordination import rates
from aioreactor.coordination.rates import Windows
from tests.integration.coordination.kit import Place
from tests.integration.coordination.spender import ALGORITHMS, LIMITS
from tests.integration.coordination.test_processes import ROOT

SECONDS = 30.0 if os.environ.get("AIOREACTOR_FAULTS") == "deep" else 1.2
EPSILON = 0.002
"""Seconds between the moment that a script takes for now, and that at which its write is logged."""


def watched(url: str, last: str) -> list[tuple[float, str]]:
    """When scripts wrote what, until ``last`` comes by."""
    found: list[tuple[float, str]] = []
    with redis.Redis.from_url(url) as client, client.monitor() as monitor:
        for entry in monitor.listen():
            if last in entry["command"]:
                return found
            if entry["client_type"] == "lua":
                found.append((entry["time"], entry["command"]))
    return found


async def spent_by_three(place: Place) -> list[tuple[float, str]]:
    """Everything that is written while three processes spend."""
    last, order = f"{place.prefix}-over", {"url": place.url, "prefix": place.prefix, "seconds": SECONDS, "tasks": 5}
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.coordination.spender", json.dumps(order),
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=PIPE, stdout=PIPE,
        )
        for _ in range(3)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"in\n"
    watching = asyncio.create_task(asyncio.to_thread(watched, place.url, last))

    async def listened_to() -> bool:
        return b"cmd=monitor" in await place.do("CLIENT", "LIST")

    await place.until(listened_to)
    await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    assert [process.returncode for process in processes] == [0, 0, 0]
    await place.do("ECHO", last)
    return await watching


def starts(log: list[tuple[float, str]], key: str) -> list[tuple[float, str]]:
    return [(at, command) for at, command in log if command.startswith(key)]


async def test_no_window_admits_more_than_its_limit(place: Place) -> None:
    log = await spent_by_three(place)
    for algorithm in ALGORITHMS:
        counts = CHECKS[algorithm](log, f"{place.prefix}:c:{{{algorithm}}}:rate")
        assert counts > 20, f"{algorithm}: only {counts} were admitted"


def check_fixed(log: list[tuple[float, str]], key: str) -> int:
    """As many as the limit in each window; which one is what the server made of its clock."""
    found = starts(log, f"HSET {key} ")
    for per, limit in LIMITS.items():
        length, inside = int(float(per) * 1000), Counter[int]()
        for at, command in found:
            index = int(re.search(rf" f{length} (\d+) ", command).group(1))  # type: ignore[union-attr]
            assert index in {int(at * 1000 // length), int((at - EPSILON) * 1000 // length)}, command
            inside[index] += 1
        assert max(inside.values()) <= limit
    return len(found)


def check_sliding(log: list[tuple[float, str]], key: str) -> int:
    """No more than the limit in any time of this length; scores are moments."""
    longest = 0
    for per, limit in LIMITS.items():
        length = int(float(per) * 1000)
        found = starts(log, f"ZADD {key}:log:{length} ")
        moments = sorted(int(command.split()[2]) for _, command in found)
        assert all(abs(at - moment / 1e6) < 0.05 for (at, _), moment in zip(found, moments, strict=True))
        assert most_in(moments, length * 1000) <= limit
        longest = len(moments)
    return longest


def check_gcra(log: list[tuple[float, str]], key: str) -> int:
    """In any time: the limit at once, and as many as come back meanwhile."""
    moments = [int(at * 1e6) for at, _ in starts(log, f"HSET {key} ")]
    for per, limit in LIMITS.items():
        interval = float(per) * 1e6 / limit
        for part in (0.5, 1.0, 2.0):
            span = int(part * float(per) * 1e6)
            assert most_in(moments, span) <= limit + (span + EPSILON * 1e6) / interval
    return len(moments)


def most_in(moments: list[int], span: int) -> int:
    return max(bisect_right(moments, moment + span - 1) - number for number, moment in enumerate(moments))


CHECKS = {"fixed": check_fixed, "sliding": check_sliding, "gcra": check_gcra}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_there_is_room_again_when_it_said_so_and_not_before(place: Place, algorithm: Any) -> None:
    """Asking all the time: refused until then, and let in by the next question after."""
    desk = place.coordinator.desk()
    limits: dict[Any, int] = {0.15: 4, 0.4: 6}
    windows = Windows.of(RateLimit("r", limits=limits, algorithm=algorithm), "r", {})
    checked = 0
    for _ in range(12):
        sent = time.monotonic()
        try:
            await rates.spend(desk, windows)
            continue
        except RateLimited as error:
            earliest, latest = sent + error.retry_after - EPSILON, time.monotonic() + error.retry_after + EPSILON
        while True:
            asked = time.monotonic()
            try:
                await rates.spend(desk, windows)
            except RateLimited:
                assert asked < latest, "there is no room although it said so"
            else:
                assert time.monotonic() > earliest, "there is room before it said so"
                checked += 1
                break
    assert checked >= 2
