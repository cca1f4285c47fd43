"""Reactors by their stored names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioreactor.definition.reactor import Reactor
from aioreactor.errors import UnknownReactor


def _all(cls: type[Reactor[Any]]) -> Iterator[type[Reactor[Any]]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _all(sub)


def find_reactor(name: str) -> type[Reactor[Any]]:
    """The reactor stored under a name: by its name, or by an older one among its aliases; the newest class counts.

    Only classes that are already imported are found; a stored name never causes an import.

    Raises:
        UnknownReactor: there is none; import the module that defines it, or add ``aliases=`` after a rename.
    """
    found = None
    for reactor in _all(Reactor):
        declaration = reactor.__dict__.get("__aioreactor__")
        if declaration is None:
            continue
        if declaration.name == name or (found is None and name in declaration.options.aliases):
            found = reactor
    if found is None:
        raise UnknownReactor(name, "import the module that defines it, or give it the old name in aliases=")
    return found
