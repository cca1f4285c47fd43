"""Where an error was raised, the lines around it, the traceback without the library's own frames."""

import asyncio
import json
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import aioreactor
from aioreactor import Failure, Reactor, step
from aioreactor.failures import describe, format_traceback, leaves, locate, snippet, type_name

PACKAGE = str(Path(aioreactor.__file__).parent)


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def fails() -> None:
    raise ValueError("here")  # the line


LINE = fails.__code__.co_firstlineno + 1


class Nested:
    def method(self) -> None:
        fails()


def test_the_innermost_frame_of_the_users_code_is_the_place() -> None:
    found = locate(caught(Nested().method))
    assert found is not None
    assert (found.file, found.line, found.function) == (__file__, LINE, "fails")
    assert found.snippet.splitlines()[2] == f'>  {LINE:3d}     raise ValueError("here")  # the line'


def test_frames_of_the_standard_library_are_not_the_users() -> None:
    found = locate(caught(lambda: json.loads("{")))
    assert found is not None
    assert (found.file, found.function) == (
        __file__,
        "test_frames_of_the_standard_library_are_not_the_users.<locals>.<lambda>",
    )


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert locate(ValueError("x")) is None
    assert locate(ExceptionGroup("g", [ValueError("x")])) is None


def test_a_group_is_located_at_its_first_leaf_that_was_raised() -> None:
    group = ExceptionGroup("g", [KeyError("never raised"), ExceptionGroup("h", [caught(fails)])])
    found = locate(group)
    assert found is not None
    assert (found.line, found.function) == (LINE, "fails")


def test_leaves_are_the_errors_inside_depth_first() -> None:
    one, two, three = ValueError("1"), KeyError("2"), OSError("3")
    group = ExceptionGroup("g", [one, ExceptionGroup("h", [two]), three])
    assert list(leaves(group)) == [one, two, three]
    assert list(leaves(one)) == [one]


def test_a_snippet_is_numbered_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text("one\ntwo\nthree\nfour\nfive\nsix\n")
    assert snippet(str(path), 3) == "     1 one\n     2 two\n>    3 three\n     4 four\n     5 five"
    assert snippet(str(path), 1) == ">    1 one\n     2 two\n     3 three"
    assert snippet(str(path), 6) == "     4 four\n     5 five\n>    6 six"
    assert snippet(str(path), 99) == ""
    assert snippet("/nowhere/at/all.py", 1) == ""


async def test_a_traceback_has_only_the_users_frames_and_its_causes() -> None:
    class Breaks(Reactor):
        @step
        async def body(self) -> None:
            try:
                fails()
            except ValueError as error:
                raise KeyError("outer") from error

    outcome = await Breaks.run()
    assert isinstance(outcome, Failure)
    text = outcome.traceback
    assert PACKAGE not in text
    assert text.index("ValueError: here") < text.index("direct cause") < text.index("KeyError: 'outer'")
    assert outcome.location is not None
    assert outcome.location.function.endswith("Breaks.body")
    full = "".join(traceback.format_exception(outcome.error))
    assert PACKAGE in full


def test_frames_are_dropped_in_groups_too() -> None:
    class Breaks(Reactor):
        @step
        async def body(self) -> None:
            fails()

    outcome = asyncio.run(Breaks.run())
    assert isinstance(outcome, Failure)
    inner = outcome.error
    assert isinstance(inner, Exception)
    group = caught(lambda: (_ for _ in ()).throw(ExceptionGroup("several", [inner])))
    text = format_traceback(group)
    assert "ValueError: here" in text
    assert PACKAGE not in text


class Own(Exception): ...


@pytest.mark.parametrize(
    ("error", "name", "line"),
    [
        (ValueError("x"), "ValueError", "ValueError: x"),
        (ValueError(), "ValueError", "ValueError"),
        (Own("x"), f"{__name__}.Own", f"{__name__}.Own: x"),
        (aioreactor.StepError("x"), "aioreactor.errors.StepError", "aioreactor.errors.StepError: x"),
    ],
)
def test_one_line(error: BaseException, name: str, line: str) -> None:
    assert (type_name(error), describe(error)) == (name, line)


def test_a_group_whose_leaves_were_never_raised_has_the_place_where_it_was_raised() -> None:
    def group() -> None:
        raise ExceptionGroup("all", [ValueError("fresh")])

    found = locate(caught(group))
    assert found is not None
    assert found.function.endswith("group")
