"""``aioreactor locks``: who holds a key and who waits, its limits, markers and line; and taking it by force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click
from rich.text import Text

from aioreactor import current_runtime
from aioreactor.cli import output
from aioreactor.cli.draw_locks import as_data, draw_key, draw_keys, named
from aioreactor.cli.stores import import_reactors, in_store, redis_url_option, use_store

if TYPE_CHECKING:
    from aioreactor.coordination.reports import KeyReport, SlotReport
    from aioreactor.durable import DurableRuns
    from aioreactor.durable.owners import Owner

LIMIT = 100


@dataclass(frozen=True, slots=True)
class Looked:
    """A key, and who is behind the labels in its report."""

    report: KeyReport
    owners: dict[str, Owner]


@click.command()
@click.argument("key", required=False)
@click.option("--force-release", is_flag=True, help="Take it from whoever holds it; asks before.")
@click.option("--kind", type=click.Choice(["lock", "semaphore"]), help="Which to take, if KEY is of both kinds.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--module", "modules", metavar="MODULE", multiple=True, help="Import it, so that it configures the store."
)
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def locks(
    key: str | None,
    kind: Literal["lock", "semaphore"] | None,
    modules: tuple[str, ...],
    redis_url: str | None,
    *,
    force_release: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show who holds KEY, who waits for it, and what was counted or marked; without KEY, all keys that are in use.

    A key may be that of a lock, a semaphore, rate limits, periods and an ordered lock, and all of it is shown. In use
    is what somebody holds, waits for, or stands in line for; to find that, the names of all keys in the store are gone
    through.

    --force-release is for a holder that will not let go and cannot be stopped. Whoever waits is let in at once, while
    the former holder learns of it when it renews: for so long, both may be inside.

    Exit code 0 also when nobody holds it; 1 when there was nothing to take, or you said no; 2 when there is no store,
    it is away, or a module cannot be imported.

    For example: aioreactor locks order:7
    """
    if force_release and key is None:
        raise output.CannotUse("--force-release takes one key: name it")
    if force_release and as_json and not yes:
        raise output.CannotUse("--force-release asks, and --json leaves nobody to ask: add --yes")
    for name in dict.fromkeys(modules):
        import_reactors(name)
    use_store(redis_url)
    if key is None:
        _show_all(in_store(_all), as_json=as_json)
    elif not force_release:
        _show(in_store(lambda durable: _look(durable, key)), as_json=as_json)
    else:
        taken = in_store(lambda durable: _take(durable, key, kind, yes=yes))
        _print_taken(key, taken, as_json=as_json)


# ---------------------------------------------------------------------- looking


async def _look(durable: DurableRuns, key: str) -> Looked:
    from aioreactor.durable.owners import owner_of

    try:
        report = await current_runtime().coordinator().inspect(key)
    except ValueError as error:
        raise output.CannotUse(str(error)) from error
    labels = dict.fromkeys(_labels(report))
    return Looked(report, {label: await owner_of(durable.store, label) for label in labels})


def _labels(report: KeyReport) -> list[str]:
    found = [marker.marked_by for marker in report.markers]
    for slots in (report.lock, report.semaphore):
        if slots is not None:
            found += [each.label for each in slots.holders]
            found += [each.label for each in slots.waiters]
    return found + ([each.label for each in report.order.places] if report.order is not None else [])


async def _all(durable: DurableRuns) -> list[Looked]:
    coordinator = current_runtime().coordinator()
    if not coordinator.can_list:
        raise output.CannotUse("the names of keys in a Redis Cluster cannot be gone through: name a KEY")
    found = await coordinator.keys_in_use(LIMIT + 1)
    return [await _look(durable, key) for key in found]


def _show(looked: Looked, *, as_json: bool) -> None:
    if as_json:
        output.print_json(as_data(looked.report, looked.owners))
    else:
        screen = output.console()
        output.show(screen, *draw_key(looked.report, looked.owners, output.printable))


def _show_all(found: Sequence[Looked], *, as_json: bool) -> None:
    more, shown = len(found) > LIMIT, found[:LIMIT]
    if as_json:
        output.print_json({"keys": [as_data(each.report, each.owners) for each in shown], "more": more})
        return
    screen = output.console()
    if not shown:
        output.show(screen, Text("Nobody holds, waits for, or stands in line for anything."))
        return
    output.show(screen, draw_keys([(each.report, each.owners) for each in shown], output.printable))
    if more:
        output.show(screen, Text(f"These are {LIMIT} of them; name a KEY to see another one."))


# ---------------------------------------------------------------------- taking by force


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, and from whom; ``kind`` is None when nobody held any."""

    kind: str | None
    freed: list[str]
    owners: dict[str, Owner]


async def _take(durable: DurableRuns, key: str, kind: str | None, *, yes: bool) -> Taken:
    """Look, ask, and take.

    Raises:
        Exit: it is not wanted.
        CannotUse: it is held as a lock and as a semaphore.
    """
    looked = await _look(durable, key)
    both = (looked.report.lock, looked.report.semaphore)
    held = [slots for slots in both if slots is not None and slots.holders and slots.kind == (kind or slots.kind)]
    if not held:
        return Taken(None, [], {})
    if len(held) > 1:
        raise output.CannotUse(f"{key!r} is held as a lock and as a semaphore: say which with --kind")
    if not yes:
        _ask(key, held[0], looked)
    freed = await current_runtime().coordinator().force_release(key, held[0].kind)
    return Taken(held[0].kind, freed, looked.owners)


def _ask(key: str, slots: SlotReport, looked: Looked) -> None:
    """Go on if that is wanted.

    Raises:
        Exit: it is not.
    """
    who = ", ".join(named(looked.owners.get(each.label), each.label) for each in slots.holders)
    waiting = f"{len(slots.waiters)} in line" if slots.waiters else "nobody in line"
    text = f"Take {slots.kind} {key!r} from {who} ({waiting})? Until they find out, others may be inside with them."
    if not click.confirm(output.printable(text), err=True):
        raise click.exceptions.Exit(output.Exit.PROBLEMS)


def _print_taken(key: str, taken: Taken, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"key": key, "kind": taken.kind, "freed": taken.freed})
    else:
        who = ", ".join(named(taken.owners.get(label), label) for label in taken.freed)
        text = f"Taken: {taken.kind} {key!r} from {who}." if who else f"Nobody holds {key!r}: there is nothing to take."
        output.show(output.console(), Text(output.printable(text)))
    if not taken.freed:
        raise click.exceptions.Exit(output.Exit.PROBLEMS)
