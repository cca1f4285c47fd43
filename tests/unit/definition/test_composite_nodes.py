"""Declarations of nested reactors, maps, units, interrupts and timers, and what is refused of them."""

# mypy: disable-error-code="empty-body"

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, get_args, get_origin

import pytest
from msgspec import Struct

from aioreactor import (
    Default,
    DefinitionError,
    Failure,
    FanOut,
    Lock,
    MapResults,
    Outcome,
    Page,
    Reactor,
    Retry,
    Step,
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
from aioreactor.definition.nodes import InterruptNode, TimerNode
from aioreactor.plan.model import Arg, Call, PlanNode, Source


class Order(Struct):
    id: int


class Trip(Reactor[str]):
    """Books a trip."""

    user: int
    hotel: str
    note: str = "none"

    @step
    async def book(self, user: int, hotel: str) -> str: ...

    returns = book


class Ship(Step[int]):
    order: Order
    speed: int = 1
    note: str = ""

    async def run(self) -> int: ...


def wiring(reactor: type[Reactor[Any]], name: str) -> dict[str, tuple[str, str]]:
    return {arg.parameter: (arg.source.value, arg.name) for arg in reactor.plan[name].args}


def elements(node: PlanNode) -> tuple[PlanNode, ...]:
    """What a map does for each item."""
    assert node.element is not None
    return node.element.nodes


def problems(**body: Any) -> tuple[str, ...]:
    """The mistakes of a reactor with this body and the inputs ``orders`` and ``user``."""
    inputs = {"orders": list[Order], "user": int}
    with pytest.raises(DefinitionError) as caught:
        type("Wrong", (Reactor,), {"__module__": __name__, "__annotations__": inputs, **body})
    return caught.value.problems


class TestCompose:
    def test_unwired_inputs_are_taken_from_the_parents_inputs_then_from_the_childs_defaults(self) -> None:
        class Parent(Reactor):
            user: int

            @step
            async def choose(self) -> str: ...

            trip = compose(Trip, hotel=result(choose), on_halt="skip", coordination=[Lock("a")], aliases=["t"])

        node = Parent.plan["trip"]
        assert wiring(Parent, "trip") == {"user": ("input", "user"), "hotel": ("result", "choose")}
        assert (node.kind, node.deps, node.on_halt, node.result_type) == ("compose", (0,), "skip", str | None)
        assert node.child is Trip.plan
        assert [entry.key for entry in node.coordination] == ["a"]
        assert node.description == "Books a trip."

    def test_a_result_of_the_same_name_is_never_taken(self) -> None:
        class Body(Reactor):
            user: int

            @step
            async def hotel(self) -> str: ...

        (problem,) = problems(hotel=Body.__dict__["hotel"], trip=compose(Trip))
        assert problem.startswith(
            "compose 'trip', field 'hotel': nothing provides it; the step 'hotel' is wired with hotel=result(hotel). "
        )

    def test_types_are_compared(self) -> None:
        assert problems(trip=compose(Trip, hotel=from_input("user"))) == (
            "compose 'trip', field 'hotel': expects str, but input 'user' is int; change the annotation, or map it "
            "with transform=",
        )

    def test_wiring_what_the_child_does_not_have(self) -> None:
        assert problems(trip=compose(Trip, hotel="h", hotell="x")) == (
            "compose 'trip': it has no field 'hotell' to wire; the closest is 'hotel', 'note'",
        )

    @pytest.mark.parametrize("make", [compose, async_reactor])
    def test_retries_and_timeout_are_refused_with_the_reason(self, make: Any) -> None:
        name = make.__name__
        assert problems(trip=make(Trip, hotel="h", retries=Retry(3), timeout=5)) == (
            f"{name}(Trip): retries= does not apply: only steps retry, never a nested reactor as a whole; put retries "
            "on its steps or in its class header (an input of that name: wire={'retries': …})",
            f"{name}(Trip): timeout= does not apply: a timeout bounds one attempt of a step; set it on its steps, or "
            "a deadline in its class header (an input of that name: wire={'timeout': …})",
        )

    def test_on_halt_is_one_of_two(self) -> None:
        assert problems(trip=compose(Trip, hotel="h", on_halt="stop")) == (  # type: ignore[call-overload]
            "compose(Trip): on_halt='stop': 'halt' or 'skip'",
        )

    @pytest.mark.parametrize("make", [compose, async_reactor])
    def test_only_reactors_are_nested(self, make: Any) -> None:
        (problem,) = problems(trip=make(Ship))
        what = make.__name__
        assert problem.startswith(f"{what} 'trip': <class ")
        assert problem.endswith("Ship'> is not a reactor class; give a subclass of Reactor")

    @pytest.mark.parametrize("make", [compose, async_reactor])
    def test_what_is_no_class_is_a_definition_mistake_too(self, make: Any) -> None:
        (problem,) = problems(trip=make(3))
        assert "3 is not a reactor class" in problem

    def test_an_unwired_value_type_comes_from_the_childs_returns(self) -> None:
        class Loose(Reactor):
            @step
            async def one(self) -> int: ...

            returns = one

        class Parent(Reactor):
            loose = compose(Loose)

            @step
            async def use(self, loose: int) -> None: ...

        assert Parent.plan["loose"].result_type is int


class TestUnits:
    def test_a_reader_gets_the_value_or_the_failure(self) -> None:
        class Fine(Reactor):
            @async_step(retries=Retry(2), after=[])
            async def mail(self) -> str: ...

            @step
            async def use(self, mail: str | Failure) -> None: ...

        assert Fine.plan["mail"].result_type == str | Failure
        assert Fine.plan["mail"].kind == "async_step"
        with pytest.raises(DefinitionError) as caught:

            class Wrong(Reactor):
                @async_step
                async def mail(self) -> str: ...

                @step
                async def use(self, mail: str) -> None: ...

        (problem,) = caught.value.problems
        assert problem.startswith("step 'use', parameter 'mail': expects str, but the result of 'mail' is str | ")

    def test_a_step_class_as_unit(self) -> None:
        class Fine(Reactor):
            orders: list[Order]
            shipped = Ship.async_step(order=from_input("orders", 0), retries=Retry(4))

        node = Fine.plan["shipped"]
        assert (node.kind, node.result_type, node.retry) == ("async_step", int | Failure, Retry(4))

    def test_a_dispatched_reactor(self) -> None:
        class Parent(Reactor):
            user: int
            trip = async_reactor(Trip, hotel="h", after=[], aliases=["t"])

            @step
            async def use(self, trip: Outcome[str]) -> None: ...

        assert wiring(Parent, "trip") == {"user": ("input", "user"), "hotel": ("value", "")}
        assert Parent.plan["trip"].kind == "async_reactor"


class TestMap:
    def test_the_first_unwired_parameter_is_the_item(self) -> None:
        class Fine(Reactor):
            user: int
            orders: list[Order]

            @map_each(over=from_input("orders"), concurrency=1, atomic=False, retries=Retry(2), timeout=3)
            async def ship(self, user: int, item: Order, extra: int = 3) -> str: ...

        node = Fine.plan["ship"]
        (element,) = elements(node)
        found = {arg.parameter: arg.source for arg in element.args}
        assert (found["user"], found["item"]) == (Source.INPUT, Source.ITEM)
        assert (node.kind, node.concurrency, node.atomic, node.fan_out) == ("map", 1, False, None)
        assert (element.retry, element.timeout, node.timeout) == (Retry(2), 3, None)
        assert (get_origin(node.result_type), get_args(node.result_type)) == (MapResults, (str,))

    def test_item_names_the_parameter(self) -> None:
        class Fine(Reactor):
            @map_each(over=[1], item="user")
            async def ship(self, other: int = 1, user: int = 2) -> str: ...

        (element,) = elements(Fine.plan["ship"])
        assert [arg.parameter for arg in element.args if arg.source is Source.ITEM] == ["user"]

    def test_an_item_that_is_no_parameter_and_no_parameter_for_the_item(self) -> None:
        async def named(self: Any, order: Order) -> None: ...

        async def full(self: Any, user: int) -> None: ...

        assert problems(one=map_each(over=[1], item="oder")(named))[0] == (
            "step 'one': item='oder' is not a parameter; the closest is 'order'"
        )
        assert problems(two=map_each(over=[1])(full)) == ("step 'two': no parameter is left for the item; add one",)

    def test_a_step_class_takes_the_item_in_its_first_free_required_field(self) -> None:
        class Fine(Reactor):
            orders: list[Order]
            one = map_each(Ship, over=from_input("orders"), speed=3, name="shipped", fan_out=True)
            two = map_each(Ship, over=[1, 2], item="speed", order=from_input("orders", 0), fan_out=FanOut(5))

        (one,) = elements(Fine.plan["shipped"])
        (two,) = elements(Fine.plan["two"])
        assert [(arg.parameter, arg.source) for arg in one.args] == [("order", Source.ITEM), ("speed", Source.VALUE)]
        assert [(arg.parameter, arg.source) for arg in two.args] == [("order", Source.INPUT), ("speed", Source.ITEM)]
        assert Fine.plan["shipped"].fan_out == FanOut()
        assert Fine.plan["two"].fan_out == FanOut(batch_size=5)

    def test_a_reactor_takes_the_item_too(self) -> None:
        class Fine(Reactor):
            user: int
            trips = map_each(Trip, over=["a"], coordination=[Lock("a")])

        node = Fine.plan["trips"]
        assert node.element is Trip.plan
        assert [(arg.parameter, arg.source) for arg in node.args] == [("user", Source.INPUT), ("hotel", Source.ITEM)]
        assert [entry.key for entry in node.coordination] == ["a"]

    def test_item_of_a_class_that_is_no_field_or_has_none_left(self) -> None:
        assert problems(one=map_each(Ship, over=[1], item="oder", order=from_input("orders", 0))) == (
            "step 'one' (Ship): item='oder' is not a field; the closest is 'order'",
        )
        full = map_each(Ship, over=[1], order=from_input("orders", 0), speed=1, note="")
        assert problems(two=full) == ("step 'two' (Ship): no field is left for the item; name one with item=",)

    def test_policy_of_steps_is_refused_for_reactors(self) -> None:
        found = problems(trips=map_each(Trip, over=["a"], retries=Retry(2), timeout=1, output=str))
        assert [text.partition(" ")[0] + " " + text.split()[1] for text in found] == [
            "map_each(Trip): retries=",
            "map_each(Trip): timeout=",
            "map_each(Trip): output=",
        ]

    def test_undo_is_defined_on_the_class_that_the_map_runs(self) -> None:
        async def undo(self: Any) -> None: ...

        over_step, over_reactor = map_each(Ship, over=[1]), map_each(Trip, over=["a"])
        over_step.undo(undo)
        over_reactor.compensate(undo)
        assert problems(one=over_step, two=over_reactor) == (
            "map 'one': define undo on the step class that it runs, not on the map",
            "map 'two': define compensate on the reactor that it runs, not on the map",
        )

    @pytest.mark.parametrize("slot", ["undo_all", "collect"])
    def test_a_function_that_hides_its_own_map(self, slot: str) -> None:
        with pytest.raises(DefinitionError):

            class Hides(Reactor):
                @map_each(over=[1])
                async def ship(self, n: int) -> None: ...  # pyright: ignore[reportRedeclaration]

                @getattr(ship, slot)  # type: ignore[no-redef]
                async def ship(self, results: Any) -> None: ...

    @pytest.mark.parametrize("given", [0, -1, 1.5])
    def test_concurrency_is_a_whole_number(self, given: Any) -> None:
        async def ship(self: Any, order: int) -> None: ...

        assert problems(one=map_each(over=[1], concurrency=given)(ship)) == (
            f"map 'one': concurrency={given!r}: a whole number from 1",
        )

    def test_sources(self) -> None:
        class Fine(Reactor):
            orders: list[Order]

            @step
            async def load(self) -> list[int]: ...

            async def pages(self, cursor: str | None, limit: int, orders: list[Order]) -> Page[int]: ...

            async def stream(self, load: list[int]) -> AsyncIterator[int]:
                yield 1

            def lazy(self) -> Iterator[int]:
                yield 1

            @map_each(over=load)  # type: ignore[call-overload, untyped-decorator]
            async def from_step(self, n: int) -> None: ...

            @map_each(over=pages)
            async def from_pages(self, n: int) -> None: ...

            @map_each(over=stream)
            async def from_stream(self, n: int) -> None: ...

            @map_each(over=lazy)
            async def from_lazy(self, n: int) -> None: ...

            @map_each(over=(1, 2))
            async def from_value(self, n: int) -> None: ...

        plan = Fine.plan
        assert plan["from_step"].deps == (0,)
        assert (plan["from_pages"].paged, plan["from_stream"].paged) == (True, False)
        pages_call, lazy_call, value_arg = plan["from_pages"].over, plan["from_lazy"].over, plan["from_value"].over
        assert isinstance(pages_call, Call)
        assert [arg.parameter for arg in pages_call.args] == ["orders"]
        assert plan["from_stream"].deps == (0,)
        assert isinstance(lazy_call, Call)
        assert lazy_call.is_async is False
        assert isinstance(value_arg, Arg)
        assert (value_arg.source, value_arg.value) == (Source.VALUE, (1, 2))

    def test_a_source_that_leads_nowhere(self) -> None:
        async def ship(self: Any, order: int) -> None: ...

        assert problems(one=map_each(over=from_input("order"))(ship)) == (
            "map 'one', over: from_input('order'): there is no input 'order'; the closest is 'orders'",
        )

    def test_a_source_whose_path_does_not_exist(self) -> None:
        class Holder(Struct):
            items: list[int]

        async def load(self: Any) -> Holder: ...

        async def ship(self: Any, order: int) -> None: ...

        loaded = step(load)
        (problem,) = problems(load=loaded, one=map_each(over=result(loaded, "itms"))(ship))
        assert problem.startswith("map 'one', over: ")

    @pytest.mark.parametrize("source", ["generator", "set"])
    def test_a_fan_out_over_what_is_no_list_is_refused_where_it_can_be_seen(self, source: str) -> None:
        async def numbers(self: Any) -> AsyncIterator[int]:
            yield 1

        async def load(self: Any) -> set[int]: ...

        async def ship(self: Any, order: int) -> None: ...

        loaded = step(load)
        over = numbers if source == "generator" else result(loaded)
        problems(load=loaded, one=map_each(over=over, fan_out=True)(ship))

    def test_collect_by_keyword_gives_the_type_of_the_value(self) -> None:
        def count(results: MapResults[int]) -> int:
            return len(results)

        class Fine(Reactor):
            one = map_each(Ship, over=[1], collect=count)

            @step
            async def use(self, one: int) -> None: ...

        assert Fine.plan["one"].result_type is int

    async def test_a_source_with_local_variables_named_like_a_page_sources_parameters(self) -> None:
        class Fine(Reactor):
            async def numbers(self) -> list[int]:
                cursor, limit = 1, 2
                return [cursor, limit]

            @map_each(over=numbers)
            async def each(self, n: int) -> int:
                return n

        assert (await Fine.run_or_raise())["each"].values() == [1, 2]

    async def test_collect_by_keyword_may_be_async(self) -> None:
        async def count(results: MapResults[int]) -> int:
            return len(results)

        class Number(Step[int]):
            n: int

            async def run(self) -> int:
                return self.n

        class Fine(Reactor):
            each = map_each(Number, over=[1, 2], collect=count)

        assert await Fine.run_or_raise() == {"each": 2}

    def test_only_step_classes_and_reactors_are_mapped(self) -> None:
        problems(one=map_each(3, over=[1]))  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        "make",
        [lambda: FanOut(0), lambda: FanOut(chunk=0), lambda: FanOut(chunk="some")],  # type: ignore[arg-type]
        ids=["size", "chunk", "word"],
    )
    def test_a_fan_out_that_makes_no_sense(self, make: Any) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            make()


