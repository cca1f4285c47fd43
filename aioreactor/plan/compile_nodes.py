"""One node at a time: bodies, nested reactors, maps and what their readers get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from types import GenericAlias
from typing import Any, Union

from aioreactor.definition.annotations import UNKNOWN
from aioreactor.definition.convert import output_check, output_problem
from aioreactor.definition.fields import FieldSet, closest_text
from aioreactor.definition.nodes import (
    AsyncReactorNode,
    AsyncStepNode,
    ComposeNode,
    InterruptNode,
    MapNode,
    Node,
    StepNode,
    TimerNode,
)
from aioreactor.definition.policies import NO_RETRY, Retry
from aioreactor.definition.primitives import coordination_problem
from aioreactor.definition.reactor import Declaration, Reactor
from aioreactor.definition.steps import Step, known_fields
from aioreactor.definition.wiring import Wire
from aioreactor.map_results import MapResults
from aioreactor.plan.binding import Binder, Names, Report
from aioreactor.plan.model import Arg, Call, Plan, PlanNode, Source
from aioreactor.plan.parameters import is_async, is_generator, parameters
from aioreactor.plan.parameters import returns as return_annotation
from aioreactor.plan.types import declared_argument, is_known, source_problem, without_signals
from aioreactor.plan.units import step_plan, stored_type, unit_name
from aioreactor.results import Failure

UNITS = frozenset(("async_step", "async_reactor"))
"""Kinds of nodes that are dispatched as runs of their own."""


class NodeCompiler:
    """Binds the nodes of one declaration, one by one; problems go into ``report``."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.fields = declaration.fields
        self.report = Report(problems=list(declaration.problems))
        self.nodes = list(declaration.nodes.values())
        self.indexes = {node.label: index for index, node in enumerate(self.nodes)}
        self.types = {node.label: self.type_of(node) for node in self.nodes}
        names = Names(self.fields, self.indexes, self.types, declaration.nodes, declaration.reactor)
        self.binder = Binder(names, self.report)

    def check_coordination(self, where: str, given: tuple[Any, ...]) -> None:
        """Report what is no coordination primitive."""
        self.report.problems += coordination_problem(where, given)

    # ---------------------------------------------------------------- what a node's reader gets

    def type_of(self, node: Node[Any]) -> Any:
        """The type that a reader of the node gets, as far as annotations say."""
        if isinstance(node, MapNode):
            return self._map_type(node)
        if isinstance(node, StepNode):
            plain = without_signals(self._body_type(node))
            if node.kind != "async_step":
                return plain
            return plain | Failure if isinstance(plain, type) else UNKNOWN
        if isinstance(node, AsyncReactorNode):
            return UNKNOWN
        if isinstance(node, ComposeNode):
            return self._compose_type(node) if _is_reactor(node.child) else UNKNOWN
        if isinstance(node, InterruptNode):
            return node.payload
        return None if isinstance(node, TimerNode) else UNKNOWN

    def _compose_type(self, node: ComposeNode[Any]) -> Any:
        given = value_type(node.child)
        return Union[given, None] if node.on_halt == "skip" and is_known(given) else given  # noqa: UP007 - of values

    def _body_type(self, node: StepNode[Any]) -> Any:
        if node.fn is not None:
            return return_annotation(node.fn, self.declaration.namespace_of(node.fn))
        cls = node.step_class
        run = getattr(cls, "run", None)
        if cls is None or run is None:
            return UNKNOWN
        written = return_annotation(run, class_space(cls, "run"))
        return declared_argument(cls, Step) if written is UNKNOWN else written

    def _map_type(self, node: MapNode[Any]) -> Any:
        if callable(node.collect_fn):
            return return_annotation(node.collect_fn, self.declaration.namespace_of(node.collect_fn))
        inner = self.type_of(node.element)
        return GenericAlias(MapResults, (inner,)) if is_known(inner) else MapResults

    # ---------------------------------------------------------------- nodes

    def node(self, index: int, node: Node[Any]) -> PlanNode:
        """One node, bound: everything but its dependants and its rollback."""
        made = PlanNode(index, node.label, node.kind, node, result_type=self.types[node.label])
        made.order_only = self._order(node)
        if isinstance(node, StepNode):
            self._step(made, node, self.binder)
        elif isinstance(node, ComposeNode):
            self._compose(made, node, self.binder)
        elif isinstance(node, MapNode):
            self._map(made, node)
        elif isinstance(node, TimerNode) and isinstance(node.until, Wire):
            found, _ = self.binder.source(f"timer {node.label!r}, until", node.until, datetime)
            made.args = (found,) if found else ()
        return made

    def _order(self, node: Node[Any]) -> tuple[int, ...]:
        found = []
        for ref in node.after:
            label = ref if isinstance(ref, str) else getattr(ref, "label", repr(ref))
            foreign = self.binder.foreign(ref)
            if foreign is not None:
                self.report.problems.append(f"step {node.label!r}: after={label!r}: {foreign}")
            elif label in self.indexes:
                found.append(self.indexes[label])
            else:
                hint = closest_text(label, self.indexes)
                self.report.problems.append(f"step {node.label!r}: after={label!r}: no such step{hint}")
        return tuple(dict.fromkeys(found))

    def _step(self, made: PlanNode, node: StepNode[Any], binder: Binder, item: str | None = None) -> None:
        where = f"step {made.name!r}"
        made.retry = self._retry(node)
        made.timeout = node.timeout
        made.coordination = node.coordination or ()
        made.output = output_check(node.output)
        self.report.problems += output_problem(where, node.output)
        self.check_coordination(where, made.coordination)
        if isinstance(node.fn, type):
            self.report.problems.append(f"{where}: {node.fn.__name__} is a class; use {node.fn.__name__}.step(…)")
        elif node.fn is not None:
            space = self.declaration.namespace_of(node.fn)
            made.body = binder.call(where, node.fn, space, item=item)
            made.args = made.body.args
        elif node.step_class is not None:
            self._step_class(made, node, binder, item)

    def _step_class(self, made: PlanNode, node: StepNode[Any], binder: Binder, item: str | None) -> None:
        cls = node.step_class
        assert cls is not None
        where = f"step {made.name!r} ({cls.__qualname__})"
        made.step_class = cls
        fields = known_fields(cls)
        self.report.unresolved += [
            f"{where}, field {f.name!r}: annotation {f.annotation.text!r}" for f in fields.unresolved()
        ]
        made.args = binder.limited(by_step_name=False).fields(where, fields, node.wiring, item=item)
        run = getattr(cls, "run", None)
        if run is None:
            self.report.problems.append(f"{where} has no run; define async def run(self)")
            return
        own = binder.limited(fields=FieldSet({}), by_step_name=False)
        made.body = own.call(f"{where}.run", run, class_space(cls, "run"))
        if node.kind == "async_step" and hasattr(cls, "undo"):
            self.report.warnings.append(f"{where}: its undo never runs when dispatched; a parent does not roll it back")

    def _bind_units(self, nodes: list[PlanNode]) -> None:
        """What dispatched nodes are dispatched as; once everything else of them is bound."""
        if self.report.problems:
            return
        for made in nodes:
            node = made.node
            if isinstance(node, AsyncStepNode):
                value = without_signals(self._body_type(node))
                made.unit, made.passed = step_plan(self.declaration, made, value)
            elif isinstance(node, AsyncReactorNode) and made.child is not None:
                value = value_type(node.child)
                made.unit, made.passed = made.child, made.args
            elif isinstance(node, MapNode) and node.fan_out is not None:
                self._bind_fan(made, node, nodes)
                continue
            else:
                continue
            made.independent = node.independent
            made.kept_as = stored_type(value if is_known(value) else Any)

    def _bind_fan(self, made: PlanNode, node: MapNode[Any], nodes: list[PlanNode]) -> None:
        """What the elements of a map that fans out are, as runs of their own."""
        assert made.element is not None
        if isinstance(made.over, Arg) and made.over.source is Source.RESULT:
            nodes[made.over.index].dealt = True
        if not made.element.element:
            made.fan = self._guarded_by_use(made, node)
            made.passed = tuple(arg for arg in made.args if arg.source is not Source.ITEM)
            return
        value, inner = without_signals(self.type_of(node.element)), made.element.nodes[0]
        made.fan, made.passed = step_plan(self.declaration, inner, value, name=made.name, undone=True)

    def _guarded_by_use(self, made: PlanNode, node: MapNode[Any]) -> Plan:
        """The plan of an element that is a reactor, with the coordination that it has as a part of this one.

        It is the reactor's own unless the map says otherwise; and positions in line belong to whole runs.
        """
        plan = made.element
        assert plan is not None
        given = getattr(node.element, "coordination", None)
        chosen = given if given is not None else plan.options.coordination
        kept = tuple(each for each in chosen if each.kind != "ordered_lock")
        if kept == plan.options.coordination:
            return plan
        options = plan.options.extended({"name": plan.options.name, "coordination": kept})
        return replace(plan, name=unit_name(self.declaration.name, made.name), options=options)

    def _retry(self, node: StepNode[Any]) -> Retry:
        given = (node.retries, self.declaration.options.retries)
        return next((policy for policy in given if isinstance(policy, Retry)), NO_RETRY)

    def _compose(self, made: PlanNode, node: ComposeNode[Any], binder: Binder, item: str | None = None) -> None:
        where = f"{node.kind if item is None else 'map'} {made.name!r}"
        if not _is_reactor(node.child):
            self.report.problems.append(f"{where}: {_no_reactor(node.child, mapped=item is not None)}")
            return
        child = node.child.plan
        made.child = child
        made.on_halt = node.on_halt
        made.coordination = node.coordination if node.coordination is not None else ()
        taken = node.coordination if node.coordination is not None else child.options.coordination
        lined = any(getattr(each, "kind", "") == "ordered_lock" for each in taken)
        if lined and (node.kind == "compose" or item is not None):
            text = "its OrderedLock is ignored here; positions belong to whole runs"
            self.report.warnings.append(f"{where}: {text}")
        self.report.unresolved += [f"{where}: {text}" for text in child.unresolved]
        made.args = binder.limited(by_step_name=False).fields(where, child.fields, node.wiring, item=item)

    def _map(self, made: PlanNode, node: MapNode[Any]) -> None:
        where = f"map {made.name!r}"
        made.concurrency, made.atomic, made.fan_out = node.concurrency, node.atomic, node.fan_out
        made.over, made.paged = self._source(f"{where}, over", node)
        made.element = self._element(made, node)
        for slot in ("collect", "undo_all"):
            fn = getattr(node, f"{slot}_fn")
            if callable(fn):
                setattr(made, slot, self._on_results(f"{where}, {slot}", fn))

    def _on_results(self, where: str, fn: Callable[..., Any]) -> Call:
        """A function over the results: a method of the reactor, or a plain one of a single parameter."""
        space = self.declaration.namespace_of(fn)
        method = any(item is fn for owner in self.declaration.reactor.__mro__ for item in vars(owner).values())
        extra = {"results": Arg("results", Source.OWN_RESULT)}
        if method:
            return self.binder.limited(extra=extra).call(where, fn, space)
        return Call(fn, (Arg("results", Source.OWN_RESULT),), is_async(fn))

    def _source(self, where: str, node: MapNode[Any]) -> tuple[Arg | Call | None, bool]:
        if isinstance(node.over, Wire):
            found, given = self.binder.source(where, node.over)
            problem = source_problem(given, fan_out=node.fan_out is not None) if found is not None else None
            self.report.problems += [f"{where}: {problem}"] if problem is not None else []
            return found, False
        space = self.declaration.namespace_of(node.over)
        paged = {"cursor", "limit"} <= {param.name for param in parameters(node.over, space)[0]}
        ignore = ("cursor", "limit") if paged else ()
        call = self.binder.call(where, node.over, space, generator_allowed=True, ignore=ignore)
        if not paged:
            lazy = is_generator(node.over)
            given = Iterator if lazy else return_annotation(node.over, space)
            problem = source_problem(given, fan_out=node.fan_out is not None)
            self.report.problems += [f"{where}: {problem}"] if problem is not None else []
        return call, paged

    def _element(self, made: PlanNode, node: MapNode[Any]) -> Plan | None:
        """The plan of one element: the child's own for a reactor, a plan of one node for a step."""
        inner = node.element
        self.report.problems += inner.problems
        item = node.item or ""
        one = PlanNode(0, "", inner.kind, inner, result_type=self.type_of(inner))
        if isinstance(inner, ComposeNode):
            one.name = made.name
            self._compose(one, inner, self.binder, item)
            made.args, made.child, made.coordination = one.args, one.child, one.coordination
            return one.child
        one.name = made.name
        self._step(one, inner, self.binder, item)
        made.args = one.args
        one.name = ""
        return Plan(
            self.declaration,
            f"{self.declaration.name}.{made.name}",
            self.declaration.options.extended({"coordination": (), "middlewares": (), "max_concurrency": None}),
            self.fields,
            (one,),
            {"": 0},
            roots=(0,),
            returns=0,
            element=True,
            waiting=(0,),
        )


def _no_reactor(target: Any, *, mapped: bool) -> str:
    if isinstance(target, Reactor):
        cls = type(target).__name__
        return f"{cls}(…) is an invocation, not a reactor class; give {cls} and its inputs as keywords"
    if mapped:
        return f"{target!r} is not a step class or a reactor class; give one, or decorate a method"
    return f"{target!r} is not a reactor class; give a subclass of Reactor"


def _is_reactor(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Reactor) and hasattr(candidate, "__aioreactor__")


def class_space(cls: Any, attribute: str) -> Any:
    """The namespace of the step class that defines the method."""
    for owner in cls.__mro__:
        if attribute in owner.__dict__ and owner in cls.__aioreactor_namespaces__:
            return cls.__aioreactor_namespaces__[owner]
    return cls.__aioreactor_namespaces__[cls]


def declared_value(reactor: type[Reactor[Any]]) -> Any:
    """``str`` of ``Reactor[str]``."""
    return declared_argument(reactor, Reactor)


def value_type(reactor: type[Reactor[Any]]) -> Any:
    """What a run of the reactor gives."""
    declared = declared_value(reactor)
    plan = reactor.plan
    if is_known(declared) or plan.returns is None:
        return declared
    return plan.nodes[plan.returns].result_type
