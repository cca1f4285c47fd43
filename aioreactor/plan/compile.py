"""From a declaration to a plan: every node bound, every mistake found, all of them reported at once."""

from __future__ import annotations

from typing import Any

from aioreactor.definition.annotations import Unresolved, text_of
from aioreactor.definition.fields import FieldSet, closest_text
from aioreactor.definition.nodes import (
    Handoff,
    MapNode,
    Node,
    StepNode,
)
from aioreactor.definition.reactor import RESERVED, Declaration
from aioreactor.definition.wiring import ResultWire
from aioreactor.errors import DefinitionError
from aioreactor.plan import store_need
from aioreactor.plan.compile_nodes import UNITS, NodeCompiler, class_space, declared_value
from aioreactor.plan.fingerprint import fingerprint
from aioreactor.plan.graph import Reach, dependants_of, find_cycle
from aioreactor.plan.model import Arg, Call, Plan, PlanNode, Source
from aioreactor.plan.resources import resources_of
from aioreactor.plan.types import fits, is_known
from aioreactor.plan.units import fans_in, units_in


def compile_plan(declaration: Declaration) -> Plan:
    """Compile one reactor class.

    Raises:
        DefinitionError: with every mistake in the class.
    """
    declaration.refresh()
    return _Compiler(declaration).compile()


