"""Where a thread is: which step of which run its stack belongs to. For a thread that is not one's own.

Nothing is kept for this while a step runs. The engine's own frames on the stack say it all: they hold the execution,
the scope and the node. What a body started as a task of its own has no such frame below it; then `in_flight` tells
whose it may be.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from aioreactor.engine import mapping, rollback
from aioreactor.engine.attempt import run_step
from aioreactor.engine.scheduler import Execution
from aioreactor.engine.scope import NodeStatus

DEEPEST = 30
"""So many frames of a stack are shown, the innermost ones."""


class Whereabouts(NamedTuple):
    """A place in a run.

    Attributes:
        kind: ``run``, ``map``, ``compensate``, ``undo`` or ``undo_all``.
    """

    run_id: str
    path: str
    kind: str


def _in_node(kind: str, local: dict[str, Any]) -> Whereabouts:
    return Whereabouts(local["ex"].state.run_id, local["scope"].path_of(local["index"]), kind)


def _in_action(_: str, local: dict[str, Any]) -> Whereabouts:
    return Whereabouts(local["ex"].state.run_id, local["action"].path, local["action"].kind)


_KNOWN: dict[CodeType, tuple[Callable[[str, dict[str, Any]], Whereabouts], str]] = {
    run_step.__code__: (_in_node, "run"),
    mapping.run_map.__code__: (_in_node, "map"),
    rollback._perform.__code__: (_in_action, ""),
}


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def locate(frame: FrameType) -> Whereabouts | None:
    """The innermost step, undo or map that this stack belongs to."""
    for each in _outwards(frame):
        known = _KNOWN.get(each.f_code)
        if known is not None:
            return known[0](known[1], each.f_locals)
    return None


def stack_of(frame: FrameType) -> str:
    """The stack as text, innermost frame last; from the user's code on, if the engine called any."""
    frames = list(_outwards(frame))
    engine = [place for place, each in enumerate(frames) if _is_ours(each)]
    if engine and engine[0] > 0:
        frames = frames[: engine[0]]
    shown = ((each, each.f_lineno) for each in reversed(frames[:DEEPEST]))
    return "".join(traceback.StackSummary.extract(shown).format()).rstrip()


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith("aioreactor.engine.")


def in_flight(executions: Iterable[Execution]) -> list[tuple[str, str]]:
    """Run id and path of the bodies in flight. Looked at while they may change: then some may be missing."""
    found: list[tuple[str, str]] = []
    try:
        for execution in list(executions):
            for scope in execution.state.scopes():
                running = [index for index, status in enumerate(scope.status) if status == NodeStatus.RUNNING]
                found += [(execution.state.run_id, scope.path_of(index)) for index in running if _is_body(scope, index)]
    except RuntimeError:
        pass
    return found


def _is_body(scope: Any, index: int) -> bool:
    return bool(scope.plan.nodes[index].kind == "step")
