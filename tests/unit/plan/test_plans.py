"""A compiled plan: dependencies, fingerprint, what needs a store, what it asks of the runtime."""

# mypy: disable-error-code="empty-body"

import subprocess
import sys
import textwrap
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioreactor import (
    DefinitionError,
    Lock,
    Plan,
    Reactor,
    Resource,
    Retry,
    Runtime,
    Settings,
    Step,
    StoreRequired,
    Success,
    after,
    async_reactor,
    async_step,
    compose,
    from_input,
    interrupt,
    map_each,
    result,
    step,
    timer,
)
from aioreactor.plan.graph import dependants_of, find_cycle, upstream


class Db: ...


class Pool(Db): ...


def made(*steps: tuple[str, list[str]], name: str = "made", **options: Any) -> Plan:
    """The plan of a reactor whose steps come after others."""

    def one(before: list[str]) -> Any:
        async def body(self: Any) -> int: ...

        return step(after=before)(body)

    body = {label: one(before) for label, before in steps}
    reactor: type[Reactor[Any]] = type("Made", (Reactor,), {"__module__": __name__, **body}, name=name, **options)
    return reactor.plan


def test_a_plan_is_a_sized_iterable_of_its_nodes_by_name() -> None:
    plan = made(("a", []), ("b", ["a"]))
    assert len(plan) == 2
    assert [node.name for node in plan] == ["a", "b"]
    assert plan["b"].index == 1
    assert repr(plan) == "<Plan made: a, b>"
    with pytest.raises(KeyError):
        plan["c"]


def test_dependants_are_in_definition_order() -> None:
    plan = made(("d", ["root"]), ("c", ["root"]), ("root", []), ("b", ["c", "root"]), ("a", ["root"]))
    assert plan["root"].dependants == (0, 1, 3, 4)
    assert plan["c"].dependants == (3,)
    assert plan.roots == (2,)
    assert plan.waiting == (1, 1, 0, 2, 1)


def test_a_dependency_that_is_named_twice_counts_once() -> None:
    class Twice(Reactor):
        @step
        async def load(self) -> int: ...

        @step(after=[load, "load"])
        async def use(self, load: int, again: int = result(load)) -> None: ...

    assert Twice.plan["use"].deps == (0,)
    assert Twice.plan["load"].dependants == (1,)
    assert Twice.plan.waiting == (0, 1)


EDGES = st.integers(1, 8).flatmap(
    lambda size: st.tuples(
        *[st.sets(st.integers(0, max(0, at - 1)), max_size=3) if at else st.just(set()) for at in range(size)]
    )
)


@given(EDGES)
def test_any_graph_without_cycles_compiles_to_the_same_graph(edges: tuple[set[int], ...]) -> None:
    plan = made(*((f"s{at}", [f"s{before}" for before in sorted(befores)]) for at, befores in enumerate(edges)))
    assert [set(node.deps) for node in plan] == list(edges)
    for node in plan:
        assert list(node.dependants) == [at for at, befores in enumerate(edges) if node.index in befores]
    assert set(plan.roots) == {at for at, befores in enumerate(edges) if not befores}


@given(EDGES)
def test_graph_functions_agree_with_their_definition(edges: tuple[set[int], ...]) -> None:
    deps = [tuple(sorted(befores)) for befores in edges]
    assert find_cycle([str(at) for at in range(len(deps))], deps) is None
    for start in range(len(deps)):
        reached = {start}
        while True:
            more = reached | {before for at in reached for before in deps[at]}
            if more == reached:
                break
            reached = more
        assert upstream([start], deps) == reached
    assert [(at, one) for at, after_it in enumerate(dependants_of(deps)) for one in after_it] == sorted(
        (before, at) for at, befores in enumerate(deps) for before in befores
    )


