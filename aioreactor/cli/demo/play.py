"""Running the orders: one check-out each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aioreactor import Failure, Outcome, Runtime, Settings
from aioreactor.cli.demo.checkout import Checkout, Confirmation
from aioreactor.cli.demo.orders import Order, OrderFile
from aioreactor.cli.demo.systems import Shop
from aioreactor.cli.render_trace import RunTree, planned_paths, trace_tree
from aioreactor.engine.events import RunStarted


@dataclass(frozen=True, slots=True)
class Played:
    """An order and what came of it. ``inputs`` are as they may be shown: the card token is redacted."""

    order: Order
    outcome: Outcome[Confirmation]
    tree: RunTree
    inputs: Mapping[str, Any]


class InputsSeen:
    """A middleware that keeps the inputs as middlewares see them, which is redacted."""

    def __init__(self) -> None:
        self.by_run: dict[str, Mapping[str, Any]] = {}

    def on_run_start(self, event: RunStarted) -> None:
        """Keep them."""
        self.by_run[event.run_id] = event.inputs


async def play(file: OrderFile, shop: Shop, tell: Callable[[Played], None] = lambda _: None) -> list[Played]:
    """Run the orders of a file; ``tell`` gets each as soon as it is through.

    Cancellation: the check-out in flight is rolled back first.
    """
    seen = InputsSeen()
    planned = tuple(planned_paths(Checkout.plan.to_dict()))
    played: list[Played] = []
    async with Runtime(Settings(resources=shop.resources(), middlewares=[seen])):
        for order in file.orders:
            outcome = await Checkout.run(**order.checkout)
            played.append(Played(order, outcome, _tree(outcome, planned), _shown_inputs(outcome, seen)))
            tell(played[-1])
    return played


def _tree(outcome: Outcome[Confirmation], planned: tuple[str, ...]) -> RunTree:
    """Steps that never started are shown where something stopped the run, and not where nothing ran at all."""
    stopped_midway = bool(outcome.trace) and outcome.status != "completed"
    return trace_tree(outcome, planned=planned if stopped_midway else ())


def _shown_inputs(outcome: Outcome[Confirmation], seen: InputsSeen) -> Mapping[str, Any]:
    if outcome.run_id in seen.by_run:
        return seen.by_run[outcome.run_id]
    known = {field.name for field in Checkout.plan.fields.inputs}
    given: Mapping[str, Any] = outcome.inputs if isinstance(outcome, Failure) else {}
    return {name: value for name, value in given.items() if name in known}
