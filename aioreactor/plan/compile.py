"""From a declaration to a plan: every node bound, every mistake found, all of them reported at once."""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any

from aioreactor.definition.annotations import UNKNOWN, Unresolved, text_of
from aioreactor.definition.convert import converter_for
from aioreactor.definition.fields import FieldSet, closest_text
from aioreactor.definition.nodes import (
    AsyncReactorNode,
    ComposeNode,
    Handoff,
    InterruptNode,
    MapNode,
    Node,
    StepNode,
    TimerNode,
)
from aioreactor.definition.policies import NO_RETRY, Retry
from aioreactor.definition.primitives import Primitive
from aioreactor.definition.reactor import RESERVED, Declaration, Reactor
from aioreactor.definition.wiring import ResultWire, Wire
from aioreactor.errors import DefinitionError
from aioreactor.plan import store_need
from aioreactor.plan.binding import Binder, Names, Report
from aioreactor.plan.fingerprint import fingerprint
from aioreactor.plan.graph import dependants_of, find_cycle, upstream
from aioreactor.plan.model import Arg, Call, Plan, PlanNode, Source
from aioreactor.plan.parameters import returns as return_annotation
from aioreactor.plan.types import fits, is_known, without_signals
from aioreactor.results import Failure, MapResults


def compile_plan(declaration: Declaration) -> Plan:
    """Compile one reactor class.

    Raises:
        DefinitionError: with every mistake in the class.
    """
    declaration.refresh()
    return _Compiler(declaration).compile()


