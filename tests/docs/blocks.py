"""The fenced blocks of a Markdown file, and how its Python is run.

A Python block is marked ``python``; its info string may add ``raises=Name`` for one that has to raise. A ``text`` block
that follows after a line ``Output:`` holds what the Python block before it prints; for one that raises, the error
(``Name: message``) is the end of it.

The blocks of a file run in order, in one module and one event loop. Line numbers are those of the Markdown file, so a
traceback leads to the place in the docs.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[^\s`]*)\s*(?P<rest>[^`]*)$")
_OTHER_SPELLINGS = frozenset({"py", "python3", "pycon", "python-repl"})


def documents() -> list[Path]:
    """README.md and everything below docs/, as far as it exists."""
    readme = ROOT / "README.md"
    found = [readme] if readme.is_file() else []
    return found + sorted((ROOT / "docs").rglob("*.md"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(slots=True)
class Block:
    """One fenced block. ``line`` is that of its opening fence."""

    path: Path
    line: int
    language: str
    options: dict[str, str]
    lines: list[str] = field(default_factory=list)
    introduced: str = ""
    """The last line of text before it."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def where(self) -> str:
        return f"{name_of(self.path)}:{self.line}"


class Malformed(Exception):
    """A block that the tests could not run, or would have to skip."""


def _options(text: str, where: str) -> dict[str, str]:
    found = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if key != "raises" or not equals or not value:
            raise Malformed(f"{where}: {word!r} is not an option of a Python block; there is only raises=Name")
        found[key] = value
    return found


def blocks_of(path: Path) -> list[Block]:
    """All fenced blocks of a file, in order."""
    found: list[Block] = []
    current: Block | None = None
    ticks = indent = last = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if current is None:
            if match is not None:
                language, ticks, indent = match["language"], match["ticks"], match["indent"]
                where = f"{name_of(path)}:{number}"
                if language in _OTHER_SPELLINGS:
                    raise Malformed(f"{where}: mark it python, so that it is run")
                options = _options(match["rest"], where) if language == "python" else {}
                current = Block(path, number, language, options, introduced=last)
                found.append(current)
            elif line.strip():
                last = line.strip()
        elif line.strip() == ticks:
            current, last = None, ""
        else:
            current.lines.append(line.removeprefix(indent))
    if current is not None:
        raise Malformed(f"{current.where}: the block is never closed")
    return found


@dataclass(slots=True)
class Example:
    """One Python block and what it has to print."""

    block: Block
    output: Block | None = None


def examples_of(path: Path) -> list[Example]:
    """The Python blocks of a file, each with the output block that belongs to it."""
    found: list[Example] = []
    before: Block | None = None
    for block in blocks_of(path):
        if block.language == "python":
            found.append(Example(block))
        elif block.language == "text" and block.introduced == "Output:":
            if before is None or before.language != "python":
                raise Malformed(f"{block.where}: an output block has to follow its Python block")
            found[-1].output = block
        before = block
    return found


class Page:
    """Runs the examples of one file: one module, one event loop."""

    def __init__(self, path: Path) -> None:
        self.name = re.sub(r"\W", "_", path.stem).lower()
        self.module = types.ModuleType(self.name)
        self.module.__file__ = str(path)

    @contextlib.contextmanager
    def open(self) -> Iterator[Page]:
        hidden = sys.modules.get(self.name)
        sys.modules[self.name] = self.module
        try:
            with asyncio.Runner() as self.runner:
                yield self
                left = asyncio.all_tasks(self.runner.get_loop())
                assert not left, f"{self.name}: tasks left behind: {left}"
        finally:
            del sys.modules[self.name]
            if hidden is not None:
                sys.modules[self.name] = hidden

    def run(self, example: Example) -> None:
        block = example.block
        source = "\n" * block.line + block.text
        code = compile(source, str(block.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        printed = io.StringIO()
        raised: BaseException | None = None
        with contextlib.redirect_stdout(printed):
            try:
                self._execute(code)
            except BaseException as error:
                raised = error
        self._check_raised(block, raised)
        text = printed.getvalue()
        if raised is not None:
            text += f"{type(raised).__name__}: {raised}\n"
        if example.output is not None and _tidy(text) != _tidy(example.output.text):
            raise AssertionError(
                f"{example.output.where}: the block at line {block.line} printed\n{text}\n"
                f"but the page says\n{example.output.text}"
            )

    def _execute(self, code: types.CodeType) -> None:
        if code.co_flags & inspect.CO_COROUTINE:
            self.runner.run(eval(code, self.module.__dict__))
        else:
            exec(code, self.module.__dict__)

    def _check_raised(self, block: Block, raised: BaseException | None) -> None:
        wanted = block.options.get("raises")
        if wanted is None:
            if raised is not None:
                raise AssertionError(f"{block.where}: the block raised {type(raised).__name__}: {raised}") from raised
            return
        kind: Any = getattr(self.module, wanted, None) or getattr(builtins, wanted, None)
        if kind is None:
            import aioreactor

            kind = getattr(aioreactor, wanted)
        if raised is None:
            raise AssertionError(f"{block.where}: the block has to raise {wanted}, and raised nothing")
        if not isinstance(raised, kind):
            raise AssertionError(f"{block.where}: the block has to raise {wanted}, not {raised!r}") from raised


def _tidy(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
