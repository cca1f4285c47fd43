"""How far a run's state is: what has to be known of it to say so. Pure."""

from __future__ import annotations

from aioreactor.engine.scope import FanRun, MapRun, NodeStatus
from aioreactor.engine.state import RunState, is_failure
from aioreactor.progress import MapProgress, Progress, StepReport
from aioreactor.results import Skipped
from aioreactor.trace import Status

_DONE = (NodeStatus.COMPLETED, NodeStatus.SKIPPED, NodeStatus.UNDONE)


def progress_of(state: RunState, status: Status, fans: dict[str, MapProgress]) -> Progress:
    """How far it is; ``fans`` are maps whose elements are elsewhere, by path."""
    root, maps = state.root, []
    for scope in state.scopes():
        for inner in (scope.children or {}).values():
            if isinstance(inner, FanRun):
                maps += [fans[inner.path]] if inner.path in fans else []
            elif isinstance(inner, MapRun):
                maps.append(_of_map(inner))
    done = sum(each in _DONE for each in root.status)
    reported = tuple(StepReport(path, *said) for path, said in state.reported.items())
    return Progress(state.run_id, status, len(root.plan.nodes), done, tuple(maps), reported)


def _of_map(run: MapRun) -> MapProgress:
    outcomes = run.outcomes.values()
    is_over = run.scope.status[run.index] in _DONE
    return MapProgress(
        run.path,
        total=run.opened if run.exhausted or is_over else None,
        started=run.opened,
        done=len(outcomes),
        failed=sum(map(is_failure, outcomes)),
        skipped=sum(isinstance(each, Skipped) for each in outcomes),
    )
