"""``aioreactor sweep``: one look for runs that nobody carries on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aioreactor import UnknownReactor, current_runtime
from aioreactor.cli import output
from aioreactor.cli.draw_trace import STYLES, mark
from aioreactor.cli.stores import import_reactors, in_store, redis_url_option, use_store
from aioreactor.registry import find_plan

if TYPE_CHECKING:
    from aioreactor.durable import DurableRuns
    from aioreactor.jobs.sweeper import Swept
    from aioreactor.store.records import RunRow

LIMIT = 100


@dataclass(frozen=True, slots=True)
class Executed:
    """A stalled run, and what this process did with it: ``ended``, ``elsewhere``, or ``left`` with the reason."""

    run_id: str
    reactor: str
    status: str
    did: str
    reason: str = ""


@click.command()
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
@click.option("--here", is_flag=True, help="Go on with them in this process, to their ends; needs MODULEs.")
@click.option("--queue", metavar="NAME", help="The queue to ring in. [default: AIOREACTOR_QUEUE, else arq:queue]")
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def sweep(modules: tuple[str, ...], queue: str | None, redis_url: str | None, *, here: bool, as_json: bool) -> None:
    """Look once for runs that nobody carries on, and have workers go on with them.

    Such a run's process died, or its job got lost. Workers sweep by themselves; this is for when you do not want to
    wait for that, or have no workers: with --here the runs of the reactors in these MODULEs are executed in this
    process, and those of others are left alone. Interrupted, it lets them go where they are. Modules are imported in
    either case, so that they can configure the store.

    Exit code 0 also when runs failed; 1 when --here had to leave some; 2 when there is no store, it is away, or a
    module cannot be imported.

    For example: aioreactor sweep --here shop.reactors
    """
    if here and not modules:
        raise output.CannotUse("--here executes runs: name the modules that define their reactors")
    if here and queue:
        raise output.CannotUse("--queue is for workers; with --here nothing is rung for")
    for name in dict.fromkeys(modules):
        import_reactors(name)
    use_store(redis_url)
    if here:
        _print_executed(in_store(_execute), as_json=as_json)
    else:
        _print_rung(*in_store(lambda durable: _ring(durable, queue)), as_json=as_json)


# ---------------------------------------------------------------------- ring for workers


async def _ring(durable: DurableRuns, name: str | None) -> tuple[str, Swept]:
    from aioreactor.jobs.sweeper import sweep_up

    queue = current_runtime().queue(name)
    if queue.endpoint.kind == "cluster":
        raise output.CannotUse("arq cannot keep its queue in a Redis Cluster: use --here")
    return queue.queue_name, await sweep_up(durable.swept(), queue)


def _print_rung(queue: str, swept: Swept, *, as_json: bool) -> None:
    outstanding = swept.stalled - swept.rung
    if as_json:
        index = {name: getattr(swept.repaired, name) for name in ("looked", "dropped", "renewed")}
        output.print_json(
            {"stalled": swept.stalled, "rung": swept.rung, "outstanding": outstanding, "queue": queue, "index": index}
        )
        return
    screen = output.console()
    if not swept.stalled:
        output.show(screen, Text("Every run is being carried on, or has ended."))
    else:
        output.show(screen, Text(f"{_runs(swept.stalled)} that nobody carried on."))
    if swept.rung:
        output.show(screen, Text(f"Rung for {swept.rung}: the workers of queue {output.printable(queue)} go on."))
    if outstanding:
        text = f"{outstanding} of them had been rung for before, and no worker of queue {output.printable(queue)} came."
        output.show(screen, Text(text))
    _print_index(screen, swept)


def _print_index(screen: Console, swept: Swept) -> None:
    mended = swept.repaired.dropped + swept.repaired.renewed
    if mended:
        output.show(screen, Text(f"{mended} of {swept.repaired.looked} entries of the lists were mended.", style="dim"))


# ---------------------------------------------------------------------- execute here


async def _execute(durable: DurableRuns) -> list[Executed]:
    """Batch after batch until there is none: a run that was found is not found again for half a minute."""
    _log_to_stderr()
    executed: dict[str, Executed] = {}
    while rows := await durable.swept().stalled(LIMIT):
        done = await asyncio.gather(*(_go_on(durable, row) for row in rows))
        executed |= {each.run_id: each for each in done}
    await durable.swept().repair(LIMIT)
    return list(executed.values())


async def _go_on(durable: DurableRuns, row: RunRow) -> Executed:
    """Execute one run here, if its reactor is known: whoever takes one that is not ends it.

    Cancellation: it stops where it was and is let go.
    """
    from aioreactor.store.records import LIVE

    try:
        find_plan(row.reactor, row.version)
    except UnknownReactor:
        reason = "no module that was named defines its reactor"
        return Executed(row.run_id, row.reactor, row.status, "left", reason)
    await durable.carry_on(row.run_id, "sweep")
    after = await durable.store.peek(row.run_id)
    if after is None:
        return Executed(row.run_id, row.reactor, "deleted", "elsewhere")
    if after.status not in LIVE:
        return Executed(row.run_id, row.reactor, after.status, "ended")
    if after.lease_left_ms > 0:
        return Executed(row.run_id, row.reactor, after.status, "elsewhere")
    return Executed(row.run_id, row.reactor, after.status, "left", "see the log above")


def _log_to_stderr() -> None:
    """Why a run was left, and what its rollback could not do, is in the log."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: getattr(record, "event", "") != "run_recovered")
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(levelname)s %(message)s", handlers=[handler])


def _print_executed(executed: Sequence[Executed], *, as_json: bool) -> None:
    left = sum(each.did == "left" for each in executed)
    if as_json:
        output.print_json({"stalled": len(executed), "left": left, "runs": executed})
    else:
        _show_executed(executed, left)
    if left:
        raise click.exceptions.Exit(output.Exit.PROBLEMS)


def _show_executed(executed: Sequence[Executed], left: int) -> None:
    screen = output.console()
    if not executed:
        output.show(screen, Text("Every run is being carried on, or has ended."))
        return
    symbols = output.symbols_for(screen)
    table = Table()
    for name in ("run", "reactor", "status", "here"):
        table.add_column(name, overflow="fold")
    for each in executed:
        status = Text.assemble(mark(each.status, symbols), " ", (each.status, STYLES.get(each.status, "")))
        here = f"{_DID[each.did]}{f': {each.reason}' if each.reason else ''}"
        table.add_row(output.printable(each.run_id), output.printable(each.reactor), status, here)
    ended = sum(each.did == "ended" for each in executed)
    output.show(screen, table, Text(f"{_runs(len(executed))} that nobody carried on: {ended} ended here, {left} left."))


_DID = {"ended": "ended here", "elsewhere": "taken by another process", "left": "left alone"}


def _runs(number: int) -> str:
    return f"{number} run" if number == 1 else f"{number} runs"
