"""The engine against the model: the same graph, the same behaviour, the same schedule, compared after every event."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from aioreactor import Failure, Halt, Success
from tests.properties.graphs import Behaviour, Graph
from tests.properties.model import Model
from tests.properties.stage import Stage, origin, plain_value
from tests.properties.strategies import hooks, plays, schedules


class Drive:
    """Runs both and compares."""

    def __init__(self, graph: Graph, behaviour: Behaviour, hooks: str) -> None:
        self.stage = Stage(graph, Behaviour(dict(behaviour.body), dict(behaviour.rollback)), hooks)
        self.model = Model(graph, behaviour)

    async def play(self, schedule: list[int], cancel_at: int | None) -> None:
        stage, model = self.stage, self.model
        await stage.begin()
        try:
            for turn in range(400):
                self.compare()
                if model.done:
                    break
                if turn == cancel_at and self.may_cancel():
                    model.cancel(await self._cancelled())
                    continue
                items = sorted(model.items, key=str)
                assert items, f"nothing is in flight, yet the run is not over\n{self.story()}"
                item = items[(schedule[turn] if turn < len(schedule) else 0) % len(items)]
                note(f"end {item}")
                model.end(item, await stage.release(item))
                assert model.expected_cuts == set(stage.cuts), self.story()
            await self.check_end()
        finally:
            await stage.tear_down()

    async def _cancelled(self) -> Any:
        note("cancel the run")
        return await self.stage.cancel()

    def may_cancel(self) -> bool:
        """Only where the rules leave no choice: while bodies run and nobody waits for another attempt."""
        kinds = {item.kind for item in self.model.items}
        return self.model.concluding or ("run" in kinds and "wait" not in kinds)

    def compare(self) -> None:
        problem = self.model.follow(self.stage.items)
        assert problem is None, f"{problem}\n{self.story()}"
        assert self.stage.items == self.model.items, self.story()
        assert sorted(self.stage.log) == sorted(self.model.log), self.story()
        assert not self.stage.complaints, self.stage.complaints

    def story(self) -> str:
        engine, model = self.stage, self.model
        return (
            f"engine: {' '.join(engine.log)}\n model: {' '.join(model.log)}\n"
            f"engine in flight: {sorted(map(str, engine.items))}, done: {engine.task.done()}\n"
            f" model in flight: {sorted(map(str, model.items))}, done: {model.done}"
        )

    async def check_end(self) -> None:
        stage, model = self.stage, self.model
        assert stage.task.done(), f"the run does not end\n{self.story()}"
        assert not stage.leaked_tasks()
        self.check_ledger()
        if model.cancelled:
            assert stage.task.cancelled(), f"the cancellation did not reach the caller: {stage.task!r}"
            return
        outcome = stage.task.result()
        if model.errors:
            assert isinstance(outcome, Failure), (outcome, self.story())
            assert outcome.step == model.errors[0][0]
            assert [origin(error) for error in outcome.errors] == [path for path, _ in model.errors]
            assert origin(outcome.error) == model.errors[0][0]
            assert outcome.status == "failed"
        elif model.halt is not None:
            assert isinstance(outcome, Halt), (outcome, self.story())
            assert (outcome.step, outcome.reason, outcome.status) == (model.halt, model.halt, "halted")
            assert [origin(error) for error in outcome.errors] == [path for path, _ in model.late]
        else:
            assert isinstance(outcome, Success), (outcome, self.story())
            assert _plain(outcome.value) == _plain(model.root.value())
        if not isinstance(
            outcome, Success
        ):  # those of an element that failed in a map that collects are in its outcome
            failures = [(failed.step, failed.kind, failed.reason) for failed in outcome.rollback_failures]
            assert failures == model.rollback_failures
        assert {name: plain_value(item) for name, item in outcome.results.items()} == _plain(model.root.values)
        shown = [f"{e.kind}:{e.path}" for e in outcome.trace.only("run", "compensate", "undo", "undo_all")]
        assert shown == [entry.partition("#")[0] for entry in stage.log]

    def check_ledger(self) -> None:
        """Independent of the model's order: nothing is undone or compensated twice."""
        actions = [entry for entry in self.stage.log if not entry.startswith("run:")]
        assert len(actions) == len(set(actions)), self.story()


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _plain(item) for name, item in found.items()}
    if isinstance(found, list):
        return [(kind, item[0] if kind == "failed" else _plain(item)) for kind, item in found]
    if isinstance(found, Success):
        return _plain(found.value)
    return plain_value(found) if not isinstance(found, str) else found


@given(play=plays(), schedule=schedules, hooks=hooks)
def test_any_graph_under_any_schedule(play: Any, schedule: list[int], hooks: str) -> None:
    graph, behaviour = play
    asyncio.run(Drive(graph, behaviour, hooks).play(schedule, None))


@given(play=plays(), schedule=schedules, hooks=hooks, at=st.integers(0, 12))
def test_the_run_is_cancelled_somewhere(play: Any, schedule: list[int], hooks: str, at: int) -> None:
    graph, behaviour = play
    asyncio.run(Drive(graph, behaviour, hooks).play(schedule, at))


@given(play=plays(bounds=True), schedule=schedules, at=st.none() | st.integers(0, 12))
def test_max_concurrency(play: Any, schedule: list[int], at: int | None) -> None:
    graph, behaviour = play
    asyncio.run(Drive(graph, behaviour, "none").play(schedule, at))
