"""What others want of a run that this process executes: cancelled, answered, decided. Left in the store, and met here.

Overview. Whoever wants something leaves a request; its number is its place in the line. The owner of the run carries
requests out in that order, and notes in the checkpoint that holds their effects how many it has served. So a crash
before that checkpoint leaves them waiting for the next owner, and one after it finds them served: exactly once.

A run that is about to be left serves nobody any more. What comes then is met by whoever takes it next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from aioreactor.engine import pausing

if TYPE_CHECKING:
    from aioreactor.engine.scheduler import Execution

Mode: TypeAlias = Literal["stop", "rollback"]
Verdict: TypeAlias = Literal["retry", "skip", "fail", "value"]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The run is to end ``cancelled``; under ``stop`` what was done stays owed."""

    number: int
    reason: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class Answer:
    """The payload of an interrupt, accepted."""

    number: int
    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class Mistake:
    """A payload of an interrupt that did not fit, where those are counted."""

    number: int
    path: str
    owner: str
    field_errors: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a step whose attempts were exhausted."""

    number: int
    path: str
    verdict: Verdict
    value: Any = None


Order: TypeAlias = Cancel | Answer | Mistake | Decision


class Mailbox(Protocol):
    """Where others leave their requests for one run."""

    async def waiting(self, served: int) -> Sequence[Order]:
        """Those after number ``served``, oldest first; none also when the store is away.

        Cancellation: nothing happens.
        """
        ...


def heed(ex: Execution) -> None:
    """There may be new requests: look, in a task of the run's own."""
    if ex.mailbox is None or not ex.listening or ex.leaving is not None or ex.lost is not None:
        return
    ex.asked_again = True
    if not ex.serving:
        ex.serving = True
        ex.tasks.start_soon(_serve, ex)


async def _serve(ex: Execution) -> None:
    try:
        while ex.asked_again:
            ex.asked_again = False
            await serve_now(ex)
    except asyncio.CancelledError as error:
        ex.note_if_cancelled(error)
    finally:
        ex.serving = False
    ex.consider_leaving()


async def serve_now(ex: Execution) -> None:
    """Carry out what waits, unless the run is being left.

    Cancellation: what was not carried out goes on waiting.
    """
    if ex.mailbox is None:
        return
    found = await ex.mailbox.waiting(ex.state.served)
    if ex.leaving is None and not ex.state.root.stopped:
        await carry_out(ex, [order for order in found if order.number > ex.state.served])


async def carry_out(ex: Execution, found: Sequence[Order]) -> None:
    """Carry requests out, keep that together with their effects, then start what they made ready.

    Cancellation: callers expect none between; what is kept is whole.
    """
    if not found:
        return
    ready: list[Any] = []
    events: list[pausing.Told] = []
    for order in found:
        if isinstance(order, Cancel):
            ex.order_cancel(order)
            break
        ready += _apply(ex, order, events)
        ex.state.served = order.number
    ready += ex.apply_effects()
    await ex.save(always=True)
    for told in events:
        await told.tell(ex)
    ex.start_all(ready)


def _apply(ex: Execution, order: Answer | Mistake | Decision, events: list[pausing.Told]) -> Sequence[Any]:
    match order:
        case Answer():
            return pausing.answer(ex, order.path, order.value, events)
        case Mistake():
            return pausing.count_mistake(ex, order.path, order.owner, order.field_errors)
        case Decision():
            return pausing.decide(ex, order.path, order.verdict, order.value)
