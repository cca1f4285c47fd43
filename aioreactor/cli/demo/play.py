"""Running the orders: one check-out each, one after another; here, or in worker processes (`crew`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aioreactor import Failure, Outcome, RunHandle, Runtime, Settings, runs
from aioreactor.cli.demo.checkout import Checkout, Confirmation
from aioreactor.cli.demo.crew import LEASE_TTL, Crew, Kill, Seen, WorkerFailed
from aioreactor.cli.demo.orders import Order, OrderFile
from aioreactor.cli.demo.systems import Shop
from aioreactor.cli.render_trace import RunTree, planned_paths, trace_tree
from aioreactor.engine.events import RunStarted

WORKERS = 2
PATIENCE = 30.0
"""Seconds for one order in a worker, its killing included."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What processes did for an order, in order, and the one among them that was killed."""

    seen: tuple[Seen, ...]
    kill: Kill | None

    @property
    def successor(self) -> Seen | None:
        """The first thing that another process did after the kill."""
        if self.kill is None:
            return None
        kill = self.kill
        return next((each for each in self.seen if each.at >= kill.at and each.pid != kill.pid), None)

    def pids(self, kind: str, path: str) -> list[int]:
        """Which processes entered this body, or called this action, one after another."""
        return [each.pid for each in self.seen if (each.did.kind, each.did.path) == (kind, path)]


@dataclass(frozen=True, slots=True)
class Played:
    """An order and what came of it. ``inputs`` are as they may be shown: the card token is redacted.

    ``worked`` is there for orders that were handed off.
    """

    order: Order
    outcome: Outcome[Confirmation]
    tree: RunTree
    inputs: Mapping[str, Any]
    worked: Worked | None = None


@dataclass(frozen=True, slots=True)
class NotRun:
    """Orders that were not run, and why; ``fault`` when it is not that something has to be installed."""

    orders: tuple[str, ...]
    reason: str
    fault: bool = False


class InputsSeen:
    """A middleware that keeps the inputs as middlewares see them, which is redacted."""

    def __init__(self) -> None:
        self.by_run: dict[str, Mapping[str, Any]] = {}

    def on_run_start(self, event: RunStarted) -> None:
        """Keep them."""
        self.by_run[event.run_id] = event.inputs


async def play(file: OrderFile, shop: Shop, tell: Callable[[Played], None] = lambda _: None) -> list[Played]:
    """Run the orders that are not for workers, in this process; ``tell`` gets each as soon as it is through.

    Cancellation: the check-out in flight is rolled back first.
    """
    seen = InputsSeen()
    played: list[Played] = []
    async with Runtime(Settings(resources=shop.resources(), middlewares=[seen])):
        for order in [each for each in file.orders if not each.worker]:
            outcome = await Checkout.run(**order.checkout)
            played.append(Played(order, outcome, _tree(outcome), _shown_inputs(outcome, seen)))
            tell(played[-1])
    return played


async def play_in_workers(
    file: OrderFile, crew: Crew, tell: Callable[[Played], None], begin: Callable[[Order], None] = lambda _: None
) -> list[Played]:
    """Hand the orders that are for workers off, one after another.

    ``begin`` gets each before, ``tell`` as soon as it is through.

    Raises:
        WorkerFailed: a worker ended that nobody killed, or an order was not through in time.

    Cancellation: the order in flight goes on in its worker, until that is ended.
    """
    played: list[Played] = []
    async with Runtime(Settings(redis_url=crew.url, lease_ttl=LEASE_TTL)):
        for order in [each for each in file.orders if each.worker]:
            await crew.start(WORKERS - crew.living)  # in place of those that were killed
            begin(order)
            played.append(await _hand_off(order, crew))
            tell(played[-1])
    return played


async def _hand_off(order: Order, crew: Crew) -> Played:
    before = len(crew.kills)
    crew.kill_after = order.kill_after
    handle = await Checkout.enqueue(**order.checkout)
    outcome = await _result(handle, crew)
    crew.kill_after = None
    kill = crew.kills[before] if len(crew.kills) > before else None
    worked = Worked(tuple(each for each in crew.seen if each.did.run_id == handle.run_id), kill)
    inputs = (await runs.find(handle.run_id)).inputs if worked.seen else _shown_inputs(outcome, InputsSeen())
    return Played(order, outcome, _tree(outcome), inputs, worked)


async def _result(handle: RunHandle[Confirmation], crew: Crew) -> Outcome[Confirmation]:
    """The outcome of a run that workers execute.

    Raises:
        WorkerFailed: see `play_in_workers`.
    """
    result, failed = asyncio.ensure_future(handle.result(PATIENCE)), asyncio.ensure_future(crew.failed())
    try:
        await asyncio.wait((result, failed), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise WorkerFailed(failed.result())
        return result.result()
    except TimeoutError as error:
        raise WorkerFailed(f"it was not through after {PATIENCE:g} s{crew.log_tail(crew.pids[-1])}") from error
    finally:
        result.cancel()
        failed.cancel()
        await asyncio.gather(result, failed, return_exceptions=True)


def _tree(outcome: Outcome[Confirmation]) -> RunTree:
    """Steps that never started are shown where something stopped the run, and not where nothing ran at all."""
    stopped_midway = bool(outcome.trace) and outcome.status != "completed"
    return trace_tree(outcome, planned=planned_paths(Checkout.plan.to_dict()) if stopped_midway else ())


def _shown_inputs(outcome: Outcome[Confirmation], seen: InputsSeen) -> Mapping[str, Any]:
    if outcome.run_id in seen.by_run:
        return seen.by_run[outcome.run_id]
    known = {field.name for field in Checkout.plan.fields.inputs}
    given: Mapping[str, Any] = outcome.inputs if isinstance(outcome, Failure) else {}
    return {name: value for name, value in given.items() if name in known}
