"""Begins the runs of schedules: each worker that has a schedule waits for its ticks, and one of them begins the run.

Overview. At a tick every worker asks the store for it (`book`), and one gets it. It creates the run, whose id is made
of the schedule's key and the tick, rings for it, and notes that the tick was dealt with.

| what happens | what follows |
| --- | --- |
| whoever got a tick dies before the run is created | others get the tick when its claim has ended |
| it dies between creating the run and ringing | the sweeper rings; who gets the tick then finds the run |
| it sleeps, and goes on when others have begun the run | it finds the run: creating it decides who is first |
| no worker was there at a tick | the first one that is back deals with what was missed |
| the store is away | ticks are dealt with when it is back; late by more than a minute, they were missed |

So there is one run per tick as long as its record is kept (``retention``) for longer than a worker may sleep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aioreactor.jobs.book import Seen
from aioreactor.jobs.ports import Scheduling
from aioreactor.jobs.schedules import Due, Schedule
from aioreactor.logs import note
from aioreactor.store.errors import StoreError
from aioreactor.store.replies import backoff
from aioreactor.store.unique import UniqueTexts

PATIENCE = 2.0
"""Seconds that a worker which ends has for what it began to deal with; else others wait until its claim has ended."""

LONGEST_NAP = 60.0
"""Seconds after which a worker looks at a schedule although nothing is due: so the store goes on to know it."""

RECHECK = 0.5
"""Seconds after which a worker looks whether the one that got a tick has dealt with it."""

MARGIN = 0.002
"""Seconds after a tick: the clock here is not quite the store's."""

_log = logging.getLogger("aioreactor.jobs")
_tokens = UniqueTexts()


class Ticker:
    """The schedules of one worker.

    Args:
        schedules: Which.
        scheduling: What begins runs and knows what was dealt with.
        queue_name: For runs whose schedule and reactor name no queue.
    """

    def __init__(self, schedules: Sequence[Schedule], scheduling: Scheduling, queue_name: str) -> None:
        self._schedules = schedules
        self._scheduling = scheduling
        self._queue_name = queue_name
        self._token = _tokens()
        self._next: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = asyncio.Event()

    def start(self) -> None:
        """Tend to all schedules from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._tend(each), name=f"aioreactor-{each.tag}") for each in self._schedules]

    async def aclose(self) -> None:
        """Tend to none any more; what is being dealt with is brought to its end.

        Cancellation: it is cut off.
        """
        self._ends.set()
        tasks, self._tasks = self._tasks, []
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=PATIENCE)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tend(self, schedule: Schedule) -> None:
        failures = 0
        while not self._ends.is_set():
            try:
                delay = await self._visit(schedule)
                failures = 0
            except StoreError as error:
                failures += 1
                if failures == 1:
                    note(_log, logging.WARNING, "schedule_waits", str(error), schedule=schedule.key)
                delay = backoff(failures + 1)
            except Exception:
                failures += 1
                _log.exception("schedule %s could not be looked at; it is tried again", schedule.key)
                delay = LONGEST_NAP
            await self._nap(delay)

    async def _nap(self, delay: float) -> None:
        """Sleep for so many seconds by the clock, or until this ends."""
        over = asyncio.ensure_future(self._ends.wait())
        timer = self._scheduling.clock.call_later(delay, over.cancel)
        try:
            await asyncio.wait([over])
        finally:
            timer.cancel()
            over.cancel()

    async def _visit(self, schedule: Schedule) -> float:
        """Deal with what is due and falls to this worker; gives the seconds until there is more to do."""
        asked = self._next.pop(schedule.key, 0)
        seen = await self._scheduling.book.claim(schedule.key, str(schedule.ticks), self._token, asked)
        seen_at = self._scheduling.clock.monotonic()
        if not seen.mine:
            following = self._next[schedule.key] = schedule.ticks.after(seen.last_ms) or 0
        elif await self._deal_with(schedule, seen, schedule.due(seen.last_ms, seen.now_ms)):
            following = self._next[schedule.key] = schedule.ticks.after(seen.now_ms) or 0
        else:
            return 0.0
        if not following:
            return LONGEST_NAP
        passed = self._scheduling.clock.monotonic() - seen_at
        left = max((following - seen.now_ms) / 1000, min(seen.busy_ms / 1000, RECHECK)) - passed
        return min(max(left + MARGIN, 0.0), LONGEST_NAP)

    async def _deal_with(self, schedule: Schedule, seen: Seen, due: Due) -> bool:
        """Begin the runs that are due; False if somebody else does so by now."""
        if due.missed or due.more:
            count = f"over {due.missed}" if due.more else due.missed
            note(_log, logging.WARNING, "schedule_missed", schedule=schedule.key, ticks=count)
        run_id = seen.run_id
        for number, tick in enumerate(due.start, 1):
            run_id = await self._begin(schedule, tick, seen, run_id)
            if number < len(due.start) and not await self._settle(schedule, tick, run_id, ends=False):
                return False
        return await self._settle(schedule, seen.now_ms, run_id, ends=True)

    async def _settle(self, schedule: Schedule, dealt_ms: int, run_id: str, *, ends: bool) -> bool:
        return await self._scheduling.book.settle(schedule.key, self._token, dealt_ms, run_id, ends=ends)

    async def _begin(self, schedule: Schedule, tick: int, seen: Seen, last: str) -> str:
        """Begin the run of a tick; gives the run that the schedule has begun last."""
        starts, run_id = self._scheduling.starts, schedule.run_id(tick)
        told = {"schedule": schedule.key, "run_id": run_id}
        if schedule.overlap == "skip" and last not in ("", run_id) and not await starts.is_over(last):
            note(_log, logging.WARNING, "schedule_skipped", f"{last} has not ended", **told)
            return last
        queue = schedule.queue or schedule.reactor.plan.options.queue or self._queue_name
        options = {"run_id": run_id, "queue": queue, "tags": [schedule.tag]}
        try:
            inputs = await schedule.inputs(tick)
            is_new = await starts.start(schedule.reactor, inputs, options)
        except StoreError:
            raise
        except Exception as error:
            note(_log, logging.ERROR, "schedule_refused", f"{type(error).__name__}: {error}", **told)
            return last
        if is_new:
            note(_log, logging.INFO, "schedule_started", **told, late=f"{(seen.now_ms - tick) / 1000:.3f}")
        return run_id
