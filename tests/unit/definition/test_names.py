"""A name is one thing; nothing is reserved but what `Reactor` has; names can be pinned."""

# mypy: disable-error-code="empty-body"

from typing import Any

import pytest

from aioreactor import DefinitionError, Lock, Reactor, Step, after, compose, from_input, result, step

RESERVED = (
    "run",
    "run_or_raise",
    "spawn",
    "enqueue",
    "enqueue_many",
    "with_options",
    "plan",
    "runs",
    "returns",
    "background",
)
GOOD = (
    "name",
    "options",
    "start",
    "cancel",
    "retry",
    "validate",
    "status",
    "results",
    "steps",
    "inputs",
    "delay",
    "queue",
)


def make(annotations: dict[str, Any] | None = None, **body: Any) -> type[Reactor[Any]]:
    """A reactor class named ``Made`` with this body."""
    return type("Made", (Reactor,), {"__module__": __name__, "__annotations__": annotations or {}, **body})


def a_step() -> Any:
    async def body(self: Any) -> int:
        return 1

    return step(body)


@pytest.mark.parametrize("name", GOOD)
async def test_good_names_are_free_for_inputs(name: str) -> None:
    async def read(self: Any) -> Any:
        return getattr(self, name)

    node = step(read)
    made = make({name: int}, read=node, returns=node)
    assert await made.run_or_raise(**{name: 5}) == 5


@pytest.mark.parametrize("name", GOOD)
async def test_good_names_are_free_for_steps(name: str) -> None:
    made = make(**{name: a_step()})
    assert (await made.run_or_raise()) == {name: 1}


