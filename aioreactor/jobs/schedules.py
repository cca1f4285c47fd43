"""Schedules as they are written: which reactor, when, with which inputs, and what becomes of ticks that were missed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from aioreactor.definition.reactor import Reactor
from aioreactor.jobs.ticks import Ticks
from aioreactor.starting import check_importable, values_of

MAX_KEY = 150
"""Characters: the id of a run has a key and a moment in it."""

ON_TIME_MS = 60_000
"""A tick that is dealt with later than this was missed."""

Missed: TypeAlias = Literal["skip", "last", "all"]
Overlap: TypeAlias = Literal["allow", "skip"]
Inputs: TypeAlias = Mapping[str, Any] | Callable[[datetime], Any]


class Due(NamedTuple):
    """The ticks of a span.

    Attributes:
        start: Those that begin a run, in order.
        missed: How many do not, because they were missed.
        more: Whether even more were missed, which nobody counted.
    """

    start: list[int]
    missed: int
    more: bool


class Schedule:
    """Begins a run of a reactor at each tick; made by `schedule`.

    Attributes:
        key: Its name: ticks of one key begin one run each, whoever has it.
        ticks: When.
        tag: Of its runs.
    """

    def __init__(
        self,
        reactor: type[Reactor[Any]],
        ticks: Ticks,
        inputs: Inputs,
        key: str,
        *,
        queue: str | None = None,
        missed: Missed = "last",
        missed_limit: int = 100,
        overlap: Overlap = "allow",
    ) -> None:
        self.reactor, self.ticks, self.key = reactor, ticks, key
        self.queue, self.missed, self.missed_limit, self.overlap = queue, missed, missed_limit, overlap
        self.tag = f"schedule:{key}"
        self._inputs = inputs

    def __repr__(self) -> str:
        return f"<Schedule {self.key!r} {self.ticks}>"

    def upcoming(self, count: int = 1, after: datetime | None = None) -> list[datetime]:
        """The next ticks after a moment (with its time zone; else now), in the zone of the schedule."""
        at_ms = int((datetime.now(UTC) if after is None else after).timestamp() * 1000)
        found: list[datetime] = []
        while len(found) < count and (tick := self.ticks.after(at_ms)) is not None:
            found.append(self.ticks.local(tick))
            at_ms = tick
        return found

    def check(self) -> None:
        """Whatever can be known before the first tick.

        Raises:
            DefinitionError: the reactor is not complete, or no worker finds it.
            InputValidationError: the inputs are given, and do not fit it.
        """
        self.reactor.plan.check()
        check_importable(self.reactor.plan)
        if not callable(self._inputs):
            values_of(self.reactor.plan, self._inputs)

    def run_id(self, tick_ms: int) -> str:
        """The id of the one run of a tick."""
        return f"{self.tag}@{datetime.fromtimestamp(tick_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"

    async def inputs(self, tick_ms: int) -> dict[str, Any]:
        """What the run of a tick is to get.

        Raises:
            Exception: ``inputs=`` is a function, and raises.
            TypeError: it gave no mapping.

        Cancellation: reaches ``inputs=``, if that is a coroutine function.
        """
        given = self._inputs
        if callable(given):
            given = given(self.ticks.local(tick_ms))
            if inspect.isawaitable(given):
                given = await given
        if not isinstance(given, Mapping):
            raise TypeError(f"inputs= gave {type(given).__name__}; it is to give a mapping from names to values")
        return dict(given)

    def due(self, after_ms: int, now_ms: int) -> Due:
        """What is to be done about the ticks after one moment up to now."""
        on_time_from = max(after_ms, now_ms - ON_TIME_MS - 1)
        on_time = self.ticks.newest(on_time_from, now_ms)
        late = self.ticks.newest(after_ms, on_time_from, self.missed_limit + 1)
        counted = late[-self.missed_limit :]
        made_up = counted if self.missed == "all" else []
        if self.missed == "last" and not on_time:
            made_up = counted[-1:]
        return Due([*made_up, *on_time], len(counted) - len(made_up), len(late) > len(counted))


def schedule(
    reactor: type[Reactor[Any]],
    *,
    cron: str,
    tz: str = "UTC",
    inputs: Inputs | None = None,
    key: str | None = None,
    queue: str | None = None,
    missed: Missed = "last",
    missed_limit: int = 100,
    overlap: Overlap = "allow",
) -> Schedule:
    """A run of a reactor at each tick of a cron expression: one, whatever the number of workers that have the schedule.

    Workers take it from `worker_settings`, or find it at the top level of the modules that they are given. The clock is
    the store's. ``R.runs.list(tag="schedule:KEY")`` lists the runs.

    Args:
        reactor: Which.
        cron: ``minute hour day month weekday``, with lists, ranges, steps and names; six fields have seconds in front.
        tz: The time zone that it is read in.
        inputs: Of each run; or a function, perhaps a coroutine function, that gives them for a tick, a `datetime` in
            ``tz``.
        key: Its name among all schedules of the store. By default that of the reactor.
        queue: For the workers of this queue; by default the reactor's, else that of the worker that begins the run.
        missed: What becomes of ticks of which no worker took notice within a minute: ``"last"`` begins one run for all
            of them, ``"all"`` one for each, ``"skip"`` none.
        missed_limit: How many of the missed ones ``"all"`` begins at most: the last ones.
        overlap: ``"skip"``: a tick begins nothing while the run that the schedule began last has not ended.

    Raises:
        DefinitionError: the reactor is in ``__main__``, where no worker finds it.
        InputValidationError: ``inputs`` is a mapping that does not fit the reactor.
        TypeError: ``reactor`` is none.
        ValueError: anything else is not understood.
    """
    if not (isinstance(reactor, type) and issubclass(reactor, Reactor) and reactor is not Reactor):
        raise TypeError(f"schedule({reactor!r}): it takes a reactor class")
    _check_choice("missed", missed, get_args(Missed))
    _check_choice("overlap", overlap, get_args(Overlap))
    if missed_limit < 1:
        raise ValueError(f"missed_limit={missed_limit}: 1 or more; missed='skip' begins none")
    name = reactor.plan.name if key is None else key
    if not 0 < len(name) <= MAX_KEY:
        raise ValueError(f"the key of a schedule has 1 to {MAX_KEY} characters, not {len(name)}: give key=")
    made = Schedule(
        reactor,
        Ticks(cron, tz),
        {} if inputs is None else inputs,
        name,
        queue=queue,
        missed=missed,
        missed_limit=missed_limit,
        overlap=overlap,
    )
    # What an annotation names may be defined further down in the module; then the worker checks it.
    if not reactor.plan.unresolved:
        made.check()
    return made


def schedules_in(module: ModuleType) -> list[Schedule]:
    """The schedules at the top level of a module, those that it imports too."""
    return [item for item in vars(module).values() if isinstance(item, Schedule)]


def checked(schedules: Iterable[Schedule]) -> tuple[Schedule, ...]:
    """All of these, once, checked.

    Raises:
        DefinitionError, InputValidationError: as for `Schedule.check`.
        ValueError: two have the same key.
    """
    found = tuple(dict.fromkeys(schedules))
    known: dict[str, Schedule] = {}
    for each in found:
        if each.key in known:
            raise ValueError(
                f"two schedules have the key {each.key!r}: {known[each.key]}, {each}; give one another key="
            )
        known[each.key] = each
        each.check()
    return found


def _check_choice(name: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ValueError(f"{name}={given!r}: one of {', '.join(map(repr, choices))}")
