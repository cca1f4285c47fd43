"""What bodies are given beside inputs and results: resources, found by name or by type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, get_origin

from aioreactor.definition.annotations import strip
from aioreactor.errors import DefinitionError
from aioreactor.plan.model import Plan
from aioreactor.settings import Settings

_MISSING: Any = object()


class Resources(ABC):
    """The part of a `Runtime` that finds resources: a worker's, its own, then those of the default runtime."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.worker_context: Mapping[Any, Any] = {}
        """Inside a worker: what its start-up hook put into arq's ``ctx``; its entries are resources, too."""

    @abstractmethod
    def _outer(self) -> Resources | None:
        """Where is looked for what is not here."""

    def resource(self, name: str, annotation: Any) -> Any:
        """A resource by name, else by type.

        Raises:
            DefinitionError: there is none.
        """
        found = self._find_resource(name, annotation)
        if found is _MISSING:
            wanted = getattr(strip(annotation), "__name__", strip(annotation))
            raise DefinitionError(
                "resources",
                [f"{name!r} ({wanted}) is not configured; aioreactor.configure(resources={{{name!r}: …}})"],
            )
        return found

    def _find_resource(self, name: str, annotation: Any) -> Any:
        given = {**self.worker_context, **self.settings.resources}
        if name in given:
            return given[name]
        kind = strip(annotation)
        kind = get_origin(kind) or kind
        if kind in given:
            return given[kind]
        if isinstance(kind, type) and kind is not object:
            for item in given.values():
                if isinstance(item, kind) and not getattr(kind, "_is_protocol", False):
                    return item
        outer = self._outer()
        return outer._find_resource(name, annotation) if outer is not None else _MISSING

    def _check_resources(self, plan: Plan) -> None:
        missing = {
            name: f"{where}: resource {name!r} is not configured; aioreactor.configure(resources={{{name!r}: …}})"
            for where, name, annotation in reversed(plan.resource_needs)
            if self._find_resource(name, annotation) is _MISSING
        }
        if missing:
            raise DefinitionError(plan.reactor.__qualname__, list(missing.values())[::-1])
