"""The run state by itself, event by event, without a loop: any legal order of events keeps its books straight."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aioreactor.engine.rollback_order import done, next_action
from aioreactor.engine.scope import Failed, MapRun, NodeStatus, Scope
from aioreactor.engine.state import RunState
from aioreactor.engine.state_effects import RollBack
from aioreactor.plan.model import Arg
from tests.properties.graphs import Behaviour, Graph
from tests.properties.stage import Stage
from tests.properties.strategies import graphs

EVENTS = ("complete", "complete", "complete", "complete", "skip", "halt", "fail", "refuse", "retry", "cut", "cancel")
IN_PROGRESS = (NodeStatus.READY, NodeStatus.RUNNING)
Ready = tuple[Scope, int]


class Books:
    """Plays the scheduler: opens children and maps, answers every step with some event, and counts for itself."""

    def __init__(self, graph: Graph) -> None:
        plan = Stage(graph, Behaviour()).reactor.plan
        self.graph = graph
        self.state = RunState(plan, "run", lambda: 0.0)
        self.running: list[Ready] = []
        self.rolling: list[Scope] = []
        self.feeding: list[tuple[MapRun, int]] = []
        self.completed: set[str] = set()
        self.owed: set[str] = set()
        self.called: Counter[str] = Counter()
        self.open(self.state.open_root(None, {}))
        self.after()

    # ------------------------------------------------------------------ the scheduler's part

    def open(self, ready: Any) -> None:
        """Take what is ready, in order."""
        todo = list(ready)
        while todo:
            scope, index = todo.pop(0)
            node = scope.plan.nodes[index]
            if scope.stopped:
                todo += self.state.drop(scope, index)
            elif node.kind == "step":
                assert scope.status[index] in IN_PROGRESS
                assert (scope, index) not in self.running
                self.running.append((scope, index))
            elif node.kind == "compose":
                todo += self.state.open_child(scope, index, None, {})
            elif scope.children and index in scope.children:
                todo += self.state.complete(scope, index, "map")
            else:
                self.feeding.append((self.state.open_map(scope, index), self.size_of(scope, index)))
                todo += self.feed()

    def size_of(self, scope: Scope, index: int) -> int:
        over = scope.plan.nodes[index].over
        assert isinstance(over, Arg)
        return len(list(over.value))

    def feed(self) -> list[Ready]:
        ready: list[Ready] = []
        for run, size in list(self.feeding):
            while not run.stopped and run.opened < size and run.has_room:
                ready += self.state.begin_element(self.state.open_element(run, run.opened))
            if run.stopped or (run.opened == size and run.has_room):
                self.feeding.remove((run, size))
                ready += self.state.source_ended(run)
        return ready

    def after(self) -> None:
        """Empty the effects, feed the maps, and check the books."""
        while True:
            ready = self.feed()
            effects = list(self.state.effects)
            self.state.effects.clear()
            for effect in effects:
                if isinstance(effect, RollBack):
                    assert effect.scope not in self.rolling
                    self.rolling.append(effect.scope)
            if not ready and not self.state.effects:
                break
            self.open(ready)
        self.check()

    def check(self) -> None:
        counted: Counter[int] = Counter()
        for scope in self.state.scopes():
            in_progress = sum(status in IN_PROGRESS for status in scope.status)
            assert scope.active == in_progress >= 0, scope.path
            done_here = sum(s in (NodeStatus.COMPLETED, NodeStatus.SKIPPED) for s in scope.status)
            assert scope.left == len(scope.plan.nodes) - done_here
            assert len(set(scope.completed)) == len(scope.completed)
            counted[id(scope)] = in_progress
        for scope, index in self.running:
            assert scope.status[index] in IN_PROGRESS
        idle = not self.running and not self.rolling
        assert self.state.settled == idle, "settled exactly when nothing is in progress"
        if self.state.completed:
            assert idle

    # ------------------------------------------------------------------ events

    def happen(self, event: str, which: int) -> None:
        state = self.state
        if self.rolling and (which % 3 == 0 or not self.running):
            self.roll_back(self.rolling.pop(which % len(self.rolling)))
        elif event == "cancel":
            state.cancel()
        elif self.running:
            scope, index = self.running[which % len(self.running)]
            path = scope.path_of(index)
            if event == "retry" and not scope.stopped:
                state.retrying(
                    scope, index, Failed(ValueError(path), scope, index, attempts=scope.attempt_of(index) + 1), 0.0
                )
            else:
                self.running.remove((scope, index))
                self.open(self.end(event, scope, index, path))
        self.after()

    def end(self, event: str, scope: Scope, index: int, path: str) -> Any:
        state = self.state
        if event in {"complete", "retry", "cancel"}:
            self.completed.add(path)
            return state.complete(scope, index, path)
        if event == "skip":
            return state.complete(scope, index, path, skipped=True)
        if event == "halt":
            return state.halted(scope, index, "reason")
        if event == "cut" and scope.stopped:
            self.owed.add(path)
            return state.cut(scope, index, ValueError(path))
        if event == "refuse" and not scope.attempt_of(index):
            return state.fail(scope, index, Failed(ValueError(path), scope, index), started=False)
        self.owed.add(path)
        return state.fail(scope, index, Failed(ValueError(path), scope, index, attempts=1), started=True)

    def roll_back(self, scope: Scope) -> None:
        self.carry_out(scope, undo=True)
        self.open(self.state.rolled_back(scope))

    def carry_out(self, scope: Scope, *, undo: bool) -> None:
        while (action := next_action(scope, undo=undo)) is not None:
            assert next_action(scope, undo=undo) == action, "it stays next until it is done"
            self.called[f"{action.kind}:{action.path}"] += 1
            done(action)
        assert next_action(scope, undo=undo) is None

    def finish(self, rollback: bool) -> None:
        root = self.state.root
        if self.state.failures or self.state.cancelled or rollback:
            self.carry_out(root, undo=True)
            self.check_everything_reversed()
        elif self.state.halt is not None:
            self.carry_out(root, undo=False)
            assert all(self.called[f"compensate:{path}"] == 1 for path in self.owed_with_compensate())
        assert all(count == 1 for count in self.called.values()), self.called

    def owed_with_compensate(self) -> list[str]:
        return [path for path in self.owed if self.plan_of(path).compensate is not None]

    def plan_of(self, path: str) -> Any:
        return self.nodes[path]

    def check_everything_reversed(self) -> None:
        for path in self.owed_with_compensate():
            assert self.called[f"compensate:{path}"] == 1, (path, self.called)
            assert f"undo:{path}" not in self.called
        for path in self.completed:
            if self.nodes[path].undo is not None and not self.in_undo_all(path):
                assert self.called[f"undo:{path}"] == 1, (path, self.called)
        for call in self.called:
            kind, _, path = call.partition(":")
            assert kind == "undo_all" or path in (self.owed if kind == "compensate" else self.completed)

    def in_undo_all(self, path: str) -> bool:
        return path.endswith("]") and f"undo_all:{path[: path.rindex('[')]}" in self.called

    @property
    def nodes(self) -> dict[str, Any]:
        return {
            scope.path_of(node.index): node
            for scope in self.state.scopes()
            for node in scope.plan.nodes
            if node.kind == "step"
        }


@given(
    graph=graphs(),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=40),
    rest=st.integers(0, 5),
)
def test_any_legal_order_of_events(graph: Graph, events: list[tuple[str, int]], rest: int) -> None:
    books = Books(graph)
    for event, which in events:
        books.happen(event, which)
    for _ in range(500):
        if books.state.settled:
            break
        books.happen("complete", rest)
    assert books.state.settled, "completing everything ends the run"
    if not books.state.root.stopped:
        assert books.state.completed
    books.finish(rollback=False)


@given(graph=graphs(), which=st.lists(st.integers(0, 11), max_size=30))
def test_a_run_that_completed_is_undone_whole_and_newest_first(graph: Graph, which: list[int]) -> None:
    books = Books(graph)
    order = []
    for turn in range(500):
        if books.state.settled:
            break
        before = set(books.completed)
        books.happen("complete", which[turn] if turn < len(which) else 0)
        order += list(books.completed - before)
    assert books.state.completed
    books.finish(rollback=True)
    plain = [path for path in reversed(order) if "." not in path and "[" not in path]
    undone = [call.partition(":")[2] for call in books.called if call.startswith("undo:")]
    assert [path for path in undone if path in plain] == [p for p in plain if books.nodes[p].undo is not None]
