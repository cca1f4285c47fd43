"""Leases that are kept from a thread while the loop stands still: within a bound, and the loop is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from aioreactor.errors import OwnershipLost
from aioreactor.store import lease_thread
from aioreactor.store.blocked import BlockReports
from aioreactor.store.claim import Claim
from aioreactor.store.errors import StoreUnavailable
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.records import Changes
from tests.told import events_told

from .kit import LONG, Kit, RedisKit, held

TTL_MS = 600


class Store:
    """Extends, and notes in which threads."""

    def __init__(self) -> None:
        self.here = threading.get_ident()
        self.by_thread: list[Claim] = []
        self.by_loop: list[Claim] = []
        self.rang = threading.Condition()
        self.answer: str = ""

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        asked_at = time.monotonic()
        with self.rang:
            (self.by_loop if threading.get_ident() == self.here else self.by_thread).append(claim)
            self.rang.notify_all()
        if self.answer == "lost":
            raise claim.lose("token")
        if self.answer == "away":
            raise StoreUnavailable("extend", 0.0, None, may_be_applied=False)
        if self.answer == "fails":
            raise ZeroDivisionError
        claim.asked = 7
        claim.trust(asked_at)

    def stand_still(self, more: int) -> None:
        """Block the loop until the thread has extended so many times more."""
        with self.rang:
            count = len(self.by_thread) + more
            assert self.rang.wait_for(lambda: len(self.by_thread) >= count, 10)


class Reports(BlockReports):
    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[float] = []
        self.bell = threading.Event()

    def blocked(self, seconds: float, seen: object) -> None:
        pass

    def resumed(self, seconds: float) -> None:
        pass

    def thread_stopped(self, seconds: float) -> None:
        self.stopped.append(seconds)
        self.bell.set()


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def keeper(store: Store) -> AsyncIterator[LeaseKeeper]:
    keeper = LeaseKeeper(store, reports=Reports(), thread_limit=60)
    yield keeper
    await keeper.aclose()
    assert not threads()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "aioreactor-leases"]


def claim_of(ttl_ms: int = TTL_MS, run_id: str = "r") -> Claim:
    return Claim(run_id, "token", ver=1, fence=1, ttl_ms=ttl_ms, asked_at=time.monotonic())


class Losses:
    def __init__(self) -> None:
        self.errors: list[OwnershipLost] = []
        self.threads: list[int] = []
        self.happened = asyncio.Event()

    def __call__(self, error: OwnershipLost) -> None:
        self.errors.append(error)
        self.threads.append(threading.get_ident())
        self.happened.set()


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(20):
        yield


async def until(condition: object) -> None:
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_lease_is_kept_while_the_loop_stands_still(store: Store, keeper: LeaseKeeper) -> None:
    losses, claim, told = Losses(), claim_of(), asyncio.Event()
    keeper.watch(claim, losses, told.set)
    store.stand_still(5)
    assert claim.trusted
    assert all(each is not claim and each.token == claim.token for each in store.by_thread), "shadows, not the claim"
    await told.wait()
    assert claim.asked == 7
    assert losses.errors == []


async def test_that_it_is_lost_is_told_in_the_loop(store: Store, keeper: LeaseKeeper) -> None:
    losses, claim = Losses(), claim_of()
    store.answer = "lost"
    keeper.watch(claim, losses)
    store.stand_still(1)
    assert claim.lost == "", "the loop has not turned"
    await losses.happened.wait()
    assert len(losses.errors) == 1
    assert losses.threads == [threading.get_ident()]
    assert claim.lost


async def test_a_store_that_is_away_is_distrusted_by_the_loop(store: Store, keeper: LeaseKeeper) -> None:
    losses, claim = Losses(), claim_of()
    store.answer = "away"
    keeper.watch(claim, losses)
    await losses.happened.wait()
    assert time.monotonic() >= claim.trusted_until
    assert store.by_loop
    assert len(losses.errors) == 1


async def test_an_answer_after_the_release_is_not_told(store: Store, keeper: LeaseKeeper) -> None:
    losses, claim = Losses(), claim_of()
    store.answer = "lost"
    hold = keeper.watch(claim, losses)
    store.stand_still(1)
    hold.release()
    other = keeper.watch(claim_of(60_000), losses)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert losses.errors == []
    assert claim.lost == ""
    other.release()


async def test_a_loop_that_hangs_is_given_up_until_it_turns_again(store: Store) -> None:
    reports = Reports()
    keeper, claim = LeaseKeeper(store, reports=reports, thread_limit=1.0), claim_of()
    keeper.watch(claim, Losses())
    assert reports.bell.wait(10)
    done = len(store.by_thread)
    begun = time.monotonic()
    while time.monotonic() < begun + 2 * TTL_MS / 1000:
        pass  # the loop goes on standing still; nothing must happen for longer than a lease
    assert len(store.by_thread) == done
    assert not claim.trusted
    assert [1.0 <= each < 5 for each in reports.stopped] == [True]
    await until(lambda: len(store.by_loop) > 0)
    store.stand_still(2)
    assert len(reports.stopped) == 1
    await keeper.aclose()


async def test_the_loop_keeps_its_leases_when_the_thread_fails(
    store: Store, keeper: LeaseKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    losses, claim = Losses(), claim_of(1200)
    store.answer = "fails"
    keeper.watch(claim, losses)
    await until(lambda: store.by_thread and not threads())
    assert events_told(caplog) == ["engine_error"]
    store.answer = ""
    await until(lambda: len(store.by_loop) > 1)
    assert losses.errors == []
    keeper.watch(claim_of(200), losses)
    assert threads(), "the next one starts it again"


async def test_the_thread_ends_when_there_is_nothing_to_keep(
    store: Store, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_thread, "LINGER", 0.03)
    assert threads() == []
    for _ in (1, 2):
        hold = keeper.watch(claim_of(), Losses())
        assert len(threads()) == 1
        hold.release()
        await until(lambda: threads() == [])


def test_the_thread_ends_with_its_loop() -> None:
    async def forgets() -> None:
        LeaseKeeper(Store(), thread_limit=60).watch(claim_of(), Losses())
        assert threads()

    asyncio.run(forgets())
    for each in threads():
        each.join(10)
        assert not each.is_alive()


async def test_a_shorter_lease_is_kept_in_its_own_time(store: Store, keeper: LeaseKeeper) -> None:
    keeper.watch(claim_of(60_000, "long"), Losses())
    keeper.watch(claim_of(TTL_MS, "short"), Losses())
    store.stand_still(2)
    assert {each.run_id for each in store.by_thread} == {"short"}


async def test_with_a_real_store_over_a_connection_of_its_own(redis_kit: RedisKit) -> None:
    claim = await held(redis_kit, ttl_ms=1000)
    keeper = LeaseKeeper(redis_kit.store, thread_limit=60)
    keeper.watch(claim, Losses())
    first = claim.trusted_until
    until_ = time.monotonic() + 10
    while claim.trusted_until == first and time.monotonic() < until_:
        time.sleep(0.01)
    assert claim.trusted_until > first
    await redis_kit.store.save(claim, Changes())
    await keeper.aclose()


async def test_a_takeover_is_told_with_a_real_store(kit: Kit) -> None:
    claim, losses = await held(kit, ttl_ms=600), Losses()
    keeper = LeaseKeeper(kit.store, thread_limit=60)
    keeper.watch(claim, losses)
    await kit.expire_lease("r")
    assert isinstance(await kit.store.take("r", ["running"], ttl_ms=LONG), Claim)
    await losses.happened.wait()
    assert claim.lost
    await keeper.aclose()