def test_a_fingerprint_is_the_same_for_the_same_plan_and_in_every_process() -> None:
    plan = made(("a", []), ("b", ["a"]))
    assert plan.fingerprint == made(("a", []), ("b", ["a"]), name="other").fingerprint
    assert len(plan.fingerprint) == 16
    source = """
        from aioreactor import Reactor, step
        class R(Reactor):
            @step
            async def a(self): ...
            @step(after=[a])
            async def b(self): ...
        print(R.plan.fingerprint)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == plan.fingerprint


def test_a_fingerprint_changes_with_names_order_edges_kinds_and_version() -> None:
    class Unit(Reactor):
        @async_step
        async def a(self) -> int: ...

        @step(after=[a])
        async def b(self) -> int: ...

    plans = [
        made(("a", []), ("b", ["a"])),
        made(("a", []), ("b", [])),
        made(("b", []), ("a", ["b"])),
        made(("a", []), ("c", ["a"])),
        made(("a", []), ("b", ["a"]), ("c", [])),
        made(("a", []), ("b", ["a"]), version=2),
        made(),
        Unit.plan,
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)


def test_a_fingerprint_changes_with_a_nested_reactor() -> None:
    def nested(*labels: str) -> str:
        child = made(*((label, []) for label in labels)).reactor

        class Parent(Reactor):
            one = compose(child)
            many = map_each(Step_, over=[1])

        return Parent.plan.fingerprint

    assert nested("a") == nested("a")
    assert nested("a") != nested("b")


class Step_(Step[int]):
    n: int

    async def run(self) -> int:
        return self.n


def test_a_fingerprint_does_not_change_with_policy_bodies_or_types() -> None:
    class One(Reactor):
        @step
        async def a(self) -> int: ...

    class Other(Reactor, deadline=60, retries=Retry(3)):
        x: int = 1

        @step(timeout=3)
        async def a(self, x: int) -> str: ...

    assert One.plan.fingerprint == Other.plan.fingerprint


class Child(Reactor):
    pause = timer(seconds=1)


REASONS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("header", {"coordination": [Lock("a")]}, {}, "Made declares coordination"),
    ("detach", {"on_cancel": "detach"}, {}, 'Made has on_cancel="detach"'),
    ("background", {}, {"background": "all"}, "Made goes on in the background"),
    ("timer", {}, {"pause": timer(seconds=1)}, "step 'pause' is a timer"),
    ("interrupt", {}, {"ask": interrupt(int)}, "step 'ask' is an interrupt"),
    ("async_reactor", {}, {"sent": async_reactor(Child)}, "step 'sent' is an async_reactor"),
    ("compose", {}, {"child": compose(Child)}, "step 'pause' is a timer"),
    ("unit", {}, {"unit": Step_.async_step(n=1)}, "step 'unit' is an async_step"),
    ("fan-out", {}, {"many": map_each(Step_, over=[1], fan_out=True)}, "map 'many' fans out"),
    ("element", {}, {"many": map_each(Step_, over=[1], coordination=[Lock("a")])}, "map 'many' declares coordination"),
    ("step", {}, {"one": Step_.step(n=1, coordination=[Lock("a")])}, "step 'one' declares coordination"),
    (
        "pause",
        {},
        {"one": Step_.step(n=1, retries=Retry(on_exhausted="pause"))},
        "step 'one' has on_exhausted=\"pause\"",
    ),
]


@pytest.mark.parametrize(("options", "body", "reason"), [one[1:] for one in REASONS], ids=[one[0] for one in REASONS])
async def test_what_needs_a_store_is_known_and_refused_before_anything_runs(
    options: dict[str, Any], body: dict[str, Any], reason: str
) -> None:
    reactor: type[Reactor[Any]] = type("Made", (Reactor,), {"__module__": __name__, **body}, **options)
    assert reactor.plan.store_reasons == (reason,)
    async with Runtime(Settings()):
        with pytest.raises(StoreRequired) as caught:
            await reactor.run()
    assert caught.value.reasons == (reason,)


def test_what_needs_no_store() -> None:
    class Fine(Reactor, deadline=60, on_cancel="abort", retries=Retry(3), max_concurrency=2):
        orders: list[int]
        nested = compose(made(("a", [])).reactor)

        @map_each(over=from_input("orders"), atomic=False)
        async def each(self, n: int) -> int: ...

    assert Fine.plan.store_reasons == ()


def test_a_reason_is_given_once_for_children_that_are_used_twice() -> None:
    class Twice(Reactor):
        one = compose(Child)
        two = compose(Child)

    assert Twice.plan.store_reasons == ("step 'pause' is a timer",)


class Uses(Step[str]):
    pool: Annotated[Pool, Resource]

    async def run(self) -> str:
        return type(self.pool).__name__


class Asks(Reactor):
    db: Annotated[Db, Resource]
    used = Uses.step()

    @step
    async def read(self, db: Db, by_type: Annotated[Pool, Resource]) -> tuple[str, str, str]:
        return type(self.db).__name__, type(db).__name__, type(by_type).__name__

    @read.undo
    async def unread(self, other: Annotated[int, Resource]) -> None: ...


class AsksInside(Reactor):
    child = compose(Asks)

    @map_each(over=[1])
    async def each(self, n: int, late: Annotated[str, Resource]) -> int:
        return n


async def test_missing_resources_are_found_before_anything_runs_all_at_once() -> None:
    async with Runtime(Settings(resources={"db": Db()})):
        with pytest.raises(DefinitionError) as caught:
            await AsksInside.run()
    names = [text.partition("resource ")[2].partition(" ")[0] for text in caught.value.problems]
    assert sorted(names) == ["'by_type'", "'late'", "'other'", "'pool'"]
    assert all("aioreactor.configure(resources=" in text for text in caught.value.problems)


async def test_resources_are_found_by_name_then_by_type() -> None:
    async with Runtime(Settings(resources={"db": Db(), Pool: Pool(), "other": 3})):
        outcome = await Asks.run()
    assert isinstance(outcome, Success)
    assert outcome.value == {"used": "Pool", "read": ("Db", "Db", "Pool")}


def test_a_bound_on_concurrency_is_known_from_any_depth() -> None:
    bounded = made(("a", []), max_concurrency=1)

    class Parent(Reactor):
        child = compose(bounded.reactor)

    class Grandparent(Reactor):
        child = compose(Parent)

    assert [plan.has_bounds for plan in (bounded, Parent.plan, Grandparent.plan, made())] == [True, True, True, False]


def test_background_is_a_side_and_an_index() -> None:
    class Goes(Reactor):
        @step
        async def one(self) -> int: ...

        background = after(one)

    assert Goes.plan.background == ("after", 0)


def test_a_large_plan_compiles() -> None:
    plan = made(*((f"s{at}", [f"s{at - 1}"] if at else []) for at in range(2000)))
    assert plan.roots == (0,)
    assert plan["s1999"].deps == (1998,)
