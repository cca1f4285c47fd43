"""What the engine asks of who coordinates: takes and gives back what reactors and steps declare. Protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from aioreactor.definition.primitives import Primitive
from aioreactor.errors import AioreactorError, LeaseLost

Ending: TypeAlias = Literal["success", "halt", "failure", "paused"]
"""How what was protected ended. ``paused`` is no end: it comes back, and keeps its positions."""


class PeriodTaken(AioreactorError):
    """A run succeeded in this calendar bucket already."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A declared primitive, with its key."""

    primitive: Primitive
    key: str

    @property
    def name(self) -> str:
        """Kind and key, for people: ``lock order:7``."""
        return f"{self.primitive.kind} {self.key}"


Spender: TypeAlias = tuple[str, int]
"""Who spends rate limits once, in whatever process it asks: a name, and the number of the claim that it asks under."""

OuterHolds: TypeAlias = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for what is wished for, and on what terms.

    Attributes:
        place: Of the body, made by `Coordinator.place`.
        token: The same whenever the same body asks again, in whatever process; finds positions of ordered locks.
        on_lost: Called once for each hold that is lost.
        wake: Called when what was refused is there; then the asker goes away when it is refused, and has a place in
            line for ``alive`` seconds. None waits in place.
        tickets: Places in line; changed by asking.
        positions: Of ordered locks, by key, that were assigned before; others are assigned now.
        admitted: It passed those that spend something before.
        undoing: For an undo or a compensate, which waits for ``rollback_wait``.
        wait: Seconds, instead of each primitive's own.
        bound: What the places around hold is not given back before this body has ended.
        outer: Tokens of what other runs hold until this one has ended, where there are any.
        spender: None where a body may have begun before it was kept that it passed: then each time counts.
    """

    place: Any
    token: str
    on_lost: Callable[[LeaseLost], None]
    wake: Callable[[], None] | None = None
    alive: float = 60.0
    tickets: dict[str, str] = field(default_factory=dict)
    positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    admitted: bool = False
    undoing: bool = False
    wait: float | None = None
    bound: bool = True
    outer: OuterHolds | None = None
    spender: Spender | None = None


class Holding(Protocol):
    """What one body has taken. Given back once."""

    @property
    def trusted_until(self) -> float:
        """`time.monotonic` until which nobody else can have any of it."""
        ...

    async def check(self) -> None:
        """Return if all of it is surely held.

        Raises:
            LeaseLost: One is not.
        """
        ...

    async def mark(self) -> None:
        """Mark its periods, since it has succeeded; the rest stays held.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def release(self, ending: Ending) -> None:
        """Give all of it back; a success marks its periods, if they are not marked yet.

        Cancellation: all of it is done all the same, then it is raised.
        """
        ...

    async def give_back(self) -> None:
        """Give all of it back as if it had never been asked for.

        Cancellation: all of it is done all the same, then it is raised.
        """
        ...

    def to_data(self) -> dict[str, Any]:
        """What another process needs to go on with it."""
        ...

    async def park(self, seconds: float) -> dict[str, Any]:
        """Keep all of it for so long without this process; see `to_data`."""
        ...

    def abandon(self) -> None:
        """Forget it here; somebody else goes on with it."""
        ...


Heard: TypeAlias = Callable[[Literal["acquired", "contended", "released", "lost"], str, str, float], None]
"""Is told what happened to a hold: which fact, the kind and key of the primitive, seconds that it waited."""


class Coordinator(Protocol):
    """Takes and gives back what reactors and steps declare."""

    def place(self, around: Any, name: str) -> Any:
        """A place for a body inside another one's (None: inside nobody's): what those around it hold, it may enter."""
        ...

    def here(self) -> Any:
        """The place of the code that runs now; None is nobody's."""
        ...

    def holder(self, place: Any, wish: Wish) -> str:
        """Who, of those around a place, holds what is wished for, and nobody beside it can; empty if nobody does."""
        ...

    def settle(self, context: Context, place: Any) -> None:
        """What runs in this context is in that place from now on."""
        ...

    def listen(self, place: Any, heard: Heard | None) -> None:
        """Tell ``heard`` what happens to the holds of a place; None ends it."""
        ...

    async def acquire(self, wishes: Sequence[Wish], asking: Asking) -> Holding:
        """Pass all gates; what refuses has everything before it given back.

        Raises:
            ContentionError: one refused.
            PeriodTaken: a period did.
            UnknownRateLimit: a limit is not configured.
            AioreactorError: the store is away.

        Cancellation: nothing is held.
        """
        ...

    async def adopt(self, data: Mapping[str, Any], asking: Asking) -> tuple[Holding, frozenset[str]]:
        """Go on with what another process held; and the names (see `Wish.name`) of what of it is held still.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def assign(self, wish: Wish, token: str) -> dict[str, Any]:
        """The next position in the line of an ordered lock, as data; a token that has one keeps it.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def assign_all(self, wanted: Sequence[tuple[Wish, str]]) -> list[dict[str, Any]]:
        """The next positions for many, each an ordered lock and a token, in this order; see `assign`.

        Raises:
            AioreactorError: the store is away.
        """
        ...

    async def resign(self, wishes: Sequence[Wish], asking: Asking) -> None:
        """Give up places in line and positions of a body that will not come. What cannot be, ends by itself."""
        ...
