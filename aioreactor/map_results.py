"""What a map gives to its reader: the outcomes of its elements, in item order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

from aioreactor.errors import ResultsNotLoaded
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

    async def load(self) -> None:
        """Have all of them in memory. Nothing to do for a map that ran in one process; see `FanResults.load`.

        Raises:
            RunNotFound: the run, and with it the results, are gone.
            StoreError: the store is away.

        Cancellation: nothing was loaded.
        """

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


class FanSummary(NamedTuple):
    """How many elements of a map that fanned out there are, and how many came to what."""

    total: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0


ReadOutcomes: TypeAlias = Callable[[int, int], Awaitable[Sequence[ElementOutcome[Any]]]]
"""Reads the outcomes of the elements from one index up to, without, another one."""


class FanResults(MapResults[T_co]):
    """The results of a map that fanned out. They are in the store, and read when they are asked for.

    ``async for`` reads them chunk by chunk, however many they are. What needs no ``await`` works where all of them fit
    in memory: they are loaded before a step gets them. Counts are known in any case.
    """

    __slots__ = ("_loaded", "_read", "_summary")

    CHUNK = 500
    """So many outcomes are read at once."""

    def __init__(self, summary: FanSummary, read: ReadOutcomes) -> None:
        self._summary = summary
        self._read = read
        self._loaded = False
        self._outcomes = ()

    async def load(self) -> None:
        """Read all of them into memory, once.

        Raises:
            RunNotFound: the run, and with it the results, are gone.
            StoreError: the store is away.

        Cancellation: nothing was loaded.
        """
        if not self._loaded:
            self._outcomes = tuple([outcome async for outcome in self.outcomes_later()])
            self._loaded = True

    async def outcomes_later(self) -> AsyncIterator[ElementOutcome[T_co]]:
        """One outcome per element, in item order, read chunk by chunk.

        Raises, Cancellation: as for `load`; what was given is complete.
        """
        if self._loaded:
            for outcome in self._outcomes:
                yield outcome
            return
        for first in range(0, len(self), self.CHUNK):
            for outcome in await self._read(first, min(first + self.CHUNK, len(self))):
                yield outcome

    async def __aiter__(self) -> AsyncIterator[T_co | Failure]:
        async for outcome in self.outcomes_later():
            yield outcome if isinstance(outcome, Failure) else outcome.value

    def _all(self) -> tuple[ElementOutcome[T_co], ...]:
        if not self._loaded and len(self):
            raise ResultsNotLoaded(len(self))
        return self._outcomes

    def __len__(self) -> int:
        return self._summary.total

    def __iter__(self) -> Iterator[T_co | Failure]:
        return (entry if isinstance(entry, Failure) else entry.value for entry in self._all())

    def __getitem__(self, index: int) -> T_co | Failure:
        entry = self._all()[index]
        return entry if isinstance(entry, Failure) else entry.value

    def outcomes(self) -> list[ElementOutcome[T_co]]:
        """See `MapResults.outcomes`."""
        return list(self._all())

    def values(self) -> list[T_co]:
        """See `MapResults.values`."""
        return [entry.value for entry in self._all() if isinstance(entry, Success)]

    def failures(self) -> list[tuple[int, Failure]]:
        """See `MapResults.failures`."""
        return [(index, entry) for index, entry in enumerate(self._all()) if isinstance(entry, Failure)]

    @property
    def summary(self) -> FanSummary:
        """The counts."""
        return self._summary

    @property
    def succeeded(self) -> int:
        """How many elements succeeded."""
        return self._summary.succeeded

    @property
    def failed(self) -> int:
        """How many elements failed."""
        return self._summary.failed

    @property
    def skipped(self) -> int:
        """How many elements were skipped."""
        return self._summary.skipped

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FanResults) and not (self._loaded and other._loaded):
            return self is other
        return isinstance(other, MapResults) and self.outcomes() == other.outcomes()

    __hash__ = None
