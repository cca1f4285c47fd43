"""The part of the demo in worker processes: who does what, what a kill costs, and that nobody is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aioreactor.cli.demo import crew as crews
from aioreactor.cli.demo import play as plays
from aioreactor.cli.demo.audit import audit
from aioreactor.cli.demo.crew import Kill, Seen, WorkerFailed, crew_of
from aioreactor.cli.demo.link import Answer, Call, Did, FarSystem, Link, line, perform
from aioreactor.cli.demo.orders import OrderFile, open_shop, read_orders
from aioreactor.cli.demo.play import Played, Worked, play, play_in_workers
from aioreactor.cli.demo.report_workers import by_whom, where_done
from aioreactor.cli.demo.systems import CardDeclined, Hold, OutOfStock, Receipt, Reservation, Shop
from aioreactor.cli.output import ASCII
from aioreactor.embedded import EmbeddedServer

if TYPE_CHECKING:
    from .cli_support import Start, Started, StartIn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no embedded server")

FORWARD = [
    "screen", "reserve[0]", "reserve[1]", "total", "payment.authorize", "payment.charge", "review", "ship", "points",
    "confirm",
]  # fmt: skip


@pytest.fixture
def orders(as_json: Started) -> dict[str, Any]:
    """The orders in what ``aioreactor demo --json`` printed, with their accounts."""
    assert (as_json.returncode, as_json.stderr) == (0, "")
    found = json.loads(as_json.stdout)
    accounts = found["ledgers"]["payments"]
    return {each["order_id"]: {**each, "account": accounts.get(each["order_id"])} for each in found["orders"]}


def did(order: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["kind"], each["path"]) for each in order["worker"]["did"]]


def pids(order: dict[str, Any]) -> list[int]:
    """The processes in the order in which they took part."""
    return list(dict.fromkeys(each["pid"] for each in order["worker"]["did"]))


class TestOrders:
    def test_those_of_this_process_are_nobody_elses(self, orders: dict[str, Any]) -> None:
        assert [name for name, each in orders.items() if each["worker"] is not None] == ["A-1010", "A-1011", "A-1012"]

    def test_one_is_handed_off(self, orders: dict[str, Any]) -> None:
        order = orders["A-1010"]
        assert len(pids(order)) == 1
        assert order["worker"]["killed"] is None
        assert sorted(did(order)) == sorted(("run", path) for path in FORWARD if path != "reserve[1]")
        assert order["inputs"]["card_token"] == "[redacted]"
        assert order["value"]["total"] == order["account"]["kept"] == 3600

    def test_one_goes_on_in_another_process(self, orders: dict[str, Any]) -> None:
        order = orders["A-1011"]
        killed = order["worker"]["killed"]
        first, second = pids(order)
        assert (killed["pid"], killed["went_on_in"], killed["after"], killed["signal"]) == (
            first, second, "capture", "SIGKILL",
        )  # fmt: skip
        by_path = {path: [each["pid"] for each in order["worker"]["did"] if each["path"] == path] for path in FORWARD}
        assert by_path == {
            **{path: [first] for path in FORWARD[:5]},
            "payment.charge": [first, second],
            **{path: [second] for path in FORWARD[6:]},
        }
        assert {kind for kind, _ in did(order)} == {"run"}

    def test_what_was_asked_for_twice_was_done_once(self, orders: dict[str, Any]) -> None:
        order = orders["A-1011"]
        assert order["run"]["status"] == "completed"
        assert order["account"] == {"held": 0, "charged": 10200, "refunded": 0, "kept": 10200}
        assert order["value"]["total"] == 10200

    def test_one_is_rolled_back_by_two_processes(self, orders: dict[str, Any]) -> None:
        order = orders["A-1012"]
        first, second = pids(order)
        back = [(each["pid"], each["kind"], each["path"]) for each in order["worker"]["did"] if each["kind"] != "run"]
        assert sorted(back[:2]) == [(first, "compensate", "ship"), (first, "undo", "points")]
        assert back[2:] == [
            (first, "undo", "payment.charge"),
            (second, "undo", "payment.charge"),
            (second, "undo", "payment.authorize"),
            (second, "undo", "reserve[0]"),
        ]
        assert (order["worker"]["killed"]["pid"], order["worker"]["killed"]["went_on_in"]) == (first, second)
        assert order["account"] == {"held": 0, "charged": 8900, "refunded": 8900, "kept": 0}
        assert (order["run"]["status"], order["left_in_systems"]) == ("failed", [])
        assert [each["path"] for each in order["run"]["rollback"][2:]] == [
            "payment.charge", "payment.authorize", "reserve[0]",
        ]  # fmt: skip


class TestText:
    def test_it_says_how_workers_are_started(self, as_text: Started) -> None:
        assert (as_text.returncode, as_text.stderr) == (0, "")
        assert "12 orders go through one check-out; 3 of them in worker processes." in as_text.stdout
        assert re.search(r"by the processes (\d+) and (\d+), each started as\n", as_text.stdout)
        assert "AIOREACTOR_REDIS_URL=unix://" in as_text.stdout
        assert "python -m aioreactor worker \\\n" in as_text.stdout

    def test_it_says_who_was_killed_and_who_went_on(self, as_text: Started) -> None:
        words = " ".join(as_text.stdout.split())
        took = re.findall(r"process (\d+) takes it", words)
        killed = re.findall(r"process (\d+) is killed \(SIGKILL\): the bank has (\w+) the money", words)
        went_on = re.findall(r"process (\d+) goes on \d+\.\d s later", words)
        assert [pid for pid, _ in killed] == took[1:]
        assert [what for _, what in killed] == ["taken", "given"]
        assert len(went_on) == 2
        assert all(gone != successor for (gone, _), successor in zip(killed, went_on, strict=True))
        assert re.search(rf"in {killed[0][0]} ✗ killed, again in {went_on[0]}", words)
        assert re.search(rf"Refund the card\. in {killed[1][0]} ✗ killed, again in [│ ]*{went_on[1]}", words)

    def test_it_says_that_all_is_in_order(self, as_text: Started) -> None:
        words = " ".join(as_text.stdout.split())
        assert "✓ killed workers (2): another process went on with their orders" in words
        assert "The books balance." in words


class TestWithoutServer:
    def test_the_other_orders_are_run_and_it_says_what_to_install(self, start: Start) -> None:
        done = start("demo", AIOREACTOR_SERVER_BINARY="/nowhere")
        assert (done.returncode, done.stderr) == (0, "")
        words = " ".join(done.stdout.split())
        assert "· not run: 3 orders for worker processes (A-1010, A-1011, A-1012)" in words
        assert "pip install aioreactor[embedded]" in words
        assert "✗ A-1009 refused" in words
        assert "The books balance." in words
        assert "killed" not in words

    def test_a_server_that_does_not_start_is_a_problem(self, start: Start) -> None:
        done = start("demo", "--json", AIOREACTOR_SERVER_BINARY=shutil.which("false") or "")
        found = json.loads(done.stdout)
        assert (done.returncode, len(found["orders"]), found["balanced"]) == (1, 9, True)
        assert found["not_run"]["orders"] == ["A-1010", "A-1011", "A-1012"]
        assert "exit" in found["not_run"]["reason"] or "ended" in found["not_run"]["reason"]

    def test_no_server_is_looked_for_when_no_order_needs_one(self, start: Start, tmp_path: Path) -> None:
        own = json.loads(start("demo", "--sample").stdout)
        own["orders"] = own["orders"][:1]
        (tmp_path / "own.json").write_text(json.dumps(own), encoding="utf-8")
        found = json.loads(start("demo", "--orders", "own.json", "--json", AIOREACTOR_SERVER_BINARY="/nowhere").stdout)
        assert (len(found["orders"]), found["not_run"]) == (1, None)


@contextmanager
def demo_with_workers() -> Iterator[tuple[subprocess.Popen[str], list[int], Path]]:
    """A demo whose workers run, handles of these, and the folder of its server."""
    command = [sys.executable, "-m", "aioreactor", "demo"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, encoding="utf-8") as running:
        assert running.stdout is not None
        try:
            written = ""
            while "--sweep-interval" not in written:
                written += running.stdout.readline()
                assert running.poll() is None, written
            found = re.search(r"processes (\d+) and (\d+)", written)
            folder = re.search(r"unix://(\S+)/s\?", written)
            assert found is not None
            assert folder is not None
            handles = [os.pidfd_open(int(pid)) for pid in found.groups()]
            yield running, handles, Path(folder[1])
        finally:
            running.kill()
    for handle in handles:
        os.close(handle)


def have_ended(handles: list[int]) -> bool:
    """Whether all of these processes end within half a minute."""
    return all(select.select([handle], [], [], 30)[0] for handle in handles)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs handles of processes that are no children")
class TestNobodyIsLeft:
    def test_when_it_is_interrupted(self) -> None:
        with demo_with_workers() as (running, workers, folder):
            assert folder.exists()
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=60)
            assert (running.returncode, errors.strip()) == (1, "Aborted!")
            assert have_ended(workers)
            assert not folder.exists()

    def test_when_it_is_killed(self) -> None:
        with demo_with_workers() as (running, workers, _):
            running.kill()
            assert have_ended(workers)


@pytest.fixture
def two_orders() -> OrderFile:
    """One to be handed off, and one whose worker is killed when the goods have left the house."""
    sample = msgspec.to_builtins(read_orders())
    handed = [order for order in sample["orders"] if order["worker"]][:2]
    handed[1]["kill_after"] = "hand_over"
    return msgspec.convert({**sample, "orders": handed}, OrderFile)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer.running() as server:
        yield server


@pytest.mark.asyncio
class TestCrew:
    async def test_a_kill_after_the_last_effect(self, two_orders: OrderFile, server: EmbeddedServer) -> None:
        shop = open_shop(two_orders.shop, latency=0.0)
        told: list[Played] = []
        begun: list[str] = []
        async with crew_of(2, shop.resources(), server.url, server.directory) as crew:
            played = await play_in_workers(two_orders, crew, told.append, lambda order: begun.append(order.label))
        assert played == told
        assert begun == ["A-1010", "A-1011"]
        worked = played[1].worked
        assert worked is not None
        assert worked.kill is not None
        assert worked.successor is not None
        assert worked.pids("run", "confirm") == [worked.kill.pid, worked.successor.pid]
        assert (shop.stock.goods["teapot"].shipped, shop.stock.goods["mug"].shipped) == (2, 4)
        assert [check.text for check in audit(shop, played) if not check.ok] == []
        assert len(crew.pids) == 2
        await shop.gateway.refund("rcpt-A-1011")
        shop.gateway.accounts["A-1011"].charged *= 2
        assert not audit(shop, played)[-1].ok

    async def test_a_worker_that_ends_by_itself_is_told(
        self, two_orders: OrderFile, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(crews, "COMMAND", ("-c", "raise SystemExit('no work today')"))
        shop = open_shop(two_orders.shop, latency=0.0)
        async with crew_of(2, shop.resources(), server.url, server.directory) as crew:
            with pytest.raises(WorkerFailed, match=r"ended with code 1; the end of its log:\nno work today"):
                await play_in_workers(two_orders, crew, lambda _: None)

    async def test_an_order_that_takes_too_long_is_told(
        self, two_orders: OrderFile, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(crews, "COMMAND", ("-c", "import sys; sys.stdin.read(); import time; time.sleep(60)"))
        monkeypatch.setattr(plays, "PATIENCE", 0.1)
        shop = open_shop(two_orders.shop, latency=0.0)
        async with crew_of(1, shop.resources(), server.url, server.directory) as crew:
            with pytest.raises(WorkerFailed, match=r"was not through after 0.1 s; it logged nothing"):
                await play_in_workers(two_orders, crew, lambda _: None)
        assert crew.pids  # all of them ended: a subprocess that is left is a ResourceWarning

    async def test_a_fault_in_the_shop_is_no_silence(
        self, two_orders: OrderFile, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def reserve(self: object, order_id: str, sku: str, quantity: int) -> Reservation:
            raise ZeroDivisionError

        shop = open_shop(two_orders.shop, latency=0.0)
        monkeypatch.setattr(type(shop.stock), "reserve", reserve)
        async with crew_of(1, shop.resources(), server.url, server.directory) as crew:
            with pytest.raises(ExceptionGroup) as raised:
                await play_in_workers(two_orders, crew, lambda _: None)
        assert raised.group_contains(ZeroDivisionError)

    async def test_the_module_of_the_workers_is_for_them_only(self, start_in: StartIn, tmp_path: Path) -> None:
        done = start_in(tmp_path, "check", "aioreactor.cli.demo.app")
        assert done.returncode == 2
        assert "worker processes that `aioreactor demo` starts" in done.stderr


@pytest.fixture
def far() -> Iterator[tuple[Link, socket.socket, threading.Event]]:
    """A worker's end, the demo's end, and what happens when that closes."""
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    link = Link(theirs, ended.set)
    yield link, ours, ended
    ours.close()
    assert ended.wait(30)
    theirs.close()


async def serve(shop: Shop, sock: socket.socket, calls: int) -> list[Did]:
    """Answer some calls; what was told besides."""
    told: list[Did] = []
    reader, writer = await asyncio.open_connection(sock=sock.dup())
    while calls:
        found = msgspec.json.decode(await reader.readline(), type=Call | Did)
        if isinstance(found, Did):
            told.append(found)
        else:
            writer.write(line(await perform(shop.resources(), found)))
            calls -= 1
    writer.close()
    await writer.wait_closed()
    return told


@pytest.mark.asyncio
class TestLink:
    async def test_values_and_errors_come_as_they_are(self, far: tuple[Link, socket.socket, threading.Event]) -> None:
        link, ours, _ = far
        shop = open_shop(read_orders().shop, latency=0.0)
        serving = asyncio.create_task(serve(shop, ours, 5))
        stock, gateway = FarSystem(link, "stock"), FarSystem(link, "gateway")
        assert await stock.reserve("A-1", "mug", 2) == Reservation("res-A-1-mug", "A-1", "mug", 2, 2400)
        with pytest.raises(OutOfStock, match="9 of 'strainer' wanted, 1 left"):
            await stock.reserve("A-1", "strainer", 9)
        link.tell(Did("run", "undo", "payment.charge"))
        hold = await gateway.authorize("A-1", 2400, "tok_declined")
        assert hold == Hold("hold-A-1", "A-1", 2400)
        with pytest.raises(CardDeclined):
            await gateway.capture(hold, "tok_declined")
        assert await gateway.capture(hold, "tok_visa") == Receipt("rcpt-A-1", "A-1", 2400)
        assert await serving == [Did("run", "undo", "payment.charge")]
        assert shop.gateway.accounts["A-1"].charged == 2400

    async def test_answers_find_who_asked(self, far: tuple[Link, socket.socket, threading.Event]) -> None:
        link, ours, _ = far
        reader, writer = await asyncio.open_connection(sock=ours.dup())
        loyalty = FarSystem(link, "loyalty")
        asking = [asyncio.create_task(loyalty.add(f"A-{number}", number)) for number in range(3)]
        calls = [msgspec.json.decode(await reader.readline(), type=Call) for _ in asking]
        asking[1].cancel()
        await asyncio.wait(asking[1:2])
        for call in reversed(calls):
            writer.write(line(Answer(call.id, call.args[1])))
        assert [await asking[0], await asking[2]] == [0, 2]
        writer.close()
        await writer.wait_closed()

    async def test_an_action_that_there_is_not(self, far: tuple[Link, socket.socket, threading.Event]) -> None:
        with pytest.raises(AttributeError, match="stock has no action 'sell'"):
            FarSystem(far[0], "stock").sell


def test_who_did_what_in_words() -> None:
    seen = [Seen(pid, Did("r", kind, path), at) for pid, kind, path, at in (
        (1, "run", "a", 0.0), (1, "run", "b", 1.0), (2, "run", "b", 4.5), (2, "undo", "a", 5.0),
    )]  # fmt: skip
    worked = Worked(tuple(seen), Kill(1, "refund", 2.0))
    assert [where_done(worked, ASCII, *each) for each in (("run", "a"), ("run", "b"), ("undo", "a"), ("run", "c"))] == [
        "in 1", "in 1 x killed, again in 2", "in 2", "",
    ]  # fmt: skip
    assert where_done(Worked((seen[0],), None), ASCII, "run", "a") == "in 1"


async def test_an_order_that_never_comes_to_its_kill_says_so() -> None:
    file = read_orders()
    shop = open_shop(file.shop, latency=0.0)
    one = msgspec.structs.replace(file, orders=file.orders[3:4])
    [played] = await play(one, shop)
    order = msgspec.structs.replace(played.order, worker=True, kill_after="hand_over")
    seen = (Seen(7, Did("r", "run", "screen"), 0.0),)
    handed = Played(order, played.outcome, played.tree, played.inputs, Worked(seen, None))
    assert list(by_whom(handed)) == ["process 7 takes it", "no process is killed: it never comes to 'hand_over'"]
    assert list(by_whom(played)) == []
