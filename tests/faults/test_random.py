"""Random reactors that lose their run at a random write, and are finished by another execution.

``AIOREACTOR_FAULTS=deep`` looks long; a failure prints a blob that repeats it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter
from typing import Any, cast

import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aioreactor import OwnershipLost, Runtime, Settings, runs, sweep
from aioreactor.definition.policies import Durability
from aioreactor.embedded import EmbeddedServer
from aioreactor.store.calls import Call
from aioreactor.store.client import StoreClient
from aioreactor.store.records import TERMINAL
from aioreactor.store.store import RunStore
from tests.integration.durable.test_same_as_volatile import LEVELS, Hasty, Unstaged, _one_at_a_time
from tests.properties.strategies import plays

DEEP = os.environ.get("AIOREACTOR_FAULTS") == "deep"
WRITES = {"run_save", "run_close"}
_numbers = itertools.count()


class Thief:
    """At the n-th write somebody else has taken the run: before it is applied, or after."""

    def __init__(self, server: redis.Redis, key: str, at: int, *, after: bool) -> None:
        self.server, self.key, self.at, self.after = server, key, at, after
        self.seen = 0
        self.done = False

    def _steal(self) -> None:
        self.done = True
        if self.server.hget(self.key, "token"):
            self.server.hset(self.key, mapping={"token": "thief", "lease_ms": 1, "updated_ms": 1})

    def before_send(self, call: Call) -> None:
        if call.name in WRITES and not self.after:
            if self.seen == self.at:
                self._steal()
            self.seen += 1

    def after_reply(self, call: Call, reply: Any) -> None:
        if call.name in WRITES and self.after:
            if self.seen == self.at:
                self._steal()
            self.seen += 1


def _plain(log: list[str]) -> list[str]:
    return [line.partition("#")[0] for line in log]


def _per_path(log: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in log:
        mine = found.setdefault(line.partition(":")[2], [])
        if mine[-1:] != [line]:
            mine.append(line)
    return found


async def _check(url: str, graph: Any, behaviour: Any, level: Durability, at: int, after: bool) -> None:
    prefix = f"r{os.getpid()}-{next(_numbers)}"
    undisturbed = Unstaged(graph, behaviour)
    async with Runtime(Settings(clock=Hasty())):
        expected = await undisturbed.reactor.run()
    stage = Unstaged(graph, behaviour)
    stage.complaints = []
    options: dict[str, Any] = {"clock": Hasty(), "redis_url": url, "key_prefix": prefix, "lease_ttl": 30.0}
    options["durability"] = level
    with redis.Redis.from_url(url) as server:
        runtime = Runtime(Settings(**options))
        assert runtime.durable is not None
        thief = Thief(server, f"{prefix}:{{x}}:run", at, after=after)
        runtime.durable.client = StoreClient(url, hook=thief)
        runtime.durable.store = RunStore(runtime.durable.client, prefix=prefix)
        thief.key = runtime.durable.store.space.run("x")
        async with runtime:
            try:
                outcome = await stage.reactor.with_options(run_id="x").run()
            except OwnershipLost:
                outcome = None
        if outcome is None:
            server.zadd(f"{prefix}:{{:index}}:live", {"x": 1})
            async with Runtime(Settings(**options)):
                assert await sweep() == ["x"]
        async with Runtime(Settings(**options)):
            found = await runs.find("x")
        keys: Any = server.keys(f"{prefix}:*")
        for key in keys:
            expires_in: Any = server.pttl(key)
            assert b"{:index}" in key or expires_in > 0
            server.delete(key)
    assert found.status in TERMINAL
    have, want = _plain(stage.log), _plain(undisturbed.log)
    assert found.status == expected.status, (have, want)
    assert not Counter(want) - Counter(have), (have, want)
    more = Counter(have) - Counter(want)
    if level != "step":
        more = Counter({line: count for line, count in more.items() if not line.startswith("run:")})
    assert more.total() <= (outcome is None), (have, want)
    assert _per_path(have) == _per_path(want)
    assert sorted(found.results) == sorted(expected.results)


@settings(
    deadline=None,
    max_examples=2000 if DEEP else 80,
    print_blob=True,
    suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
    phases=[Phase.generate],
)
@given(st.data())
def test_random_reactors_at_random_writes(server: EmbeddedServer, data: Any) -> None:
    graph, behaviour = data.draw(plays(depth=2))
    behaviour.rollback.clear()
    behaviour.body = {path: plan[:1] for path, plan in behaviour.body.items()}
    _one_at_a_time(graph)
    at, after, level = data.draw(st.integers(0, 14)), data.draw(st.booleans()), data.draw(st.sampled_from(LEVELS))

    async def check() -> None:
        async with asyncio.timeout(5):
            await _check(server.url, graph, behaviour, level, at, after)

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(check())
    finally:
        logging.disable(logging.NOTSET)
