"""Rings: arq's own wire form, in bulk, by the server's clock, repeatable; and what a foreign queue may hold."""

from __future__ import annotations

import datetime
import decimal
import pickle
import uuid
from typing import Any

import pytest
from arq.connections import ArqRedis
from arq.jobs import deserialize_job
from arq.worker import Worker as StockWorker
from arq.worker import func

from aioreactor.jobs import payload
from aioreactor.jobs.queue import MAX_DUE_MS, MAX_WAKES, JobQueue
from aioreactor.jobs.settings import redis_settings
from aioreactor.store.client import StoreClient
from aioreactor.store.scripts import ScriptLibrary
from tests.conformance.kit import Faults
from tests.integration.jobs.stage import Stage


async def test_a_ring_is_a_job_as_arq_writes_it(stage: Stage, queue: JobQueue, arq_pool: ArqRedis) -> None:
    await queue.ring(["r1"])
    await arq_pool.enqueue_job("theirs", 1)
    ours, theirs = sorted(await arq_pool.queued_jobs(), key=lambda job: job.function)
    assert (ours.function, ours.args, ours.kwargs) == (payload.CARRY, (1, ["r1"]), {})
    raw = [pickle.loads(await stage.redis.get(f"arq:job:{job.job_id}")) for job in (ours, theirs)]
    assert raw[0].keys() == raw[1].keys()
    ttls = [await stage.redis.pttl(f"arq:job:{job.job_id}") for job in (ours, theirs)]
    assert abs(ttls[0] - ttls[1]) < 60_000


async def test_a_stock_worker_runs_it(stage: Stage, queue: JobQueue) -> None:
    """Nothing of it is configured for us but the function's name."""
    got: list[Any] = []

    async def carry(ctx: dict[Any, Any], *args: Any) -> None:
        got.append((ctx["job_id"], args))

    await queue.ring([f"r{number}" for number in range(100)])
    worker = StockWorker(
        [func(carry, name=payload.CARRY, keep_result=0)],
        redis_settings=redis_settings(stage.url),
        queue_name=stage.queue_name,
        burst=True,
        poll_delay=0,
        handle_signals=False,
    )
    await worker.async_run()
    with pytest.warns(DeprecationWarning):
        await worker.close()
    assert sorted(run_id for _, (_, run_ids) in got for run_id in run_ids) == sorted(f"r{n}" for n in range(100))
    assert all(payload.is_ours(job_id.encode()) for job_id, _ in got)
    assert await stage.redis.keys(f"{stage.queue_name}*") in ([], [queue.wake_key.encode()])