@pytest.mark.parametrize("name", RESERVED)
def test_a_step_cannot_hide_what_a_reactor_has(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        make(**{name: a_step()})
    assert caught.value.problems[0] == f"{name!r} is what Made has from Reactor; give the step another name"


@pytest.mark.parametrize("name", RESERVED)
def test_an_input_cannot_hide_what_a_reactor_has(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        make({name: int})
    assert caught.value.problems == (f"{name!r} is what Made has from Reactor; give the input another name",)


@pytest.mark.parametrize("name", ["run", "plan"])
def test_a_pinned_name_cannot_hide_what_a_reactor_has(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Pins(Reactor):
            @step(name=name)
            async def fine(self) -> None: ...

    assert caught.value.problems == (f"step name {name!r} is what a reactor has; pin another name=",)


def test_an_ordinary_method_cannot_hide_what_a_reactor_has() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Hides(Reactor):
            def run(self) -> None: ...  # type: ignore[override]

    assert caught.value.problems == ("'run' is what Hides has from Reactor; give the attribute another name",)


def test_an_input_and_a_step_cannot_share_a_name() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Shares(Reactor):
            load: int

            @step(name="load")
            async def fetch(self) -> None: ...

    assert caught.value.problems == ("'load' is both an input and a step; rename one",)


def test_a_step_of_a_subclass_cannot_take_the_name_of_an_inherited_input() -> None:
    class Base(Reactor):
        load: int

    with pytest.raises(DefinitionError) as caught:

        class Shares(Base):
            @step  # type: ignore[misc]
            async def load(self) -> int: ...  # type: ignore[override]

    assert caught.value.problems == ("'load' is both an input and a step; rename one",)


def test_two_steps_cannot_have_one_pinned_name() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Twice(Reactor):
            @step(name="same")
            async def one(self) -> None: ...

            @step(name="same")
            async def two(self) -> None: ...

    assert caught.value.problems == ("two steps are named 'same'; rename one (name= pins a name)",)


def test_a_step_has_one_name() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Twice(Reactor):
            @step
            async def one(self) -> None: ...

            other = one

    assert caught.value.problems == ("'other' is the same step as 'one'; a step has one name",)


@pytest.mark.parametrize("name", ["a.b", "a[0]"])
def test_names_do_not_contain_what_paths_are_made_of(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Paths(Reactor):
            @step(name=name)
            async def fine(self) -> None: ...

    assert caught.value.problems == (f"step name {name!r}: dots and brackets belong to paths; rename it",)


async def test_a_pinned_name_is_the_name_everywhere() -> None:
    class Pinned(Reactor):
        @step(name="stored", aliases=["old", "older"], description="What it does.")
        async def attribute(self) -> int:
            return 1

        @step
        async def by_name(self, stored: int) -> int:
            return stored + 1

        @step(after=["stored"])
        async def by_object(self, number: int = result(attribute)) -> int:
            return number + 2

    plan = Pinned.plan
    assert [node.name for node in plan] == ["stored", "by_name", "by_object"]
    assert plan["stored"].node.aliases == ("old", "older")
    assert plan["stored"].description == "What it does."
    outcome = await Pinned.run()
    assert outcome.results == {"stored": 1, "by_name": 2, "by_object": 3}
    assert str(outcome.trace.only("run")) == "run:stored run:by_name run:by_object"


def test_the_attribute_of_a_pinned_step_is_not_its_name() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Pinned(Reactor):
            @step(name="stored")
            async def attribute(self) -> int: ...

            @step
            async def use(self, attribute: int) -> None: ...

    (problem,) = caught.value.problems
    assert problem.startswith("step 'use', parameter 'attribute': nothing provides it; there are: stored, use.")


def test_one_alias_may_be_given_as_text() -> None:
    class Renamed(Reactor):
        @step(aliases="old")
        async def new(self) -> None: ...

    assert Renamed.plan["new"].node.aliases == ("old",)


def test_one_alias_of_a_reactor_may_be_given_as_text() -> None:
    class Renamed(Reactor, aliases="old"): ...

    assert Renamed.plan.options.aliases == ("old",)


@pytest.mark.parametrize("aliases", [["other"], ["shared"]])
def test_an_alias_leads_to_one_step_only(aliases: list[str]) -> None:
    with pytest.raises(DefinitionError):

        class Clash(Reactor):
            @step(aliases=aliases)
            async def one(self) -> None: ...

            @step(aliases=["shared"])
            async def other(self) -> None: ...


def test_a_reactor_is_stored_under_module_and_qualified_name_or_its_pinned_name() -> None:
    class Free(Reactor): ...

    class Pinned(Reactor, name="orders.checkout", aliases=["shop:Checkout"]): ...

    here = "test_a_reactor_is_stored_under_module_and_qualified_name_or_its_pinned_name"
    assert Free.plan.name == f"{__name__}:{here}.<locals>.Free"
    assert Pinned.plan.name == "orders.checkout"
    assert Pinned.plan.options.aliases == ("shop:Checkout",)


def test_two_classes_of_one_qualified_name_are_fine() -> None:
    first, second = make({"a": int}), make({"b": int})
    assert first.plan.name == second.plan.name
    assert [field.name for field in second.plan.fields.inputs] == ["b"]


def test_fields_with_names_of_policy_words_are_wired_by_wire() -> None:
    class Odd(Step[int]):
        after: int
        name: str
        retries: int
        wiring: int = 0

        async def run(self) -> int:
            return self.after

    class Uses(Reactor):
        number: int

        @step
        async def first(self) -> int: ...

        odd = Odd.step(
            after=first, name="pinned", wiring=3, wire={"after": from_input("number"), "name": "x", "retries": first}
        )

    node = Uses.plan["pinned"]
    assert node.deps == (0,)
    assert [(arg.parameter, arg.source.value, arg.name, arg.value) for arg in node.args] == [
        ("after", "input", "number", None),
        ("name", "value", "", "x"),
        ("retries", "result", "first", None),
        ("wiring", "value", "", 3),
    ]


def test_inputs_of_a_child_with_names_of_policy_words_are_wired_by_wire() -> None:
    class Child(Reactor):
        after: int
        timeout: int

        @step
        async def one(self) -> int: ...

    class Parent(Reactor):
        child = compose(Child, wire={"after": 1, "timeout": 2})

    assert [(arg.parameter, arg.value) for arg in Parent.plan["child"].args] == [("after", 1), ("timeout", 2)]


def test_things_read_well() -> None:
    class Shown(Reactor):
        @step
        async def load(self) -> int: ...

    assert repr(Shown.load) == "<step load>"
    assert repr(after(Shown.load)) == "after(load)"
    assert repr(after("load")) == "after(load)"
    assert repr(Shown.plan).endswith("Shown: load>")
    assert repr(Lock("a:b")) == "Lock('a:b')"
    assert repr(Lock(lambda i: i.x)) == "Lock(…)"
