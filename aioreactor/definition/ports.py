"""The two seams through which a definition reaches what stands below it, so that nothing here imports it.

`aioreactor` fills both when it is imported, before any reactor can be defined.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aioreactor.definition.primitives import Primitive
    from aioreactor.definition.reactor import Reactor
    from aioreactor.definition.steps import Step


class Launcher(Protocol):
    """What stands behind ``R.run()`` and its like: the runtime."""

    async def run(self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Run here; give the outcome."""
        ...

    async def spawn(self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Start as a task of the runtime; give a handle."""
        ...

    async def enqueue(self, reactor: type[Reactor[Any]], inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Start in a worker; give a handle."""
        ...

    async def enqueue_many(
        self, reactor: type[Reactor[Any]], many: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> Any:
        """Start many in workers; give a handle for each."""
        ...

    async def once(self, step: type[Step[Any]], given: Mapping[str, Any]) -> Any:
        """One attempt of a step class outside any reactor; give the value."""
        ...

    def enter(self, primitive: Primitive) -> Coroutine[Any, Any, Any]:
        """Take a coordination primitive on its own."""
        ...

    def coordinator(self) -> Any:
        """What takes and shows coordination primitives; see `aioreactor.coordination`."""
        ...

    def runs(self, reactor: type[Reactor[Any]] | None) -> Any:
        """Access to existing runs, of one reactor or of all."""
        ...


class Seams:
    """Filled once, by the package's ``__init__``."""

    def __init__(self) -> None:
        self.compile: Callable[[Any], Any]
        self.launcher: Callable[[], Launcher]


seams = Seams()


def launcher() -> Launcher:
    """The runtime that is current here."""
    return seams.launcher()
