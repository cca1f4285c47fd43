"""What stands in a class body as if it were a step, and is none; and values of the wrong kind. Each with its fix."""

# mypy: disable-error-code="empty-body"

from typing import Any

import pytest

from aioreactor import (
    Context,
    DefinitionError,
    Reactor,
    Step,
    after,
    async_reactor,
    compose,
    from_input,
    interrupt,
    map_each,
    result,
    step,
    timer,
)


class Charge(Step[int]):
    n: int = 1

    async def run(self) -> int:
        return self.n


class Trip(Reactor[str]):
    hotel: str

    @step
    async def book(self, hotel: str) -> str:
        return hotel

    returns = book


class Other(Reactor):
    @step
    async def load(self) -> int: ...


def problems(annotations: dict[str, Any] | None = None, **body: Any) -> tuple[str, ...]:
    with pytest.raises(DefinitionError) as caught:
        type("Made", (Reactor,), {"__module__": __name__, "__annotations__": annotations or {}, **body})
    return caught.value.problems


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (Charge, "charge = Charge is the class, not a step; write Charge.step(…)"),
        (
            Charge(n=2),
            "charge = Charge(…) is an instance, not a step; write Charge.step(…) with the same keywords",
        ),
        (Charge.step, "charge = Charge.step is not called; write Charge.step(…)"),
        (Charge.async_step, "charge = Charge.async_step is not called; write Charge.async_step(…)"),
    ],
    ids=["class", "instance", "step", "async_step"],
)
def test_a_step_class_that_is_not_used_as_a_step(item: Any, problem: str) -> None:
    assert problems(charge=item) == (problem,)


def test_a_step_class_defined_in_the_body_is_fine() -> None:
    class Billing(Reactor):
        class Charge(Step[int]):
            async def run(self) -> int:
                return 1

        charge = Charge.step()

    assert [node.name for node in Billing.plan] == ["charge"]


def test_a_step_class_as_the_default_of_an_input_is_fine() -> None:
    class Billing(Reactor):
        kind: type[Any] = Charge

    assert Billing.plan.fields.by_name["kind"].make_default() is Charge


def test_an_override_that_is_no_step_says_what_would_go_on_running() -> None:
    class Base(Reactor):
        @step
        async def charge(self) -> int: ...

    with pytest.raises(DefinitionError) as caught:

        class Wrong(Base):
            async def charge(self) -> int: ...  # type: ignore[override]

    assert caught.value.problems == (
        "'charge' hides the inherited step 'charge', which would go on running; make it a @step to override that "
        "one, or give it another name",
    )


