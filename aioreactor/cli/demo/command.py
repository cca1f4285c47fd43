"""``aioreactor demo``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from rich.console import Console

from aioreactor.cli import output
from aioreactor.cli.demo import report
from aioreactor.cli.demo.audit import Check, audit
from aioreactor.cli.demo.orders import BadOrderFile, OrderFile, open_shop, read_orders, sample_text
from aioreactor.cli.demo.play import play
from aioreactor.cli.demo.systems import Shop

LATENCY = 0.03  # seconds that each action of an outside system takes


@click.command()
@click.option(
    "--orders", "path", type=click.Path(path_type=Path), help="Run the orders of this JSON file instead of the sample."
)
@click.option("--sample", is_flag=True, help="Print the sample order file, to start one of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def demo(path: Path | None, *, sample: bool, as_json: bool) -> None:
    """Watch check-outs succeed, fail and roll back. Needs no server.

    Runs real check-outs over a file of orders, against a shop that lives in memory, and shows what ran, what failed,
    what was undone and why; then the shop's books, and that they balance. Ends by itself, with exit code 0, whatever
    becomes of the orders; 1 if the books do not balance, 2 if the order file cannot be used.
    """
    if sample:
        click.echo(sample_text(), nl=False)
        return
    try:
        file = read_orders(path)
    except BadOrderFile as error:
        raise output.CannotUse(output.printable(str(error))) from error
    if not asyncio.run(_run(file, as_json=as_json)):
        raise click.exceptions.Exit(output.Exit.PROBLEMS)


async def _run(file: OrderFile, *, as_json: bool) -> bool:
    """Run the orders and print what came of them; whether the books balance."""
    shop = open_shop(file.shop, LATENCY)
    if as_json:
        played = await play(file, shop)
        checks = audit(shop, played)
        output.print_json(report.as_json(shop, played, checks))
    else:
        checks = await _run_on(output.console(), file, shop)
    return all(check.ok for check in checks)


async def _run_on(screen: Console, file: OrderFile, shop: Shop) -> list[Check]:
    """Show each order as soon as it is through, and at the end the summary and the books."""
    symbols = output.symbols_for(screen)
    output.show(screen, report.introduction(len(file.orders), symbols))
    played = await play(file, shop, lambda each: output.show(screen, report.order_tree(each, symbols)))
    checks = audit(shop, played)
    output.show(screen, report.summary(shop, played, symbols), report.books(shop, checks, symbols))
    return checks
