"""Nodes made of something else: nested reactors, maps, dispatched reactors, and the hand-off."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, overload

from aioreactor.definition.nodes import (
    AsyncReactorNode,
    ComposeNode,
    Handoff,
    MapNode,
    Node,
    NodeRef,
    SkippableNode,
    StepNode,
)
from aioreactor.definition.policies import FanOut, Retry
from aioreactor.definition.wiring import ValueWire, Wire, as_wire, as_wires
from aioreactor.map_results import MapResults
from aioreactor.results import Outcome

if TYPE_CHECKING:
    from aioreactor.definition.reactor import Reactor
    from aioreactor.definition.steps import Signal, Step

R = TypeVar("R")
C = TypeVar("C")
Source: TypeAlias = Iterable[Any] | AsyncIterable[Any] | Callable[..., Any]

_NO_POLICY = {
    "retries": "only steps retry, never a nested reactor as a whole; put retries on its steps or in its class header",
    "timeout": "a timeout bounds one attempt of a step; set it on its steps, or a deadline in its class header",
}


def _refused(node: Node[Any], what: str, wiring: dict[str, Any]) -> None:
    """Take policy words out of the wiring that the node has no use for, and say why."""
    for word, why in _NO_POLICY.items():
        if wiring.pop(word, None) is not None:
            node.problems.append(f"{what}: {word}= does not apply: {why} (an input of that name: wire={{{word!r}: …}})")


def _name_of(target: Any) -> str:
    return getattr(target, "__name__", None) or repr(target)


def _about(target: Any, description: str | None) -> str | None:
    return description or (target.__doc__ if isinstance(target, type) else None)


@overload
def compose(
    child: type[Reactor[R]],
    /,
    *,
    after: NodeRef | Sequence[NodeRef] = ...,
    on_halt: Literal["halt"] = ...,
    coordination: Sequence[Any] | None = ...,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    description: str | None = ...,
    wire: Mapping[str, Any] | None = ...,
    **wiring: Any,
) -> ComposeNode[R]: ...
@overload
def compose(
    child: type[Reactor[R]],
    /,
    *,
    after: NodeRef | Sequence[NodeRef] = ...,
    on_halt: Literal["skip"],
    coordination: Sequence[Any] | None = ...,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    description: str | None = ...,
    wire: Mapping[str, Any] | None = ...,
    **wiring: Any,
) -> SkippableNode[R]: ...
def compose(
    child: type[Reactor[R]],
    /,
    *,
    after: NodeRef | Sequence[NodeRef] = (),
    on_halt: Literal["halt", "skip"] = "halt",
    coordination: Sequence[Any] | None = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
    wire: Mapping[str, Any] | None = None,
    **wiring: Any,
) -> ComposeNode[Any]:
    """Run another reactor inside this run: own inputs, own steps by path (``trip.hotel``), own undo order.

    Inputs that are not wired are taken from the parent's inputs of the same name, then from the child's defaults.
    Its value is the child's ``returns``. ``on_halt="skip"``: a child that halts makes this step skipped (its value is
    None) instead of halting the whole run.
    """
    kind = SkippableNode if on_halt == "skip" else ComposeNode
    node: ComposeNode[Any] = kind(
        child=child,
        on_halt=on_halt,
        coordination=coordination,
        after=after,
        name=name,
        aliases=aliases,
        description=_about(child, description),
    )
    _refused(node, f"compose({_name_of(child)})", wiring)
    node.wiring = as_wires(wiring, wire)
    if on_halt not in ("halt", "skip"):
        node.problems.append(f"compose({_name_of(child)}): on_halt={on_halt!r}: 'halt' or 'skip'")
    return node


def async_reactor(
    child: type[Reactor[R]],
    /,
    *,
    after: NodeRef | Sequence[NodeRef] = (),
    independent: bool = False,
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
    wire: Mapping[str, Any] | None = None,
    **wiring: Any,
) -> AsyncReactorNode[Outcome[R]]:
    """Dispatch another reactor as a run of its own; a reader gets its outcome. Needs a store.

    One that no worker has taken yet when this run has rolled back is cancelled, unless it is ``independent``.
    """
    node: AsyncReactorNode[Outcome[R]] = AsyncReactorNode(
        child=child,
        independent=independent,
        after=after,
        name=name,
        aliases=aliases,
        description=_about(child, description),
    )
    _refused(node, f"async_reactor({_name_of(child)})", wiring)
    node.wiring = as_wires(wiring, wire)
    return node


class MapDecorator(Protocol):
    """What ``@map_each(over=…)`` gives."""

    @overload
    def __call__(self, fn: Callable[..., Coroutine[Any, Any, R | Signal]], /) -> MapNode[MapResults[R]]: ...
    @overload
    def __call__(self, fn: Callable[..., R | Signal], /) -> MapNode[MapResults[R]]: ...


@overload
def map_each(
    target: type[Step[R] | Reactor[R]],
    /,
    *,
    over: Source,
    item: str | None = ...,
    concurrency: int = ...,
    fan_out: bool | FanOut = ...,
    atomic: bool = ...,
    collect: None = ...,
    after: NodeRef | Sequence[NodeRef] = ...,
    retries: Retry | None = ...,
    timeout: float | None = ...,
    coordination: Sequence[Any] | None = ...,
    output: Any = ...,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    description: str | None = ...,
    wire: Mapping[str, Any] | None = ...,
    **wiring: Any,
) -> MapNode[MapResults[R]]: ...
@overload
def map_each(
    target: type[Step[R] | Reactor[R]],
    /,
    *,
    over: Source,
    collect: Callable[[MapResults[R]], C],
    item: str | None = ...,
    concurrency: int = ...,
    fan_out: bool | FanOut = ...,
    atomic: bool = ...,
    after: NodeRef | Sequence[NodeRef] = ...,
    retries: Retry | None = ...,
    timeout: float | None = ...,
    coordination: Sequence[Any] | None = ...,
    output: Any = ...,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    description: str | None = ...,
    wire: Mapping[str, Any] | None = ...,
    **wiring: Any,
) -> MapNode[C]: ...
@overload
def map_each(
    *,
    over: Source,
    item: str | None = ...,
    concurrency: int = ...,
    fan_out: bool | FanOut = ...,
    atomic: bool = ...,
    after: NodeRef | Sequence[NodeRef] = ...,
    retries: Retry | None = ...,
    timeout: float | None = ...,
    coordination: Sequence[Any] | None = ...,
    output: Any = ...,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    description: str | None = ...,
) -> MapDecorator: ...
def map_each(
    target: Any = None,
    /,
    *,
    over: Any,
    item: str | None = None,
    concurrency: int = 16,
    fan_out: bool | FanOut = False,
    atomic: bool = True,
    collect: Callable[..., Any] | None = None,
    after: NodeRef | Sequence[NodeRef] = (),
    retries: Retry | None = None,
    timeout: float | None = None,
    coordination: Sequence[Any] | None = None,
    output: Any = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    description: str | None = None,
    wire: Mapping[str, Any] | None = None,
    **wiring: Any,
) -> Any:
    """Run a method, a step class or a reactor once per item of ``over``.

    Args:
        target: a step class or a reactor; left out, it decorates the method that runs per item.
        over: ``result(…)``, ``from_input(…)``, an iterable or async iterable, or a method that gives one (or pages:
            ``async def pages(self, cursor, limit) -> Page``). Items are taken lazily.
        item: the parameter or field that receives the item; the first unwired one when left out.
        concurrency: how many elements run at a time; 1 is one after another.
        fan_out: deal the elements to workers. Needs a store.
        atomic: the first failure fails the map and rolls the others back; False keeps every outcome.
        collect: turns the `MapResults` into the map's value.
        after, name, aliases, description: as for `step`.
        retries, timeout, coordination, output: of each element, for methods and step classes.
        wire: wiring for fields whose names are policy words.
        **wiring: wires the element's other fields or inputs.
    """
    shared: dict[str, Any] = {"retries": retries, "timeout": timeout, "coordination": coordination, "output": output}

    def build(element: StepNode[Any] | ComposeNode[Any]) -> MapNode[Any]:
        node: MapNode[Any] = MapNode(
            element=element,
            over=_as_source(over),
            item=item,
            concurrency=concurrency,
            fan_out=FanOut() if fan_out is True else fan_out if isinstance(fan_out, FanOut) else None,
            atomic=atomic,
            collect=collect,
            after=after,
            name=name,
            aliases=aliases,
            description=description,
        )
        node.problems += _problems_of_map(fan_out, collect)
        return node

    if target is None:
        return lambda fn: build(StepNode(fn=fn, **shared))
    return build(_class_element(target, shared, wiring, wire))


def _as_source(over: Any) -> Any:
    """What the items come from: a wire, a method, or the items themselves."""
    if _is_wire(over):
        return as_wire(over)
    return over if _is_source(over) else ValueWire(over)


def _problems_of_map(fan_out: Any, collect: Any) -> Iterator[str]:
    if not isinstance(fan_out, (bool, FanOut)):
        yield f"map_each: fan_out={fan_out!r}: True, or FanOut(batch_size=…)"
    if collect is not None and not callable(collect):
        yield f"map_each: collect={collect!r}: a function of the results"


def _class_element(
    target: Any, shared: dict[str, Any], wiring: dict[str, Any], wire: Mapping[str, Any] | None
) -> StepNode[Any] | ComposeNode[Any]:
    from aioreactor.definition.steps import Step

    if isinstance(target, type) and issubclass(target, Step):
        return target.step(**shared, wire={**wiring, **(wire or {})})
    given = {word: item for word, item in shared.items() if item is not None and word != "coordination"}
    element = compose(target, coordination=shared["coordination"], wire={**wiring, **(wire or {})})
    _refused(element, f"map_each({_name_of(target)})", given)
    element.problems += [f"map_each({_name_of(target)}): {word}= is for methods and step classes" for word in given]
    return element


def _is_wire(over: Any) -> bool:
    return isinstance(over, (Wire, Node))


def _is_source(over: Any) -> bool:
    return callable(over) and not isinstance(over, (Iterable, AsyncIterable))


def after(step: NodeRef, /) -> Handoff:
    """``background = after(step)``: that step is the last to start here; a worker does the rest. Needs a store."""
    return Handoff("after", step)


def before(step: NodeRef, /) -> Handoff:
    """``background = before(step)``: that step is the first to run in a worker. Needs a store."""
    return Handoff("before", step)
