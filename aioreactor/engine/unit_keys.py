"""Keys that a unit would wait for for as long as who dispatches it holds them: a unit is another owner.

So is an element that is dealt to a worker. It is found when it is dispatched, where the keys of both are known, rather
than by a reader, or a map, that waits for it in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from aioreactor.engine.arguments import Frame, resolve, validated, view_of
from aioreactor.engine.coordinating import Wish
from aioreactor.engine.preparing import instance_of
from aioreactor.engine.scope import FanRun, Scope
from aioreactor.engine.wishes import coordinator_of, place_around, wishes_of
from aioreactor.errors import (
    ArgumentError,
    ContentionError,
    InputValidationError,
    LockUnavailable,
    OutOfTurn,
    SemaphoreUnavailable,
)
from aioreactor.plan.model import Plan, PlanNode, Source

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

Named: TypeAlias = tuple[str, Wish]
"""What is wished for, and by what part of a unit; empty for the unit as such."""

_ERRORS: dict[str, type[ContentionError]] = {
    "lock": LockUnavailable,
    "semaphore": SemaphoreUnavailable,
    "ordered_lock": OutOfTurn,
}
_IN_ONE_GO = 200
"""Items whose keys are computed while the event loop does nothing else."""

_UNKNOWN = (Source.CONTEXT, Source.RESOURCE)
_UNIT = (
    "a unit is another owner: whoever reads it would wait for ever. compose(…) it instead, which enters the hold; or "
    "take the key in those steps that need it, not around the dispatch; or leave it to the unit alone"
)
_ELEMENT = (
    "an element that is dealt to a worker is another owner: its map would wait for ever. Map without fan_out, which "
    "enters the hold; or take the key in those steps that need it, not around the map; or leave it to the elements"
)


def refuse_held(ex: Execution, scope: Scope, index: int, given: Mapping[str, Any]) -> None:
    """Return if a unit wants nothing that the scopes around its node hold for themselves alone.

    Args:
        ex: The execution.
        scope: That of the node.
        index: The node.
        given: Of an ``async_reactor`` its inputs, of an ``async_step`` its arguments, as far as they are known.

    Raises:
        LockUnavailable, SemaphoreUnavailable, OutOfTurn: it does; says who holds it, and what to do about it.
    """
    if place_around(scope) is None:
        return
    node = scope.plan.nodes[index]
    plan = node.unit
    assert plan is not None
    if plan.unit_of:
        found = _computed(node.coordination, lambda: _of_step(ex, node, given))
    else:
        found = _computed(plan.options.coordination, lambda: view_of(plan, given))
        if any(node.index in other.units for other in scope.plan.nodes):
            found += _fixed_inside(plan)
    what = f"the unit {plan.name if plan.unit_of else plan.reactor.__qualname__}"
    _refuse(ex, scope, f"step {scope.path_of(index)!r}", what, found, _UNIT)


def refuse_fan(ex: Execution, run: FanRun) -> None:
    """Return if the elements of a map that fans out want no such key, as far as keys are the same for all of them.

    Raises:
        LockUnavailable, SemaphoreUnavailable: they do.
    """
    if place_around(run.scope) is not None:
        fixed = [("", Wish(each, each.key)) for each in _of_element(run.node) if isinstance(each.key, str)]
        _refuse(ex, run.scope, f"map {run.path!r}", "every element", fixed, _ELEMENT)


async def refuse_items(ex: Execution, run: FanRun, items: Sequence[Any], first: int) -> None:
    """The same, for keys that depend on the items; the first of these has the number ``first``.

    Raises:
        LockUnavailable, SemaphoreUnavailable: one wants such a key.

    Cancellation: nothing happens.
    """
    depending = [each for each in _of_element(run.node) if callable(each.key)]
    if not depending or place_around(run.scope) is None:
        return
    for number, item in enumerate(items, first):
        if number % _IN_ONE_GO == 0:
            await asyncio.sleep(0)
        found = _computed(depending, lambda item=item: _subject(ex, run, item))  # type: ignore[misc]
        _refuse(ex, run.scope, f"map {run.path!r}", f"element {number}", found, _ELEMENT)


def _refuse(ex: Execution, scope: Scope, who: str, what: str, found: Sequence[Named], ways_out: str) -> None:
    place = place_around(scope)
    for part, wish in found:
        if wish.primitive.kind not in _ERRORS:
            continue
        holder = coordinator_of(ex).holder(place, wish)
        if holder:
            whole = f"{part} of {what}" if part else what
            wants = f"{whole} wants {wish.primitive.kind} {wish.key!r}"
            text = f"{who}: {wants}, which {holder} holds until it has ended, and {ways_out}"
            raise _ERRORS[wish.primitive.kind](wish.key, text)


# ---------------------------------------------------------------------- what is wished for


def _computed(declared: Sequence[Any], subject: Callable[[], Any]) -> list[Named]:
    """Those whose keys can be computed here; of the others the unit itself tells."""
    found = []
    for primitive in declared:
        try:
            found += [("", wish) for wish in wishes_of([primitive], subject, "unit")]
        except ArgumentError:
            continue
    return found


def _fixed_inside(plan: Plan) -> list[Named]:
    """Keys that do not depend on anything, of the steps and composed reactors in a unit."""
    return [
        (f"step {node.name!r}", Wish(each, each.key))
        for node, declared in _inside(plan)
        for each in declared
        if isinstance(each.key, str)
    ]


def _inside(plan: Plan) -> Iterator[tuple[PlanNode, tuple[Any, ...]]]:
    for node in plan.nodes:
        inner = node.child if node.kind == "compose" else node.element
        yield node, (*node.coordination, *(inner.options.coordination if inner is not None else ()))
        if inner is not None:
            yield from _inside(inner)


def _of_element(node: PlanNode) -> tuple[Any, ...]:
    """What the elements of a map take; turns belong to whole runs."""
    plan, dealt = node.element, node.fan
    assert plan is not None
    assert dealt is not None
    declared = plan.nodes[0].coordination if plan.element else dealt.options.coordination
    return tuple(each for each in declared if each.kind != "ordered_lock")


def _of_step(ex: Execution, node: PlanNode, given: Mapping[str, Any]) -> Any:
    return instance_of(ex, node, given) if node.step_class is not None else SimpleNamespace(**given)


def _subject(ex: Execution, run: FanRun, item: Any) -> Any:
    """What an element's keys are computed from.

    Raises:
        ArgumentError: that is not known here, or does not fit; the element itself tells.
    """
    node, plan = run.node, run.node.element
    assert plan is not None
    args = tuple(arg for arg in node.args if arg.source not in _UNKNOWN)
    values = resolve(args, Frame(ex, run.scope, run.index, item=item))
    if plan.element:
        return _of_step(ex, plan.nodes[0], values)
    try:
        return view_of(plan, validated(plan.fields, values, plan.reactor.__qualname__))
    except InputValidationError as error:
        raise ArgumentError(run.path, "coordination", str(error)) from error
