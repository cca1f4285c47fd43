"""The same reactors give the same trace and outcome, with a store and without."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioreactor import Runtime, Settings
from aioreactor.clock import SYSTEM_CLOCK
from aioreactor.definition.policies import Durability
from aioreactor.embedded import EmbeddedServer
from tests.integration.durable.kit import Place
from tests.properties.graphs import Behaviour, ComposeSpec, Graph, Item, MapSpec
from tests.properties.stage import Stage
from tests.properties.strategies import plays
from tests.scenarios import kit as scenarios
from tests.scenarios import test_sequences

LEVELS: tuple[Durability, ...] = ("step", "batched", "exit")
TABLES = [test for name, test in vars(test_sequences).items() if name.startswith("test_")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("table", TABLES, ids=lambda test: test.__name__)
async def test_the_tables_hold_with_a_store(place: Place, table: Callable[[], Any], level: Durability) -> None:
    scenarios.script.reset()
    try:
        async with place.another(durability=level):
            await table()
    finally:
        scenarios.script.reset()


def _one_at_a_time(graph: Graph) -> None:
    """Each node after all before it: what runs when is not a matter of chance."""
    graph.max_concurrency = 1
    for position, node in enumerate(graph.nodes):
        before = [other.name for other in graph.nodes[:position]]
        node.after = [*node.after, *(name for name in before if name not in node.after)]
        if isinstance(node, MapSpec):
            node.concurrency = 1
        inner: Any = node.child if isinstance(node, ComposeSpec) else getattr(node, "element", None)
        if isinstance(inner, Graph):
            _one_at_a_time(inner)


class Hasty:
    """Waits between attempts are over at once; other timers never ring."""

    now = staticmethod(SYSTEM_CLOCK.now)
    monotonic = staticmethod(SYSTEM_CLOCK.monotonic)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        if delay <= 1000.0:
            return asyncio.get_running_loop().call_later(1e6, callback)
        return asyncio.get_running_loop().call_soon(callback)


class Unstaged(Stage):
    """Bodies end by themselves."""

    async def wait(self, item: Item) -> None:
        self.log.append(str(item))


async def _play(graph: Graph, behaviour: Behaviour, **options: Any) -> tuple[str, str, list[str], str]:
    stage = Unstaged(graph, behaviour)
    async with Runtime(Settings(clock=Hasty(), **options)):
        outcome = await stage.reactor.run()
    assert not stage.complaints
    left = sorted(map(str, getattr(outcome, "rollback_failures", [])))
    return outcome.status, str(outcome.trace), stage.log, f"{sorted(outcome.results)} {left}"


@settings(
    deadline=None,
    max_examples=1000 if os.environ.get("AIOREACTOR_FAULTS") == "deep" else 60,
    print_blob=True,
    suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
)
@given(st.data())
def test_random_graphs_give_the_same(server: EmbeddedServer, data: Any) -> None:
    graph, behaviour = data.draw(plays(depth=2))
    level = data.draw(st.sampled_from(LEVELS))
    _one_at_a_time(graph)

    async def compare() -> None:
        async with asyncio.timeout(20):
            without = await _play(graph, behaviour)
            with_store = await _play(graph, behaviour, redis_url=server.url, key_prefix="same", durability=level)
        assert with_store == without

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(compare())
    finally:
        logging.disable(logging.NOTSET)
