"""Code that changes while runs are in flight: what fits goes on, what does not is kept until code that fits is back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aioreactor import (
    Dispatched,
    Paused,
    PlanChanged,
    Reactor,
    Success,
    after,
    async_reactor,
    compose,
    interrupt,
    map_each,
    runs,
    step,
    value,
)
from aioreactor.durable.control import ASKABLE
from aioreactor.durable.requests import Body, answer_id, pack
from aioreactor.store.plan_codec import PlanCodec
from tests.integration.durable.kit import Place, behave, ledger, noted
from tests.integration.durable.test_background import parked, place, working

__all__ = ["place"]

ROOT = Path(__file__).parents[3]


def define(
    name: str, /, *, header: dict[str, Any] | None = None, inputs: dict[str, Any] | None = None, **body: Any
) -> Any:
    """A reactor of this name; the newest counts, as after a deployment."""
    make: Any = type(Reactor)
    known = {"__module__": __name__, "__qualname__": name, "__annotations__": dict.fromkeys(inputs or {}, int)}
    defaults = {key: default for key, default in (inputs or {}).items() if default is not None}
    return make(name, (Reactor,), {**known, **defaults, **body}, name=f"ver.{name}", **(header or {}))


def old(**header: Any) -> Any:
    reserve = noted()
    approve = interrupt(str, after=[reserve])
    return define(
        "Order", header=header, inputs={"size": None}, reserve=reserve, approve=approve, ship=noted([approve])
    )


def added() -> Any:
    reserve, audit = noted(), noted()
    approve = interrupt(str, after=[reserve])
    ship = noted([approve])
    return define(
        "Order", inputs={"size": None}, reserve=reserve, audit=audit, approve=approve, ship=ship, bill=noted([ship])
    )


def renamed() -> Any:
    book = noted(aliases=["reserve"])
    approval = interrupt(str, after=[book], aliases=["approve"])
    return define("Order", inputs={"size": None}, book=book, approval=approval, send=noted([approval]))


def with_another_input() -> Any:
    reserve = noted()
    approve = interrupt(str, after=[reserve])
    ship = noted([approve])
    return define("Order", inputs={"size": None, "colour": 7}, reserve=reserve, approve=approve, ship=ship)


def without_the_input() -> Any:
    reserve = noted()
    approve = interrupt(str, after=[reserve])
    return define("Order", reserve=reserve, approve=approve, ship=noted([approve]))


def without_what_had_not_begun() -> Any:
    reserve = noted()
    return define("Order", inputs={"size": None}, reserve=reserve, approve=interrupt(str, after=[reserve]))


def of_another_name() -> Any:
    reserve = noted()
    approve = interrupt(str, after=[reserve])
    return define(
        "Purchase", header={"aliases": ["ver.Order"]}, inputs={"size": None}, reserve=reserve, approve=approve,
        ship=noted([approve]),
    )  # fmt: skip


COMPATIBLE: list[tuple[Callable[[], Any], list[str]]] = [
    (old, ["do:ship"]),
    (added, ["do:audit", "do:ship", "do:bill"]),
    (renamed, ["do:send"]),
    (with_another_input, ["do:ship"]),
    (without_the_input, ["do:ship"]),
    (without_what_had_not_begun, []),
    (of_another_name, ["do:ship"]),
]


async def paused(reactor: Any, **inputs: Any) -> str:
    outcome = await reactor.run(**inputs)
    assert isinstance(outcome, Paused)
    ledger.clear()
    return outcome.run_id


@pytest.mark.parametrize(("change", "does"), COMPATIBLE)
async def test_a_paused_run_goes_on_with_code_that_fits(place: Place, change: Any, does: list[str]) -> None:
    first = old()
    run_id = await paused(first, size=1)
    del first
    now = change()
    outcome = await now.runs.resume(run_id, payload="yes")
    assert isinstance(outcome, Success)
    assert sorted(ledger) == sorted(does)
    row = await place.store.peek(run_id)
    assert row is not None
    assert (row.status, row.fingerprint) == ("completed", now.plan.fingerprint)


@pytest.mark.parametrize(("change", "undone"), [(added, "reserve"), (renamed, "book"), (of_another_name, "reserve")])
async def test_what_was_done_by_the_old_code_is_undone_by_the_new(place: Place, change: Any, undone: str) -> None:
    first = old()
    run_id = await paused(first, size=1)
    del first
    now = change()
    assert (await now.runs.cancel(run_id)).status == "cancelled"
    assert ledger == [f"undo:{undone}"]


def reading(*, colour: int | None) -> Any:
    """A child and its parent which read an input that they got since."""

    @step
    async def paint(self: Any, colour: int) -> int:
        ledger.append(f"paint:{colour}")
        return colour

    inner = interrupt(str)
    child = define("Painted", inputs={"colour": colour}, inner=inner, paint=paint, last=noted([inner]))
    trip = compose(child) if colour is not None else compose(child, wire={"colour": value(1)})
    ok = interrupt(str, after=[trip])
    return define("Paints", inputs={"colour": colour}, trip=trip, ok=ok, paint=paint)


async def test_an_input_that_was_added_has_its_default_also_in_children(place: Place) -> None:
    inner = interrupt(str)
    trip = compose(define("Painted", inner=inner, last=noted([inner])))
    run_id = await paused(define("Paints", trip=trip, ok=interrupt(str, after=[trip])))
    with_default = reading(colour=7)
    assert isinstance(await with_default.runs.resume(run_id, payload="yes"), Paused)
    assert sorted(ledger) == ["do:trip.last", "paint:7", "paint:7"]
    assert isinstance(await runs.resume(run_id, "ok", payload="yes"), Success)


async def test_an_input_that_is_required_now_and_that_a_run_lacks_is_no_fit(place: Place) -> None:
    inner = interrupt(str)
    trip = compose(define("Painted", inner=inner, last=noted([inner])))
    run_id = await paused(define("Paints", trip=trip, ok=interrupt(str, after=[trip])))
    required = reading(colour=None)
    with pytest.raises(PlanChanged, match="lacks inputs that the code requires: colour, trip.colour") as raised:
        await required.runs.resume(run_id, payload="yes")
    assert (raised.value.missing, raised.value.inputs) == ((), ("colour", "trip.colour"))
    assert ledger == []
    await runs.delete(run_id)


@pytest.mark.parametrize("name", ["approve", "approval"])
async def test_an_interrupt_that_was_renamed_is_answered_once_by_either_name(place: Place, name: str) -> None:
    run_id = await paused(old(), size=1)
    now = renamed()
    answers = await asyncio.gather(
        *(now.runs.resume(run_id, each, payload="yes") for each in (name, "approval", "approve")),
        return_exceptions=True,
    )
    won = [each for each in answers if not isinstance(each, Exception)]
    assert [type(each).__name__ for each in won] == ["Success"]
    assert {type(each).__name__ for each in answers} == {"Success", "AlreadyResumed"}
    assert ledger == ["do:send"]
    snapshot = await runs.find(run_id)
    assert dict(snapshot.results) == {"book": "reserve", "approval": "yes", "send": "send"}
    assert [each.path for each in snapshot.steps] == ["book", "approval", "send"]


async def test_an_answer_that_the_old_code_accepted_is_applied_by_the_new(place: Place) -> None:
    first = old()
    run_id = await paused(first, size=1)
    await accepted(place, first, run_id)
    now = renamed()
    assert await place.sweep_elsewhere() == [run_id]
    assert (await runs.find(run_id)).status == "completed"
    assert ledger == ["do:send"]
    with pytest.raises(Exception, match="was resumed already"):
        await now.runs.resume(run_id, "approval", payload="again")


async def accepted(place: Place, reactor: Any, run_id: str) -> None:
    """Whoever answered died before anything came of it."""
    data = PlanCodec().value(reactor.plan["approve"], "approve", "yes")
    await place.store.ask(
        run_id, pack(Body("answer", "approve", value=data)), request_id=answer_id("approve"), allowed=ASKABLE
    )
    await place.do("ZADD", place.store.space.live(), 1, run_id)
    await place.do("HSET", place.store.space.run(run_id), "updated_ms", 1)


async def test_what_was_written_under_the_new_name_counts(place: Place) -> None:
    """The record of the old name stays where it is."""
    a = interrupt(str)
    b = interrupt(str, after=[a])
    run_id = await paused(define("Twice", a=a, b=b, z=noted([b])))
    first = interrupt(str, aliases=["a"])
    second = interrupt(str, after=[first], aliases=["b"])
    now = define("Twice", first=first, second=second, z=noted([second]))
    assert isinstance(await now.runs.resume(run_id, "a", "1"), Paused)
    assert [each.name for each in (await runs.find(run_id)).interrupts] == ["second"]
    assert await now.runs.resume(run_id, payload="2") == Success({"first": "1", "second": "2", "z": "z"})
    assert ledger == ["do:z"]


# ---------------------------------------------------------------------- what does not fit


def without_what_was_done() -> Any:
    approve = interrupt(str)
    return define("Order", inputs={"size": None}, approve=approve, ship=noted([approve]))


def without_what_is_waited_for() -> Any:
    reserve = noted()
    return define("Order", inputs={"size": None}, reserve=reserve, ship=noted([reserve]))


def with_a_child_in_its_place() -> Any:
    child = define("Child", x=noted())
    reserve = compose(child)
    approve = interrupt(str, after=[reserve])
    return define("Order", inputs={"size": None}, reserve=reserve, approve=approve, ship=noted([approve]))


@pytest.mark.parametrize("change", [without_what_was_done, without_what_is_waited_for, with_a_child_in_its_place])
async def test_a_paused_run_that_does_not_fit_is_kept_and_goes_on_when_code_that_fits_is_back(
    place: Place, change: Any
) -> None:
    first = old()
    run_id = await paused(first, size=1)
    before = _anytime(await place.store.peek(run_id))
    del first
    now = change()
    with pytest.raises(PlanChanged):
        await now.runs.resume(run_id, payload="yes")
    assert await place.store.read(run_id) is not None
    assert (await place.store.read(run_id)).requests == []  # type: ignore[union-attr]
    assert _anytime(await place.store.peek(run_id)) == before
    assert [run.run_id for run in await runs.list(status="paused")] == [run_id]
    [reason] = (await runs.explain(run_id)).reasons
    assert reason.kind == "plan"
    back = old()
    assert isinstance(await back.runs.resume(run_id, payload="yes"), Success)
    assert ledger == ["do:ship"]


def _anytime(row: Any) -> Any:
    """A row without when it was read."""
    return msgspec.structs.replace(row, now_ms=0)


async def test_a_worker_that_does_not_fit_leaves_the_run_paused_with_what_was_accepted(place: Place) -> None:
    """It has to take the run to see that; others find it as it was, and are rung for again."""
    first = old()
    run_id = await paused(first, size=1)
    await accepted(place, first, run_id)
    del first
    unfit = without_what_was_done()
    for _ in range(2):
        async with place.another() as other:
            assert other.durable is not None
            await other.durable.carry_on(run_id, "job")
        row = await place.store.peek(run_id)
        assert row is not None
        assert (row.status, row.lease_ms, row.served, row.asked, row.is_owed) == ("paused", 0, 0, 1, True)
        assert row.waits_for == "an answer to 'approve'"
    assert [run.run_id for run in await runs.list(status="paused")] == [run_id]
    assert [run.run_id for run in await runs.list(status="running")] == []
    del unfit
    back = old()
    await place.do("HSET", place.store.space.run(run_id), "updated_ms", 1)
    await place.do("ZADD", place.store.space.live(), 1, run_id)
    assert await place.sweep_elsewhere() == [run_id]
    assert ledger == ["do:ship"]
    assert (await back.runs.find(run_id)).status == "completed"


async def test_a_cancel_that_does_not_fit_is_accepted_and_carried_out_by_code_that_does(place: Place) -> None:
    run_id = await paused(old(), size=1)
    unfit = without_what_was_done()
    with pytest.raises(PlanChanged):
        await unfit.runs.cancel(run_id)
    assert (ledger, (await place.store.peek(run_id)).status) == ([], "paused")  # type: ignore[union-attr]
    back = old()
    await place.do("HSET", place.store.space.run(run_id), "updated_ms", 1)
    await place.do("ZADD", place.store.space.live(), 1, run_id)
    assert await place.sweep_elsewhere() == [run_id]
    assert (ledger, (await back.runs.find(run_id)).status) == (["undo:reserve"], "cancelled")


def handing_over(*, with_first: bool) -> Any:
    first, own = noted(), noted()
    body: dict[str, Any] = {"first": first, "own": own} if with_first else {"own": own}
    last = noted([own])
    body |= {"last": last, "background": after(own)}
    return define("Hands", **body)


async def test_a_refusal_does_not_make_it_look_as_if_steps_had_begun(place: Place) -> None:
    """``last`` was held when the run was handed over: nobody has entered it, so it is not compensated."""
    started = handing_over(with_first=True)
    outcome = await started.run()
    assert isinstance(outcome, Dispatched)
    ledger.clear()
    unfit = handing_over(with_first=False)
    async with place.another() as other:
        assert other.durable is not None
        await other.durable.carry_on(outcome.run_id, "job")
    assert (await runs.find(outcome.run_id)).status == "running"
    del unfit
    back = handing_over(with_first=True)
    assert (await back.runs.cancel(outcome.run_id)).status == "cancelled"
    assert sorted(ledger) == ["undo:first", "undo:own"]


# ---------------------------------------------------------------------- inside, and beside


async def test_a_composed_child_and_what_is_inside_are_renamed(place: Place) -> None:
    hotel = noted()
    trip = define("Trip", hotel=hotel, ok=interrupt(str, after=[hotel]))
    run_id = await paused(define("Outer", trip=compose(trip)))
    room = noted(aliases=["hotel"])
    journey = define("Trip", room=room, fine=interrupt(str, after=[room], aliases=["ok"]), last=noted([room]))
    now = define("Outer", journey=compose(journey, aliases=["trip"]))
    assert [each.name for each in (await runs.find(run_id)).interrupts] == ["journey.fine"]
    assert isinstance(await now.runs.resume(run_id, "trip.ok", "yes"), Success)
    assert ledger == ["do:journey.last"]
    ledger.clear()
    await runs.undo(run_id)
    assert ledger == ["undo:journey.last", "undo:journey.room"]


async def test_a_map_that_is_renamed_is_undone_element_by_element(place: Place) -> None:
    element = define("Element", inputs={"k": None}, t=noted())
    m = map_each(element, over=value([1, 2]), item="k")
    run_id = await paused(define("Maps", m=m, ok=interrupt(str, after=[m])))
    each = map_each(element, over=value([1, 2]), item="k", aliases=["m"])
    now = define("Maps", each=each, ok=interrupt(str, after=[each]))
    assert (await now.runs.cancel(run_id)).status == "cancelled"
    assert ledger == ["undo:each[1].t", "undo:each[0].t"]


async def test_a_map_that_fanned_out_keeps_its_name(place: Place) -> None:
    """Its elements are runs that know it by that; with another one they would all be dealt again."""
    element = define("Element", inputs={"k": None}, t=noted())
    m = map_each(element, over=value([1, 2]), item="k", fan_out=True)
    async with working(place):
        first = define("Fans", m=m, ok=interrupt(str, after=[m]))
        handle = await first.enqueue()
        assert isinstance(await handle.result(timeout=20), Paused)
        ledger.clear()
        renamed = map_each(element, over=value([1, 2]), item="k", fan_out=True, aliases=["m"])
        unfit = define("Fans", each=renamed, ok=interrupt(str, after=[renamed]))
        with pytest.raises(PlanChanged, match="does not: m"):
            await unfit.runs.resume(handle.run_id, payload="yes")
        again = map_each(element, over=value([1, 2]), item="k", fan_out=True, name="m")
        fit = define("Fans", each=again, ok=interrupt(str, after=[again]))
        assert isinstance(await fit.runs.resume(handle.run_id, payload="yes"), Success)
    assert ledger == []


async def test_a_unit_of_a_step_that_was_renamed_is_found_again(place: Place) -> None:
    sent = define("Sent", ok=interrupt(str))

    @step
    async def read(self: Any, sent: Any) -> str:
        return f"{sent.status}"

    async with working(place, park_after=0.05) as worker:
        first = define("Sends", sent=async_reactor(sent), read=read, returns=read)
        handle = await first.enqueue()
        await parked(place, handle.run_id)
        assert await worker.service.host.idle(30)
        [unit] = (await runs.find(handle.run_id)).children
        del first

        @step(name="read")
        async def read_it(self: Any, posted: Any) -> str:
            return f"read {posted.status}"

        now = define("Sends", posted=async_reactor(sent, aliases=["sent"]), read_it=read_it, returns=read_it)
        assert (await runs.find(handle.run_id)).children == (unit,)
        assert (await runs.explain(handle.run_id)).reasons[0].holder == unit
        async with asyncio.timeout(20):
            while (await runs.find(unit)).status != "paused":
                await asyncio.sleep(0.005)
        assert isinstance(await runs.resume(unit, payload="yes"), Success)
        assert await handle.result(timeout=20) == Success("read completed")
        assert len((await runs.find(handle.run_id)).children) == 1
        del now


async def test_a_retry_and_a_fork_take_over_what_was_stored_under_older_names(place: Place) -> None:
    ended = await old().run(size=1)
    await runs.cancel(ended.run_id, mode="stop")
    ledger.clear()
    now = renamed()
    again = await now.runs.retry(ended.run_id)
    fork = await now.runs.fork(ended.run_id, from_step="send")
    async with working(place):
        for handle in (again, fork):
            assert isinstance(await handle.result(timeout=20), Paused)
            assert isinstance(await runs.resume(handle.run_id, payload="yes"), Success)
    assert sorted(ledger) == ["do:send", "do:send"]


# ---------------------------------------------------------------------- versions


async def test_versions_live_side_by_side(place: Place) -> None:
    """Each run goes on with the code of its own version, wherever both are there."""
    one = old(version=1)
    waiting = await paused(one, size=1)
    queued = await one.enqueue(size=1)
    book = noted()
    approve = interrupt(str, after=[book])
    two = define("Order", header={"version": 2}, approve=approve, book=book, send=noted([approve]))
    of_two = await paused(two)
    behave.clear()
    assert isinstance(await runs.resume(waiting, payload="yes"), Success)
    assert isinstance(await runs.resume(of_two, payload="yes"), Success)
    assert ledger == ["do:ship", "do:send"]
    async with working(place):
        newer = await two.enqueue()
        for handle in (queued, newer):
            assert isinstance(await handle.result(timeout=20), Paused)
    assert ledger == ["do:ship", "do:send", "do:reserve", "do:book"]
    assert [(await runs.find(each)).version for each in (queued.run_id, newer.run_id)] == ["1", "2"]
    for handle in (queued, newer):
        assert (await runs.cancel(handle.run_id)).status == "cancelled"
    assert sorted(ledger[4:]) == ["undo:book", "undo:reserve"]


async def test_a_run_whose_version_is_gone_goes_on_with_another_that_fits(place: Place) -> None:
    run_id = await paused(old(version=1), size=1)
    await place.do("HSET", place.store.space.run(run_id), "version", "0")
    now = old(version=2)
    assert isinstance(await runs.resume(run_id, payload="yes"), Success)
    assert ((await runs.find(run_id)).version, ledger) == ("2", ["do:ship"])
    del now


# ---------------------------------------------------------------------- processes

MODULE = """
import asyncio, os, sys
import aioreactor
from aioreactor import Reactor, interrupt, runs, step, sweep

