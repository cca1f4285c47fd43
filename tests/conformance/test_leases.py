"""Leases are kept while the loop turns, distrusted in time when they cannot be, and checked after a standstill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from aioreactor.errors import OwnershipLost
from aioreactor.store.blocked import BlockReports
from aioreactor.store.claim import DRIFT, Claim
from aioreactor.store.errors import StoreUnavailable
from aioreactor.store.leases import LeaseKeeper
from aioreactor.store.records import Changes

from .kit import LONG, Kit, RedisKit, VolatileKit, held, twin


class ScriptedStore:
    """Extends leases as it is told to."""

    def __init__(self) -> None:
        self.asked: list[Claim] = []
        self.heard = asyncio.Event()
        self.answer: BaseException | None = None
        self.hangs = False

    async def extend(self, claim: Claim, *, retry_for: float | None = None) -> None:
        asked_at = time.monotonic()
        self.asked.append(claim)
        self.heard.set()
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.answer, OwnershipLost):
            raise claim.lose("token")
        if self.answer is not None:
            raise self.answer
        claim.trust(asked_at)

    async def times(self, count: int) -> None:
        while len(self.asked) < count:
            self.heard.clear()
            await self.heard.wait()


def claim_of(ttl_ms: int = 120, run_id: str = "r") -> Claim:
    return Claim(run_id, "token", ver=1, fence=1, ttl_ms=ttl_ms, asked_at=time.monotonic())


class Losses:
    def __init__(self) -> None:
        self.errors: list[OwnershipLost] = []
        self.at = 0.0
        self.happened = asyncio.Event()

    def __call__(self, error: OwnershipLost) -> None:
        self.at = time.monotonic()
        self.errors.append(error)
        self.happened.set()


@pytest.fixture
async def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
async def keeper(store: ScriptedStore) -> AsyncIterator[LeaseKeeper]:
    keeper = LeaseKeeper(store)
    yield keeper
    await keeper.aclose()


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(20):
        yield


async def test_a_watched_lease_is_extended_until_it_is_released(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    losses, claim = Losses(), claim_of()
    hold = keeper.watch(claim, losses)
    begin = hold.trusted_until
    await store.times(4)
    assert hold.trusted_until > begin
    hold.release()
    hold.release()
    seen = len(store.asked)
    other = keeper.watch(claim_of(60, "other"), losses)
    await store.times(seen + 3)
    other.release()
    assert {each.run_id for each in store.asked[seen:]} == {"other"}
    assert not losses.errors


async def test_trust_counts_from_the_request(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    begin = time.monotonic()
    hold = keeper.watch(Claim("r", "t", ver=1, fence=1, ttl_ms=1000, asked_at=begin), Losses())
    assert hold.trusted_until == pytest.approx(begin + 1 - DRIFT)
    hold.claim.trust(begin - 5)
    assert hold.trusted_until == pytest.approx(begin + 1 - DRIFT), "a late answer to an old request takes nothing away"


async def test_checkpoints_spare_extensions(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    """What was extended by a checkpoint within a third of its time is not extended by the keeper."""
    busy, idle = claim_of(300, "busy"), claim_of(300, "idle")
    keeper.watch(busy, Losses())
    keeper.watch(idle, Losses())
    while sum(each is idle for each in store.asked) < 3:
        busy.trust(time.monotonic())
        await asyncio.sleep(0)
    assert busy not in store.asked


async def test_a_shorter_lease_is_kept_in_its_own_time(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    keeper.watch(claim_of(60_000, "long"), Losses())
    keeper.watch(claim_of(120, "short"), Losses())
    await store.times(3)
    assert {each.run_id for each in store.asked} == {"short"}


async def test_a_lease_that_somebody_else_has_is_lost_once(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    losses = Losses()
    store.answer = OwnershipLost("r", "")
    hold = keeper.watch(claim_of(), losses)
    await losses.happened.wait()
    assert len(losses.errors) == 1
    assert "taken over" in losses.errors[0].reason
    with pytest.raises(OwnershipLost):
        await hold.check()
    assert not keeper._holds


@pytest.mark.parametrize("trouble", ["away", "silent"])
async def test_a_lease_that_cannot_be_extended_is_distrusted_in_time(
    store: ScriptedStore, keeper: LeaseKeeper, trouble: str
) -> None:
    losses, claim = Losses(), claim_of(400)
    if trouble == "away":
        store.answer = StoreUnavailable("lease_extend", 1, None, may_be_applied=False)
    else:
        store.hangs = True
    over = time.monotonic() + 0.4
    keeper.watch(claim, losses)
    await losses.happened.wait()
    assert losses.at >= claim.trusted_until
    assert losses.at < over + 0.2, "but soon after (a slow machine may be late)"
    assert len(store.asked) >= 2, "it was tried again meanwhile"
    assert not claim.open


async def test_trouble_that_passes_is_not_told(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    losses = Losses()
    store.answer = StoreUnavailable("lease_extend", 1, None, may_be_applied=False)
    hold = keeper.watch(claim_of(1000), losses)
    await store.times(1)
    store.answer = None
    await store.times(3)
    assert hold.claim.trusted
    assert not losses.errors


async def test_an_answer_that_comes_after_the_release_is_not_told(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    losses = Losses()
    store.hangs = True
    hold = keeper.watch(claim_of(), losses)
    await store.times(1)
    hold.release()
    await asyncio.gather(*keeper._round, return_exceptions=True)
    assert not losses.errors


async def test_a_loop_that_stood_still_is_remarked_upon(store: ScriptedStore) -> None:
    lags: list[float] = []

    class Reports(BlockReports):
        def resumed(self, seconds: float) -> None:
            lags.append(seconds)

    keeper = LeaseKeeper(store, reports=Reports())
    hold = keeper.watch(claim_of(300), Losses())
    await store.times(1)
    time.sleep(0.25)
    await store.times(2)
    while not lags:
        await asyncio.sleep(0)
    assert 0.1 < lags[0] < 5
    hold.release()
    await keeper.aclose()


async def test_after_a_standstill_the_lease_is_checked_first(store: ScriptedStore, keeper: LeaseKeeper) -> None:
    losses, claim = Losses(), claim_of(60_000)
    hold = keeper.watch(claim, losses)
    await hold.check()
    assert not store.asked, "it costs nothing while there is trust"
    claim.trusted_until = time.monotonic() - 1
    await hold.check()
    assert len(store.asked) == 1
    assert claim.trusted
    claim.trusted_until = time.monotonic() - 1
    store.answer = OwnershipLost("r", "")
    with pytest.raises(OwnershipLost):
        await hold.check()


async def test_a_keeper_has_one_loop(store: ScriptedStore) -> None:
    keeper = LeaseKeeper(store)
    hold = keeper.watch(claim_of(60_000), Losses())

    async def elsewhere() -> None:
        keeper.watch(claim_of(), Losses())

    with pytest.raises(RuntimeError, match="one event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())
    hold.release()


# ---------------------------------------------------------------------- with the real stores


async def test_new_requests_are_told(kit: Kit) -> None:
    told = asyncio.Event()
    claim = await held(kit, ttl_ms=900)
    keeper = LeaseKeeper(kit.store)
    hold = keeper.watch(claim, Losses(), told.set)
    await kit.store.ask("r", b"cancel")
    await told.wait()
    hold.release()
    await keeper.aclose()


async def test_many_leases_are_extended_in_one_write(redis_kit: RedisKit) -> None:
    kit = redis_kit
    claims = [await held(kit, f"r{i}", ttl_ms=LONG) for i in range(100)]
    keeper, losses = LeaseKeeper(kit.store), Losses()
    holds = [keeper.watch(claim, losses) for claim in claims]
    for claim in claims:
        claim.trusted_until = time.monotonic()
    kit.faults.seen.clear()
    keeper._extend_due(time.monotonic())
    keeper._extend_due(time.monotonic())
    await asyncio.gather(*keeper._round)
    assert kit.faults.seen == ["lease_extend"] * 100
    assert all(claim.trusted for claim in claims)
    assert not losses.errors
    for hold in holds:
        hold.release()
    await keeper.aclose()


async def test_an_extension_under_way_while_the_run_is_closed_is_no_loss(kit: Kit) -> None:
    claim, losses = await held(kit), Losses()
    keeper = LeaseKeeper(kit.store)
    hold = keeper.watch(claim, losses)
    claim.trusted_until = time.monotonic()
    keeper._extend_due(time.monotonic())
    hold.release()
    await kit.store.close(claim, "completed", b"")
    await asyncio.gather(*keeper._round)
    assert not losses.errors
    assert claim.lost == ""
    await keeper.aclose()


async def test_the_one_that_was_taken_over_is_told(kit: Kit) -> None:
    claim, losses = await held(kit, ttl_ms=600), Losses()
    keeper = LeaseKeeper(kit.store)
    keeper.watch(claim, losses)
    await kit.expire_lease("r")
    taken = await kit.store.take("r", ["running"], ttl_ms=LONG)
    assert isinstance(taken, Claim)
    await losses.happened.wait()
    with pytest.raises(OwnershipLost):
        await kit.store.save(claim, Changes())
    with pytest.raises(OwnershipLost):
        await kit.store.save(twin(claim), Changes())
    await keeper.aclose()


async def test_volatile_time_is_its_own() -> None:
    kit = VolatileKit()
    claim = await held(kit, ttl_ms=50)
    assert claim.trusted
