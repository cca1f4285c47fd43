"""`RateLimit` alone: every algorithm, under concurrency, with lost replies, given back, configured by name."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aioreactor import RateLimit, RateLimited, Settings, UnknownRateLimit
from aioreactor.coordination import rates
from aioreactor.coordination.rates import Spent, Windows
from tests.integration.coordination.kit import LoseReply, Place, every_turn, turns

ALGORITHMS = ["fixed", "sliding", "gcra"]
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


async def used(place: Place, key: str) -> dict[float, int]:
    """What each window has counted, by its length."""
    return {each.window: each.used for each in (await place.coordinator.inspect(key)).counters}


async def spend(place: Place, key: str, algorithm: str, limits: dict[Any, int], **more: Any) -> Spent:
    limit = RateLimit(key, limits=limits, algorithm=algorithm, **more)  # type: ignore[arg-type]
    return await rates.spend(place.coordinator.desk(), Windows.of(limit, key, {}), wait=limit.wait)


@algorithms
async def test_a_hundred_at_once_and_exactly_the_limit(place: Place, algorithm: str) -> None:
    other = await place.elsewhere()
    windows = Windows.of(RateLimit("r", 37, "year", algorithm=algorithm), "r", {})  # type: ignore[arg-type]
    desks = [place.coordinator.desk(), other.desk()]
    found = await asyncio.gather(*(rates.spend(desks[i % 2], windows) for i in range(100)), return_exceptions=True)
    refused = [each for each in found if isinstance(each, RateLimited)]
    assert (len(found) - len(refused), len(refused)) == (37, 63)
    assert all((each.key, each.window, each.limit) == ("r", "year", 37) for each in refused)
    assert all(0 < each.retry_after <= 365 * 86400 for each in refused)
    assert await used(place, "r") == {365 * 86400.0: 37}


@algorithms
async def test_a_refusal_spends_nothing_in_any_window(place: Place, algorithm: str) -> None:
    limits = {"year": 5, "month": 3}
    for _ in range(3):
        await spend(place, "r", algorithm, limits)
    for _ in range(4):
        with pytest.raises(RateLimited) as caught:
            await spend(place, "r", algorithm, limits)
        assert (caught.value.window, caught.value.limit) == ("month", 3)
    assert await used(place, "r") == {365 * 86400.0: 3, 30 * 86400.0: 3}


@algorithms
async def test_a_cost_is_taken_whole_or_not(place: Place, algorithm: str) -> None:
    await spend(place, "r", algorithm, {"year": 5}, cost=3)
    with pytest.raises(RateLimited):
        await spend(place, "r", algorithm, {"year": 5}, cost=3)
    await spend(place, "r", algorithm, {"year": 5}, cost=2)
    with pytest.raises(RateLimited):
        await spend(place, "r", algorithm, {"year": 5})
    assert await used(place, "r") == {365 * 86400.0: 5}


@algorithms
async def test_it_admits_again_when_it_said_so(place: Place, algorithm: str) -> None:
    while True:
        try:
            await spend(place, "r", algorithm, {0.2: 4})
        except RateLimited as error:
            retry_after, window = error.retry_after, error.window
            break
    assert (0 < retry_after <= 0.2, window) == (True, "0.2 s")
    await asyncio.sleep(retry_after)
    await spend(place, "r", algorithm, {0.2: 4})


@algorithms
async def test_waiting_sleeps_until_it_may(place: Place, algorithm: str) -> None:
    began, spent = time.monotonic(), 0

    async def one() -> None:
        nonlocal spent
        async with RateLimit("r", 5, 0.25, algorithm=algorithm, wait=30):  # type: ignore[arg-type]
            spent += 1

    await asyncio.gather(*(one() for _ in range(20)))
    assert spent == 20
    # 20 at 5 per window need three windows after the first one, which may have been nearly over when it began.
    assert time.monotonic() - began > 0.25 * 2


@algorithms
async def test_too_long_a_wait_is_refused_at_once(place: Place, algorithm: str) -> None:
    limit = RateLimit("r", 1, "year", algorithm=algorithm, wait=5)  # type: ignore[arg-type]
    async with limit:
        pass
    began = time.monotonic()
    with pytest.raises(RateLimited):
        async with limit:
            raise AssertionError
    assert time.monotonic() - began < 4


@algorithms
async def test_what_was_spent_can_be_given_back_once(place: Place, algorithm: str) -> None:
    limits = {"year": 2, "month": 2}
    spent = [await spend(place, "r", algorithm, limits) for _ in range(2)]
    assert await spent[0].restore()
    assert not await spent[0].restore()
    assert await used(place, "r") == {365 * 86400.0: 1, 30 * 86400.0: 1}
    await spend(place, "r", algorithm, limits)
    with pytest.raises(RateLimited):
        await spend(place, "r", algorithm, limits)
    await spent[1].restore()
    await spend(place, "r", algorithm, limits, cost=1)


async def test_a_window_that_is_over_gets_nothing_back(place: Place) -> None:
    limits = {0.05: 10, "year": 10}
    spent = await spend(place, "r", "fixed", limits)
    await asyncio.sleep(0.06)
    await spend(place, "r", "fixed", limits)
    await spent.restore()
    assert (await used(place, "r"))[365 * 86400.0] == 1


@algorithms
@pytest.mark.parametrize("before", [False, True])
async def test_a_lost_reply_spends_once(place: Place, algorithm: str, before: bool) -> None:
    limit = RateLimit("r", 9, "year", algorithm=algorithm)  # type: ignore[arg-type]
    async with place.another(LoseReply(f"rate_{algorithm}", before=before)), limit:
        pass
    assert await used(place, "r") == {365 * 86400.0: 1}


@algorithms
async def test_cut_off_at_any_moment_it_has_spent_nothing(place: Place, algorithm: str) -> None:
    for number in every_turn():
        task = asyncio.create_task(spend(place, "r", algorithm, {"year": 1000}))
        await turns(number)
        done = task.done()
        task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, Spent):
            await found.restore()
        assert await used(place, "r") == {}
        if done:
            break


async def test_named_limits_share_one_bucket(place: Place) -> None:
    settings = {"stripe": {"second": 100, "year": 3}}
    async with place.another(rate_limits=settings), RateLimit("stripe"):
        async with RateLimit("stripe", 3, "year"):
            pass
        async with RateLimit("stripe", cost=1):
            pass
        with pytest.raises(RateLimited, match="'stripe': 3 per year reached"):
            async with RateLimit("stripe"):
                raise AssertionError
        with pytest.raises(UnknownRateLimit, match="no rate limit named 'strip'"):
            async with RateLimit("strip"):
                raise AssertionError
        with pytest.raises(ValueError, match="cost=4 never fits into 3 per year"):
            async with RateLimit("stripe", cost=4):
                raise AssertionError


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rate_limits\['stripe'\]: per='fortnight'"):
        Settings(rate_limits={"stripe": {"fortnight": 3}})
    with pytest.raises(ValueError, match="cost=3 never fits into 2 per second"):
        RateLimit("a", 2, "second", cost=3)
    with pytest.raises(ValueError, match="per='fortnight'"):
        RateLimit("a", 2, "fortnight")


@algorithms
async def test_it_goes_with_its_longest_window(place: Place, algorithm: str) -> None:
    await spend(place, "r", algorithm, {0.1: 5, 90: 5})
    ttls = {key.decode(): await place.do("PTTL", key) for key in await place.do("KEYS", f"{place.prefix}:*")}
    assert all(0 < ttl <= 91_000 for ttl in ttls.values()), ttls
