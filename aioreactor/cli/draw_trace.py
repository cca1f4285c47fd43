"""Draws a run's tree with rich: steps with times and attempts first, then the rollback in the order it happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from rich.text import Text
from rich.tree import Tree

from aioreactor.cli.output import Symbols, printable
from aioreactor.cli.render_trace import Attempt, RollbackAction, RunTree, StepTree, short_error

Describe: TypeAlias = Callable[[str, str], str]
"""What an action does, by its kind (``undo``, ``compensate``, ``undo_all``) and path; empty when unknown."""

Where: TypeAlias = Callable[[str, str], str]
"""Where something was done, by its kind (``run`` for a step) and path; empty when unknown."""


def _nowhere(_kind: str, _path: str) -> str:
    return ""


STYLES = {
    "completed": "green",
    "skipped": "cyan",
    "halted": "yellow",
    "failed": "bold red",
    "cancelled": "red",
    "running": "blue",
    "waiting": "blue",
    "not_started": "dim",
}


def draw_run(
    run: RunTree, symbols: Symbols, head: Text, describe: Describe | None = None, where: Where = _nowhere
) -> Tree:
    """The tree of one run under ``head``."""
    tree = Tree(head, guide_style="dim")
    if run.stopped_at is None:  # field errors of a step stand at that step
        for name, texts in run.field_errors.items():
            tree.add(Text.assemble(mark("failed", symbols), " ", (printable(name), "bold"), f"  {_joined(texts)}"))
    _add_steps(tree, run.steps, symbols, where)
    for note in run.notes:
        tree.add(Text(printable(note), style="dim"))
    if run.rollback:
        _add_rollback(tree, run, symbols, describe, where)
    return tree


def mark(status: str, symbols: Symbols) -> Text:
    """The symbol of a status, in its colour."""
    names = {"cancelled": "failed", "waiting": "running", "aborted": "failed"}
    symbol = getattr(symbols, names.get(status, status), symbols.running)
    return Text(symbol, style=STYLES.get(status, ""))


def span(seconds: float | None) -> str:
    """``12 ms``, ``1.2 s``; empty for None."""
    if seconds is None:
        return ""
    ms = seconds * 1000
    return f"{ms / 1000:.1f} s" if ms >= 9_999.5 else f"{ms:.0f} ms" if ms >= 0.95 else f"{ms:.1f} ms"


# ---------------------------------------------------------------------- steps


def _add_steps(parent: Tree, steps: Iterable[StepTree], symbols: Symbols, where: Where) -> None:
    """The steps that ran, one by one, and those that did not on one line."""
    idle = [step.name for step in steps if step.status == "not_started"]
    for step in steps:
        if step.status != "not_started":
            _add_step(parent, step, symbols, where)
    if idle:
        parent.add(Text(f"{symbols.not_started} never started: {printable(', '.join(idle))}", style="dim"))


def _add_step(parent: Tree, step: StepTree, symbols: Symbols, where: Where) -> None:
    branch = parent.add(_step_line(step, symbols, where))
    if len(step.attempts) > 1:
        for attempt in step.attempts:
            branch.add(_attempt_line(attempt, symbols))
    for note in step.notes:
        branch.add(Text(printable(note), style="dim"))
    _add_steps(branch, step.children, symbols, where)


def _step_line(step: StepTree, symbols: Symbols, where: Where) -> Text:
    line = Text.assemble(mark(step.status, symbols), " ", (printable(step.name), "bold"))
    line.append(f"  {span(step.duration)}".rstrip(), style="dim")
    if len(step.attempts) > 1:
        line.append(f"  {len(step.attempts)} attempts", style="yellow")
    line.append(_spaced(where("run", step.path)), style="blue")
    for word, style in _remarks(step):
        line.append(f"  {printable(word)}", style=style)
    for action in step.rollback:
        if action.complete:
            line.append(f"  {symbols.undone} {_PAST[action.kind]}", style="magenta")
        else:
            line.append(f"  {symbols.failed} not {_PAST[action.kind]}", style="bold red")
    return line


_PAST = {"undo": "undone", "compensate": "compensated", "undo_all": "undone"}


def _remarks(step: StepTree) -> Iterator[tuple[str, str]]:
    if step.status == "skipped":
        yield "skipped", "cyan"
    if step.status == "halted" and step.attempts:
        yield (step.detail or "halted"), "yellow"
    if step.status == "failed" and len(step.attempts) == 1:
        yield short_error(step.detail), "red"
    if step.status == "cancelled" and step.attempts:
        yield f"cancelled: {step.detail}", "red"
    if len(step.attempts) == 1 and step.attempts[0].timed_out:
        yield "timed out", "red"


def _attempt_line(attempt: Attempt, symbols: Symbols) -> Text:
    line = Text.assemble(mark(attempt.status, symbols), f" attempt {attempt.number}")
    line.append(f"  {span(attempt.duration)}".rstrip(), style="dim")
    if attempt.error:
        line.append(f"  {printable(short_error(attempt.error))}", style="red")
    if attempt.retried_in:
        line.append(f"  {symbols.retry} again in {attempt.retried_in}", style="yellow")
    return line


# ---------------------------------------------------------------------- the rollback


def _add_rollback(tree: Tree, run: RunTree, symbols: Symbols, describe: Describe | None, where: Where) -> None:
    left = sum(not action.complete for action in run.rollback)
    head = Text.assemble((f"{symbols.undone} rolled back, newest first", "bold magenta"))
    if left:
        head.append(f"; {left} of {len(run.rollback)} did not complete", style="bold red")
    branch = tree.add(head)
    for action in run.rollback:
        branch.add(_action_line(action, symbols, describe, where))


def _action_line(action: RollbackAction, symbols: Symbols, describe: Describe | None, where: Where) -> Text:
    line = Text(f"{action.order}. {action.kind} {printable(action.path)}", style="magenta")
    about = describe(action.kind, action.path) if describe is not None else ""
    if about:
        line.append(f"  {printable(about)}", style="not magenta dim")
    if not action.complete:
        line.append(f"  {symbols.failed} {printable(action.problem)}", style="bold red")
    line.append(_spaced(where(action.kind, action.path)), style="not magenta blue")
    return line


def _spaced(text: str) -> str:
    return f"  {printable(text)}" if text else ""


def _joined(texts: list[str]) -> str:
    return printable("; ".join(texts))
