"""Import time: ``import aioreactor`` against ``import asyncio, redis``. Bar: 1.5x.

Each sample is a fresh process that times nothing but the import statement; processes take turns. Byte code is cached
on both sides (in a folder of its own, whatever the surrounding settings say), as it is for users.
"""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory

from benchmarks.harness import Effort, Rounds, Row

_PROGRAM = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"


def _seconds(what: str, cache: str) -> float:
    environment = {name: item for name, item in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = cache
    command = [sys.executable, "-c", _PROGRAM.format(what)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


async def imports(effort: Effort) -> list[Row]:
    """Milliseconds of the import statement."""
    ours, floor = "aioreactor", "asyncio, redis"
    found = Rounds()
    with TemporaryDirectory() as cache:
        for what in (ours, floor):
            _seconds(what, cache)
        for _ in range(effort.of(21, 5)):
            found.ours.append(_seconds(ours, cache))
            found.floor.append(_seconds(floor, cache))
    return [found.row("import aioreactor", "ms", 1e3, judged="ratio", bar=1.5, note="floor: import asyncio, redis")]
