"""Context variables: what a body sets is its own, what the caller set is everybody's, on every path."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.graphs import Behaviour, Graph
from tests.properties.stage import Stage
from tests.properties.strategies import hooks, plays

OWN: contextvars.ContextVar[str] = contextvars.ContextVar("props_own", default="unset")
CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("props_caller", default="unset")


class WatchingStage(Stage):
    """Bodies and rollback actions look at what they see, set something, and look again after having waited."""

    async def wait(self, item: Any) -> None:
        self.look(item, "unset")
        OWN.set(str(item))
        CALLER.set("changed")
        await asyncio.sleep(0)
        await super().wait(item)
        if OWN.get() != str(item):
            self.complaints.append(f"{item} lost what it had set: {OWN.get()!r}")

    def look(self, item: Any, own: str) -> None:
        if OWN.get() != own:
            self.complaints.append(f"{item} sees what {OWN.get()!r} set")
        if CALLER.get() != "caller":
            self.complaints.append(f"{item} does not see what the caller set: {CALLER.get()!r}")


async def _play(graph: Graph, behaviour: Behaviour, hooks: str, schedule: list[int]) -> None:
    stage = WatchingStage(graph, behaviour, hooks)
    CALLER.set("caller")
    await stage.begin()
    try:
        for turn in range(400):
            if stage.task.done():
                break
            items = sorted(stage.items, key=str)
            assert items
            await stage.release(items[(schedule[turn] if turn < len(schedule) else 0) % len(items)])
        assert stage.task.done()
        assert not stage.complaints, stage.complaints
        assert (OWN.get(), CALLER.get()) == ("unset", "caller")
    finally:
        await stage.tear_down()


@given(play=plays(), hooks=hooks, schedule=st.lists(st.integers(0, 7), max_size=30))
def test_bodies_do_not_see_each_others_variables(play: Any, hooks: str, schedule: list[int]) -> None:
    graph, behaviour = play
    asyncio.run(_play(graph, behaviour, hooks, schedule))