class _Compiler:
    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.fields = declaration.fields
        self.report = Report(problems=list(declaration.problems))
        self.nodes = list(declaration.nodes.values())
        self.indexes = {node.label: index for index, node in enumerate(self.nodes)}
        self.types = {node.label: self._type_of(node) for node in self.nodes}
        names = Names(self.fields, self.indexes, self.types, declaration.nodes)
        self.binder = Binder(names, self.report)

    def compile(self) -> Plan:
        self._check_names()
        self._check_fields()
        plan_nodes = [self._node(index, node) for index, node in enumerate(self.nodes)]
        deps = self._dependencies(plan_nodes)
        cycle = find_cycle([node.name for node in plan_nodes], deps)
        if cycle:
            self.report.problems.append(
                f"steps wait for each other: {' → '.join(cycle)}; take one of these wirings (or after=) away"
            )
        else:
            self._bind_rollback(plan_nodes, deps)
        plan = self._assemble(plan_nodes, deps)
        if self.report.problems:
            raise DefinitionError(self.declaration.reactor.__qualname__, list(dict.fromkeys(self.report.problems)))
        return plan

    # ---------------------------------------------------------------- names and fields

    def _check_names(self) -> None:
        for node in self.nodes:
            if node.label in self.fields.by_name:
                self.report.problems.append(f"{node.label!r} is both an input and a step; rename one")
            if node.label in RESERVED and node.attribute not in RESERVED:
                self.report.problems.append(f"step name {node.label!r} is what a reactor has; pin another name=")
            if "." in node.label or "[" in node.label or not node.label:
                self.report.problems.append(f"step name {node.label!r}: dots and brackets belong to paths; rename it")

    def _check_fields(self) -> None:
        fields = self.fields
        self.report.problems += [text for field in fields.by_name.values() if (text := field.problem())]
        self.report.unresolved += [f"input {f.name!r}: annotation {f.annotation.text!r}" for f in fields.unresolved()]
        self._check_coordination("class header", self.declaration.options.coordination)

    def _check_coordination(self, where: str, given: tuple[Any, ...]) -> None:
        for entry in given:
            if not isinstance(entry, Primitive):
                self.report.problems.append(f"{where}: coordination={entry!r}: use Lock, Semaphore, RateLimit, …")

    # ---------------------------------------------------------------- what a node's reader gets

    def _type_of(self, node: Node[Any]) -> Any:
        if isinstance(node, MapNode):
            return self._map_type(node)
        if isinstance(node, StepNode):
            plain = without_signals(self._body_type(node))
            return (
                plain | Failure
                if node.kind == "async_step" and isinstance(plain, type)
                else (UNKNOWN if node.kind == "async_step" else plain)
            )
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
        return UNKNOWN if run is None else return_annotation(run, _class_space(node.step_class, "run"))

    def _map_type(self, node: MapNode[Any]) -> Any:
        if node.collect_fn is not None:
            return return_annotation(node.collect_fn, self.declaration.namespace_of(node.collect_fn))
        inner = self._type_of(node.element)
        return GenericAlias(MapResults, (inner,)) if is_known(inner) else MapResults

    # ---------------------------------------------------------------- nodes

    def _node(self, index: int, node: Node[Any]) -> PlanNode:
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
        self._check_coordination(where, made.coordination)
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
        made.body = own.call(f"{where}.run", run, _class_space(cls, "run"))
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
        one = PlanNode(0, "", inner.kind, inner, result_type=self._type_of(inner))
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

    # ---------------------------------------------------------------- dependencies

    def _dependencies(self, nodes: list[PlanNode]) -> list[tuple[int, ...]]:
        deps = []
        for node in nodes:
            used = [arg.index for arg in _all_args(node) if arg.source is Source.RESULT]
            node.deps = tuple(sorted({*used, *node.order_only}))
            deps.append(node.deps)
        for node, after in zip(nodes, dependants_of(deps), strict=True):
            node.dependants = tuple(after)
        return deps

    # ---------------------------------------------------------------- undo and compensate

    def _bind_rollback(self, nodes: list[PlanNode], deps: list[tuple[int, ...]]) -> None:
        for made in nodes:
            reach = frozenset(upstream(made.deps, deps))
            node = made.node
            if isinstance(node, StepNode):
                self._bind_step_rollback(made, node, reach, made.name)
            elif isinstance(node, MapNode) and isinstance(node.element, StepNode) and made.element is not None:
                self._bind_step_rollback(made.element.nodes[0], node.element, reach, made.name)

    def _bind_step_rollback(self, made: PlanNode, node: StepNode[Any], reach: frozenset[int], name: str) -> None:
        for slot in ("undo", "compensate"):
            if node.fn is not None:
                fn = getattr(node, f"{slot}_fn")
                space = self.declaration.namespace_of(fn) if fn is not None else None
            elif node.kind == "async_step" and slot == "undo":
                continue
            else:
                fn = getattr(node.step_class, slot, None)
                space = _class_space(node.step_class, slot) if fn is not None else None
            if fn is None or space is None:
                continue
            extra = _rollback_names(slot, name, made)
            binder = self.binder.limited(extra=extra, reachable=reach)
            if node.fn is None:
                binder = binder.limited(fields=FieldSet({}), by_step_name=False)
            setattr(made, slot, binder.call(f"{slot} of step {name!r}", fn, space))

    # ---------------------------------------------------------------- the whole

    def _assemble(self, nodes: list[PlanNode], deps: list[tuple[int, ...]]) -> Plan:
        declaration = self.declaration
        plan = Plan(
            declaration,
            declaration.name,
            declaration.options,
            self.fields,
            tuple(nodes),
            self.indexes,
            roots=tuple(index for index, before in enumerate(deps) if not before),
            returns=self._returns(),
            background=self._background(),
            unresolved=tuple(self.report.unresolved),
            notes=tuple(self.report.notes),
            waiting=tuple(len(before) for before in deps),
        )
        self._check_validate()
        inner = [found for node in nodes if (found := node.child or node.element) is not None]
        plan.has_bounds = plan.options.max_concurrency is not None or any(found.has_bounds for found in inner)
        plan.fingerprint = fingerprint(plan)
        plan.store_reasons = store_need.reasons(plan)
        return plan

    def _returns(self) -> int | None:
        given = self.declaration.returns
        if given is None:
            return None
        if isinstance(given, ResultWire):
            given = given.source
        label = given if isinstance(given, str) else getattr(given, "label", repr(given))
        index = self.indexes.get(label)
        if index is None:
            hint = closest_text(label, self.indexes)
            self.report.problems.append(f"returns = {label}: no such step{hint}")
            return None
        if self.nodes[index].kind in {"async_step", "async_reactor"}:
            self.report.problems.append(
                f"returns = {label}: a dispatched unit is not awaited by its run; return a step that reads it"
            )
        self._check_value_type(label)
        return index

    def _check_value_type(self, label: str) -> None:
        declared, given = _declared_value(self.declaration.reactor), self.types[label]
        if isinstance(given, Unresolved) or not is_known(given):
            return
        if not fits(given, declared):
            self.report.problems.append(
                f"returns = {label}: it gives {text_of(given)}, but the class says Reactor[{text_of(declared)}]; "
                f"change one of them"
            )

    def _background(self) -> Any:
        given = self.declaration.background
        if given is None or given == "all":
            return given
        if not isinstance(given, Handoff):
            self.report.problems.append(f"background = {given!r}: use after(step), before(step) or 'all'")
            return None
        label = given.step if isinstance(given.step, str) else given.step.label
        if label not in self.indexes:
            self.report.problems.append(f"background = {given!r}: no such step{closest_text(label, self.indexes)}")
            return None
        return given.side, self.indexes[label]

    def _check_validate(self) -> None:
        from inspect import iscoroutinefunction

        check = getattr(self.declaration.reactor, "validate", None)
        if iscoroutinefunction(check):
            self.report.problems.append("validate is async; it only compares inputs, so make it def (do I/O in a step)")


