"""A program that has everything imported and makes a real process of itself for each line that it reads.

A line is JSON, see ``Order``. For each it answers ``pid N``, and when that process has ended ``exit CODE``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from aioreactor import OwnershipLost, Runtime, Settings, runs, schedule, sweep, worker_settings
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.sweeper import sweep_up
from aioreactor.jobs.worker import create_worker
from aioreactor.store.calls import Call
from aioreactor.store.client import StoreClient
from aioreactor.store.fans import FAN_KEYS
from aioreactor.store.store import RunStore
from tests.faults import fanned, holding, reactors, typed
from tests.faults.points import Fate


class Killer:
    """Ends the process at the n-th command, before it is sent or after it was answered; or loses the reply."""

    def __init__(self, before: int | None, after: int | None, lose: int | None) -> None:
        self.before, self.after, self.lose = before, after, lose
        self.sent = self.answered = 0

    def before_send(self, call: Call) -> None:
        if call.name == "lease_extend":
            return
        if self.sent == self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        self.sent += 1

    def after_reply(self, call: Call, reply: Any) -> None:
        if call.name == "lease_extend":
            return
        number, self.answered = self.answered, self.answered + 1
        if number == self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.lose:
            raise ConnectionResetError("the reply is lost")


def runtime_of(order: dict[str, Any], hook: Any = None) -> Runtime:
    names = ("lease_ttl", "max_recoveries", "retention", "durability", "snooze_delay", "snooze_max", "park_after")
    known = {name: order[name] for name in names if name in order}
    queue = order.get("default_queue")
    settings = Settings(redis_url=order["url"], key_prefix=order["prefix"], queue=queue, **{"lease_ttl": 1, **known})
    runtime = Runtime(settings)
    durable = runtime.durable
    assert durable is not None
    durable.client = StoreClient(order["url"], hook=hook)
    idle_ms = order.get("idle_ms", 10_000)
    durable.store = RunStore(durable.client, prefix=order["prefix"], idle_ms=idle_ms, others=FAN_KEYS)
    return runtime


async def act(order: dict[str, Any]) -> None:
    if "log" in order:
        logging.basicConfig(filename=order["log"], level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    hook: Any = Killer(order.get("before"), order.get("after"), order.get("lose"))
    if "point" in order:
        hook = Fate(order["point"], order.get("act", "kill"))
    ledger = reactors.Ledger(order.get("ledger_url", order["url"]), order["ledger"], die_after=order.get("line"))
    reactors.use(ledger)
    reactors.STOPPING = order.get("stopping", False)
    reactors.LEAVING = order.get("leaving", False)
    run_id = order["run_id"]
    async with runtime_of(order, hook) as runtime:
        try:
            await do(order, run_id, ledger, runtime)
        except OwnershipLost:
            await ledger.write(run_id, "end:OwnershipLost")
    if isinstance(hook, Fate):
        await ledger.client.execute("RPUSH", f"{ledger.key}.passed", *hook.passed, "end")
    await ledger.aclose()


async def work(order: dict[str, Any], runtime: Runtime) -> None:
    """Be a worker, until told to end or, with ``burst``, until nothing is left."""
    assert runtime.durable is not None
    settings = worker_settings(
        queue=JobQueue(runtime.durable.client, order["queue"]),
        queue_url=order["url"],
        shutdown_grace=order.get("grace", 0),
        sweep_interval=order.get("sweep"),
        max_concurrency=order.get("concurrency", 100),
        schedules=[schedule(reactors.ALL[name], cron=cron, key=key) for name, cron, key in order.get("schedules", [])],
    )
    await create_worker(settings, burst=order.get("burst", False)).serve()


async def do(order: dict[str, Any], run_id: str, ledger: reactors.Ledger, runtime: Runtime) -> None:
    what, inputs = order.get("what", "run"), order.get("inputs", {})
    if what == "undo":
        await runs.undo(run_id)
    elif what == "resume":
        await runs.resume(run_id, "ok", "from the victim")
    elif what == "call off":
        await runs.cancel(run_id, "by the victim")
    elif what == "sweep":
        await sweep()
    elif what == "work":
        await work(order, runtime)
    elif what == "sweep for workers":
        assert runtime.durable is not None
        await sweep_up(runtime.durable.store, JobQueue(runtime.durable.client, order["queue"]))
    elif what == "enqueue":
        await reactors.ALL[order["reactor"]].with_options(run_id=run_id, queue=order["queue"]).enqueue(**inputs)
    else:
        reactor = reactors.ALL[order["reactor"]].with_options(run_id=run_id)
        task = asyncio.ensure_future(reactor.run(**inputs))
        if what == "cancel":
            while "do:c" not in await ledger.lines(run_id):
                await asyncio.sleep(0)
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def main() -> None:
    assert typed.Typed.plan.nodes  # workers find these, since they are imported
    assert holding.Held.plan.nodes
    assert fanned.Fanned.plan.nodes
    # One that is told to end before it has begun ends well.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            os.close(0)
            code = 1
            try:
                asyncio.run(act(order))
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print("pid", pid, flush=True)
        print("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
