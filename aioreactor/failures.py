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


class Origin(NamedTuple):
    """Where an error came from that was read from the store: it has no live traceback here."""

    module: str
    name: str
    message: str
    traceback: str = ""
    location: Location | None = None


ORIGIN = "_aioreactor_origin"
"""The attribute that holds an error's `Origin`."""


def origin_of(error: BaseException) -> Origin | None:
    """Where a stored error came from; None for one that was raised here."""
    found = error.__dict__.get(ORIGIN)
    return found if isinstance(found, Origin) else None


def type_name(error: BaseException) -> str:
    """``module.QualName`` of an error, as it was where it was raised; builtins bare."""
    origin = origin_of(error)
    module, name = origin[:2] if origin else (type(error).__module__, type(error).__qualname__)
    return name if module == "builtins" else f"{module}.{name}"


def error_text(error: BaseException) -> str:
    """Its text; of a stored one, the text it had (its class may need attributes that could not be stored)."""
    origin = origin_of(error)
    if origin is not None:
        return origin.message
    try:
        return str(error)
    except Exception as broken:
        return f"<{type(error).__qualname__} whose text cannot be had: {type(broken).__name__}>"


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside an exception group, depth first; the error itself when it is none."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def locate(error: BaseException) -> Location | None:
    """The innermost frame in the user's own code, else the innermost frame outside this package.

    An exception group is located at its first leaf that has a traceback, else where it was raised itself.
    """
    for leaf in (error, *leaves(error)):
        stored = origin_of(leaf)
        if stored is not None and stored.location is not None:
            return stored.location
    for leaf in (*leaves(error), error):
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
    """The traceback as Python prints it, without the frames of this package; of a stored error, as it was then."""
    origin = origin_of(error)
    if origin is not None and origin.traceback:
        return origin.traceback
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
    text = error_text(error)
    return f"{type_name(error)}: {text}" if text else type_name(error)
