"""The terminal: one console, JSON on request, symbols that it can show, and exit codes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import IntEnum

import click
import msgspec
from rich.console import Console, RenderableType


class Exit(IntEnum):
    """Exit codes of the command, as its help documents them."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2


EXIT_CODES = """\b
Exit codes:
  0  all is well
  1  problems were found (definition mistakes, books that do not balance,
     runs that had to be left alone), or it was interrupted
  2  the command line is wrong, something it names cannot be used, or click
     and rich are not installed
"""


class CannotUse(click.ClickException):
    """Something that the command line names cannot be used: one line on stderr, exit code 2."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class Symbols:
    """Marks in front of things."""

    completed: str = "✓"
    failed: str = "✗"
    skipped: str = "»"
    halted: str = "■"
    not_started: str = "·"
    running: str = "…"
    retry: str = "↻"
    undone: str = "↩"


ASCII = Symbols("+", "x", ">", "#", ".", "~", "~", "<")


def console() -> Console:
    """A console on standard output: coloured on a terminal only, as wide as that, 80 columns elsewhere."""
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def show(target: Console, *shown: RenderableType) -> None:
    """Print it; in a file or a pipe without the blanks that fill lines up to the width of the console."""
    if target.is_terminal:
        target.print(*shown, sep="\n")
        return
    with target.capture() as captured:
        target.print(*shown, sep="\n")
    click.echo("\n".join(line.rstrip() for line in captured.get().split("\n")), nl=False)


def symbols_for(target: Console) -> Symbols:
    """Marks that the console's encoding has."""
    return ASCII if target.options.ascii_only else Symbols()


def print_json(data: object) -> None:
    """Write plain data as JSON; values that JSON has no form for as text."""
    click.echo(json.dumps(msgspec.to_builtins(data, enc_hook=str), indent=2, ensure_ascii=False))


def printable(text: str) -> str:
    """The text with control characters spelled out, so that no data can steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