class TestInterrupt:
    def test_what_is_given_arrives(self) -> None:
        def correlate(ctx: Any) -> str:
            return "c"

        class Fine(Reactor):
            @step
            async def submit(self) -> int: ...

            approval = interrupt(
                Order, after=[submit], correlation_id=correlate, timeout=5, max_attempts=3, resume="background"
            )
            later = interrupt(Order, on_timeout=Default(Order(1)), timeout=1, name="other")

        node = Fine.plan["approval"]
        assert (node.kind, node.deps, node.result_type) == ("interrupt", (0,), Order)
        declared = node.node
        assert isinstance(declared, InterruptNode)
        assert (declared.correlation_id, declared.timeout, declared.max_attempts) == (correlate, 5, 3)
        assert (declared.on_timeout, declared.resume) == ("fail", "background")
        later_node = Fine.plan["other"].node
        assert isinstance(later_node, InterruptNode)
        assert isinstance(later_node.on_timeout, Default)
        assert later_node.on_timeout.value == Order(1)

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            (
                {"coordination": [Lock("a")]},
                "interrupt: coordination= does not apply, since nothing runs there; put it on a step",
            ),
            ({"on_timeout": "skip"}, "interrupt: on_timeout='skip': 'fail', 'wait' or Default(value)"),
            ({"resume": "later"}, "interrupt: resume='later': 'inline' or 'background'"),
            ({"timeout": 0}, "interrupt: timeout is in seconds above 0 and max_attempts at least 1"),
            ({"max_attempts": 0}, "interrupt: timeout is in seconds above 0 and max_attempts at least 1"),
        ],
        ids=["coordination", "on_timeout", "resume", "timeout", "max_attempts"],
    )
    def test_what_makes_no_sense(self, given: dict[str, Any], problem: str) -> None:
        assert problems(approval=interrupt(Order, **given)) == (problem,)


