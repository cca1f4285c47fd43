"""``aioreactor check``: is every reactor of some modules written rightly?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from aioreactor import DefinitionError, Reactor
from aioreactor.cli import output
from aioreactor.cli.targets import ModuleBroken, import_module, reactors_in


@dataclass(frozen=True, slots=True)
class Found:
    """A reactor, and what is to be said about it. ``needs_store`` and ``notes`` are no problems."""

    reactor: str
    problems: tuple[str, ...] = ()
    steps: int | None = None
    needs_store: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """A module with its reactors; ``error`` says why it could not be imported."""

    module: str
    reactors: tuple[Found, ...] = ()
    error: str | None = None

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Each problem with the reactor that has it."""
        return [(each.reactor, text) for each in self.reactors for text in each.problems]


@click.command()
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def check(modules: tuple[str, ...], *, as_json: bool) -> None:
    """Check every reactor that these modules define.

    Also checks what had to be left open when a class was created, because an annotation named something that was
    not defined yet. Exit code 1 when a reactor has problems; all of them are listed. 2 when a module cannot be
    imported, or when there is no reactor in any of them.
    """
    checked = [check_module(name) for name in dict.fromkeys(modules)]
    code = exit_code(checked)
    if as_json:
        output.print_json({"ok": code == output.Exit.OK, "modules": [asdict(each) for each in checked]})
    else:
        _print(checked)
    if code:
        raise click.exceptions.Exit(code)


def check_module(name: str) -> Checked:
    """Import a module and check its reactors."""
    try:
        module = import_module(name)
    except DefinitionError as error:
        return Checked(name, (Found(error.owner, error.problems),))
    except ModuleBroken as error:
        return Checked(name, error=str(error))
    return Checked(name, tuple(_check_reactor(label, each) for label, each in reactors_in(module).items()))


def exit_code(checked: Sequence[Checked]) -> output.Exit:
    """What cannot be imported weighs more than what is written wrongly; nothing to check is a mistake as well."""
    if any(each.error for each in checked) or not any(each.reactors for each in checked):
        return output.Exit.USAGE
    return output.Exit.PROBLEMS if any(each.problems for each in checked) else output.Exit.OK


def _check_reactor(label: str, reactor: type[Reactor[Any]]) -> Found:
    try:
        reactor.plan.check()
        plan = reactor.plan
    except DefinitionError as error:
        return Found(label, error.problems)
    return Found(label, steps=len(plan), needs_store=plan.store_reasons, notes=plan.notes)


def _print(checked: Sequence[Checked]) -> None:
    screen = output.console()
    symbols = output.symbols_for(screen)
    table = Table()
    for name in ("module", "reactor", "result", "remarks"):
        table.add_column(name, overflow="fold")
    for each in checked:
        for row in _rows(each, symbols):
            table.add_row(*row)
    output.show(screen, table)
    for each in checked:
        _print_problems(each)
    if not any(each.reactors or each.error for each in checked):
        click.echo("Error: there is no reactor in any of them; name the modules that define some", err=True)


def _rows(checked: Checked, symbols: output.Symbols) -> Iterator[tuple[str, str, Text, str]]:
    module = output.printable(checked.module)
    if checked.error:
        yield module, "", Text(f"{symbols.failed} not imported", style="bold red"), ""
    elif not checked.reactors:
        yield module, "", Text("no reactor", style="yellow"), ""
    for each in checked.reactors:
        yield module, each.reactor, _result(each, symbols), output.printable(_remarks(each))


def _result(found: Found, symbols: output.Symbols) -> Text:
    if not found.problems:
        return Text(f"{symbols.completed} {_count(found.steps or 0, 'step')}", style="green")
    return Text(f"{symbols.failed} {_count(len(found.problems), 'problem')}", style="bold red")


def _remarks(found: Found) -> str:
    needs = [f"needs a store: {reason}" for reason in found.needs_store]
    return "\n".join([*needs, *found.notes])


def _print_problems(checked: Checked) -> None:
    if checked.error:
        click.echo(output.printable(f"Error: {checked.error}"), err=True)
    for number, (reactor, text) in enumerate(checked.problems, 1):
        click.echo(output.printable(f"{checked.module}:{reactor}  {number}. {text}"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