def test_an_input_with_a_step_as_its_default_is_one_problem() -> None:
    async def a(self: Any) -> int: ...

    assert problems({"a": int}, a=step(a)) == ("'a' is both an input and a step; rename one",)
    (problem,) = problems({"a": int}, a=step(name="b")(a))
    assert "'b' is both an input and a step" in problem


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (compose(Trip(hotel="x")), "compose 'node': Trip(…) is an invocation, not a reactor class; give Trip and its"),  # type: ignore[call-overload]
        (async_reactor(3), "async_reactor 'node': 3 is not a reactor class; give a subclass of Reactor"),  # type: ignore[arg-type]
        (map_each(3, over=[1]), "map 'node': 3 is not a step class or a reactor class; give one, or decorate a"),  # type: ignore[call-overload]
        (map_each(Charge, over="xs"), "map 'node', over: str is no source of items; give a list, result(…), from"),
        (map_each(Charge, over=3), "map 'node', over: int is no source of items"),  # type: ignore[call-overload]
        (map_each(Charge, over={1}, fan_out=True), "map 'node', over: fan_out deals from a list, a tuple or a page"),
        (
            map_each(Trip, over=[1], hotel="x", item="hotl"),
            "map 'node': item='hotl' is not a field; the closest is 'hotel'",
        ),
        (map_each(Charge, over=[1], fan_out="yes"), "map_each: fan_out='yes': True, or FanOut(batch_size=…)"),  # type: ignore[call-overload]
        (timer(hours="3"), "timer: hours='3': a number"),  # type: ignore[arg-type]
        (timer(until="tomorrow"), "timer: until='tomorrow': a datetime with a time zone, or a wire to one"),
        (interrupt(int, timeout="3"), "interrupt: timeout is in seconds above 0"),  # type: ignore[arg-type]
        (interrupt(int, after=None), "interrupt: after=None: name a step, or leave after= out"),  # type: ignore[arg-type]
        (Charge.step(after=3), "step 'node': after='3': no such step"),  # type: ignore[arg-type]
        (Charge.step(aliases=3), "step 'node': aliases=3: an older name, as text"),  # type: ignore[arg-type]
        (Charge.step(name=3), "step: name=3: a name, as text"),  # type: ignore[arg-type]
        (step(Charge), "step 'node': Charge is a class; use Charge.step(…)"),
        (map_each(Charge, over=[1], collect=3), "map_each: collect=3: a function of the results"),  # type: ignore[call-overload]
        (interrupt(int, correlation_id="x"), "interrupt: correlation_id='x': a function of the context"),  # type: ignore[arg-type]
        (Charge.step(retries=3), "step 'node': retries=3: use Retry(max_attempts=…)"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_values_of_the_wrong_kind(item: Any, problem: str) -> None:
    (found,) = problems(node=item)
    assert found.startswith(problem)


def test_an_unknown_option_of_a_step_names_the_closest() -> None:
    async def one(self: Any) -> int: ...

    assert problems(one=step(retry=3)(one)) == (  # type: ignore[call-overload]
        "step 'one': there is no option 'retry'; the closest is 'retries'",
    )


def test_the_result_of_a_step_may_be_no_source_of_items() -> None:
    async def load(self: Any) -> int: ...

    loaded = step(load)
    (problem,) = problems(load=loaded, node=map_each(Charge, over=result(loaded)))  # pyright: ignore[reportArgumentType]
    assert problem.startswith("map 'node', over: int is no source of items")


def test_a_timer_wired_to_what_is_no_moment() -> None:
    (problem,) = problems({"at": str}, node=timer(until=from_input("at")))
    assert problem.startswith("timer 'node', until: expects datetime, but input 'at' is str")


def test_a_step_of_another_reactor_is_refused_everywhere() -> None:
    async def load(self: Any) -> int: ...

    found = problems(
        load=step(load), returns=Other.load, background=after(Other.load), use=Charge.step(after=Other.load)
    )
    assert [text.partition(":")[0] for text in found] == [
        "step 'use'",
        "returns = load",
        "background = after(load)",
    ]
    assert all("that is the step of Other, not the one of this reactor; name its own" in text for text in found)


def test_the_value_of_a_run_without_returns_is_a_mapping_which_a_base_class_is_only_told() -> None:
    class Base(Reactor[str]):
        @step
        async def one(self) -> str: ...

    class Complete(Base):
        returns = Base.one

    assert Complete.plan.notes == ()
    assert Base.plan.notes == (
        "the class says Reactor[str], but without returns a run gives the mapping of all results; add returns = "
        "<step>, or leave [str] away",
    )

    class Fine(Reactor[dict[str, Any]]):
        @step
        async def one(self) -> str: ...

    class Empty(Reactor[str]): ...

    assert (Fine.plan.returns, Empty.plan.returns) == (None, None)


def test_a_context_without_its_annotation() -> None:
    async def one(self: Any, ctx) -> int: ...  # type: ignore[no-untyped-def]

    assert problems(one=step(one)) == (
        "step 'one', parameter 'ctx': nothing provides it. For the run's context annotate it: ctx: Context",
    )
    assert Context is not None


def test_only_ways_that_work_are_offered() -> None:
    async def one(self: Any, thing: int) -> int: ...

    async def two(self: Any) -> int: ...

    assert problems(one=step(one))[0].endswith("or wire it: thing = value(…)")
    assert problems(one=step(one), two=step(two))[0].endswith("or wire it: thing = result(step) or value(…)")
    assert problems({"zzz": int}, one=step(one))[0].endswith("thing = from_input(…) or value(…)")
    assert problems({"things": int}, one=step(one))[0].endswith("thing = from_input('things') or value(…)")


def test_a_reactor_that_halts_may_leave_nothing() -> None:
    async def use(self: Any, trip: str) -> None: ...

    (problem,) = problems({"hotel": str}, trip=compose(Trip, on_halt="skip"), use=step(use))
    assert problem.startswith("step 'use', parameter 'trip': expects str, but the result of 'trip' is Optional[str]")


async def test_inputs_and_fields_may_be_named_self() -> None:
    class Odd(Step[int]):
        self: int

        async def run(this) -> int:  # pyright: ignore[reportSelfClsParameterName]
            return this.self

    class Uses(Reactor[int]):
        self: int
        odd = Odd.step()
        returns = odd

    assert await Uses.run_or_raise(self=3) == 3
    assert Odd(self=4).self == 4
    assert await Odd.once(self=5) == 5
