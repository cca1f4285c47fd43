"""A hundred that want to do what is to be done once in a calendar bucket, in callers and in workers, all at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aioreactor import Context, Failure, Halt, Lock, Period, Reactor, RunHandle, Success
from aioreactor.coordination import inspect
from tests.integration.durable.kit import Place, behave, noted
from tests.integration.durable.test_background import place
from tests.integration.durable.test_coordination_workers import free, two_working

__all__ = ["place"]
FAILS = 3


class Nightly(Reactor[str], name="cs.Nightly", coordination=[Period("n", every="year"), Lock("n", wait=60)]):
    a = noted()
    b = noted([a])
    returns = b


async def test_one_of_a_hundred_starters_succeeds(place: Place) -> None:
    """The first few fail, which leaves the bucket to the next one; bodies write to the server."""
    book = f"{place.prefix}-book"

    async def begin(ctx: Context) -> None:
        number = await place.do("RPUSH", book, f"begin {ctx.run_id}")
        await asyncio.sleep(0.01)
        if number <= 2 * FAILS:
            raise ValueError(number)

    async def end(ctx: Context) -> None:
        await place.do("RPUSH", book, f"end {ctx.run_id}")

    behave.update({"a": begin, "b": end, "comp:a": end})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(two_working(place, snooze_delay=0.5, snooze_max=1000))
        handles: Sequence[RunHandle[str]] = await Nightly.enqueue_many([{}] * 40)
        callers = []
        for _ in range(3):
            await stack.enter_async_context(place.another())
            callers += [asyncio.create_task(Nightly.run()) for _ in range(20)]
            await asyncio.sleep(0)
        outcomes = [*await asyncio.gather(*callers)]
        for handle in handles:
            outcomes.append(await handle.result(timeout=60))
    assert Counter(type(each) for each in outcomes) == {Success: 1, Failure: FAILS, Halt: 100 - FAILS - 1}
    assert {each.reason for each in outcomes if isinstance(each, Halt)} == {"period"}
    written = [line.decode().partition(" ") for line in await place.do("LRANGE", book, 0, -1)]
    assert [word for word, _, _ in written] == ["begin", "end"] * (FAILS + 1)
    assert [run for _, _, run in written[::2]] == [run for _, _, run in written[1::2]]
    (succeeded,) = [each for each in outcomes if isinstance(each, Success)]
    assert written[-1][2] == succeeded.run_id
    assert [marker.marked_by for marker in (await inspect("n")).markers] == [succeeded.run_id]
    await free("n")
    await place.do("DEL", book)