async def test_few_runs_are_spread_and_many_share_jobs(stage: Stage, queue: JobQueue) -> None:
    await queue.ring(["a", "b", "a"])
    assert await stage.queued() == 2
    await stage.redis.delete(stage.queue_name)
    await queue.ring(f"r{number}" for number in range(10_000))
    assert await stage.queued() == -(-10_000 // 64)


async def test_many_rings_are_one_round_trip(stage: Stage) -> None:
    """Sent before the first answer has come."""
    faults = Faults()
    client = StoreClient(stage.url, hook=faults)
    sent_at_first_reply: list[int] = []
    faults.on_reply = lambda call: sent_at_first_reply.append(faults.seen.count("jobs_ring"))
    queue = JobQueue(client, stage.queue_name)
    await queue.ring(["warm"])
    sent_at_first_reply.clear()
    faults.seen.clear()
    await queue.ring([f"r{number}" for number in range(5000)], chunk=1)
    assert sent_at_first_reply[0] > 1
    assert await stage.queued() == 5001
    await client.aclose()


async def test_a_ring_whose_reply_is_lost_is_there_once(stage: Stage) -> None:
    faults = Faults()
    faults.after["jobs_ring"] = ConnectionResetError()
    client = StoreClient(stage.url, hook=faults)
    await JobQueue(client, stage.queue_name).ring(["a", "b", "c"])
    assert faults.seen.count("jobs_ring") == 2
    assert await stage.queued() == 3
    await client.aclose()


async def test_due_counts_from_the_servers_now(stage: Stage, queue: JobQueue) -> None:
    seconds, micros = await stage.redis.time()
    await queue.ring(["now"], due_ms=None)
    await queue.ring(["later"], due_ms=60_000)
    (_, now), (later_id, later) = await stage.redis.zrange(stage.queue_name, 0, -1, withscores=True)
    begin = seconds * 1000 + micros // 1000
    assert begin <= now <= begin + 30_000
    assert begin + 60_000 <= later <= begin + 90_000
    assert await stage.redis.pttl(payload.job_key(later_id.decode())) > 86_400_000


@pytest.mark.parametrize("due_ms", [-1, MAX_DUE_MS + 1])
async def test_a_due_that_cannot_be_is_refused(queue: JobQueue, due_ms: int) -> None:
    with pytest.raises(ValueError, match="due_ms"):
        await queue.ring(["a"], due_ms=due_ms)


async def test_nothing_to_ring_for_is_nothing(stage: Stage, queue: JobQueue) -> None:
    await queue.ring([])
    assert await queue.ring_lost([]) == 0
    assert await stage.queued() == 0


async def test_wake_tokens_are_few_and_expire(stage: Stage, queue: JobQueue) -> None:
    await queue.ring(["later"], due_ms=60_000)
    assert await stage.redis.llen(queue.wake_key) == 0
    await queue.ring(["soon"], due_ms=500)
    assert await stage.redis.llen(queue.wake_key) == 1
    await queue.ring([f"r{number}" for number in range(1000)], chunk=1)
    assert await stage.redis.llen(queue.wake_key) == MAX_WAKES
    assert 0 < await stage.redis.pttl(queue.wake_key) <= 5000


async def test_a_loss_is_rung_for_once(stage: Stage, queue: JobQueue) -> None:
    assert await queue.ring_lost([("a", "1"), ("b", "1")]) == 2
    assert await queue.ring_lost([("a", "1"), ("a", "2")]) == 1
    assert await stage.queued() == 3


async def test_a_body_without_a_place_in_the_queue_is_rung_again(stage: Stage, queue: JobQueue) -> None:
    await queue.ring_lost([("a", "1")])
    await stage.redis.delete(stage.queue_name)
    assert await queue.ring_lost([("a", "1")]) == 1
    assert await stage.queued() == 1


async def test_a_url_makes_a_client_of_its_own(stage: Stage) -> None:
    queue = JobQueue(stage.url, stage.queue_name)
    await queue.ring(["a"])
    await queue.aclose()
    assert await stage.queued() == 1


async def test_a_cluster_cannot_be_a_queue() -> None:
    with pytest.raises(ValueError, match="Cluster"):
        redis_settings("redis+cluster://localhost:1")


def test_settings_carry_what_a_url_says() -> None:
    found = redis_settings("rediss://me:p%40ss@host:7000/3?ssl_ca_certs=/ca.pem")
    assert (found.host, found.port, found.database, found.ssl) == ("host", 7000, 3, True)
    assert (found.username, found.password, found.ssl_ca_certs) == ("me", "p@ss", "/ca.pem")
    found = redis_settings("redis+sentinel://a:1,b:2/primary/4")
    assert (found.host, found.sentinel, found.sentinel_master, found.database) == (
        [("a", 1), ("b", 2)],
        True,
        "primary",
        4,
    )


def test_the_scripts_keep_to_the_rules() -> None:
    assert ScriptLibrary("aioreactor.jobs", shared=[ScriptLibrary("aioreactor.store")]).audit() == []


PLAIN = [
    1, "é", b"x", 1.5, None, True, (1, [2], {"a": {3}}), frozenset({1}),
    datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), datetime.date(2020, 1, 2), datetime.timedelta(1),
    decimal.Decimal("1.10"), uuid.UUID(int=7),
]  # fmt: skip


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_is_read(value: object, protocol: int) -> None:
    job: dict[str, Any] = {"t": None, "f": "theirs", "a": (value,), "k": {}, "et": 1}
    assert payload.loads_plain(pickle.dumps(job, protocol)) == job


class Evil:
    def __reduce__(self) -> Any:
        return print, ("called",)


def test_nothing_in_the_queue_can_call_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(payload.NotPlain, match="builtins.print"):
        payload.loads_plain(pickle.dumps({"a": Evil()}))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((2, ["a"]), {}), ((1, "a"), {}), ((1, [1]), {}), ((1, ["a"]), {"x": 1}), ((1, ["a"], 3), {})],
)
def test_other_arguments_are_not_ours(args: Any, kwargs: Any) -> None:
    assert payload.run_ids_in(args, kwargs) is None


async def test_own_serializers_are_used(stage: Stage) -> None:
    def dumps(job: dict[str, Any]) -> bytes:
        return repr(job).encode()

    await JobQueue(stage.client, stage.queue_name, dumps=dumps).ring(["a"])
    [job_id] = await stage.redis.zrange(stage.queue_name, 0, -1)
    body = await stage.redis.get(f"arq:job:{job_id.decode()}")
    assert body.startswith(b"{'t': None")


async def test_arq_reads_the_body(queue: JobQueue) -> None:
    job = deserialize_job(payload.carry_body(["a"]))
    assert (job.function, job.args) == (payload.CARRY, (1, ["a"]))
