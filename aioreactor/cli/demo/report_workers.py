"""What the demo says about worker processes: how they were started, who did what, who was killed, who went on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from aioreactor.cli.demo.crew import COMMAND, LEASE_TTL, MODULES, Crew, settings
from aioreactor.cli.demo.orders import Order
from aioreactor.cli.demo.play import NotRun, Played, Worked
from aioreactor.cli.output import Symbols, printable
from aioreactor.cli.trace_json import milliseconds

AFTER = {
    "reserve": "goods are put aside",
    "authorize": "the bank has set the money aside",
    "capture": "the bank has taken the money",
    "book": "the carrier has accepted the parcel",
    "add": "the points are noted",
    "hand_over": "the goods have left the house",
    "take_back": "the points are struck out",
    "cancel": "the collection is called off",
    "refund": "the bank has given the money back",
    "void": "the money is let go",
    "release": "goods are back on the shelf",
}


def workers_started(crew: Crew) -> RenderableType:
    """Where the runs are kept from now on, and the processes that execute them."""
    variables = [f"{name}={text} \\" for name, text in settings(crew.url).items()]
    option = COMMAND.index("--sweep-interval")
    command = [f"python {' '.join(COMMAND[:3])} \\", f"  {' '.join(MODULES)} \\", f"  {' '.join(COMMAND[option:])}"]
    return Group(
        Text("The next ones are handed off: kept in a server of this demo's own, and executed"),
        Text(f"by the processes {' and '.join(map(str, crew.pids))}, each started as"),
        Text(printable("\n".join(f"  {each}" for each in [*variables, *command])), style="dim"),
        "",
    )


def killing(order: Order, symbols: Symbols) -> RenderableType:
    """Why nothing is to be seen for a moment."""
    wait = f"another one goes on when its lease of {LEASE_TTL:g} s has ended"
    return Text(f"{symbols.running} {printable(order.label)}: its process is going to be killed; {wait}", style="dim")


def not_run_text(not_run: NotRun, symbols: Symbols) -> RenderableType:
    """What is to be installed, or what went wrong."""
    orders = f"{len(not_run.orders)} orders" if len(not_run.orders) != 1 else "1 order"
    return Group(
        Text.assemble(
            (f"{symbols.failed} " if not_run.fault else f"{symbols.not_started} ", "bold red" if not_run.fault else ""),
            (f"not run: {orders} for worker processes ({printable(', '.join(not_run.orders))})", "bold"),
        ),
        Text(printable(not_run.reason)),
        "",
    )


def by_whom(played: Played) -> Iterator[str]:
    """Lines about the processes that an order was in; none for one that was not handed off."""
    worked = played.worked
    if worked is None or not worked.seen:
        return
    yield f"process {worked.seen[0].pid} takes it"
    kill, successor = worked.kill, worked.successor
    if kill is None and played.order.kill_after is not None:
        yield f"no process is killed: it never comes to {played.order.kill_after!r}"
    if kill is not None:
        yield f"process {kill.pid} is killed (SIGKILL): {AFTER[kill.after]}, and it never hears so"
        if successor is not None:
            yield f"process {successor.pid} goes on {successor.at - kill.at:.1f} s later"


def where_done(worked: Worked, symbols: Symbols, kind: str, path: str) -> str:
    """``in 4711``; after the kill ``in 4711 ✗ killed, again in 4712``."""
    pids = worked.pids(kind, path)
    killed = worked.kill.pid if worked.kill is not None else None
    parts = [f"{pid} {symbols.failed} killed" if pid == killed and len(pids) > 1 else str(pid) for pid in pids]
    return f"in {', again in '.join(parts)}" if parts else ""


def worked_json(worked: Worked | None) -> dict[str, Any] | None:
    """Who did what, in order, as plain data."""
    if worked is None:
        return None
    kill, successor = worked.kill, worked.successor
    killed = {"pid": kill.pid, "signal": "SIGKILL", "after": kill.after} if kill is not None else None
    if killed is not None and kill is not None and successor is not None:
        killed |= {"went_on_in": successor.pid, "went_on_after_ms": milliseconds(successor.at - kill.at)}
    did = [{"pid": each.pid, "kind": each.did.kind, "path": each.did.path} for each in worked.seen]
    return {"killed": killed, "did": did}
