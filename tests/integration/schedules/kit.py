"""A time of its own for schedules: it stands still until a test moves it, for the store's scripts and for the workers.

Time jumps from one timer to the next, and everybody has gone to sleep before it goes on. So a day takes as long as what
happens on it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aioreactor import Reactor, Runtime, Settings, runs, step
from aioreactor.jobs.book import KEEP_MS, ScheduleBook
from aioreactor.jobs.ports import Scheduling
from aioreactor.jobs.schedules import Schedule
from aioreactor.jobs.ticker import Ticker
from aioreactor.snapshots import RunSnapshot
from aioreactor.store.scripts import Script, ScriptLibrary
from aioreactor.workers import Beginner

_numbers = itertools.count()
TIME = "local time = redis.call('TIME')"
PATIENCE = 30.0


class Report(Reactor[str], name="tests.schedules.Report"):
    day: str = "?"

    @step
    async def write(self, day: str) -> str:
        return f"report of {day}"


class Timer:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at, self.callback, self.is_over = at, callback, False

    def cancel(self) -> None:
        self.is_over = True


class Start(Beginner):
    """Begins runs, but halts where it is told to: ``before`` or ``after`` the run is created."""

    halts = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.halted, self.goes_on = asyncio.Event(), asyncio.Event()
        self.asked: list[str] = []

    async def start(self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        self.asked.append(options["run_id"])
        if self.halts == "before":
            await self._halt()
        is_new = await super().start(reactor, inputs, options)
        if self.halts == "after":
            await self._halt()
        return is_new

    async def _halt(self) -> None:
        self.halted.set()
        await self.goes_on.wait()


class Era:
    """One key space and its time, seconds since the epoch."""

    def __init__(self, url: str) -> None:
        self.prefix = f"s{os.getpid()}-{next(_numbers)}"
        self.runtime = Runtime(Settings(redis_url=url, key_prefix=self.prefix, queue=f"{self.prefix}-queue"))
        self.at = 0.0
        self.timers: list[Timer] = []
        self.tickers: list[Ticker] = []

    async def __aenter__(self) -> Era:
        await self.runtime.__aenter__()
        assert self.runtime.durable is not None
        self.durable = self.runtime.durable
        await self.set(datetime(2026, 3, 28, 12, 0, 10, tzinfo=UTC))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.end()
        await self.runtime.__aexit__(None, None, None)

    # ------------------------------------------------------------------ time

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.at + delay, callback))
        return self.timers[-1]

    async def set(self, moment: datetime | float) -> None:
        """It is so late now; nobody is told."""
        self.at = moment.timestamp() if isinstance(moment, datetime) else moment
        await self.do("SET", f"{self.prefix}-now", int(self.at * 1000))

    async def advance(self, seconds: float) -> None:
        """Let time go by, from one timer to the next."""
        until = self.at + seconds
        await self.asleep()
        while (timer := min(self._waiting(), key=lambda each: each.at, default=None)) and timer.at <= until:
            await self.set(max(timer.at, self.at))
            timer.cancel()
            timer.callback()
            await self.asleep()
        await self.set(until)

    def _waiting(self) -> list[Timer]:
        self.timers = [timer for timer in self.timers if not timer.is_over]
        return self.timers

    async def asleep(self) -> None:
        """Wait until every schedule of every ticker sleeps."""
        async with asyncio.timeout(PATIENCE):
            while len(self._waiting()) < sum(len(ticker._tasks) for ticker in self.tickers):
                await asyncio.sleep(0)

    # ------------------------------------------------------------------ workers

    def book(self) -> ScheduleBook:
        book = ScheduleBook(self.durable.client, self.durable.store.space)
        library = ScriptLibrary("aioreactor.jobs", shared=[ScriptLibrary("aioreactor.store")])
        book._scripts = {name: self._moved(library[name]) for name in ("schedule_claim", "schedule_settle")}
        return book

    def _moved(self, script: Script) -> Script:
        """The same with our time."""
        now = f"local ms = redis.call('GET', '{self.prefix}-now')"
        assert script.source.count(TIME) == 1
        source = script.source.replace(TIME, f"{now}; local time = {{ math.floor(ms / 1000), ms % 1000 * 1000 }}")
        return Script(script.name, source, script.header)

    def ticker(self, *schedules: Schedule, halts: str = "", book: ScheduleBook | None = None) -> Ticker:
        """What a worker has; it is started."""
        start = Start(self.runtime, self.durable)
        start.halts = halts
        ticker = Ticker(schedules, Scheduling(start, book or self.book(), self), f"{self.prefix}-worker")
        self.tickers.append(ticker)
        ticker.start()
        return ticker

    def starts(self, ticker: Ticker) -> Start:
        start = ticker._scheduling.starts
        assert isinstance(start, Start)
        return start

    async def halted(self, ticker: Ticker) -> Start:
        start = self.starts(ticker)
        async with asyncio.timeout(PATIENCE):
            await start.halted.wait()
        return start

    async def kill(self, ticker: Ticker) -> None:
        """It dies on the spot: nothing of it is brought to its end."""
        self.tickers.remove(ticker)
        tasks, ticker._tasks = ticker._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end(self) -> None:
        """All workers end."""
        tickers, self.tickers = self.tickers, []
        await asyncio.gather(*(ticker.aclose() for ticker in tickers))

    # ------------------------------------------------------------------ what is there

    async def do(self, *args: Any) -> Any:
        return await self.durable.client.execute(*args, repeatable=True)

    async def started(self, key: str) -> list[RunSnapshot]:
        """The runs of a schedule, oldest tick first."""
        return sorted(await runs.list(tag=f"schedule:{key}", limit=1000), key=lambda run: run.run_id)

    async def ticks(self, key: str) -> list[str]:
        """The ticks that have begun runs, day and time."""
        return [run.run_id.partition("@")[2][8:16] for run in await self.started(key)]

    async def assert_clean(self) -> None:
        """Nothing is left for ever: what is known of a schedule expires."""
        for key in await self.do("KEYS", f"{self.prefix}:{{:schedule:*"):
            assert 0 < await self.do("PTTL", key) <= KEEP_MS


def said(caplog: Any, event: str) -> list[logging.LogRecord]:
    """The log lines of one event."""
    return [record for record in caplog.records if getattr(record, "event", "") == event]