class _Compiler(NodeCompiler):
    def compile(self) -> Plan:
        self._check_names()
        self._check_fields()
        plan_nodes = [self.node(index, node) for index, node in enumerate(self.nodes)]
        deps = self._dependencies(plan_nodes)
        cycle = find_cycle([node.name for node in plan_nodes], deps)
        if cycle:
            self.report.problems.append(
                f"steps wait for each other: {' → '.join(cycle)}; take one of these wirings (or after=) away"
            )
        self._bind_rollback(plan_nodes, deps)
        self._bind_units(plan_nodes)
        self._check_validate()
        returns, background = self._returns(), self._background()
        if self.report.problems:
            raise DefinitionError(self.declaration.reactor.__qualname__, list(dict.fromkeys(self.report.problems)))
        return self._assemble(plan_nodes, deps, returns, background)

    # ---------------------------------------------------------------- names and fields

    def _check_names(self) -> None:
        for node in self.nodes:
            if node.label in self.fields.by_name or self._is_default(node):
                self.report.problems.append(f"{node.label!r} is both an input and a step; rename one")
            if node.label in RESERVED and node.attribute not in RESERVED:
                self.report.problems.append(f"step name {node.label!r} is what a reactor has; pin another name=")
            if "." in node.label or "[" in node.label or not node.label:
                self.report.problems.append(f"step name {node.label!r}: dots and brackets belong to paths; rename it")
        self._check_aliases()

    def _is_default(self, node: Node[Any]) -> bool:
        declared = self.fields.by_name.get(node.attribute)
        return declared is not None and declared.default is node

    def _check_aliases(self) -> None:
        holders: dict[str, str] = {}
        for node in self.nodes:
            for alias in node.aliases:
                other = alias if alias in self.indexes else holders.get(alias, node.label)
                if other != node.label:
                    self.report.problems.append(
                        f"step {node.label!r}: alias {alias!r} is what step {other!r} is called too; take one away"
                    )
                holders[alias] = node.label

    def _check_fields(self) -> None:
        fields = self.fields
        declared = [field for field in fields.by_name.values() if not isinstance(field.default, Node)]
        self.report.problems += [text for field in declared if (text := field.problem())]
        self.report.unresolved += [f"input {f.name!r}: annotation {f.annotation.text!r}" for f in fields.unresolved()]
        self.check_coordination("class header", self.declaration.options.coordination)

    # ---------------------------------------------------------------- dependencies

    def _dependencies(self, nodes: list[PlanNode]) -> list[tuple[int, ...]]:
        deps = []
        for node in nodes:
            used = [arg.index for arg in _all_args(node) if arg.source is Source.RESULT]
            node.deps = tuple(sorted({*used, *node.order_only}))
            node.order_only = tuple(index for index in node.order_only if index not in set(used))
            deps.append(node.deps)
            node.units = tuple(index for index in node.deps if self.nodes[index].kind in UNITS)
        for node, after in zip(nodes, dependants_of(deps), strict=True):
            node.dependants = tuple(after)
        return deps

    # ---------------------------------------------------------------- undo and compensate

    def _bind_rollback(self, nodes: list[PlanNode], deps: list[tuple[int, ...]]) -> None:
        for made in nodes:
            reach = Reach(made.deps, deps)
            node = made.node
            if isinstance(node, StepNode):
                self._bind_step_rollback(made, node, reach, made.name)
            elif isinstance(node, MapNode) and isinstance(node.element, StepNode) and made.element is not None:
                self._bind_step_rollback(made.element.nodes[0], node.element, reach, made.name)

    def _bind_step_rollback(self, made: PlanNode, node: StepNode[Any], reach: Reach, name: str) -> None:
        for slot in ("undo", "compensate"):
            if node.fn is not None:
                fn = getattr(node, f"{slot}_fn")
                space = self.declaration.namespace_of(fn) if fn is not None else None
            elif node.kind == "async_step" and slot == "undo":
                continue
            else:
                self._check_own_slot(node, slot, name)
                fn = getattr(node.step_class, slot, None)
                space = class_space(node.step_class, slot) if fn is not None else None
            if fn is None or space is None:
                continue
            extra = _rollback_names(slot, name, made)
            binder = self.binder.limited(extra=extra, reachable=reach)
            if node.fn is None:
                binder = binder.limited(fields=FieldSet({}), by_step_name=False)
            setattr(made, slot, binder.call(f"{slot} of step {name!r}", fn, space))

    def _check_own_slot(self, node: StepNode[Any], slot: str, name: str) -> None:
        """What is registered on one use of a step class: its functions belong to the class."""
        if getattr(node, f"{slot}_fn") is not None and node.step_class is not None:
            cls = node.step_class.__qualname__
            self.report.problems.append(
                f"step {name!r} uses the class {cls}: define {slot} there, as a method; on one use of it, it would "
                f"never be called"
            )

    # ---------------------------------------------------------------- the whole

    def _assemble(
        self, nodes: list[PlanNode], deps: list[tuple[int, ...]], returns: int | None, background: Any
    ) -> Plan:
        declaration = self.declaration
        plan = Plan(
            declaration,
            declaration.name,
            declaration.options,
            self.fields,
            tuple(nodes),
            self.indexes,
            roots=tuple(index for index, before in enumerate(deps) if not before),
            returns=returns,
            background=background,
            unresolved=tuple(self.report.unresolved),
            warnings=tuple(self.report.warnings),
            notes=(*self.report.warnings, *self.report.notes),
            waiting=tuple(len(before) for before in deps),
        )
        inner = [found for node in nodes if (found := node.child or node.element) is not None]
        plan.has_bounds = plan.options.max_concurrency is not None or any(found.has_bounds for found in inner)
        plan.has_units = next(units_in(plan), None) is not None
        plan.has_fans = next(fans_in(plan), None) is not None
        plan.resource_needs = tuple(resources_of(plan))
        plan.fingerprint = fingerprint(plan)
        plan.record_reasons = store_need.of_record(plan)
        plan.store_reasons = store_need.reasons(plan)
        return plan

    def _returns(self) -> int | None:
        given = self.declaration.returns
        if given is None:
            self._check_mapping()
            return None
        if isinstance(given, ResultWire):
            if not given.plain:
                self.report.problems.append(
                    f"returns = {given!r}: returns names a whole step; add a step that picks the part, and return that"
                )
            given = given.source
        label = given if isinstance(given, str) else getattr(given, "label", repr(given))
        index = self.indexes.get(label)
        foreign = self.binder.foreign(given)
        if index is None or foreign is not None:
            hint = foreign or f"no such step{closest_text(label, self.indexes)}"
            self.report.problems.append(f"returns = {label}: {hint}")
            return None
        if self.nodes[index].kind in UNITS:
            self.report.problems.append(
                f"returns = {label}: a dispatched unit is not awaited by its run; return a step that reads it"
            )
        self._check_value_type(label)
        return index

    def _check_mapping(self) -> None:
        declared = declared_value(self.declaration.reactor)
        if self.nodes and is_known(declared) and not fits(dict[str, Any], declared):
            # No mistake yet: a class made to be inherited may leave its ``returns`` to its subclasses.
            self.report.notes.append(
                f"the class says Reactor[{text_of(declared)}], but without returns a run gives the mapping of all "
                f"results; add returns = <step>, or leave [{text_of(declared)}] away"
            )

    def _check_value_type(self, label: str) -> None:
        declared, given = declared_value(self.declaration.reactor), self.types[label]
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
        label = given.step if isinstance(given.step, str) else getattr(given.step, "label", repr(given.step))
        foreign = self.binder.foreign(given.step)
        if label not in self.indexes or foreign is not None:
            hint = foreign or f"no such step{closest_text(label, self.indexes)}"
            self.report.problems.append(f"background = {given!r}: {hint}")
            return None
        return given.side, self.indexes[label]

    def _check_validate(self) -> None:
        from inspect import iscoroutinefunction

        check = getattr(self.declaration.reactor, "validate", None)
        if iscoroutinefunction(check):
            self.report.problems.append("validate is async; it only compares inputs, so make it def (do I/O in a step)")


def _rollback_names(slot: str, name: str, made: PlanNode) -> dict[str, Arg]:
    """What an undo or compensate may ask for beyond the usual: the step's arguments, its result, its error."""
    extra: dict[str, Arg] = {}
    if made.step_class is None:
        kept = made.body.kept if made.body is not None else ()
        extra = {arg.parameter: _again(arg) for arg in (*made.args, *kept)}
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
