"""Everything one reactor class says: collected over its body and its bases, with the mistakes seen on the way."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aioreactor.definition.annotations import Namespace
from aioreactor.definition.fields import FieldSet, collect
from aioreactor.definition.nodes import REGISTERED, MapNode, Node, StepNode
from aioreactor.definition.policies import Options
from aioreactor.definition.steps import Step

if TYPE_CHECKING:
    from aioreactor.definition.reactor import Reactor

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
_INSTRUCTIONS = ("returns", "background")


class Declaration:
    """Everything one reactor class says, collected over its bases; what the compiler reads."""

    __slots__ = (
        "_owners",
        "attributes",
        "background",
        "fields",
        "namespaces",
        "nodes",
        "options",
        "plan",
        "problems",
        "reactor",
        "returns",
    )

    def __init__(self, reactor: type[Reactor[Any]], options: Options, namespaces: dict[type, Namespace]) -> None:
        self.reactor = reactor
        self.options = options
        self.namespaces = namespaces
        self.fields = FieldSet(collect(reactor, namespaces))
        self.nodes: dict[str, Node[Any]] = {}
        self.returns: Any = None
        self.background: Any = None
        self.problems: list[str] = []
        self.plan: Any = None
        self.attributes: dict[str, str] = {}
        self._owners = _owners_of_functions(reactor, namespaces)

    def add(self, node: Node[Any]) -> None:
        """Take a node in; one that the class had under the same attribute makes way for it."""
        old = self.attributes.get(node.attribute)
        if old is not None and old != node.label:
            del self.nodes[old]
        self.attributes[node.attribute] = node.label
        self.nodes[node.label] = node

    @property
    def name(self) -> str:
        """The reactor's stored name: pinned, else ``module:qualname``."""
        return self.options.name or f"{self.reactor.__module__}:{self.reactor.__qualname__}"

    def refresh(self) -> None:
        """Look up again what could not be resolved before."""
        if self.fields.unresolved():
            self.fields = FieldSet(collect(self.reactor, self.namespaces))

    def namespace_of(self, fn: Any) -> Namespace:
        """Where the names in a function's annotations are looked up: the class that defined it."""
        return self.namespaces[self._owners.get(id(fn), self.reactor)]


_FUNCTION_SLOTS = ("fn", "undo_fn", "compensate_fn", "over", "collect_fn", "undo_all_fn")


def _owners_of_functions(reactor: type, namespaces: Mapping[type, Namespace]) -> dict[int, type]:
    """Which class of the hierarchy each function stands in, by the function's identity; the nearest class counts."""
    owners: dict[int, type] = {}
    for owner in reactor.__mro__:
        for item in owner.__dict__.values() if owner in namespaces else ():
            for part in _functions_of(item):
                owners.setdefault(id(part), owner)
    return owners


def _functions_of(item: Any) -> Iterator[Any]:
    yield item
    holders = [item, item.element] if isinstance(item, MapNode) else [item] if isinstance(item, Node) else []
    for holder in holders:
        yield from (getattr(holder, slot, None) for slot in _FUNCTION_SLOTS)


def bases_namespaces(cls: type) -> dict[type, Namespace]:
    """Where the names in the annotations of each base are looked up."""
    spaces: dict[type, Namespace] = {}
    for base in cls.__mro__[1:]:
        if "__aioreactor__" in base.__dict__:
            spaces.update(base.__dict__["__aioreactor__"].namespaces)
    return spaces


def collect_body(cls: type[Reactor[Any]], declaration: Declaration) -> None:
    """Nodes, ``returns`` and ``background`` of the class and its bases; a subclass overrides a step by its name."""
    for owner in reversed(cls.__mro__):
        if owner is cls or "__aioreactor__" in owner.__dict__:
            _collect_class(owner, declaration, own=owner is cls)