aioreactor.configure()

class Order(Reactor[str], name="ver.Processes"):
    size: int
{body}

async def main():
    async with aioreactor.current_runtime():
        for line in sys.argv[1:]:
            try:
                print(line, "->", repr(await eval(line)), flush=True)
            except Exception as error:
                print(line, "->", type(error).__name__, flush=True)

async def listed(status):
    return sorted(each.run_id for each in await runs.list(status=status))

async def status(run_id):
    return (await runs.find(run_id)).status

asyncio.run(main())
"""
FIRST = """
    @step
    async def reserve(self) -> str:
        return "first"
    approve = interrupt(str, after=[reserve])
    @step
    async def hang(self, reserve: str, size: int) -> str:
        print("hanging" if size == 2 else "passing", flush=True)
        if size == 2:
            await asyncio.sleep(600)
        return "hung"
    @step
    async def ship(self, approve: str, hang: str) -> str:
        return f"first {approve}"
    returns = ship
"""
FITS = """
    colour: str = "red"
    @step(aliases=["reserve"])
    async def book(self) -> str:
        raise AssertionError("it was done")
    approve = interrupt(str, after=[book])
    @step
    async def hang(self, book: str) -> str:
        return f"not hung after {book}"
    @step
    async def audit(self, colour: str) -> str:
        return colour
    @step
    async def ship(self, approve: str, hang: str, audit: str) -> str:
        return f"second {approve} {hang} {audit}"
    returns = ship
