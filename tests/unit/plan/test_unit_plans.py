"""What a unit is dispatched as: its plan, what is passed to it, and how it is found again by its stored name."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from aioreactor import (
    Context,
    Failure,
    Lock,
    Outcome,
    Reactor,
    Redact,
    Resource,
    Retry,
    Step,
    async_reactor,
    async_step,
    compose,
    from_input,
    map_each,
    result,
    step,
    value,
)
from aioreactor.errors import UnknownReactor
from aioreactor.plan.model import Plan, Source
from aioreactor.plan.units import name_parts, unit_name, units_in
from aioreactor.registry import find_plan


class Child(Reactor[int], name="up.Child"):
    n: int
    m: int = 2

    @step
    async def one(self, n: int) -> int:
        return n

    returns = one


class Charge(Step[int]):
    amount: int
    token: Annotated[str, Redact]
    memo: str = ""

    async def run(self, ctx: Context) -> int:
        return self.amount

    async def compensate(self, error: BaseException, ctx: Context) -> None: ...


class Order(
    Reactor[Any], name="up.Order", aliases=["up.Old"], deadline=5, max_concurrency=2, retries=Retry(4), queue="q"
):
    amount: int
    token: Annotated[str, Redact]

    @step
    async def a(self) -> dict[str, str]:
        return {}

    @async_step(aliases=["post"], timeout=3)
    async def mail(
        self,
        ctx: Context,
        db: Annotated[object, Resource],
        amount: int,
        a: dict[str, str],
        part: str = result(a, "x"),
        upper: str = from_input("token", transform=str.upper),
        fixed: int = value(3),
        own: int = 4,
    ) -> str:
        return ""

    @mail.compensate
    async def sorry(
        self, error: BaseException, a: dict[str, str], again: str = result(a, "x"), b: str = result(a, "y")
    ) -> None: ...

    charge = Charge.async_step(token=result(a, "t"))
    child = async_reactor(Child, n=result(a, transform=len), independent=True)

    @step
    async def read(self, mail: str | Failure = result(mail), child: Outcome[int] = result(child)) -> None: ...

    @step(after=[charge])
    async def late(self) -> None: ...


def passed(plan: Plan, name: str) -> dict[str, tuple[str, ...]]:
    return {arg.parameter: (arg.source.value, *map(str, arg.path)) for arg in plan[name].passed}


def test_what_comes_from_results_or_is_made_is_passed_once_and_the_rest_is_found_there() -> None:
    plan = Order.plan
    assert passed(plan, "mail") == {
        "@a": ("result",),
        "@part": ("result", "x"),
        "@upper": ("input",),
        "@compensate.b": ("result", "y"),
    }
    unit = plan["mail"].unit
    assert unit is not None
    [node] = unit.nodes
    assert {arg.parameter: (arg.source, arg.name) for arg in node.args} == {
        "ctx": (Source.CONTEXT, ""),
        "db": (Source.RESOURCE, "db"),
        "amount": (Source.INPUT, "amount"),
        "a": (Source.INPUT, "@a"),
        "part": (Source.INPUT, "@part"),
        "upper": (Source.INPUT, "@upper"),
        "fixed": (Source.VALUE, ""),
    }
    assert node.compensate is not None
    assert {arg.parameter: arg.name for arg in node.compensate.args} == {
        "error": "",
        "a": "@a",
        "again": "@part",
        "b": "@compensate.b",
    }
    assert [field.name for field in unit.fields.inputs] == [
        "amount",
        "token",
        "@path",
        "@a",
        "@part",
        "@upper",
        "@compensate.b",
    ]
    assert unit.fields.hidden == {"token"}


def test_it_is_a_plan_of_one_step_with_the_policy_of_a_step() -> None:
    unit = Order.plan["mail"].unit
    assert unit is not None
    [node] = unit.nodes
    assert (unit.name, unit.reactor, unit.unit_of, unit.returns) == ("up.Order[mail]", Order, "mail", 0)
    assert (node.kind, node.result_type, node.retry.max_attempts, node.timeout) == ("step", str, 4, 3)
    assert (unit.options.deadline, unit.options.max_concurrency, unit.options.queue) == (None, None, "q")
    assert [name for _, name, _ in unit.resource_needs] == ["db"]
    assert Order.plan.resource_needs == ()
    assert not unit.has_units


def test_a_step_class_keeps_its_marks() -> None:
    unit = Order.plan["charge"].unit
    assert unit is not None
    assert passed(Order.plan, "charge") == {"@token": ("result", "t")}
    assert unit.fields.hidden == {"token", "@token"}
    assert unit.nodes[0].step_class is Charge


def test_a_reactor_is_dispatched_as_itself() -> None:
    node = Order.plan["child"]
    assert node.unit is Child.plan
    assert passed(Order.plan, "child") == {"n": ("result",)}
    assert (node.independent, Order.plan["mail"].independent) == (True, False)


def test_who_waits_for_what() -> None:
    plan = Order.plan
    waits = {node.name: [plan.nodes[index].name for index in node.units] for node in plan if node.units}
    assert waits == {"read": ["mail", "child"], "late": ["charge"]}


def test_units_are_found_at_every_depth() -> None:
    class Around(Reactor):
        numbers: list[int]
        order = compose(Order, amount=1, token="t")
        each = map_each(Child, over=from_input("numbers"), item="n")

    class Plain(Reactor):
        one = compose(Child, n=1)

    assert [node.name for node in units_in(Around.plan)] == ["mail", "charge", "child"]
    assert (Around.plan.has_units, Plain.plan.has_units, Order.plan.has_units) == (True, False, True)


def test_names_lead_to_plans() -> None:
    assert unit_name("m:R", "s") == "m:R[s]"
    assert name_parts("m:R[s]") == ("m:R", "s")
    assert name_parts("m:R") == ("m:R", "")
    assert find_plan("up.Order") is Order.plan
    for name in ("up.Order[mail]", "up.Old[mail]", "up.Order[post]"):
        assert find_plan(name) is Order.plan["mail"].unit


@pytest.mark.parametrize("name", ["up.Order[a]", "up.Order[child]", "up.Order[gone]", "up.Nobody[mail]", "up.Nobody"])
def test_what_is_no_unit_any_more_is_unknown(name: str) -> None:
    with pytest.raises(UnknownReactor) as caught:
        find_plan(name)
    assert name in str(caught.value) or "up.Nobody" in str(caught.value)


def test_coordination_of_the_reactor_is_its_own_and_that_of_the_step_goes_along() -> None:
    class Guarded(Reactor, coordination=[Lock("whole")]):
        @async_step(coordination=[Lock("step")])
        async def one(self) -> None: ...

    unit = Guarded.plan["one"].unit
    assert unit is not None
    assert unit.options.coordination == ()
    assert [lock.key for lock in unit.nodes[0].coordination] == ["step"]
