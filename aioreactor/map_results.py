"""What a map gives to its reader: the outcomes of its elements, in item order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from aioreactor.results import Failure, Skipped, Success

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from aioreactor._typing import TypeVar

T_co = TypeVar("T_co", covariant=True, default=Any)

ElementOutcome: TypeAlias = Success[T_co] | Skipped[T_co] | Failure


class MapResults(Generic[T_co]):
    """The outcomes of a map's elements, in item order.

    Iterating and indexing give an element's value, or its `Failure`. ``succeeded``, ``failed`` and ``skipped``
    are counts. ``async for`` works too and is the form for results that do not fit in memory.
    """

    __slots__ = ("_outcomes",)

    def __init__(self, outcomes: Sequence[ElementOutcome[T_co]] = ()) -> None:
        self._outcomes = tuple(outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[T_co | Failure]:
        return (entry if isinstance(entry, Failure) else entry.value for entry in self._outcomes)

    async def __aiter__(self) -> AsyncIterator[T_co | Failure]:
        for entry in self:
            yield entry

    def __getitem__(self, index: int) -> T_co | Failure:
        entry = self._outcomes[index]
        return entry if isinstance(entry, Failure) else entry.value

    def outcomes(self) -> list[ElementOutcome[T_co]]:
        """One outcome per element, in item order."""
        return list(self._outcomes)

    def values(self) -> list[T_co]:
        """The values of the elements that succeeded, in item order."""
        return [entry.value for entry in self._outcomes if isinstance(entry, Success)]

    def failures(self) -> list[tuple[int, Failure]]:
        """Index and `Failure` of each element that failed."""
        return [(index, entry) for index, entry in enumerate(self._outcomes) if isinstance(entry, Failure)]

    def _count(self, kind: type) -> int:
        return sum(isinstance(entry, kind) for entry in self._outcomes)

    @property
    def succeeded(self) -> int:
        """How many elements succeeded."""
        return self._count(Success)

    @property
    def failed(self) -> int:
        """How many elements failed."""
        return self._count(Failure)

    @property
    def skipped(self) -> int:
        """How many elements were skipped."""
        return self._count(Skipped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapResults) and self._outcomes == other._outcomes

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = f"{self.succeeded} succeeded, {self.failed} failed, {self.skipped} skipped"
        return f"<MapResults of {len(self)}: {counts}>"
