"""Wiring: for every parameter of the user's callables, the source its value comes from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from aioreactor.definition.annotations import UNKNOWN, Namespace, Unresolved, text_of
from aioreactor.definition.fields import FieldSet, closest_text
from aioreactor.definition.nodes import Node
from aioreactor.definition.wiring import InputWire, ResultWire, ValueWire, Wire
from aioreactor.plan.model import Arg, Call, Source
from aioreactor.plan.parameters import REQUIRED, Param, is_async, is_generator, parameters
from aioreactor.plan.types import NoSuchPart, fits, is_known, part_of, return_type

Bound: TypeAlias = tuple[Arg, bool]
"""An argument, and whether it is the parameter's own default."""


@dataclass(slots=True)
class Report:
    """What was found wrong, and what could not be known yet."""

    problems: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Names:
    """Everything that a parameter of one callable may be wired to, by name.

    ``extra`` comes first (own result, error, forward arguments, the item), then inputs, then steps. Results of
    steps outside ``reachable`` exist but are not sure to be there.
    """

    fields: FieldSet
    indexes: Mapping[str, int]
    types: Mapping[str, Any]
    nodes: Mapping[str, Node[Any]]
    reactor: type
    extra: Mapping[str, Arg] = field(default_factory=dict)
    reachable: Container[int] | None = None
    by_step_name: bool = True


