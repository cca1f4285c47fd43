"""The drawn tree: what a person reads."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from aioreactor.cli.draw_trace import Describe, draw_run, span
from aioreactor.cli.output import ASCII, Symbols, printable
from aioreactor.cli.render_trace import Attempt, RollbackAction, RunTree, StepTree

UNDONE = RollbackAction(1, "undo", "pay", 0.0)
BROKEN = RollbackAction(2, "undo", "hold", 0.0, "raised: OSError: gone")


def drawn(run: RunTree, *, symbols: Symbols | None = None, width: int = 80, describe: Describe | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    console.print(draw_run(run, symbols or Symbols(), Text("HEAD"), describe))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def run_of(*steps: StepTree, rollback: tuple[RollbackAction, ...] = (), **more: object) -> RunTree:
    return RunTree("r1", "Shop", "failed", steps=steps, rollback=rollback, **more)  # type: ignore[arg-type]


def done(name: str, seconds: float = 0.012, **more: object) -> StepTree:
    attempts = (Attempt(1, "completed", 10.0, 10.0 + seconds),)
    return StepTree(name, name, "completed", 10.0, 10.0 + seconds, attempts=attempts, **more)  # type: ignore[arg-type]


def test_a_step_with_its_time() -> None:
    assert "✓ pay  12 ms" in drawn(run_of(done("pay")))


def test_branches_are_indented() -> None:
    tree = StepTree("trip", "trip", "completed", children=(done("hotel"), done("car")))
    assert drawn(run_of(tree)).splitlines()[1:4] == [
        "└── ✓ trip",
        "    ├── ✓ hotel  12 ms",
        "    └── ✓ car  12 ms",
    ]


def test_attempts_are_listed_when_there_were_several() -> None:
    attempts = (
        Attempt(1, "failed", 1.0, 1.005, error="shop.GatewayTimeout: no answer", retried_in="0.1 s"),
        Attempt(2, "completed", 1.105, 1.110),
    )
    text = drawn(run_of(StepTree("pay", "pay", "completed", 1.0, 1.11, attempts=attempts)))
    assert "✓ pay  110 ms  2 attempts" in text
    assert "✗ attempt 1  5 ms  GatewayTimeout: no answer  ↻ again in 0.1 s" in text
    assert "✓ attempt 2  5 ms" in text


def test_a_failed_step_says_why_and_that_it_was_compensated() -> None:
    compensated = RollbackAction(1, "compensate", "ship", 0.0)
    failed = StepTree(
        "ship", "ship", "failed", 1.0, 1.03, "shop.Refused: no", (Attempt(1, "failed", 1.0, 1.03),), (compensated,)
    )
    assert "✗ ship  30 ms  Refused: no  ↩ compensated" in drawn(run_of(failed, rollback=(compensated,)))


def test_the_rollback_is_numbered_and_described() -> None:
    run = run_of(done("pay", rollback=(UNDONE,)), rollback=(UNDONE,))
    text = drawn(run, describe=lambda kind, path: f"what {kind} of {path} does")
    assert "↩ undone" in text
    assert "rolled back, newest first" in text
    assert "1. undo pay  what undo of pay does" in text


def test_a_rollback_that_is_not_complete_is_loud() -> None:
    run = run_of(done("hold", rollback=(BROKEN,)), rollback=(UNDONE, BROKEN))
    text = drawn(run)
    assert "1 of 2 did not complete" in text
    assert "2. undo hold  ✗ raised: OSError: gone" in text
    assert "✗ not undone" in text


def test_what_never_started_is_one_line() -> None:
    idle = [StepTree(name, name, "not_started") for name in ("ship", "mail")]
    assert "· never started: ship, mail" in drawn(run_of(done("pay"), *idle))


def test_field_errors_and_halts_and_skips_and_timeouts() -> None:
    held = StepTree("look", "look", "halted", 1.0, 1.0, "held", (Attempt(1, "halted", 1.0, 1.0),))
    skipped = StepTree("gift", "gift", "skipped", 1.0, 1.0, attempts=(Attempt(1, "skipped", 1.0, 1.0),))
    slow = StepTree("x", "x", "failed", 1.0, 2.0, "slow", (Attempt(1, "failed", 1.0, 2.0, timed_out=True),))
    text = drawn(run_of(held, skipped, slow, field_errors={"email": ["is required", "is odd"]}, notes=("resume",)))
    for line in (
        "✗ email  is required; is odd",
        "■ look  0.0 ms  held",
        "» gift  0.0 ms  skipped",
        "timed out",
        "resume",
    ):
        assert line in text


def test_a_cancelled_step_says_so() -> None:
    attempts = (Attempt(1, "failed", 1.0, 1.1), Attempt(2, "cancelled", 1.2, 1.3))
    cut = StepTree("pay", "pay", "cancelled", 1.0, 1.3, "another step failed", attempts)
    assert "✗ pay  300 ms  2 attempts  cancelled: another step failed" in drawn(run_of(cut))


def test_field_errors_of_a_step_are_not_those_of_the_run() -> None:
    assert "email" not in drawn(run_of(field_errors={"email": ["is odd"]}, stopped_at="mail"))


def test_ascii_only() -> None:
    text = drawn(run_of(done("pay", rollback=(UNDONE,)), rollback=(UNDONE, BROKEN)), symbols=ASCII)
    marks = set(text) - set("├└─│ \n")
    assert all(char.isascii() for char in marks)


def test_data_cannot_steer_the_terminal() -> None:
    attack = "\x1b]0;title\x07[red]x[/red]"
    failed = StepTree("a", "a", "failed", 1.0, 1.0, attack, (Attempt(1, "failed", 1.0, 1.0),))
    text = drawn(run_of(failed), width=200)
    assert "\x1b" not in text
    assert "\\x1b]0;title\\x07[red]x[/red]" in text
    assert printable("a\nb\r") == "a\nb\\r"


def test_narrow_screens_lose_nothing() -> None:
    text = drawn(run_of(StepTree("a", "a", "failed", 1.0, 1.0, "w " * 60, (Attempt(1, "failed", 1.0, 1.0),))), width=40)
    assert text.count("w") == 60
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0.00004, "0.0 ms"), (0.0123, "12 ms"), (1.5, "1500 ms"), (12.34, "12.3 s")]
)
def test_spans(seconds: float | None, text: str) -> None:
    assert span(seconds) == text
