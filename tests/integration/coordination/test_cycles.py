"""Runs that hold and await each other's keys: exactly one of the waits fails, and the others go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from aioreactor import Lock, LockUnavailable, Semaphore, SemaphoreUnavailable
from aioreactor.coordination import watching
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.gates import Terms, Wanted
from aioreactor.coordination.holds import Holds
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Parking
from aioreactor.errors import ContentionError
from tests.integration.coordination.kit import Place, turns
from tests.integration.coordination.test_cluster import cluster
from tests.integration.store_client.test_cluster import Cluster

__all__ = ["cluster"]


def nothing() -> None:
    """Nobody has to be called."""


class Run:
    """A run that holds something; its steps want more."""

    def __init__(self, coordinator: Coordinator, name: str) -> None:
        self.coordinator = coordinator
        self.name = name
        self.scope = Scope(None, name)
        self.tickets: dict[str, str] = {}
        self.woken = asyncio.Event()
        self.holds: list[Holds] = []

    async def hold(self, primitive: Any, scope: Scope | None = None) -> None:
        terms = Terms(scope or self.scope, label=self.name)
        self.holds.append(await self.coordinator.acquire([Wanted(primitive, primitive.key)], terms))

    async def waits(self, primitive: Any, scope: Scope | None = None, **more: Any) -> None:
        """A step stands in line, in the place."""
        terms = Terms(Scope(scope or self.scope, f"{self.name}:step"), label=f"{self.name}:step", wait=60, **more)
        self.holds.append(await self.coordinator.acquire([Wanted(primitive, primitive.key)], terms))

    async def parks(self, primitive: Any, **more: Any) -> bool:
        """A step has its place in line kept; True if it has what it wants."""
        parking = Parking(self.woken.set, tickets=self.tickets)
        terms = Terms(
            Scope(self.scope, f"{self.name}:step"), label=f"{self.name}:step", wait=0, parking=parking, **more
        )
        try:
            self.holds.append(await self.coordinator.acquire([Wanted(primitive, primitive.key)], terms))
        except ContentionError as error:
            if error.cycle:
                raise
            return False
        return True

    async def ends(self) -> None:
        await self.coordinator.withdraw(self.tickets)
        for holds in reversed(self.holds):
            await holds.release("failure")


async def two(place: Place) -> tuple[Run, Run]:
    """Two runs in two processes; the first one holds ``a``, the second one ``b``."""
    one, other = Run(place.coordinator, "one"), Run(await place.elsewhere(), "other")
    await one.hold(Lock("a"))
    await other.hold(Lock("b"))
    return one, other


async def noted(place: Place) -> list[str]:
    """Keys of holds that have notes of somebody who waits inside."""
    return [key.decode() for key in await place.do("KEYS", f"{place.prefix}:c:*:waits")]


@pytest.mark.parametrize("turned", [False, True])
async def test_who_closes_the_ring_fails_when_both_are_parked(place: Place, turned: bool) -> None:
    one, other = await two(place)
    (first, wants), (last, closes) = ((one, "b"), (other, "a")) if not turned else ((other, "a"), (one, "b"))
    assert not await first.parks(Lock(wants))
    with pytest.raises(LockUnavailable) as caught:
        await last.parks(Lock(closes))
    assert caught.value.cycle == (
        f"{last.name}:step waits for lock '{closes}', held by {first.name}",
        f"{first.name}:step waits for lock '{wants}', held by {last.name}",
    )
    assert str(caught.value).endswith("waiting would never end: " + "; ".join(caught.value.cycle))
    assert (caught.value.key, last.tickets, await place.waiting(closes)) == (closes, {}, [])
    assert await noted(place) == [place.keys.waits(first.holds[0].leases[0].token)]
    await last.ends()
    async with asyncio.timeout(20):
        await first.woken.wait()
    assert await first.parks(Lock(wants))
    assert await noted(place) == []
    await first.ends()


@pytest.mark.parametrize("turned", [False, True])
async def test_who_closes_the_ring_fails_when_both_wait(place: Place, turned: bool) -> None:
    one, other = await two(place)
    (first, wants), (last, closes) = ((one, "b"), (other, "a")) if not turned else ((other, "a"), (one, "b"))
    async with asyncio.timeout(30):
        waiting = asyncio.create_task(first.waits(Lock(wants)))
        while not await noted(place):
            await asyncio.sleep(0.002)
        with pytest.raises(LockUnavailable) as caught:
            await last.waits(Lock(closes))
        assert len(caught.value.cycle) == 2
        assert not waiting.done()
        await last.ends()
        await waiting
    assert await noted(place) == []
    await first.ends()


async def test_exactly_one_fails_when_both_look_at_the_same_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await two(place)
    both, look = asyncio.Barrier(2), watching.find_cycle
    seen: list[None] = []

    async def together(*args: Any) -> Any:
        if len(seen) < 2:
            seen.append(None)
            await both.wait()
        return await look(*args)

    monkeypatch.setattr(watching, "find_cycle", together)
    async with asyncio.timeout(30):
        tasks = [asyncio.create_task(one.waits(Lock("b"))), asyncio.create_task(other.waits(Lock("a")))]
        done, (waiting,) = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [isinstance(task.exception(), LockUnavailable) for task in done] == [True]
        assert not waiting.done()
        loser, winner = (one, other) if tasks[0] in done else (other, one)
        await loser.ends()
        await waiting
    await winner.ends()


@pytest.mark.parametrize("parked", [False, True])
async def test_one_that_looked_too_early_is_called_by_the_other(
    place: Place, monkeypatch: pytest.MonkeyPatch, parked: bool
) -> None:
    """Clocks of two servers differ, so that the one that came last by these is not who closed the ring."""
    one, other = await two(place)
    look, blind = watching.find_cycle, ["other:step"]

    async def early(desk: Any, wait: Any) -> Any:
        return None if blind and wait.key == "a" and blind.pop() else await look(desk, wait)

    monkeypatch.setattr(watching, "find_cycle", early)
    assert not await one.parks(Lock("b"))
    waiting = asyncio.create_task(other.parks(Lock("a")) if parked else other.waits(Lock("a")))
    async with asyncio.timeout(20):
        while blind or (parked and not waiting.done()):
            await asyncio.sleep(0.002)
    assert not other.woken.is_set()
    assert not await one.parks(Lock("b"))  # the slow check of the other one
    async with asyncio.timeout(4):  # before it would have asked again by itself
        if parked:
            await other.woken.wait()
        with pytest.raises(LockUnavailable) as caught:
            await (other.parks(Lock("a")) if parked else waiting)
    assert len(caught.value.cycle) == 2
    await other.ends()
    await one.ends()


async def test_exactly_one_fails_in_whatever_order_they_come(place: Place) -> None:
    dice = random.Random(7)
    elsewhere = await place.elsewhere()
    for number in range(25):
        runs = [Run(place.coordinator, f"one{number}"), Run(elsewhere, f"other{number}")]
        for run, key in zip(runs, "ab", strict=True):
            await run.hold(Lock(key))

        async def visit(run: Run, key: str, delay: int, runs: list[Run] = runs) -> str:
            await turns(delay)
            try:
                await run.waits(Lock(key))
            except LockUnavailable as error:
                return "failed" if len(error.cycle) == 2 else "refused"
            else:
                return "done"
            finally:
                await run.ends()

        async with asyncio.timeout(30):
            pair = [visit(run, key, dice.randrange(12)) for run, key in zip(runs, "ba", strict=True)]
            assert sorted(await asyncio.gather(*pair)) == ["done", "failed"]


async def test_three_in_a_ring_with_semaphores(place: Place) -> None:
    names: list[tuple[Callable[[str], Any], str]] = [(Lock, "a"), (lambda key: Semaphore(key, 2), "s"), (Lock, "c")]
    runs = [Run(place.coordinator, f"run-{number}") for number in range(3)]
    fourth = Run(place.coordinator, "run-3")
    for run, (make, key) in zip(runs, names, strict=True):
        await run.hold(make(key))
    await fourth.hold(Semaphore("s", 2))
    assert not await runs[0].parks(Semaphore("s", 2))
    assert not await runs[1].parks(Lock("c"))
    assert not await runs[2].parks(Lock("a"))  # the fourth one has a slot, and goes on
    with pytest.raises(LockUnavailable) as caught:
        await fourth.parks(Lock("c"))
    assert [text.split(" ")[0] for text in caught.value.cycle] == ["run-3:step", "run-2:step", "run-0:step"]
    await fourth.ends()
    async with asyncio.timeout(20):
        await runs[0].woken.wait()
    assert await runs[0].parks(Semaphore("s", 2))
    for run in runs:
        await run.ends()


async def test_a_semaphore_of_which_all_holders_wait(place: Place) -> None:
    one, other = Run(place.coordinator, "one"), Run(place.coordinator, "other")
    await one.hold(Lock("a"))
    await other.hold(Semaphore("s", 1))
    assert not await other.parks(Lock("a"))
    with pytest.raises(SemaphoreUnavailable) as caught:
        await one.parks(Semaphore("s", 1))
    assert (caught.value.key, len(caught.value.cycle)) == ("s", 2)
    await one.ends()
    await other.ends()


async def test_who_waits_for_a_ring_does_not_fail_for_it(place: Place) -> None:
    """A ring of rollbacks: their waits end by themselves."""
    one, other = await two(place)
    assert not await one.parks(Lock("b"), bound="undoing")
    assert not await other.parks(Lock("a"), bound="undoing")
    third = Run(place.coordinator, "third")
    await third.hold(Lock("c"))
    assert not await third.parks(Lock("a"))
    assert await place.coordinator.find_cycle(third.tickets) is None
    for run in (one, other):
        cycle = await place.coordinator.find_cycle(run.tickets)
        assert cycle is not None
        assert (len(cycle.links), cycle.fails, cycle.links[0].waiter) == (2, None, f"{run.name}:step")
    for run in (third, one, other):
        await run.ends()


async def test_a_step_fails_rather_than_a_rollback(place: Place) -> None:
    one, other = await two(place)
    assert not await one.parks(Lock("b"))
    waiting = asyncio.create_task(other.waits(Lock("a"), bound="undoing"))
    async with asyncio.timeout(20):
        await one.woken.wait()  # the rollback came last, and calls
        with pytest.raises(LockUnavailable) as caught:
            await one.parks(Lock("b"))
        assert len(caught.value.cycle) == 2
        await one.ends()
        await waiting
    await other.ends()


async def test_two_children_of_one_run_in_each_others_way(place: Place) -> None:
    run = Run(place.coordinator, "run")
    children = [Scope(run.scope, "run:left"), Scope(run.scope, "run:right")]
    for child, key in zip(children, "ab", strict=True):
        await run.hold(Lock(key), child)
    waiting = asyncio.create_task(run.waits(Lock("b"), children[0]))
    async with asyncio.timeout(20):
        while not await noted(place):
            await asyncio.sleep(0.002)
        with pytest.raises(LockUnavailable) as caught:
            await run.waits(Lock("a"), children[1])
        assert len(caught.value.cycle) == 2
        await run.holds.pop().release("failure")
        await waiting
    await run.ends()


async def test_what_is_noted_counts_only_for_who_stands_in_line(place: Place) -> None:
    one, other = await two(place)
    assert not await one.parks(Lock("b"))
    await place.coordinator.withdraw(one.tickets)
    assert await noted(place) != []
    one.tickets.clear()
    assert not await other.parks(Lock("a"))
    assert await place.coordinator.find_cycle(other.tickets) is None
    await place.deaden("a")
    assert not await one.parks(Lock("b"))  # the other one is not alive any more
    await one.ends()
    await other.ends()


async def test_siblings_under_one_hold_are_in_no_ring(place: Place) -> None:
    run = Run(place.coordinator, "run")
    await run.hold(Semaphore("s", 1))
    inside = Scope(run.scope, "run:first")
    await run.hold(Semaphore("s", 1), inside)
    with pytest.raises(SemaphoreUnavailable) as caught:
        await run.coordinator.acquire(
            [Wanted(Semaphore("s", 1), "s")], Terms(Scope(run.scope, "run:second"), wait=0.05)
        )
    assert caught.value.cycle == ()
    await run.ends()


async def test_a_ring_across_nodes_of_a_cluster(cluster: Cluster) -> None:
    from aioreactor import Runtime, Settings

    settings = Settings(redis_url=cluster.url, key_prefix="rings")
    async with Runtime(settings) as first, Runtime(settings) as second, asyncio.timeout(60):
        for number in range(6):
            one, other = Run(first.coordinator(), "one"), Run(second.coordinator(), "other")
            mine, others = Lock(f"k{number}"), Lock(f"k{number + 1}")
            await one.hold(mine)
            await other.hold(others)
            found = await asyncio.gather(_visit(one, others), _visit(other, mine))
            assert sorted(found) == ["done", "failed"]


async def _visit(run: Run, lock: Lock) -> str:
    try:
        await run.waits(lock)
    except LockUnavailable as error:
        return "failed" if error.cycle else "refused"
    else:
        return "done"
    finally:
        await run.ends()