def _rollback_names(slot: str, name: str, made: PlanNode) -> dict[str, Arg]:
    """What an undo or compensate may ask for beyond the usual: the step's arguments, its result, its error."""
    extra = {arg.parameter: _again(arg) for arg in made.args} if made.step_class is None else {}
    if slot == "undo":
        own = Arg(name, Source.OWN_RESULT, name, annotation=made.result_type)
        extra = {**extra, "result": own, name: own}
    else:
        extra["error"] = Arg("error", Source.ERROR)
    return extra


def _again(arg: Arg) -> Arg:
    """A forward argument seen again: recorded where it was mapped or checked, else read from its source."""
    if arg.transform is None and arg.check is None:
        return arg
    return Arg(arg.parameter, Source.ARGUMENT, arg.parameter, annotation=arg.annotation)


def _all_args(node: PlanNode) -> list[Arg]:
    args = list(node.args)
    if isinstance(node.over, Arg):
        args.append(node.over)
    for call in (node.over, node.body, node.collect, node.undo_all):
        if isinstance(call, Call):
            args += call.args
    return args


def _output_check(given: Any) -> Callable[[Any], Any] | None:
    if given is None:
        return None
    is_type = isinstance(given, type) or not callable(given) or hasattr(given, "__origin__")
    return converter_for(given) if is_type else given


def _is_reactor(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Reactor) and hasattr(candidate, "__aioreactor__")


def _class_space(cls: Any, attribute: str) -> Any:
    """The namespace of the step class that defines the method."""
    for owner in cls.__mro__:
        if attribute in owner.__dict__ and owner in cls.__aioreactor_namespaces__:
            return cls.__aioreactor_namespaces__[owner]
    return cls.__aioreactor_namespaces__[cls]


def _declared_value(reactor: type[Reactor[Any]]) -> Any:
    """``str`` of ``Reactor[str]``, of the nearest class that says."""
    for owner in reactor.__mro__:
        for base in getattr(owner, "__orig_bases__", ()):
            origin = getattr(base, "__origin__", None)
            if isinstance(origin, type) and issubclass(origin, Reactor):
                return base.__args__[0]
    return UNKNOWN


def value_type(reactor: type[Reactor[Any]]) -> Any:
    """What a run of the reactor gives."""
    declared = _declared_value(reactor)
    plan = reactor.plan
    if is_known(declared) or plan.returns is None:
        return declared
    return plan.nodes[plan.returns].result_type
