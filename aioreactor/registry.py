"""Reactors by their stored names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from aioreactor.definition.reactor import Reactor
from aioreactor.errors import UnknownReactor
from aioreactor.plan.model import Plan
from aioreactor.plan.units import name_parts

_open_to_import: set[str] = set()


def open_modules(names: Iterable[str]) -> None:
    """Let stored names have these modules, and those below them, imported.

    No other module ever is: whoever can write to the store chooses the names.
    """
    _open_to_import.update(names)


def find_reactor(name: str, version: str = "") -> type[Reactor[Any]]:
    """The reactor stored under a name: by its name, or by an older one among its aliases; the newest class counts.

    Of several that live side by side the one of this ``version`` is found; if there is none, another, with which a run
    goes on if it fits.

    A name of the form ``module:qualname`` has its module imported, if that is open to it (`open_modules`).

    Raises:
        UnknownReactor: there is none; import the module that defines it, or add ``aliases=`` after a rename.
    """
    found = _imported(name, version)
    if found is None and _import(name):
        found = _imported(name, version)
    if found is None:
        raise UnknownReactor(name, "import the module that defines it, or give it the old name in aliases=")
    return found


def find_plan(name: str, version: str = "") -> Plan:
    """The plan that a stored run follows: of a reactor, or of the one step of it that was dispatched by itself.

    Raises:
        UnknownReactor: there is no such reactor, or it has no such step any more.
    """
    reactor, step = name_parts(name)
    plan = find_reactor(reactor, version).plan
    if not step:
        return plan
    for node in plan.nodes:
        found = node.unit if node.unit is not None else node.fan
        if step in (node.name, *node.node.aliases) and found is not None and (found.unit_of or node.fan is not None):
            return found
    text = f"{reactor} has no async_step, and no map that fans out, {step!r} now; give it the old name in aliases="
    raise UnknownReactor(name, text)


def _imported(name: str, version: str) -> type[Reactor[Any]] | None:
    found, best = None, (False, False)
    for reactor in _all(Reactor):
        declaration = reactor.__dict__.get("__aioreactor__")
        if declaration is None or (declaration.name != name and name not in declaration.options.aliases):
            continue
        rank = (declaration.name == name, str(declaration.options.version or "") == version)
        if found is None or rank >= best:
            found, best = reactor, rank
    return found


def _all(cls: type[Reactor[Any]]) -> Iterator[type[Reactor[Any]]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _all(sub)


def _import(name: str) -> bool:
    """Import the module that a stored name speaks of; whether that may change anything.

    Raises:
        UnknownReactor: it cannot be imported.
    """
    module, _, qualname = name.partition(":")
    if not qualname or not any(module == each or module.startswith(f"{each}.") for each in _open_to_import):
        return False
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UnknownReactor(name, f"its module cannot be imported: {type(error).__name__}: {error}") from error
    return True
