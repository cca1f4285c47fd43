"""The rules of a run, one event at a time, in plain sequential Python: what the engine has to agree with.

The model is told what ends (`end`), that the run was cancelled (`cancel`), and, where the rules leave a choice,
what the engine chose: the order in which bodies noticed that they were cancelled, and which of the ready steps got
a slot of a ``max_concurrency``. It says what is in flight now, what was called in which order, and the outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.properties.graphs import (
    FAILING,
    RETRYABLE,
    ROLLBACK_REASON,
    Behaviour,
    ComposeSpec,
    Graph,
    Item,
    MapSpec,
    StepSpec,
)

FIRST = (-1, 0)
SKIPPED = "skipped"
COMPLETED = "completed"


class Scope:
    """One reactor at work."""

    def __init__(self, graph: Graph, parent: Scope | MapRun | None, name: str, path: str) -> None:
        self.graph = graph
        self.parent = parent
        self.name = name
        self.path = path
        self.waiting = {node.name: set(node.after) for node in graph.nodes}
        self.active: set[str] = set()
        self.status: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.inner: dict[str, Scope | MapRun] = {}
        self.completed: list[str] = []
        self.owed: deque[tuple[str, tuple[int, int]]] = deque()
        """What failed or was cut, with the moment: what has the same moment has no order."""
        self.stopped = False
        self.failure: tuple[str, str] | None = None
        self.halted = False
        self.settled = False
        self.index: int | None = None

    def path_of(self, name: str) -> str:
        if not name:
            return self.path
        return f"{self.path}.{name}" if self.path else name

    @property
    def owner(self) -> Scope | None:
        return self.parent.scope if isinstance(self.parent, MapRun) else self.parent

    def value(self) -> Any:
        return self.values[""] if "" in self.values else dict(self.values)


class MapRun:
    """One map at work."""

    def __init__(self, spec: MapSpec, scope: Scope) -> None:
        self.spec = spec
        self.scope = scope
        self.path = scope.path_of(spec.name)
        self.elements: list[Scope] = []
        self.outcomes: dict[int, tuple[str, Any]] = {}
        self.in_flight = 0
        self.stopped = False
        self.failure: tuple[str, str] | None = None
        self.order: list[int] | None = None
        self.undone = False


class Action(NamedTuple):
    """A rollback action that may come next; ``stick``: the entries that it settles on, innermost first."""

    item: Item
    take_off: Callable[[], object]
    stick: list[tuple[deque[Any], tuple[str, tuple[int, int]]]]


class Model:
    """One run."""

    def __init__(self, graph: Graph, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.root = Scope(graph, None, "", "")
        self.in_flight: dict[Item, tuple[Scope, str]] = {}
        self.queued: list[tuple[Scope, str]] = []
        self.activated: deque[tuple[Scope, str]] = deque()
        self.attempts: dict[str, int] = {}
        self.log: list[str] = []
        self.errors: list[tuple[str, str]] = []
        self.late: list[tuple[str, str]] = []
        self.halt: str | None = None
        self.cancelled = False
        self.concluding = False
        self.done = False
        self.rollback_failures: list[tuple[str, str, str]] = []
        self.rolling: dict[Item, tuple[Scope, bool, Action]] = {}
        self.undecided: list[tuple[Scope, bool]] = []
        self.events = 0
        self.expected_cuts: set[Item] = set()
        self.cuts: list[Item] = []
        self.keeping = False
        self.begin(self.root)
        self.proceed()

    # ------------------------------------------------------------------ what starts

    def begin(self, scope: Scope) -> None:
        ready = [node.name for node in scope.graph.nodes if not node.after]
        self.activate(scope, ready)

    def activate(self, scope: Scope, names: list[str]) -> None:
        scope.active.update(names)
        self.activated += [(scope, name) for name in names]

    def proceed(self) -> None:
        """Start everything that is ready and needs no slot; steps wait in ``queued`` when there are bounds."""
        while self.activated:
            scope, name = self.activated.popleft()
            if scope.stopped:
                self.give_up(scope, name)
                continue
            node = scope.graph.by_name(name)
            if isinstance(node, StepSpec):
                self.start_step(scope, node)
            elif isinstance(node, ComposeSpec):
                child = Scope(node.child, scope, name, scope.path_of(name))
                scope.inner[name] = child
                self.begin(child)
            else:
                run = MapRun(node, scope)
                scope.inner[name] = run
                self.feed(run)
        if not self.root.active and not self.concluding:
            self.conclude()

    def limits(self, scope: Scope) -> list[Scope]:
        found: list[Scope] = []
        current: Scope | None = scope
        while current is not None:
            if current.graph.max_concurrency is not None:
                found.append(current)
            current = current.owner
        return found

    def start_step(self, scope: Scope, node: StepSpec) -> None:
        if node.unresolved:
            self.fail(scope, node.name, (scope.path_of(node.name), "unresolved"), started=False)
        elif self.limits(scope):
            self.queued.append((scope, node.name))
        else:
            self.enter(scope, node.name)

    def enter(self, scope: Scope, name: str) -> None:
        path = scope.path_of(name)
        number = self.attempts.get(path, 0) + 1
        self.attempts[path] = number
        item = Item("run", path, number)
        self.in_flight[item] = (scope, name)
        self.log.append(str(item))

    def busy(self, scope: Scope) -> int:
        """How many bodies run inside this scope."""
        return sum(scope in self.limits(where) for item, (where, _) in self.in_flight.items() if item.kind == "run")

    def admissible(self, scope: Scope) -> bool:
        return all(self.busy(bound) < (bound.graph.max_concurrency or 0) for bound in self.limits(scope))

    def follow(self, seen: set[Item]) -> str | None:
        """Adopt what the engine chose where the rules leave a choice; a text when it was not a legal choice."""
        self.choose(seen)
        return self.admit(seen)

    def admit(self, seen: set[Item]) -> str | None:
        """Adopt the engine's choice among queued steps; a text when it was not a legal one."""
        for scope, name in list(self.queued):
            path = scope.path_of(name)
            if Item("run", path, self.attempts.get(path, 0) + 1) in seen:
                if not self.admissible(scope):
                    return f"{path} started although no slot was free"
                self.queued.remove((scope, name))
                self.enter(scope, name)
        idle = [scope.path_of(name) for scope, name in self.queued if self.admissible(scope)]
        return f"{idle} wait although there are free slots" if idle else None

    def feed(self, run: MapRun) -> None:
        spec = run.spec
        while not run.stopped and len(run.elements) < spec.size and run.in_flight < spec.concurrency:
            index = len(run.elements)
            element_graph = spec.element if isinstance(spec.element, Graph) else Graph([_unnamed(spec.element)])
            element = Scope(element_graph, run, spec.name, f"{run.path}[{index}]")
            element.index = index
            if isinstance(spec.element, StepSpec):
                element.graph.on_failure = run.scope.graph.on_failure
            run.elements.append(element)
            run.in_flight += 1
            self.begin(element)
        self.settle_map(run)

    def give_up(self, scope: Scope, name: str) -> None:
        """A node that was ready does not start any more."""
        scope.active.discard(name)
        self.settle(scope)

    # ------------------------------------------------------------------ what ends

    def end(self, item: Item, cuts: list[Item]) -> None:
        """The schedule ended this; ``cuts``: the bodies the engine cancelled in consequence, in that order."""
        self.cuts = cuts
        self.events += 1
        if item in self.rolling:
            self.end_action(item)
        elif item.kind == "wait":
            scope, name = self.in_flight.pop(item)
            node = scope.graph.by_name(name)
            assert isinstance(node, StepSpec)
            self.start_step(scope, node)
        else:
            self.end_body(item)
        self.proceed()

    def end_body(self, item: Item) -> None:
        scope, name = self.in_flight.pop(item)
        what = self.behaviour.attempt(item.path, item.attempt)
        node = scope.graph.by_name(name)
        assert isinstance(node, StepSpec)
        if what in FAILING:
            if what in RETRYABLE and item.attempt < node.attempts and not scope.stopped:
                self.in_flight[Item("wait", item.path, item.attempt)] = (scope, name)
            else:
                self.fail(scope, name, (item.path, what), started=True)
        elif what == "halt":
            self.halt_at(scope, name, item.path)
        else:
            self.complete(scope, name, item.path, skipped=what == "skip")

    def complete(self, scope: Scope, name: str, value: Any, *, skipped: bool = False) -> None:
        scope.active.discard(name)
        scope.values[name] = value
        scope.status[name] = SKIPPED if skipped else COMPLETED
        if not skipped:
            scope.completed.append(name)
        if len(scope.status) == len(scope.graph.nodes):
            self.close(scope)
        elif scope.stopped:
            self.settle(scope)
        else:
            ready = []
            for node in scope.graph.nodes:
                if name in scope.waiting[node.name]:
                    scope.waiting[node.name].discard(name)
                    if not scope.waiting[node.name]:
                        ready.append(node.name)
            self.activate(scope, ready)

    def close(self, scope: Scope) -> None:
        """All of a scope completed: so did its node."""
        if isinstance(scope.parent, MapRun):
            kind = SKIPPED if "" in scope.status and scope.status[""] == SKIPPED else COMPLETED
            self.element_ended(scope, (kind, scope.value()))
        elif scope.parent is not None:
            self.complete(scope.parent, scope.name, scope.value())

    def fail(self, scope: Scope, name: str, error: tuple[str, str], *, started: bool, cut_short: bool = False) -> None:
        scope.active.discard(name)
        if started:
            scope.owed.append((name, (self.events, int(cut_short))))
        if self.halt is not None or self.cancelled:
            self.late.append(error)
        else:
            self.doom(scope, error)
        self.settle(scope)

    def doom(self, scope: Scope, error: tuple[str, str]) -> None:
        """A failure fails every scope around it, up to the element of a map that collects."""
        chain: list[Scope] = []
        current: Scope | None = scope
        reached_root = True
        while current is not None:
            current.failure = current.failure or error
            chain.append(current)
            if isinstance(current.parent, MapRun):
                if not current.parent.spec.atomic:
                    reached_root = False
                    break
                current.parent.failure = current.parent.failure or error
            current = current.owner
        if reached_root:
            self.errors.append(error)
        already = chain[-1].stopped
        self.stop(chain[-1])
        if not already:
            self.cut_short(chain[-1])
        for each in chain:
            if each.graph.on_failure == "cancel":
                self.cut_bodies(each)

    def stop(self, scope: Scope) -> None:
        scope.stopped = True
        for inner in scope.inner.values():
            if isinstance(inner, Scope):
                self.stop(inner)
            else:
                inner.stopped = True
                for index, element in enumerate(inner.elements):
                    if index not in inner.outcomes:
                        self.stop(element)

    def cut_short(self, top: Scope) -> None:
        """Nothing new starts in stopped scopes: what waits for a slot is dropped, what backs off fails now."""
        for entry in list(self.queued):
            if entry[0].stopped and entry in self.queued:
                self.queued.remove(entry)
                path = entry[0].path_of(entry[1])
                if self.attempts.get(path):
                    what = self.behaviour.attempt(path, self.attempts[path])
                    self.fail(entry[0], entry[1], (path, what), started=True, cut_short=True)
                else:
                    self.give_up(*entry)
        for item, (scope, name) in list(self.in_flight.items()):
            if item.kind == "wait" and scope.stopped and item in self.in_flight:
                del self.in_flight[item]
                what = self.behaviour.attempt(item.path, item.attempt)
                self.fail(scope, name, (item.path, what), started=True, cut_short=True)
        for run in self.maps(top):
            self.settle_map(run)

    def maps(self, scope: Scope) -> list[MapRun]:
        found: list[MapRun] = []
        for inner in scope.inner.values():
            if isinstance(inner, Scope):
                found += self.maps(inner)
            else:
                found.append(inner)
                for element in inner.elements:
                    found += self.maps(element)
        return found

    def cut_bodies(self, top: Scope) -> None:
        """Bodies in flight below are cancelled, in the order in which they noticed."""
        due = [item for item, (scope, _) in self.in_flight.items() if item.kind == "run" and _is_below(scope, top)]
        for item in sorted(due, key=lambda each: self.cuts.index(each) if each in self.cuts else -1):
            self.expected_cuts.add(item)
            scope, name = self.in_flight.pop(item, (None, ""))
            if scope is not None:
                scope.active.discard(name)
                scope.owed.append((name, (self.events, 1)))
                self.settle(scope)

    def halt_at(self, scope: Scope, name: str, path: str) -> None:
        scope.active.discard(name)
        inner = self.skipping(scope)
        if inner is not None:
            if inner.failure is None and not inner.stopped:
                inner.halted = True
                self.stop(inner)
                self.cut_short(inner)
        elif not self.root.stopped:
            self.halt = path
            self.stop(self.root)
            self.cut_short(self.root)
        self.settle(scope)

    def skipping(self, scope: Scope) -> Scope | None:
        current: Scope | None = scope
        while current is not None:
            parent = current.parent
            if isinstance(parent, Scope):
                node = parent.graph.by_name(current.name)
                if isinstance(node, ComposeSpec) and node.on_halt == "skip":
                    return current
            current = current.owner
        return None

    # ------------------------------------------------------------------ settling

    def settle(self, scope: Scope) -> None:
        if not scope.stopped or scope.active or scope.settled or scope.parent is None:
            return
        scope.settled = True
        if scope.failure is not None:
            self.next_action(scope)
        elif isinstance(scope.parent, MapRun):
            self.element_ended(scope, None)
        elif scope.halted:
            self.complete(scope.parent, scope.name, None, skipped=True)
        else:
            self.node_cut(scope.parent, scope.name)

    def node_cut(self, scope: Scope, name: str) -> None:
        scope.active.discard(name)
        scope.owed.append((name, (self.events, 1)))
        self.settle(scope)

    def element_ended(self, element: Scope, outcome: tuple[str, Any] | None) -> None:
        run = element.parent
        assert isinstance(run, MapRun)
        assert element.index is not None
        if outcome is not None:
            run.outcomes[element.index] = outcome
        run.in_flight -= 1
        self.feed(run)

    def settle_map(self, run: MapRun) -> None:
        name = run.spec.name
        exhausted = run.stopped or len(run.elements) == run.spec.size
        if not exhausted or run.in_flight or name not in run.scope.active:
            return
        if not run.stopped and run.failure is None:
            self.complete(run.scope, name, [run.outcomes[index] for index in range(len(run.elements))])
        elif run.failure is not None:
            run.scope.active.discard(name)
            run.scope.owed.append((name, (self.events, 1)))
            self.settle(run.scope)
        else:
            self.node_cut(run.scope, name)

    # ------------------------------------------------------------------ rollback

    def next_action(self, scope: Scope, *, keep: bool = False) -> None:
        """Go on with the rollback of this scope, once it is known what the engine chose; see `choose`."""
        self.undecided.append((scope, keep))

    def choose(self, seen: set[Item]) -> None:
        """Begin the next action of every rollback; among equals the one that the engine began."""
        while self.undecided:
            scope, keep = self.undecided.pop(0)
            actions = self.actions(scope, keep=keep)
            if not actions:
                self.rolled_back(scope)
                self.proceed()
                continue
            chosen = next((action for action in actions if action.item in seen), actions[0])
            for entries, entry in chosen.stick:
                entries.remove(entry)
                entries.appendleft((entry[0], FIRST))
            self.rolling[chosen.item] = (scope, keep, chosen)
            self.log.append(str(chosen.item))

    def actions(self, scope: Scope, *, keep: bool) -> list[Action]:
        """What may come next: of those that failed at one moment, any; else the first, or the newest completed."""
        while scope.owed:
            moment = scope.owed[0][1]
            equals = [entry for entry in scope.owed if entry[1] == moment]
            found: list[Action] = []
            for entry in equals:
                inside = self.actions_for(scope, entry[0], keep=keep)
                if not inside:
                    scope.owed.remove(entry)
                found += [Action(each.item, each.take_off, [*each.stick, (scope.owed, entry)]) for each in inside]
            if found:
                return found
        while scope.completed and not keep:
            name = scope.completed[-1]
            node = scope.graph.by_name(name)
            if isinstance(node, StepSpec):
                if node.undo:
                    return [Action(Item("undo", scope.path_of(name)), scope.completed.pop, [])]
            else:
                found = self.inside(scope.inner[name], keep=False)
                if found:
                    return found
            scope.completed.pop()
        return []

    def actions_for(self, scope: Scope, name: str, *, keep: bool) -> list[Action]:
        node = scope.graph.by_name(name)
        if not isinstance(node, StepSpec):
            return self.inside(scope.inner[name], keep=keep)
        if not node.compensate:
            return []
        return [Action(Item("compensate", scope.path_of(name)), scope.owed.popleft, [])]

    def inside(self, inner: Scope | MapRun, *, keep: bool) -> list[Action]:
        if isinstance(inner, Scope):
            return self.actions(inner, keep=keep)
        if inner.order is None:
            inner.order = list(range(len(inner.elements)))
        while inner.order:
            index = inner.order[-1]
            completed = inner.outcomes.get(index, ("", None))[0] == COMPLETED
            found = [] if inner.spec.undo_all and completed else self.actions(inner.elements[index], keep=keep)
            if found:
                return found
            inner.order.pop()
        any_completed = any(kind == COMPLETED for kind, _ in inner.outcomes.values())
        if inner.spec.undo_all and not keep and not inner.undone and any_completed:
            return [Action(Item("undo_all", inner.path), lambda: setattr(inner, "undone", True), [])]
        return []

    def end_action(self, item: Item) -> None:
        scope, keep, action = self.rolling.pop(item)
        what = self.behaviour.action(item.path, item.kind)
        if what in ROLLBACK_REASON:
            self.rollback_failures.append((item.path, item.kind, ROLLBACK_REASON[what]))
        action.take_off()
        self.next_action(scope, keep=keep)

    def rolled_back(self, scope: Scope) -> None:
        parent = scope.parent
        if parent is None and self.keeping and self.cancelled:
            # Cancelled after it had halted, before the caller could know: what it kept is undone.
            self.keeping = False
            self.next_action(self.root)
        elif parent is None:
            self.done = True
        elif isinstance(parent, MapRun):
            self.element_ended(scope, ("failed", scope.failure))
        else:
            parent.active.discard(scope.name)
            self.settle(parent)

    # ------------------------------------------------------------------ cancellation, and the end

    def cancel(self, cuts: list[Item]) -> None:
        """The caller's task was cancelled: nothing new starts, bodies in flight are cancelled."""
        self.cuts = cuts
        self.events += 1
        if not self.concluding:
            self.cancelled = True
            self.stop(self.root)
            self.cut_short(self.root)
            self.cut_bodies(self.root)
            self.proceed()
        elif not self.done:
            self.cancelled = True

    def conclude(self) -> None:
        self.concluding = True
        if self.errors or self.cancelled:
            self.next_action(self.root)
        elif self.halt is not None:
            self.keeping = True
            self.next_action(self.root, keep=True)
        else:
            self.done = True

    @property
    def items(self) -> set[Item]:
        return {*self.in_flight, *self.rolling}


def _unnamed(spec: StepSpec) -> StepSpec:
    return StepSpec("", [], spec.attempts, spec.undo, spec.compensate, delay=spec.delay)


def _is_below(scope: Scope, top: Scope) -> bool:
    current: Scope | None = scope
    while current is not None:
        if current is top:
            return True
        current = current.owner
    return False
