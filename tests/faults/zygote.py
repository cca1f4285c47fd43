"""A program that has everything imported and makes a real process of itself for each line that it reads.

A line is JSON, see ``Order``. For each it answers ``pid N``, and when that process has ended ``exit CODE``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from aioreactor import OwnershipLost, Runtime, Settings, runs, sweep
from aioreactor.store.calls import Call
from aioreactor.store.client import StoreClient
from aioreactor.store.store import RunStore
from tests.faults import reactors


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
    level = order.get("durability")
    settings = Settings(redis_url=order["url"], key_prefix=order["prefix"], lease_ttl=1, durability=level)
    runtime = Runtime(settings)
    durable = runtime.durable
    assert durable is not None
    durable.client = StoreClient(order["url"], hook=hook)
    durable.store = RunStore(durable.client, prefix=order["prefix"])
    return runtime


async def act(order: dict[str, Any]) -> None:
    hook = Killer(order.get("before"), order.get("after"), order.get("lose"))
    ledger = reactors.Ledger(order["url"], order["ledger"], die_after=order.get("line"))
    reactors.use(ledger)
    reactors.STOPPING = order.get("stopping", False)
    run_id = order["run_id"]
    async with runtime_of(order, hook):
        try:
            await do(order, run_id, ledger)
        except OwnershipLost:
            await ledger.write(run_id, "end:OwnershipLost")
    await ledger.aclose()


async def do(order: dict[str, Any], run_id: str, ledger: reactors.Ledger) -> None:
    what = order.get("what", "run")
    if what == "undo":
        await runs.undo(run_id)
    elif what == "sweep":
        await sweep()
    else:
        reactor = reactors.ALL[order["reactor"]].with_options(run_id=run_id)
        task = asyncio.ensure_future(reactor.run())
        if what == "cancel":
            while "do:c" not in await ledger.lines(run_id):
                await asyncio.sleep(0)
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def main() -> None:
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