"""
DOES_NOT = """
    approve = interrupt(str)
    @step
    async def ship(self, approve: str) -> str:
        return "third"
    returns = ship
"""


def put(path: Path, body: str) -> None:
    path.write_text(MODULE.format(body=body))


async def process(place: Place, path: Path, body: str, *lines: str) -> asyncio.subprocess.Process:
    put(path, body)
    environment = {"AIOREACTOR_REDIS_URL": place.url, "AIOREACTOR_KEY_PREFIX": place.prefix, "PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(
        sys.executable, str(path), *lines, stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )


async def answers(place: Place, path: Path, body: str, *lines: str) -> list[str]:
    running = await process(place, path, body, *lines)
    async with asyncio.timeout(60):
        written, _ = await running.communicate()
    return [line.partition(" -> ")[2] for line in written.decode().splitlines() if " -> " in line]


async def test_real_processes_of_three_versions_of_one_module(place: Place, tmp_path: Path) -> None:
    """A deployment of code that does not fit, and then of code that does, over a paused run and one that was killed."""
    first = await process(
        place,
        tmp_path / "app.py",
        FIRST,
        "Order.with_options(run_id='p').run(size=1)",
        "Order.with_options(run_id='r').run(size=2)",
    )
    assert first.stdout is not None
    async with asyncio.timeout(60):
        while (await first.stdout.readline()).strip() != b"hanging":
            pass
    first.send_signal(signal.SIGKILL)
    await first.wait()
    await place.lapse("r")
    unfit = ("runs.resume('p', payload='yes')", "sweep()", "listed('paused')", "listed('running')", "status('r')")
    assert await answers(place, tmp_path / "app.py", DOES_NOT, *unfit) == [
        "PlanChanged",
        "[]",
        "['p']",
        "['r']",
        "'running'",
    ]
    await place.lapse("r")
    fit = ("runs.resume('p', payload='yes')", "sweep()", "status('r')", "runs.resume('r', payload='no')")
    assert await answers(place, tmp_path / "app.py", FITS, *fit) == [
        "Success(value='second yes hung red')",
        "['r']",
        "'paused'",
        "Success(value='second no not hung after first red')",
    ]
