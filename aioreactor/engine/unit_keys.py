"""Keys that a unit would wait for for as long as who dispatches it holds them: a unit is another owner.

Found when it is dispatched, where the keys of both are known, rather than by a reader that waits for it in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aioreactor.engine.arguments import view_of
from aioreactor.engine.gating import coordinator_of, place_around, wishes_of
from aioreactor.engine.ports import Wish
from aioreactor.engine.preparing import instance_of
from aioreactor.engine.scope import Scope
from aioreactor.errors import ArgumentError, ContentionError, LockUnavailable, OutOfTurn, SemaphoreUnavailable
from aioreactor.plan.model import Plan, PlanNode

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

_ERRORS: dict[str, type[ContentionError]] = {
    "lock": LockUnavailable,
    "semaphore": SemaphoreUnavailable,
    "ordered_lock": OutOfTurn,
}


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
    place = place_around(scope)
    if place is None:
        return
    node, path = scope.plan.nodes[index], scope.path_of(index)
    for where, wish in _wishes(ex, scope, node, given):
        holder = coordinator_of(ex).holder(place, wish)
        if holder:
            text = (
                f"step {path!r}: {where} wants {wish.primitive.kind} {wish.key!r}, which {holder} holds until it has "
                "ended, and a unit is another owner: whoever reads it would wait for ever. compose(…) it instead, "
                "which enters the hold; or take the key in those steps that need it, not around the dispatch; or leave "
                "it to the unit alone"
            )
            raise _ERRORS[wish.primitive.kind](wish.key, text)


def _wishes(ex: Execution, scope: Scope, node: PlanNode, given: Mapping[str, Any]) -> Iterator[tuple[str, Wish]]:
    plan = node.unit
    assert plan is not None
    if plan.unit_of:
        declared: Any = node.coordination
        found = _computed(
            declared, lambda: instance_of(ex, node, given) if node.step_class is not None else SimpleNamespace(**given)
        )
    else:
        found = _computed(plan.options.coordination, lambda: view_of(plan, given))
        if any(node.index in other.units for other in scope.plan.nodes):
            found += _fixed_inside(plan)
    for where, wish in found:
        if wish.primitive.kind in _ERRORS:
            yield where or f"the unit {_name(plan)}", wish


def _computed(declared: tuple[Any, ...], subject: Any) -> list[tuple[str, Wish]]:
    """Those whose keys can be computed here; of the others the unit itself tells."""
    found = []
    for primitive in declared:
        try:
            found += [("", wish) for wish in wishes_of([primitive], subject, "unit")]
        except ArgumentError:
            continue
    return found


def _fixed_inside(plan: Plan) -> list[tuple[str, Wish]]:
    """Keys that do not depend on anything, of the steps and composed reactors in a unit."""
    found = []
    for node in plan.nodes:
        inner = node.child if node.kind == "compose" else node.element
        declared = (*node.coordination, *(inner.options.coordination if inner is not None else ()))
        where = f"step {node.name!r} of the unit {_name(plan)}"
        found += [(where, Wish(each, each.key)) for each in declared if isinstance(each.key, str)]
        if inner is not None:
            found += _fixed_inside(inner)
    return found


def _name(plan: Plan) -> str:
    return plan.name if plan.unit_of else plan.reactor.__qualname__
