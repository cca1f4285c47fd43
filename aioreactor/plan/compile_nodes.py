"""One node at a time: bodies, nested reactors, maps and what their readers get."""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any

from aioreactor.definition.annotations import UNKNOWN
from aioreactor.definition.convert import converter_for
from aioreactor.definition.fields import FieldSet, closest_text
from aioreactor.definition.nodes import (
    AsyncReactorNode,
    ComposeNode,
    InterruptNode,
    MapNode,
    Node,
    StepNode,
    TimerNode,
)
from aioreactor.definition.policies import NO_RETRY, Retry
from aioreactor.definition.primitives import Primitive
from aioreactor.definition.reactor import Declaration, Reactor
from aioreactor.definition.wiring import Wire
from aioreactor.map_results import MapResults
from aioreactor.plan.binding import Binder, Names, Report
from aioreactor.plan.model import Arg, Call, Plan, PlanNode, Source
from aioreactor.plan.parameters import returns as return_annotation
from aioreactor.plan.types import is_known, without_signals
from aioreactor.results import Failure


class NodeCompiler:
    """Binds the nodes of one declaration, one by one; problems go into ``report``."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.fields = declaration.fields
        self.report = Report(problems=list(declaration.problems))
        self.nodes = list(declaration.nodes.values())
        self.indexes = {node.label: index for index, node in enumerate(self.nodes)}
        self.types = {node.label: self.type_of(node) for node in self.nodes}
        names = Names(self.fields, self.indexes, self.types, declaration.nodes)
        self.binder = Binder(names, self.report)

    def check_coordination(self, where: str, given: tuple[Any, ...]) -> None:
        """Report what is no coordination primitive."""
        for entry in given:
            if not isinstance(entry, Primitive):
                self.report.problems.append(f"{where}: coordination={entry!r}: use Lock, Semaphore, RateLimit, …")

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
            return value_type(node.child) if _is_reactor(node.child) else UNKNOWN
        if isinstance(node, InterruptNode):
            return node.payload
        return None if isinstance(node, TimerNode) else UNKNOWN

    def _body_type(self, node: StepNode[Any]) -> Any:
        if node.fn is not None:
            return return_annotation(node.fn, self.declaration.namespace_of(node.fn))
        run = getattr(node.step_class, "run", None)
        return UNKNOWN if run is None else return_annotation(run, class_space(node.step_class, "run"))

    def _map_type(self, node: MapNode[Any]) -> Any:
        if node.collect_fn is not None:
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
            found = self.binder.wire(f"timer {node.label!r}, until", node.until)
            made.args = (found,) if found else ()
        return made

    def _order(self, node: Node[Any]) -> tuple[int, ...]:
        found = []
        for ref in node.after:
            label = ref if isinstance(ref, str) else getattr(ref, "label", repr(ref))
            if label in self.indexes:
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
        made.output = _output_check(node.output)
        self.check_coordination(where, made.coordination)
        if node.fn is not None:
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
        fields: FieldSet = cls.__aioreactor_fields__
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
            self.report.notes.append(f"{where}: its undo never runs when dispatched; a parent does not roll it back")

    def _retry(self, node: StepNode[Any]) -> Retry:
        return node.retries or self.declaration.options.retries or NO_RETRY

    def _compose(self, made: PlanNode, node: ComposeNode[Any], binder: Binder, item: str | None = None) -> None:
        what = "async_reactor" if node.kind == "async_reactor" else "compose"
        where = f"{what} {made.name!r}"
        if not _is_reactor(node.child):
            self.report.problems.append(f"{where}: {node.child!r} is not a reactor class; give a subclass of Reactor")
            return
        child = node.child.plan
        made.child = child
        made.on_halt = node.on_halt
        made.coordination = node.coordination if node.coordination is not None else ()
        self.report.unresolved += [f"{where}: {text}" for text in child.unresolved]
        made.args = binder.limited(by_step_name=False).fields(where, child.fields, node.wiring, item=item)

    def _map(self, made: PlanNode, node: MapNode[Any]) -> None:
        where = f"map {made.name!r}"
        made.concurrency, made.atomic, made.fan_out = node.concurrency, node.atomic, node.fan_out
        made.over, made.paged = self._source(where, node)
        made.element = self._element(made, node)
        for slot in ("collect", "undo_all"):
            fn = getattr(node, f"{slot}_fn")
            if fn is not None:
                setattr(made, slot, self._on_results(f"{where}, {slot}", fn))

    def _on_results(self, where: str, fn: Callable[..., Any]) -> Call:
        """A function over the results: a method of the reactor, or a plain one of a single parameter."""
        space = self.declaration.namespace_of(fn)
        method = any(item is fn for owner in self.declaration.reactor.__mro__ for item in vars(owner).values())
        extra = {"results": Arg("results", Source.OWN_RESULT)}
        if method:
            return self.binder.limited(extra=extra).call(where, fn, space)
        return Call(fn, (Arg("results", Source.OWN_RESULT),), False)

    def _source(self, where: str, node: MapNode[Any]) -> tuple[Arg | Call | None, bool]:
        if isinstance(node.over, Wire):
            return self.binder.wire(f"{where}, over", node.over), False
        space = self.declaration.namespace_of(node.over)
        names = getattr(getattr(node.over, "__code__", None), "co_varnames", ())
        paged = "cursor" in names and "limit" in names
        ignore = ("cursor", "limit") if paged else ()
        call = self.binder.call(f"{where}, over", node.over, space, generator_allowed=True, ignore=ignore)
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


def _output_check(given: Any) -> Callable[[Any], Any] | None:
    if given is None:
        return None
    is_type = isinstance(given, type) or not callable(given) or hasattr(given, "__origin__")
    return converter_for(given) if is_type else given


def _is_reactor(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Reactor) and hasattr(candidate, "__aioreactor__")


def class_space(cls: Any, attribute: str) -> Any:
    """The namespace of the step class that defines the method."""
    for owner in cls.__mro__:
        if attribute in owner.__dict__ and owner in cls.__aioreactor_namespaces__:
            return cls.__aioreactor_namespaces__[owner]
    return cls.__aioreactor_namespaces__[cls]


def declared_value(reactor: type[Reactor[Any]]) -> Any:
    """``str`` of ``Reactor[str]``, of the nearest class that says."""
    for owner in reactor.__mro__:
        for base in getattr(owner, "__orig_bases__", ()):
            origin = getattr(base, "__origin__", None)
            if isinstance(origin, type) and issubclass(origin, Reactor):
                return base.__args__[0]
    return UNKNOWN


def value_type(reactor: type[Reactor[Any]]) -> Any:
    """What a run of the reactor gives."""
    declared = declared_value(reactor)
    plan = reactor.plan
    if is_known(declared) or plan.returns is None:
        return declared
    return plan.nodes[plan.returns].result_type
