"""Importing what a command line names: ``package.module`` and ``package.module:Reactor``."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from aioreactor import DefinitionError, Reactor
from aioreactor.cli.output import CannotUse
from aioreactor.failures import locate

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class ModuleBroken(Exception):
    """A module cannot be imported; the text says why, in one line, and ``location`` where (``file:line``)."""

    def __init__(self, module: str, reason: str, location: str | None = None) -> None:
        self.module = module
        self.reason = reason
        self.location = location
        super().__init__(f"cannot import {module}: {reason}{f' ({location})' if location else ''}")


def import_module(name: str) -> ModuleType:
    """Import a module as ``python -m`` would find it: from the current folder too. What it prints goes to stderr.

    Raises:
        DefinitionError: a reactor in it is written wrongly.
        ModuleBroken: anything else keeps it from being imported.
    """
    if not _DOTTED.fullmatch(name):
        raise ModuleBroken(name, f"not a module's dotted name{_dotted_hint(name)}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except DefinitionError:
        raise
    except (Exception, SystemExit) as error:
        raise ModuleBroken(name, _reason(name, error), _location(name, error)) from error


def import_reactor(target: str) -> type[Reactor[Any]]:
    """The reactor that ``MODULE:REACTOR`` names.

    Raises:
        DefinitionError: as `import_module`.
        CannotUse: there is no such reactor; the text says what there is.
    """
    name, _, path = target.partition(":")
    try:
        module = import_module(name)
    except ModuleBroken as error:
        raise CannotUse(str(error)) from error
    known = reactors_in(module)
    if not path:
        raise CannotUse(f"{target}: name a reactor too, MODULE:REACTOR{_there_are(name, known)}")
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if not is_reactor(found):
        what = "is not there" if found is None else "is not a reactor"
        raise CannotUse(f"{target}: {path} {what}{_closest(path, known) or _there_are(name, known)}")
    reactor: type[Reactor[Any]] = found
    return reactor


def reactors_in(module: ModuleType) -> dict[str, type[Reactor[Any]]]:
    """The reactors that a module defines, by qualified name; those it only imports are left out."""
    mine = [each for each in vars(module).values() if is_reactor(each) and each.__module__ == module.__name__]
    return {each.__qualname__: each for each in mine}


def is_reactor(candidate: object) -> bool:
    """Whether it is a reactor class somebody wrote, not `Reactor` itself."""
    return isinstance(candidate, type) and issubclass(candidate, Reactor) and candidate is not Reactor


def _dotted_hint(name: str) -> str:
    path = name.removesuffix(".py").removeprefix("./")
    dotted = path.replace("/", ".").replace("\\", ".")
    return f"; is it {dotted!r}?" if name != dotted and _DOTTED.fullmatch(dotted) else ""


def _reason(name: str, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (name == missing or name.startswith(f"{missing}.")):
        return f"there is no module {missing!r} here or among the installed ones"
    if isinstance(error, SystemExit):
        return f"it exits when it is imported (code {error.code})"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _location(name: str, error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    if isinstance(error, ModuleNotFoundError) and error.name is not None and name.startswith(error.name):
        return None
    found = locate(error)
    return None if found is None or found.file.startswith("<frozen") else f"{found.file}:{found.line}"


def _there_are(module: str, known: dict[str, type[Reactor[Any]]]) -> str:
    return f"; {module} defines {', '.join(known)}" if known else f"; {module} defines none"


def _closest(path: str, known: dict[str, type[Reactor[Any]]]) -> str:
    close = difflib.get_close_matches(path, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