class TestTimer:
    def test_spans_add_up_and_a_moment_may_be_wired(self) -> None:
        moment = datetime(2030, 1, 1, tzinfo=UTC)

        class Fine(Reactor):
            when: datetime
            span = timer(seconds=1, minutes=2, hours=3, days=4)
            fixed = timer(until=moment, after=[span])
            wired = timer(until=from_input("when"))

        span_node, fixed_node = Fine.plan["span"].node, Fine.plan["fixed"].node
        assert isinstance(span_node, TimerNode)
        assert isinstance(fixed_node, TimerNode)
        assert span_node.seconds == 1 + 120 + 10800 + 345600
        assert (fixed_node.until, Fine.plan["fixed"].deps) == (moment, (0,))
        assert [(arg.source, arg.name) for arg in Fine.plan["wired"].args] == [(Source.INPUT, "when")]
        assert Fine.plan["span"].result_type is None

    def test_until_the_result_of_a_step_waits_for_it(self) -> None:
        class Fine(Reactor):
            @step
            async def load(self) -> datetime: ...

            wait = timer(until=result(load))

        assert Fine.plan["wait"].deps == (0,)

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({}, "timer: give a span (seconds=, minutes=, hours=, days=) or until=, one of the two"),
            (
                {"hours": 1, "until": datetime(2030, 1, 1, tzinfo=UTC)},
                "timer: give a span (seconds=, minutes=, hours=, days=) or until=, one of the two",
            ),
            ({"seconds": -1}, "timer: a span cannot be negative"),
            (
                {"until": datetime(2030, 1, 1)},
                "timer: until= has no time zone; use datetime(…, tzinfo=UTC)",
            ),
            (
                {"until": from_input("nothing")},
                "timer 'wait', until: from_input('nothing'): there is no input 'nothing'; there are: orders, user",
            ),
        ],
        ids=["nothing", "both", "negative", "naive", "nowhere"],
    )
    def test_what_makes_no_sense(self, given: dict[str, Any], problem: str) -> None:
        assert problems(wait=timer(**given)) == (problem,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: timer(hours="3"),  # type: ignore[arg-type]
        lambda: interrupt(Order, timeout="3"),  # type: ignore[arg-type]
        lambda: interrupt(Order, after=None),  # type: ignore[arg-type]
        lambda: map_each(Ship, over=[1], fan_out="yes"),  # type: ignore[call-overload]
    ],
    ids=["timer", "interrupt", "after", "fan_out"],
)
def test_values_of_the_wrong_kind_are_definition_mistakes(make: Any) -> None:
    with pytest.raises(DefinitionError):
        type("Wrong", (Reactor,), {"__module__": __name__, "node": make()})
