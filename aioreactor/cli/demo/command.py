"""``aioreactor demo``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from aioreactor.cli import output
from aioreactor.cli.demo import report, report_workers
from aioreactor.cli.demo.audit import audit
from aioreactor.cli.demo.crew import Crew, WorkerFailed, crew_of
from aioreactor.cli.demo.orders import BadOrderFile, Order, OrderFile, open_shop, read_orders, sample_text
from aioreactor.cli.demo.play import WORKERS, NotRun, Played, play, play_in_workers
from aioreactor.cli.demo.systems import Shop

LATENCY = 0.03  # seconds that each action of an outside system takes


@click.command()
@click.option(
    "--orders", "path", type=click.Path(path_type=Path), help="Run the orders of this JSON file instead of the sample."
)
@click.option("--sample", is_flag=True, help="Print the sample order file, to start one of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def demo(path: Path | None, *, sample: bool, as_json: bool) -> None:
    """Watch check-outs succeed, fail, roll back, and outlive their process.

    Runs real check-outs over a file of orders, against a shop that lives in memory, and shows what ran, what failed,
    what was undone and why; then the shop's books, and that they balance. The last orders are handed off to worker
    processes, two of which are killed half-way. That needs a server for itself, which aioreactor[embedded] or a
    redis-server on the path brings; without one the other orders are run.

    Ends by itself within ten seconds, with exit code 0, whatever becomes of the orders; 1 if the books do not balance
    or a worker does not do its work, 2 if the order file cannot be used.
    """
    if sample:
        click.echo(sample_text(), nl=False)
        return
    try:
        file = read_orders(path)
    except BadOrderFile as error:
        raise output.CannotUse(output.printable(str(error))) from error
    if not asyncio.run(_json(file) if as_json else _text(file)):
        raise click.exceptions.Exit(output.Exit.PROBLEMS)


async def _json(file: OrderFile) -> bool:
    """Run the orders and print what came of them; whether all is well."""
    shop = open_shop(file.shop, LATENCY)
    played, not_run = await _play(file, shop, Listener())
    checks = audit(shop, played)
    output.print_json(report.as_json(shop, played, checks, not_run))
    return _well(not_run) and all(check.ok for check in checks)


async def _text(file: OrderFile) -> bool:
    """Show each order as soon as it is through, and at the end the summary and the books; whether all is well."""
    screen = output.console()
    symbols = output.symbols_for(screen)

    shop = open_shop(file.shop, LATENCY)
    output.show(screen, report.introduction(file, symbols))
    played, not_run = await _play(file, shop, Printer(screen, symbols))
    if not_run is not None:
        output.show(screen, report_workers.not_run_text(not_run, symbols))
    checks = audit(shop, played)
    output.show(screen, report.summary(shop, played, symbols), report.books(shop, checks, symbols))
    return _well(not_run) and all(check.ok for check in checks)


class Listener:
    """Is told how far the orders are; this one keeps silent."""

    def hired(self, crew: Crew) -> None:
        """The orders for workers begin."""

    def begin(self, order: Order) -> None:
        """One of them is about to be handed off."""

    def through(self, played: Played) -> None:
        """This is what came of one."""


class Printer(Listener):
    """Shows it."""

    def __init__(self, screen: Console, symbols: output.Symbols) -> None:
        self._screen = screen
        self._symbols = symbols

    def hired(self, crew: Crew) -> None:
        """How the workers were started."""
        output.show(self._screen, report_workers.workers_started(crew))

    def begin(self, order: Order) -> None:
        """What there is to wait for."""
        if order.kill_after is not None:
            output.show(self._screen, report_workers.killing(order, self._symbols))

    def through(self, played: Played) -> None:
        """Its tree."""
        output.show(self._screen, report.order_tree(played, self._symbols))


def _well(not_run: NotRun | None) -> bool:
    return not_run is None or not not_run.fault


async def _play(file: OrderFile, shop: Shop, listener: Listener) -> tuple[list[Played], NotRun | None]:
    """All orders: those for this process first, then those for workers, as far as there is a server."""
    played: list[Played] = []

    def keep(each: Played) -> None:
        played.append(each)
        listener.through(each)

    away = [order.label for order in file.orders if order.worker]
    async with AsyncExitStack() as stack:
        hired = await _hire(stack, shop) if away else None
        await play(file, shop, keep)
        if isinstance(hired, Crew):
            listener.hired(hired)
            hired = await _in_workers(file, hired, keep, listener.begin)
    if hired is None:
        return played, None
    through = {each.order.label for each in played}
    return played, NotRun(tuple(label for label in away if label not in through), *hired)


async def _hire(stack: AsyncExitStack, shop: Shop) -> Crew | Trouble:
    """A server and its workers, which start while the first orders are run here.

    Cancellation: what was started is ended.
    """
    try:
        from aioreactor.embedded import EmbeddedServer, ServerNotFound, ServerStartError
    except ImportError as error:
        return Trouble(str(error), fault=False)
    try:
        server = await stack.enter_async_context(EmbeddedServer.running())
    except ServerNotFound as error:
        return Trouble(str(error), fault=False)
    except ServerStartError as error:
        return Trouble(str(error), fault=True)
    return await stack.enter_async_context(crew_of(WORKERS, shop.resources(), server.url, server.directory))


async def _in_workers(
    file: OrderFile, crew: Crew, tell: Callable[[Played], None], begin: Callable[[Order], None]
) -> Trouble | None:
    try:
        await play_in_workers(file, crew, tell, begin)
    except WorkerFailed as error:
        return Trouble(str(error), fault=True)
    return None


class Trouble(NamedTuple):
    """Why orders for workers were not run; ``fault`` when it is not that something has to be installed."""

    reason: str
    fault: bool
