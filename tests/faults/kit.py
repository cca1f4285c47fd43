"""What the fault tests share: victims, a key space, looks at what is left, and what has to hold."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aioreactor import RunHandle, RunNotFound, Runtime, runs, sweep
from aioreactor.jobs.queue import JobQueue
from aioreactor.snapshots import RunSnapshot
from aioreactor.store.records import TERMINAL
from tests.faults import reactors
from tests.faults.zygote import runtime_of
from tests.integration.coordination.kit import leftovers

ROOT = Path(__file__).parents[2]
_numbers = itertools.count()
KILLED = -9
DEEP = os.environ.get("AIOREACTOR_FAULTS") == "deep"
EACH = 1 if DEEP else 7
"""Of the points at which something may be killed, each so-manieth is tried, from a random one on."""
SEED = int(os.environ.get("AIOREACTOR_FAULTS_SEED") or random.SystemRandom().randrange(1 << 30))
"""Shown when a test fails; set ``AIOREACTOR_FAULTS_SEED`` to repeat its choice of points."""
RANDOM = random.Random(SEED)


class Zygote:
    """Makes victims, one at a time; see ``zygote``."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def start(self, order: dict[str, Any]) -> int:
        """Start a victim; gives its pid."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer("pid")

    def wait(self) -> int:
        """How the victim ended."""
        return self._answer("exit")

    def _answer(self, word: str) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line[:1] == [word], line
        return int(line[1])

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


class Worker:
    """A worker process."""

    def __init__(self, zygote: Zygote, order: dict[str, Any]) -> None:
        self.zygote = zygote
        self.log = Path(order["log"]) if "log" in order else None
        self.pid = zygote.start(order)
        self.waiting = asyncio.ensure_future(asyncio.to_thread(zygote.wait))

    async def end(self) -> None:
        """Tell it to end, and wait until it has done so well."""
        os.kill(self.pid, signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await self.waiting == 0

    async def __aenter__(self) -> Worker:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None and not self.waiting.done():
            await self.end()
        elif not self.waiting.done():
            os.kill(self.pid, signal.SIGKILL)
            await self.waiting


class Field:
    """One key space, its victims, and a runtime of this process that takes over from them."""

    def __init__(self, url: str, zygote: Zygote, prefix: str = "", **order: Any) -> None:
        self.url = url
        self.zygote = zygote
        self.prefix = prefix or f"f{os.getpid()}-{next(_numbers)}"
        self.base: dict[str, Any] = {"url": url, "prefix": self.prefix, "ledger": f"{self.prefix}.ledger", **order}
        self.runtime: Runtime
        self.ledger: reactors.Ledger

    async def __aenter__(self) -> Field:
        self.runtime = runtime_of(self.base)
        await self.runtime.__aenter__()
        self.ledger = reactors.Ledger(self.base.get("ledger_url", self.url), self.base["ledger"])
        reactors.use(self.ledger)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.runtime.__aexit__(*error)
        await self.ledger.aclose()

    # ------------------------------------------------------------------ victims

    async def victim(self, run_id: str, **order: Any) -> int:
        """Let one live to its end; gives its exit code."""
        self.zygote.start({**self.base, "run_id": run_id, **order})
        return await asyncio.to_thread(self.zygote.wait)

    # ------------------------------------------------------------------ workers

    def queue(self, name: str = "") -> str:
        """The name of a queue of this key space."""
        return f"{self.prefix}.queue{name}"

    async def enqueue(self, reactor: str, run_id: str, queue: str = "", **inputs: Any) -> RunHandle[Any]:
        """Start a run for the worker of one queue; sweepers of any may ring for it in their own."""
        assert self.runtime.durable is not None
        handle: RunHandle[Any] = await (
            reactors.ALL[reactor].with_options(run_id=run_id, queue=self.queue(queue)).enqueue(**inputs)
        )
        await self.do("HDEL", self.runtime.durable.store.space.run(run_id), "queue")
        return handle

    async def ring(self, run_ids: Iterable[str], queue: str = "", **more: Any) -> None:
        assert self.runtime.durable is not None
        await JobQueue(self.runtime.durable.client, self.queue(queue)).ring(run_ids, **more)

    def worker(self, zygote: Zygote, **order: Any) -> Worker:
        """Start a worker process; it serves the queue of the key space and sweeps each second."""
        given = {"what": "work", "run_id": "", "queue": self.queue(), "sweep": 1, **order}
        return Worker(zygote, {**self.base, **given})

    async def commands(self, run_id: str) -> int:
        """About how many commands of the store it takes a worker to bring this run to its end."""
        assert self.runtime.durable is not None
        row = await self.runtime.durable.store.peek(run_id)
        return 8 + (row.ver if row is not None else 0)

    async def passed(self) -> list[str]:
        """The steps that the last victim came by which was not killed."""
        found = [step.decode() for step in await self.do("LRANGE", f"{self.base['ledger']}.passed", 0, -1)]
        await self.do("DEL", f"{self.base['ledger']}.passed")
        assert found.pop() == "end"
        return found

    async def ended(self, run_ids: list[str], seconds: float = 30.0) -> dict[str, RunSnapshot]:
        """Wait until these have ended, whoever ends them; those that were never created are left out."""
        assert self.runtime.durable is not None
        store = self.runtime.durable.store
        found: dict[str, RunSnapshot] = {}

        async def one(run_id: str) -> None:
            with suppress(RunNotFound):
                await store.wait_done(run_id)
                found[run_id] = await runs.find(run_id)

        async with asyncio.timeout(seconds):
            await asyncio.gather(*map(one, run_ids))
        return found

    async def lapse(self, run_ids: list[str]) -> None:
        """The leases of these are past."""
        assert self.runtime.durable is not None
        for run_id in run_ids:
            await self.do("HSET", self.runtime.durable.store.space.run(run_id), "lease_ms", 1)
        await self.make_due()

    async def make_due(self) -> None:
        """The sweeper's time has come for all runs, also for those that were told to another one."""
        for key in self.swept:
            for entry in await self.do("ZRANGE", key, 0, -1):
                await self.do("ZADD", key, "XX", 1, entry)

    @property
    def swept(self) -> list[str]:
        """What says when a sweeper is to look at a run: as a living one, and as one that stands in lines."""
        return [f"{self.prefix}:{{:index}}:{name}" for name in ("live", "lined")]

    async def dump(self) -> dict[str, bytes]:
        """Everything under the prefix."""
        return {key.decode(): await self.do("DUMP", key) for key in sorted(await self.do("KEYS", f"{self.prefix}:*"))}

    async def assert_nothing_is_left(self) -> None:
        """After all runs are deleted: no key, and what is in queues expires."""
        async with asyncio.timeout(15):
            while [key for key in self.swept if await self.do("ZCARD", key)]:
                await self.make_due()  # entries of runs that are gone, or were never created
                assert (found := await sweep(1000)) == [], found
        keys = [key.decode() for key in await self.do("KEYS", f"{self.prefix}:*")]
        assert [key for key in keys if not key.startswith(f"{self.prefix}:c:")] == []
        left = await leftovers(self.do, self.prefix)
        assert left == [], left
        for job_key in await self.do("KEYS", "arq:*"):
            assert await self.do("PTTL", job_key) > 0, job_key

    async def delete(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            await runs.delete(run_id)

    async def kill_everywhere(self, points: str, prepare: Any = None, **order: Any) -> list[str]:
        """A victim per point, killed there, until one gets through; gives the ids of their runs.

        Each `EACH`-th point, from a random one on; all of them with ``AIOREACTOR_FAULTS=deep``.
        """
        made = []
        first, stride = RANDOM.randrange(EACH), EACH
        for number in itertools.count(first, stride):
            run_id = f"{order.get('reactor', 'R')}-{points}{number}"
            if prepare is not None:
                await prepare(run_id)
            made.append(run_id)
            code = await self.victim(run_id, **order, **{points: number})
            if code == 0:
                return made
            assert code == KILLED, f"{run_id} ended with {code}"
            assert number < 200
        raise AssertionError

    # ------------------------------------------------------------------ what is left

    async def do(self, *args: Any) -> Any:
        return await self.ledger.client.execute(*args, repeatable=True)

    async def settle(self, run_ids: list[str], seconds: float = 15.0) -> dict[str, RunSnapshot]:
        """Sweep until every one of these has ended, or was never created."""
        found: dict[str, RunSnapshot] = {}
        async with asyncio.timeout(seconds):
            while True:
                await sweep(1000)
                for run_id in set(run_ids) - set(found):
                    try:
                        snapshot = await runs.find(run_id)
                    except RunNotFound:
                        continue
                    if snapshot.status in TERMINAL:
                        found[run_id] = snapshot
                if not await self.held_or_live(run_ids):
                    return found
                await asyncio.sleep(0.02)

    async def held_or_live(self, run_ids: list[str]) -> list[str]:
        assert self.runtime.durable is not None
        rows = [await self.runtime.durable.store.peek(run_id) for run_id in run_ids]
        return [row.run_id for row in rows if row is not None and (row.status not in TERMINAL or row.lease_left_ms)]

    async def check_all(self, ids: list[str], expected: list[str], status: str, **options: Any) -> None:
        """These runs, swept to their ends, all did what one of them does undisturbed."""
        found = await self.settle(ids)
        failures = []
        for run_id in ids:
            lines = await self.ledger.lines(run_id)
            if run_id not in found:
                assert lines == [], run_id  # it died before the run was created
                continue
            try:
                assert found[run_id].status == status
                check_run(lines, found[run_id], expected, **options)
            except AssertionError as error:
                failures.append(f"{run_id}: {str(error).partition(chr(10))[0]}")
        assert not failures, chr(10).join([f"seed {SEED}", *failures])
        await self.assert_clean()

    async def give_up(self, ids: list[str]) -> None:
        """Remove these runs."""
        assert self.runtime.durable is not None
        for run_id in ids:
            await self.runtime.durable.store.delete(run_id, force=True)

    async def assert_clean(self) -> None:
        """No lease, no living run, no key without an owner or an expiry, nothing that the sweeper still looks for."""
        async with asyncio.timeout(15):
            while await self.do("ZCARD", f"{self.prefix}:{{:index}}:live"):
                await self.make_due()  # a run whose end was stored, and not listed, is looked at when its lease is past
                await sweep(1000)
        for key in [key.decode() for key in await self.do("KEYS", f"{self.prefix}:*")]:
            if "{:index}" in key:
                continue
            assert await self.do("PTTL", key) > 0, key
            if key.endswith(":run"):
                token, status = await self.do("HMGET", key, "token", "status")
                assert (token, status.decode() in TERMINAL) == (b"", True), (key, token, status)


# ---------------------------------------------------------------------- invariants


def _once(lines: Iterable[str]) -> list[str]:
    """Without repeats of the line before."""
    return [line for line, _ in itertools.groupby(lines)]


def paths_of(lines: list[str]) -> list[str]:
    return list(dict.fromkeys(line.partition(":")[2] for line in lines if line.partition(":")[0] in KINDS))


KINDS = ("do", "undo", "comp")


def check_run(
    lines: list[str], snapshot: RunSnapshot, expected: list[str], *, in_flight: int = 1, cut_short: bool = False
) -> None:
    """What a run did that was killed once, against what it does undisturbed.

    The same effects, none missing, in the same last state per step; at most the ``in_flight`` ones of the kill twice.
    ``cut_short``: what was in flight may have been cut, and what was to come may not have been reached; then every
    effect is taken back, once.
    """
    if cut_short:
        for path in paths_of(lines):
            mine = _once(line for line in lines if line.partition(":")[2] == path)
            assert mine in ([f"do:{path}", f"undo:{path}"], [f"do:{path}", f"comp:{path}"], [f"comp:{path}"]), lines
            assert lines.count(mine[-1]) == 1 or len(lines) <= 2 * len(paths_of(lines)) + in_flight, lines
        _check_trace(lines, snapshot)
        return
    have, want = Counter(lines), Counter(expected)
    assert not want - have, f"missing {dict(want - have)} in {lines}"
    more = have - want
    assert more.total() <= in_flight, f"too often {dict(more)} in {lines}"
    for path in paths_of(expected):
        mine = _once(line for line in lines if line.partition(":")[2] == path)
        theirs = _once(line for line in expected if line.partition(":")[2] == path)
        assert mine == theirs, f"{path}: {lines}"
    _check_trace(lines, snapshot)


def _check_trace(lines: list[str], snapshot: RunSnapshot) -> None:
    """What the trace tells of each step is part of what it did, in the same order, and tells its end."""
    words = {"run": "do", "undo": "undo", "compensate": "comp"}
    told = [f"{words[entry.kind]}:{entry.path}" for entry in snapshot.trace.only(*words)]
    for path in paths_of(lines):
        mine = [line for line in lines if line.partition(":")[2] == path]
        mine_told = [line for line in told if line.partition(":")[2] == path]
        rest = iter(mine)
        assert all(line in rest for line in mine_told), f"trace {mine_told}, ledger {mine}"
        assert set(mine) == set(mine_told), f"trace {mine_told}, ledger {mine}"
    times = [entry.at for entry in snapshot.trace]
    assert len(times) == len(snapshot.trace)
