"""What a person needs to know of an exception: its type, where it came from, the lines around, the traceback."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_OUTSIDE = tuple({f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "purelib", "platlib")})
_CONTEXT_LINES = 2


class Location(NamedTuple):
    """Where an error was raised in the user's code."""

    file: str
    line: int
    function: str
    snippet: str


def type_name(error: BaseException) -> str:
    """``module.QualName`` of an error; builtins bare."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside an exception group, depth first; the error itself when it is none."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def locate(error: BaseException) -> Location | None:
    """The innermost frame in the user's own code, else the innermost frame outside this package.

    An exception group is located at its first leaf that has a traceback.
    """
    for leaf in leaves(error):
        frames = [(tb.tb_frame.f_code, tb.tb_lineno) for tb in _chain(leaf.__traceback__)]
        outside = [frame for frame in frames if not frame[0].co_filename.startswith(_PACKAGE)]
        own = [frame for frame in outside if not frame[0].co_filename.startswith(_OUTSIDE)]
        chosen = own or outside
        if chosen:
            code, line = chosen[-1]
            return Location(code.co_filename, line, code.co_qualname, snippet(code.co_filename, line))
    return None


def _chain(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def snippet(file: str, line: int) -> str:
    """The source around a line, numbered, the line itself marked with ``>``; empty when there is no source."""
    rows = []
    for number in range(max(1, line - _CONTEXT_LINES), line + _CONTEXT_LINES + 1):
        text = linecache.getline(file, number)
        if text:
            rows.append(f"{'>' if number == line else ' '} {number:4d} {text.rstrip()}")
    return "\n".join(rows)


def format_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of this package."""
    summary = traceback.TracebackException.from_exception(error)
    _drop_own_frames(summary)
    return "".join(summary.format())


def _drop_own_frames(summary: traceback.TracebackException) -> None:
    if summary.stack:
        kept = [frame for frame in summary.stack if not frame.filename.startswith(_PACKAGE)]
        summary.stack = traceback.StackSummary.from_list(kept or list(summary.stack))
    for linked in (summary.__cause__, summary.__context__, *(getattr(summary, "exceptions", None) or ())):
        if linked is not None:
            _drop_own_frames(linked)


def describe(error: BaseException) -> str:
    """One line: the type and the text."""
    text = str(error)
    return f"{type_name(error)}: {text}" if text else type_name(error)
