"""From a trace to a tree: nesting, times, attempts, the rollback. No run is needed for any of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from aioreactor import (
    Failure,
    Halt,
    InputValidationError,
    Outcome,
    Paused,
    Reactor,
    RollbackFailure,
    Success,
    compose,
    from_input,
    map_each,
    step,
)
from aioreactor.cli.render_trace import RunTree, StepTree, planned_paths, short_error, trace_tree
from aioreactor.cli.trace_json import run_dict
from aioreactor.trace import RawEntry, RunRecord

Line = tuple[float, str] | tuple[float, str, int] | tuple[float, str, int, str]


def entries(*lines: Line) -> list[RawEntry]:
    """``(milliseconds, "kind:path", attempt, detail)``, in short."""
    made: list[RawEntry] = []
    for line in lines:
        at, text, attempt, detail = (*line, 1, "")[:4] if len(line) == 2 else (*line, "")[:4]
        kind, _, path = str(text).partition(":")
        made.append((1000.0 + float(at) / 1000, kind, path, int(attempt), str(detail)))
    return made


def succeeded(*lines: Line, results: dict[str, Any] | None = None) -> Success[Any]:
    return Success(None, _record=RunRecord("r1", "shop:Checkout", "completed", results, entries(*lines)))


def failed(
    *lines: Line,
    at: str | None = "b",
    left: Sequence[RollbackFailure] = (),
    error: BaseException | None = None,
    results: dict[str, Any] | None = None,
) -> Failure:
    record = RunRecord("r1", "shop:Checkout", "failed", results, entries(*lines))
    return Failure(error or ValueError("no"), at, rollback_failures=left, _record=record)


def find(tree: RunTree, path: str) -> StepTree:
    return next(each for each in tree.walk() if each.path == path)


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


class TestShape:
    def test_an_outcome_without_a_trace_is_an_empty_tree(self) -> None:
        tree = trace_tree(Success(1))
        assert (tree.steps, tree.rollback, tree.duration) == ((), (), None)

    def test_steps_stand_in_the_order_in_which_they_first_appear(self) -> None:
        tree = trace_tree(succeeded((0, "run:b"), (1, "run:a"), (2, "success:a"), (3, "success:b")))
        assert [each.name for each in tree.steps] == ["b", "a"]

    def test_dots_become_branches(self) -> None:
        tree = trace_tree(succeeded((0, "run:trip.hotel"), (5, "success:trip.hotel"), (6, "run:trip.car.key")))
        trip = find(tree, "trip")
        assert [each.path for each in trip.walk()] == ["trip", "trip.hotel", "trip.car", "trip.car.key"]
        assert [each.name for each in trip.children] == ["hotel", "car"]

    def test_elements_become_branches_in_index_order(self) -> None:
        tree = trace_tree(succeeded((0, "run:m[10].pay"), (1, "run:m[2].pay"), (2, "run:m[2].mail")))
        assert [each.path for each in find(tree, "m").walk()] == [
            "m",
            "m[2]",
            "m[2].pay",
            "m[2].mail",
            "m[10]",
            "m[10].pay",
        ]
        assert find(tree, "m[2]").is_element
        assert not find(tree, "m[2].pay").is_element

    def test_an_element_that_is_a_step_is_a_leaf(self) -> None:
        tree = trace_tree(succeeded((0, "run:m[0]"), (4, "success:m[0]")))
        assert find(tree, "m[0]").children == ()
        assert len(find(tree, "m[0]").attempts) == 1

    def test_maps_in_maps(self) -> None:
        tree = trace_tree(succeeded((0, "run:m[1].n[3].x"), (1, "success:m[1].n[3].x")))
        assert [each.name for each in find(tree, "m").walk()] == ["m", "[1]", "n", "[3]", "x"]

    def test_everything_is_frozen(self) -> None:
        tree = trace_tree(succeeded((0, "run:a")))
        with pytest.raises(dataclasses.FrozenInstanceError):
            tree.status = "x"  # type: ignore[misc]


class TestTimes:
    def test_a_step_takes_from_run_to_success(self) -> None:
        tree = trace_tree(succeeded((0, "run:a"), (12, "success:a")))
        assert ms(find(tree, "a").duration) == 12

    def test_a_retried_step_includes_the_waits_and_its_attempts_do_not(self) -> None:
        tree = trace_tree(
            succeeded(
                (0, "run:a", 1), (5, "failure:a", 1, "OSError: x"), (5, "retry:a", 1, "0.1 s"), (105, "run:a", 2),
                (110, "success:a", 2),
            )
        )  # fmt: skip
        step_a = find(tree, "a")
        assert ms(step_a.duration) == 110
        assert [ms(each.duration) for each in step_a.attempts] == [5, 5]

    def test_a_branch_takes_from_its_first_start_to_its_last_end(self) -> None:
        tree = trace_tree(
            succeeded((3, "run:t.a"), (4, "run:t.b"), (9, "success:t.b"), (20, "success:t.a"), (30, "run:c"))
        )
        assert ms(find(tree, "t").duration) == 17

    def test_what_runs_has_no_span(self) -> None:
        tree = trace_tree(succeeded((0, "run:t.a"), (1, "run:t.b"), (2, "success:t.b")))
        assert find(tree, "t.a").duration is None
        assert (find(tree, "t").status, find(tree, "t").duration) == ("running", None)

    def test_a_clock_that_was_set_back_gives_no_negative_span(self) -> None:
        assert find(trace_tree(succeeded((9, "run:a"), (2, "success:a"))), "a").duration == 0.0

    def test_the_run_takes_from_the_first_entry_to_the_last(self) -> None:
        tree = trace_tree(failed((0, "run:a"), (5, "failure:a"), (8, "undo:b"), (11, "undo:c"), at="a"))
        assert ms(tree.duration) == 11


class TestStatus:
    @pytest.mark.parametrize(
        ("end", "status"),
        [
            ("success", "completed"),
            ("skip", "skipped"),
            ("halt", "halted"),
            ("failure", "failed"),
            ("cancel", "cancelled"),
        ],
    )
    def test_the_last_entry_decides(self, end: str, status: str) -> None:
        assert find(trace_tree(failed((0, "run:a"), (1, f"{end}:a"))), "a").status == status

    def test_a_failure_that_is_tried_again_does_not_count_in_the_end(self) -> None:
        tree = trace_tree(
            succeeded((0, "run:a"), (1, "failure:a"), (1, "retry:a"), (2, "run:a", 2), (3, "success:a", 2))
        )
        assert find(tree, "a").status == "completed"

    def test_a_step_that_never_started_has_an_attempt_without_a_start(self) -> None:
        step_a = find(trace_tree(failed((4, "failure:a", 1, "ArgumentError: x"), at="a")), "a")
        assert (step_a.status, step_a.detail) == ("failed", "ArgumentError: x")
        assert [(each.started_at, each.duration) for each in step_a.attempts] == [(None, None)]

    def test_a_branch_is_what_the_worst_in_it_is(self) -> None:
        tree = trace_tree(
            failed(
                (0, "run:t.a"), (1, "success:t.a"), (2, "run:t.b"), (3, "failure:t.b"), (0, "run:u.a"), (1, "skip:u.a")
            )
        )
        assert (find(tree, "t").status, find(tree, "u").status) == ("failed", "skipped")

    def test_a_map_that_kept_its_failures_has_completed(self) -> None:
        lines: list[Line] = [(0, "run:m[0]"), (1, "success:m[0]"), (1, "run:m[1]"), (2, "failure:m[1]")]
        assert find(trace_tree(succeeded(*lines)), "m").status == "completed"
        assert find(trace_tree(failed(*lines, at="later", results={"m": []})), "m").status == "completed"
        assert find(trace_tree(failed(*lines, at="m[1]")), "m").status == "failed"

    def test_a_crash_leaves_an_attempt_without_an_end(self) -> None:
        tree = trace_tree(succeeded((0, "run:a"), (90, "run:a"), (95, "success:a")))
        assert [each.status for each in find(tree, "a").attempts] == ["running", "completed"]

    def test_what_waits(self) -> None:
        record = RunRecord("r1", "shop:Checkout", "paused", None, entries((0, "interrupt:approve")))
        tree = trace_tree(Paused((), _record=record))
        assert (tree.status, find(tree, "approve").status) == ("paused", "waiting")

    def test_what_was_answered_does_not_wait_any_more(self) -> None:
        def status(*kinds: str) -> str:
            told = entries(*((at, f"{kind}:approve") for at, kind in enumerate(kinds)))
            return find(trace_tree(Paused(_record=RunRecord("r1", "R", "paused", None, told))), "approve").status

        assert status("interrupt", "resume") == "completed"
        assert status("interrupt", "timeout") == "completed"
        assert status("interrupt", "timeout", "failure") == "failed"
        assert status("run", "failure", "interrupt") == "waiting"
        assert status("run", "failure", "interrupt", "resume", "run") == "running"
        assert status("run", "failure", "interrupt", "resume", "failure") == "failed"

    def test_a_timeout_marks_its_attempt(self) -> None:
        tree = trace_tree(failed((0, "run:a"), (9, "timeout:a"), (9, "failure:a", 1, "StepTimeout: slow")))
        assert [each.timed_out for each in find(tree, "a").attempts] == [True]

    def test_retries_say_how_long_they_wait(self) -> None:
        tree = trace_tree(
            failed((0, "run:a"), (1, "failure:a", 1, "OSError: x"), (1, "retry:a", 1, "0.5 s"), (9, "run:a", 2))
        )
        first, second = find(tree, "a").attempts
        assert (first.number, first.error, first.retried_in) == (1, "OSError: x", "0.5 s")
        assert (second.number, second.status) == (2, "running")

    def test_entries_of_other_kinds_are_notes(self) -> None:
        tree = trace_tree(succeeded((0, "run:a"), (1, "success:a"), (2, "settle:a", 1, "late"), (3, "hand_off:")))
        assert find(tree, "a").notes == ("settle: late",)
        assert tree.notes == ("hand off",)

    def test_what_a_run_was_handed_off_after_has_completed(self) -> None:
        tree = trace_tree(
            succeeded(
                (0, "run:a"), (1, "success:a"), (2, "hand_off:a"), (3, "run:t.b"), (4, "success:t.b"), (5, "hand_off:t")
            )
        )
        assert [(each.name, each.status) for each in tree.steps] == [("a", "completed"), ("t", "completed")]
        assert find(tree, "t").notes == ("hand off",)


class TestRollback:
    def test_actions_stand_in_the_order_in_which_they_happened(self) -> None:
        tree = trace_tree(
            failed((0, "run:b"), (1, "failure:b"), (2, "compensate:b"), (3, "undo:t.x"), (4, "undo:m[1]"))
        )
        assert [(each.order, each.kind, each.path) for each in tree.rollback] == [
            (1, "compensate", "b"),
            (2, "undo", "t.x"),
            (3, "undo", "m[1]"),
        ]
        assert [each.kind for each in find(tree, "t.x").rollback] == ["undo"]
        assert all(each.complete for each in tree.rollback)

    def test_an_action_that_raised_says_why(self) -> None:
        left = [RollbackFailure("a", "undo", "raised", "OSError: gone")]
        tree = trace_tree(
            failed((0, "undo:a", 1), (1, "rollback_failure:a", 1, "undo raised"), (2, "undo:c"), left=left)
        )
        assert [(each.path, each.problem) for each in tree.rollback] == [("a", "raised: OSError: gone"), ("c", "")]
        assert not find(tree, "a").rollback[0].complete

    def test_an_action_that_could_not_even_be_called_is_listed_too(self) -> None:
        tree = trace_tree(failed((0, "undo:a"), (1, "rollback_failure:c", 1, "undo timed_out")))
        assert [(each.order, each.path, each.problem) for each in tree.rollback] == [
            (1, "a", ""),
            (2, "c", "timed_out"),
        ]

    def test_undo_after_a_failed_compensate_of_the_same_step_is_another_action(self) -> None:
        tree = trace_tree(
            failed((0, "compensate:a"), (1, "rollback_failure:a", 1, "compensate raised"), (2, "undo:a", 1))
        )
        assert [(each.kind, each.problem) for each in tree.rollback] == [("compensate", "raised"), ("undo", "")]


class TestOutcomes:
    def test_a_failure(self) -> None:
        tree = trace_tree(failed((0, "run:b"), (1, "failure:b"), at="b"))
        assert (tree.status, tree.stopped_at, tree.error) == ("failed", "b", "ValueError: no")

    def test_invalid_inputs(self) -> None:
        tree = trace_tree(failed(at=None, error=InputValidationError("Shop", {"email": ["is required"], "x": ["no"]})))
        assert tree.field_errors == {"email": ["is required"], "x": ["no"]}
        assert tree.steps == ()

    def test_a_halt(self) -> None:
        record = RunRecord("r1", "x", "halted", None, entries((0, "run:a"), (1, "halt:a", 1, "held")))
        tree = trace_tree(Halt("held", "a", _record=record))
        assert (tree.status, tree.stopped_at, tree.reason, find(tree, "a").detail) == ("halted", "a", "held", "held")

    @pytest.mark.parametrize(
        ("text", "short"),
        [
            ("shop.errors.Declined: no money", "Declined: no money"),
            ("shop.Outer.<locals>.Declined", "Declined"),
            ("ValueError: see a.b: c", "ValueError: see a.b: c"),
            ("StepError: x.y", "StepError: x.y"),
            ("", ""),
        ],
    )
    def test_errors_without_their_module(self, text: str, short: str) -> None:
        assert short_error(text) == short

    def test_as_plain_data(self) -> None:
        lines: list[Line] = [(0, "run:t.a"), (4, "failure:t.a", 1, "OSError: x"), (5, "undo:z")]
        data = run_dict(trace_tree(failed(*lines, at="t.a")))
        assert data["duration_ms"] == pytest.approx(5, abs=0.01)
        inner = data["steps"][0]["steps"][0]
        assert (inner["path"], inner["status"], inner["attempts"][0]["error"]) == ("t.a", "failed", "OSError: x")
        assert data["rollback"] == [{"order": 1, "kind": "undo", "path": "z", "complete": True, "problem": None}]
        assert data["steps"][1]["rolled_back"] is True


class Pay(Reactor[int]):
    amount: int

    @step
    async def hold(self, amount: int) -> int:
        return amount

    @step
    async def take(self, hold: int) -> int:
        raise OSError("no answer")

    @hold.undo
    async def let_go(self, hold: int) -> None: ...


class Shop(Reactor):
    prices: list[int]

    @map_each(over=from_input("prices"))
    async def reserve(self, price: int) -> int:
        return price

    @reserve.undo
    async def release(self, result: int) -> None: ...

    pay = compose(Pay, amount=1, after=[reserve])

    @step(after=[pay])
    async def ship(self) -> None: ...


class TestPlanned:
    def test_paths_of_a_plan(self) -> None:
        assert list(planned_paths(Shop.plan.to_dict())) == ["reserve", "pay.hold", "pay.take", "ship"]

    def test_what_the_trace_has_nothing_of_never_started(self) -> None:
        tree = trace_tree(failed((0, "run:a"), (1, "failure:a")), planned=["a", "b", "t.x"])
        assert [(each.name, each.status) for each in tree.steps] == [
            ("a", "failed"),
            ("b", "not_started"),
            ("t", "not_started"),
        ]

    @pytest.mark.asyncio
    async def test_a_real_run(self) -> None:
        outcome: Outcome[Any] = await Shop.run(prices=[1, 2])
        tree = trace_tree(outcome, planned=planned_paths(Shop.plan.to_dict()))
        assert [each.path for each in tree.walk()] == [
            "reserve", "reserve[0]", "reserve[1]", "pay", "pay.hold", "pay.take", "ship",
        ]  # fmt: skip
        assert [each.path for each in tree.rollback] == ["pay.hold", "reserve[1]", "reserve[0]"]
        assert {each.path: each.status for each in tree.steps} == {
            "reserve": "completed",
            "pay": "failed",
            "ship": "not_started",
        }
        assert (tree.stopped_at, tree.error) == ("pay.take", "OSError: no answer")
