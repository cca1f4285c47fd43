"""``aioreactor graph``: a reactor's static picture."""

from __future__ import annotations

import click

from aioreactor import DefinitionError
from aioreactor.cli import output
from aioreactor.cli.targets import import_reactor

_FORMATS = ("mermaid", "dot", "json")


@click.command()
@click.argument("target", metavar="MODULE:REACTOR")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="mermaid", show_default=True, help="Its language."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def graph(target: str, form: str, *, as_json: bool) -> None:
    """Print a reactor's graph, as Mermaid, DOT or JSON.

    For example: aioreactor graph shop.checkout:Checkout --format dot | dot -Tsvg > checkout.svg
    """
    try:
        reactor = import_reactor(target)
        plan = reactor.plan
        plan.check()
    except DefinitionError as error:
        click.echo(output.printable(f"Error: {error}"), err=True)
        raise click.exceptions.Exit(output.Exit.PROBLEMS) from error
    if as_json or form == "json":
        output.print_json(plan.to_dict())
    else:
        click.echo(plan.to_mermaid() if form == "mermaid" else plan.to_dot(), nl=False)
