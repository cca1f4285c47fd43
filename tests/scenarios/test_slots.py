"""``max_concurrency``: who waits for a slot, and who must not."""

from __future__ import annotations

import asyncio
from typing import Any

from aioreactor import Context, Failure, Reactor, Retry, Success, compose, map_each, step, value


async def test_a_stopped_step_does_not_wait_for_a_slot_before_it_is_given_up() -> None:
    """One scope is stopped while a body of another scope holds the only slot: its rollback does not wait for that."""
    ledger: list[str] = []
    release = asyncio.Event()

    class Element(Reactor):
        n: int

        @step
        async def first(self, n: int) -> None:
            ledger.append(f"first {n}")

        @first.undo
        async def undo_first(self, n: int) -> None:
            ledger.append(f"undo {n}")

        @step(after=[first], retries=Retry(max_attempts=2, base_delay=3600))
        async def flaky(self, n: int) -> None:
            if n == 0:
                raise ValueError("again")

        @step(after=[first])
        async def fatal(self, n: int) -> None:
            if n == 0:
                await asyncio.sleep(0)
                raise RuntimeError("for good")
            ledger.append("holds the slot")
            await release.wait()

    class Bounded(Reactor, max_concurrency=1):
        m = map_each(Element, over=value([0, 1]), item="n", atomic=False)

    task = asyncio.ensure_future(Bounded.run())
    async with asyncio.timeout(5):
        while "undo 0" not in ledger or "holds the slot" not in ledger:
            await asyncio.sleep(0)
    assert not release.is_set()
    release.set()
    outcome = await task
    assert isinstance(outcome, Success)
    assert [isinstance(each, Failure) for each in outcome.value["m"]] == [True, False]


async def test_no_more_bodies_than_slots_at_any_depth() -> None:
    running = 0
    most = 0

    async def work(self: Any, ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    class Inner(Reactor, max_concurrency=2):
        a, b, c = step(work), step(work), step(work)

    class Outer(Reactor, max_concurrency=3):
        one, two = compose(Inner), compose(Inner)
        x, y, z = step(work), step(work), step(work)

    outcome = await Outer.run()
    assert outcome.ok
    assert most == 3
