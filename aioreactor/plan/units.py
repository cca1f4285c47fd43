"""What is dispatched as a run of its own: for an ``async_reactor`` its child, for an ``async_step`` a plan of one step.

The same goes for the elements of a map that fans out.

A worker knows nothing of the parent's results, so whatever the step takes from them is resolved when it is dispatched,
and stored with the parent's inputs as further inputs, whose names begin with ``@``. The step reads them from there.
Inputs as they are, values, resources and the context it finds by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Union

from aioreactor.definition.annotations import UNKNOWN
from aioreactor.definition.fields import Field, FieldSet
from aioreactor.definition.reactor import Declaration
from aioreactor.plan.fingerprint import fingerprint
from aioreactor.plan.model import Arg, Call, Plan, PlanNode, Source
from aioreactor.plan.resources import resources_of
from aioreactor.results import Dispatched, Failure, Halt, Success

PATH = "@path"
"""The input of a dispatched step that says where in the parent it stands."""

ITEM = "@item"
"""The input of an element that is a single step: its item."""

_MADE_HERE = (Source.CONTEXT, Source.RESOURCE, Source.ERROR, Source.OWN_RESULT, Source.ARGUMENT)


def stored_type(value: Any) -> Any:
    """What the store keeps of a unit: that it was dispatched, or its outcome."""
    return Union[Success[value], Failure, Halt, Dispatched]  # noqa: UP007 - of values


def units_in(plan: Plan) -> Iterator[PlanNode]:
    """The units of a plan, of its composed children and of its elements."""
    for node in plan.nodes:
        if node.unit is not None:
            yield node
        inner = node.child if node.kind == "compose" else node.element
        if inner is not None and not inner.element:
            yield from units_in(inner)


def unit_name(reactor: str, step: str) -> str:
    """Under which name the runs of a dispatched step are stored."""
    return f"{reactor}[{step}]"


def name_parts(name: str) -> tuple[str, str]:
    """The reactor and the dispatched step in the stored name of a run; no step, if it is a run of the reactor."""
    reactor, bracket, step = name[:-1].rpartition("[") if name.endswith("]") else (name, "", "")
    return (reactor, step) if bracket else (name, "")


def fans_in(plan: Plan) -> Iterator[PlanNode]:
    """The maps of a plan, and of its composed children, that fan out."""
    for node in plan.nodes:
        if node.fan is not None:
            yield node
        if node.kind == "compose" and node.child is not None:
            yield from fans_in(node.child)


def has_undos(plan: Plan) -> bool:
    """Whether a run of a plan that has completed may leave something to be undone."""
    for node in plan.nodes:
        inner = node.child if node.kind == "compose" else node.element
        if node.undo is not None or node.undo_all is not None or (inner is not None and has_undos(inner)):
            return True
    return False


def may_owe(plan: Plan) -> bool:
    """Whether a run of a plan may leave something to be undone, or, if it was cut off, to be compensated."""
    for node in plan.nodes:
        inner = node.child if node.kind == "compose" else node.element
        if node.compensate is not None or (inner is not None and may_owe(inner)):
            return True
    return has_undos(plan)


def step_plan(
    declaration: Declaration, node: PlanNode, value: Any, *, name: str = "", undone: bool = False
) -> tuple[Plan, tuple[Arg, ...]]:
    """The plan of a dispatched step whose body gives ``value``; and what is resolved when it is dispatched.

    ``undone``: of an element of the map ``name``, whose undo belongs to it.
    """
    passing = _Passing()
    node = replace(node, name=name or node.name)
    one = replace(
        node,
        index=0,
        kind="step",
        deps=(),
        order_only=(),
        dependants=(),
        result_type=value,
        args=passing.all("", node.args),
        body=passing.call("", node.body),
        compensate=passing.call("compensate.", node.compensate),
        undo=passing.call("undo.", node.undo) if undone else None,
        prepared=None,
    )
    options = declaration.options.extended(
        {"name": declaration.options.name, "coordination": (), "max_concurrency": None, "deadline": None}
    )
    plan = Plan(
        declaration,
        unit_name(declaration.name, node.name),
        replace(options, on_cancel=None),
        FieldSet({**declaration.fields.by_name, PATH: Field(PATH, str), **passing.fields}),
        (one,),
        {node.name: 0},
        roots=(0,),
        returns=0,
        waiting=(0,),
        unit_of=node.name,
    )
    plan.resource_needs = tuple(resources_of(plan))
    plan.fingerprint = fingerprint(plan)
    return plan, tuple(passing.args)


class _Passing:
    """Collects what has to be passed on, each once, and where the step finds it."""

    def __init__(self) -> None:
        self.args: list[Arg] = []
        self.fields: dict[str, Field] = {}

    def call(self, slot: str, call: Call | None) -> Call | None:
        """A callable that reads from the inputs what its parent's results would have given."""
        if call is None:
            return None
        return replace(call, args=self.all(slot, call.args), kept=self.all(slot, call.kept))

    def all(self, slot: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
        """Arguments in the same way."""
        return tuple(self._one(slot, arg) for arg in args)

    def _one(self, slot: str, arg: Arg) -> Arg:
        if arg.source is Source.ITEM:
            self.fields.setdefault(ITEM, Field(ITEM, UNKNOWN if arg.path or arg.transform else arg.annotation))
            return replace(arg, source=Source.INPUT, name=ITEM)
        if arg.source in _MADE_HERE or (arg.source is not Source.RESULT and arg.transform is None):
            return arg
        name = next((known.parameter for known in self.args if _is_same(known, arg)), "")
        if not name:
            name = f"@{slot}{arg.parameter}"
            self.args.append(replace(arg, parameter=name, check=None))
            self.fields[name] = Field(name, arg.annotation)
        return Arg(arg.parameter, Source.INPUT, name, annotation=arg.annotation, keyword=arg.keyword, check=arg.check)


def _is_same(one: Arg, other: Arg) -> bool:
    return (one.source, one.name, one.index, one.path) == (other.source, other.name, other.index, other.path) and (
        one.transform is other.transform and one.value is other.value
    )