class Binder:
    """Binds callables and field sets of one reactor, collecting problems in ``report``."""

    def __init__(self, names: Names, report: Report) -> None:
        self.names = names
        self.report = report

    def limited(self, **changes: Any) -> Binder:
        """The same with other names in reach."""
        return Binder(replace(self.names, **changes), self.report)

    def call(
        self,
        where: str,
        fn: Callable[..., Any],
        space: Namespace,
        *,
        method: bool = True,
        generator_allowed: bool = False,
        ignore: Iterable[str] = (),
        item: str | None = None,
    ) -> Call:
        """A callable with its arguments; ``item`` (or "" for the first unwired one) receives a map's item."""
        found, problems = parameters(fn, space, method=method)
        self.report.problems += [f"{where}: {text}" for text in problems]
        if is_generator(fn) and not generator_allowed:
            self.report.problems.append(
                f"{where} is a generator function; use return instead of yield (a map_each source may yield)"
            )
        params = [param for param in found if param.name not in frozenset(ignore)]
        bound = self._with_item(where, params, item) if item is not None else self._args(where, params)
        passed, kept = _without_kept(bound)
        return Call(fn, passed, is_async(fn), kept)

    def _with_item(self, where: str, params: list[Param], item: str) -> list[Bound]:
        chosen = item or next((param.name for param in params if self._unwired(param)), "")
        if not any(param.name == chosen for param in params):
            named = f"item={item!r} is not a parameter" if item else "no parameter is left for the item; add one"
            self.report.problems.append(
                f"{where}: {named}{closest_text(item, (p.name for p in params)) if item else ''}"
            )
            return self._args(where, params)
        extra = {**self.names.extra, chosen: Arg(chosen, Source.ITEM)}
        return self.limited(extra=extra)._args(where, params)

    def _unwired(self, param: Param) -> bool:
        if isinstance(param.default, Wire) or param.wants_context or param.wants_resource:
            return False
        return param.default is REQUIRED and self._by_name(param.name) is None

    def _args(self, where: str, params: list[Param]) -> list[Bound]:
        bound = []
        for param in params:
            arg = self._bind(where, param)
            if arg is None:
                continue
            kept = arg.source is Source.VALUE and arg.value is param.default
            check = None if kept else param.constraint
            full = replace(arg, parameter=param.name, annotation=param.annotation, keyword=param.keyword, check=check)
            bound.append((full, kept))
        return bound

    def _bind(self, where: str, param: Param) -> Arg | None:
        at = f"{where}, parameter {param.name!r}"
        if isinstance(param.annotation, Unresolved):
            self.report.unresolved.append(f"{at}: annotation {param.annotation.text!r}")
        if isinstance(param.default, Wire):
            return self.source(at, param.default, param.annotation)[0]
        if isinstance(param.default, Node):
            self.report.problems.append(f"{at}: the default is a step; write result({param.default.label})")
            return None
        if param.wants_context:
            return Arg(param.name, Source.CONTEXT)
        if param.wants_resource:
            return Arg(param.name, Source.RESOURCE, param.name)
        found = self._by_name(param.name)
        if found is not None:
            self._check_reach(at, found)
            self._check_type(at, found, self._type_by_name(found), param.annotation)
            return found
        if param.default is not REQUIRED:
            return Arg(param.name, Source.VALUE, value=param.default)
        if not isinstance(param.annotation, Unresolved):
            self.report.problems.append(self._nothing_provides(at, param))
        return None

    def _by_name(self, name: str) -> Arg | None:
        if name in self.names.extra:
            return self.names.extra[name]
        declared = self.names.fields.by_name.get(name)
        if declared is not None:
            return Arg(name, Source.RESOURCE if declared.resource else Source.INPUT, name)
        if self.names.by_step_name and name in self.names.indexes:
            return Arg(name, Source.RESULT, name, self.names.indexes[name])
        return None

    def _nothing_provides(self, at: str, param: Param) -> str:
        name = param.name
        if name in {"ctx", "context"} and param.annotation is REQUIRED:
            return f"{at}: nothing provides it. For the run's context annotate it: {name}: Context"
        known = [*self.names.extra, *self.names.fields.by_name]
        known += self.names.indexes if self.names.by_step_name else ()
        return (
            f"{at}: nothing provides it{closest_text(name, known)}. Rename it to an input or a step, or wire it: "
            f"{name} = {self._ways(name)}"
        )

    def _ways(self, name: str) -> str:
        """The explicit sources that there is something for."""
        inputs = [declared.name for declared in self.names.fields.inputs]
        close = difflib.get_close_matches(name, inputs, n=1)
        ways = ["result(step)"] if len(self.names.indexes) > 1 else []
        if inputs:
            ways.append(f"from_input({close[0]!r})" if close else "from_input(…)")
        return " or ".join(part for part in (", ".join(ways), "value(…)") if part)

    def source(self, at: str, wire: Wire, annotation: Any = UNKNOWN) -> tuple[Arg | None, Any]:
        """An explicit source as an argument, and what type it gives; what is wrong with it is reported."""
        found = self._wire(at, wire)
        if found is None:
            return None, UNKNOWN
        given = self._part(at, found)
        if wire.transform is not None:
            given = return_type(wire.transform)
            if not callable(wire.transform):
                self.report.problems.append(f"{at}: transform={wire.transform!r} is not a function of one value")
        self._check_type(at, found, given, annotation)
        return found, given

    def _wire(self, at: str, wire: Wire) -> Arg | None:
        if isinstance(wire, ValueWire):
            return Arg("", Source.VALUE, value=wire.value)
        if isinstance(wire, InputWire):
            return self._input_wire(at, wire)
        assert isinstance(wire, ResultWire)
        return self._result_wire(at, wire)

    def _input_wire(self, at: str, wire: InputWire) -> Arg | None:
        if wire.name not in self.names.fields.by_name:
            hint = closest_text(wire.name, self.names.fields.by_name)
            self.report.problems.append(f"{at}: {wire!r}: there is no input {wire.name!r}{hint}")
            return None
        return Arg("", Source.INPUT, wire.name, path=wire.path, transform=wire.transform)

    def _result_wire(self, at: str, wire: ResultWire) -> Arg | None:
        label = wire.source if isinstance(wire.source, str) else wire.source.label
        index = self.names.indexes.get(label)
        foreign = self.foreign(wire.source)
        if foreign is not None:
            self.report.problems.append(f"{at}: {wire!r}: {foreign}")
            return None
        if index is None:
            hint = closest_text(label, self.names.indexes)
            self.report.problems.append(f"{at}: {wire!r}: this reactor has no step {label!r}{hint}")
            return None
        found = Arg("", Source.RESULT, label, index, path=wire.path, transform=wire.transform)
        self._check_reach(at, found)
        return found

    def foreign(self, source: Any) -> str | None:
        """What is wrong with a step given as an object that is not of this reactor, nor inherited or overridden."""
        if not isinstance(source, Node) or self.names.nodes.get(source.label) is source:
            return None
        if source.home is not None and issubclass(self.names.reactor, source.home):
            return None
        hint = closest_text(source.label, self.names.indexes)
        if source.home is None or source.label not in self.names.indexes:
            return f"this reactor has no step {source.label!r}{hint}"
        return f"that is the step of {source.owner}, not the one of this reactor; name its own"

    def _check_reach(self, at: str, found: Arg) -> None:
        reach = self.names.reachable
        if found.source is Source.RESULT and reach is not None and found.index not in reach:
            self.report.problems.append(
                f"{at}: the result of {found.name!r} is not sure to be there; use what the step itself received, "
                f"or let the step come after {found.name!r}"
            )

    def _type_of(self, found: Arg) -> Any:
        if found.source is Source.INPUT:
            return self.names.fields.by_name[found.name].annotation
        if found.source is Source.RESULT:
            return self.names.types.get(found.name)
        return found.annotation

    def _type_by_name(self, found: Arg) -> Any:
        """The type of a source that a name led to; a faulty path was reported where it was written."""
        try:
            return part_of(self._type_of(found), found.path)
        except NoSuchPart:
            return UNKNOWN

    def _part(self, at: str, found: Arg) -> Any:
        if found.source is Source.VALUE:
            return type(found.value) if found.value is not None else None
        whole = self._type_of(found)
        try:
            return part_of(whole, found.path) if found.path else whole
        except NoSuchPart as error:
            self.report.problems.append(f"{at}: {error}")
            return Any

    def _check_type(self, at: str, found: Arg, given: Any, wanted: Any) -> None:
        if found.source is Source.VALUE and not isinstance(wanted, type):
            return
        if is_known(given) and not fits(given, wanted):
            what = {Source.RESULT: f"the result of {found.name!r}", Source.INPUT: f"input {found.name!r}"}
            self.report.problems.append(
                f"{at}: expects {text_of(wanted)}, but {what.get(found.source, 'the value')} is {text_of(given)}; "
                f"change the annotation, or map it with transform="
            )

    def fields(
        self, where: str, wanted: FieldSet, wiring: Mapping[str, Wire], *, item: str | None = None
    ) -> tuple[Arg, ...]:
        """The declared fields of a step class or a nested reactor; unwired ones take inputs of the same name."""
        for name in wiring:
            if name not in wanted.by_name or wanted.by_name[name].resource:
                hint = closest_text(name, (declared.name for declared in wanted.inputs))
                self.report.problems.append(f"{where}: it has no field {name!r} to wire{hint}")
        chosen = self._item_field(where, wanted, wiring, item)
        args: list[Arg] = []
        for declared in wanted.inputs:
            at = f"{where}, field {declared.name!r}"
            if declared.name == chosen:
                found: Arg | None = Arg("", Source.ITEM)
            elif declared.name in wiring:
                found = self.source(at, wiring[declared.name], declared.annotation)[0]
            else:
                found = self._field_by_name(at, declared.name, declared.annotation, required=declared.required)
            if found is not None:
                args.append(replace(found, parameter=declared.name, annotation=declared.annotation))
        return tuple(args)

    def _item_field(self, where: str, wanted: FieldSet, wiring: Mapping[str, Wire], item: str | None) -> str | None:
        if item is None:
            return None
        if item and item not in wanted.by_name:
            hint = closest_text(item, (declared.name for declared in wanted.inputs))
            self.report.problems.append(f"{where}: item={item!r} is not a field{hint}")
        if item:
            return item
        free = [d.name for d in wanted.inputs if d.name not in wiring and d.name not in self.names.fields.by_name]
        needed = [name for name in free if wanted.by_name[name].required]
        if not free:
            self.report.problems.append(f"{where}: no field is left for the item; name one with item=")
            return None
        return (needed or free)[0]

    def _field_by_name(self, at: str, name: str, annotation: Any, *, required: bool) -> Arg | None:
        declared = self.names.fields.by_name.get(name)
        if declared is not None and not declared.resource:
            found = Arg(name, Source.INPUT, name)
            self._check_type(at, found, declared.annotation, annotation)
            return found
        if required:
            steps = f"; the step {name!r} is wired with {name}=result({name})" if name in self.names.indexes else ""
            hint = steps or closest_text(name, self.names.fields.by_name)
            self.report.problems.append(
                f"{at}: nothing provides it{hint}. Wire it ({name}=result(…) or a value), or add the input"
            )
        return None


def _without_kept(bound: list[Bound]) -> tuple[tuple[Arg, ...], tuple[Arg, ...]]:
    """What has to be passed, and the own defaults that need not be: no positional argument comes after them."""
    passed: list[Arg] = []
    kept: list[Arg] = []
    behind = False
    for arg, own in reversed(bound):
        if own and (arg.keyword or not behind):
            kept.append(arg)
        else:
            passed.append(arg)
            behind = behind or not arg.keyword
    return tuple(reversed(passed)), tuple(reversed(kept))