def _collect_class(owner: type, declaration: Declaration, *, own: bool) -> None:
    seen: set[int] = set()
    inputs = inspect.get_annotations(owner) if own else {}
    for attribute, item in owner.__dict__.items():
        if attribute in _INSTRUCTIONS:
            setattr(declaration, attribute, item)
        elif isinstance(item, Node):
            _take_node(attribute, item, declaration, own=own, again=id(item) in seen)
            seen.add(id(item))
        elif own:
            declaration.problems += _lost_step(attribute, item)
            if attribute not in inputs:
                declaration.problems += _no_step(owner, attribute, item, declaration)
    if own:
        declaration.problems += [
            f"{name!r} is what {owner.__name__} has from Reactor; give the {what} another name"
            for name, what in _hiding(owner)
        ]


def _take_node(attribute: str, node: Node[Any], declaration: Declaration, *, own: bool, again: bool) -> None:
    if own:
        if again:
            declaration.problems.append(f"{attribute!r} is the same step as {node.label!r}; a step has one name")
            return
        node.sealed = True
        declaration.problems += node.problems
        clash = declaration.nodes.get(node.label)
        if clash is not None and clash.home is node.home:
            declaration.problems.append(f"two steps are named {node.label!r}; rename one (name= pins a name)")
    declaration.add(node)


# ---------------------------------------------------------------------- what is no step, but was meant to be one


def _lost_step(attribute: str, item: Any) -> Iterator[str]:
    for node, slot in _registered(item):
        if node.attribute == "" and attribute in _names_of(node):
            yield f"the {slot} function {attribute!r} hides its own step; give it another name, like {slot}_{attribute}"


def _no_step(owner: type, attribute: str, item: Any, declaration: Declaration) -> Iterator[str]:
    if attribute in declaration.attributes:
        yield (
            f"{attribute!r} hides the inherited step {declaration.attributes[attribute]!r}, which would go on running; "
            f"make it a @step to override that one, or give it another name"
        )
    elif (text := _unused_class(owner, item)) is not None:
        yield f"{attribute} = {text}"


def _registered(item: Any) -> list[tuple[Node[Any], str]]:
    found: list[tuple[Node[Any], str]] = getattr(item, "__dict__", {}).get(REGISTERED, [])
    return found


def _names_of(node: Node[Any]) -> set[str]:
    """Under which attributes a node could have stood: what it is called, and what its body is called."""
    inner = node.element if isinstance(node, MapNode) else node
    body = inner.fn if isinstance(inner, StepNode) else None
    return {node.label, getattr(body, "__name__", node.label)}


def _unused_class(owner: type, item: Any) -> str | None:
    """A step class that stands in the body as if it were a step, and what to write instead."""
    target = item.__self__ if inspect.ismethod(item) else item
    if isinstance(item, Step):
        cls = type(item)
        return f"{cls.__name__}(…) is an instance, not a step; write {cls.__name__}.step(…) with the same keywords"
    if not isinstance(target, type) or not issubclass(target, Step):
        return None
    if target is not item:
        word = item.__name__
        return f"{target.__name__}.{word} is not called; write {target.__name__}.{word}(…)"
    if (target.__module__, target.__qualname__) == (owner.__module__, f"{owner.__qualname__}.{target.__name__}"):
        return None
    return f"{target.__name__} is the class, not a step; write {target.__name__}.step(…)"


def _hiding(owner: type) -> list[tuple[str, str]]:
    found = []
    for name in RESERVED:
        if name in _INSTRUCTIONS:
            continue
        if name in owner.__dict__:
            found.append((name, "step" if isinstance(owner.__dict__[name], Node) else "attribute"))
        elif name in inspect.get_annotations(owner):
            found.append((name, "input"))
    found += [(name, "input") for name in _INSTRUCTIONS if name in inspect.get_annotations(owner)]
    found += [
        (name, "step")
        for name in _INSTRUCTIONS
        if isinstance(owner.__dict__.get(name), Node) and owner.__dict__[name].attribute == name
    ]
    return found
