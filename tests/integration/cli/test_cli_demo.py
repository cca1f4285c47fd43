"""``aioreactor demo`` as a person meets it, and the shop it is played in."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aioreactor import Failure, Halt, Success
from aioreactor.cli.demo import command
from aioreactor.cli.demo.audit import audit, effects
from aioreactor.cli.demo.orders import BadOrderFile, OrderFile, open_shop, read_orders, sample_text
from aioreactor.cli.demo.play import Played, play
from aioreactor.cli.demo.systems import Carrier, Gateway, Loyalty, Shop, Stock
from aioreactor.cli.draw_trace import STYLES
from aioreactor.cli.render_trace import StepTree

if TYPE_CHECKING:
    from .cli_support import Invoke, Start, Started

SECRETS = [
    order["checkout"]["card_token"]
    for order in json.loads(sample_text())["orders"]
    if len(order["checkout"]["card_token"]) > 3
]


async def played_sample() -> tuple[Shop, dict[str, Played]]:
    """The sample orders in a shop that takes no time."""
    file = read_orders()
    shop = open_shop(file.shop, latency=0.0)
    return shop, {each.order.label: each for each in await play(file, shop)}


def steps_of(played: Played) -> dict[str, StepTree]:
    return {each.path: each for each in played.tree.walk()}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process the demo's systems take no time, and there is no server for its workers."""
    monkeypatch.setattr(command, "LATENCY", 0.0)
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", "/nowhere")


class TestCommand:
    def test_as_text(self, as_text: Started) -> None:
        done = as_text
        assert (done.returncode, done.stderr) == (0, "")
        for words in (
            "failed at ship, rolled back",
            "rolled back, newest first",
            "undo payment.charge  Refund the card.",
            "ShippingRefused: no carrier goes to AQ",
            "charge  ",
            "3 attempts",
            "again in 0.1 s",
            "halted at review, keeps what was done",
            "points  0.0 ms  skipped",
            "refused, nothing ran",
            "the closest is 'member'",
            "the bank declined card [redacted]",
            "The books balance.",
        ):
            assert words in done.stdout, words

    def test_without_a_terminal_it_is_plain_and_80_columns_wide(self, as_text: Started) -> None:
        done = as_text
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]

    def test_secrets_are_never_printed(self, as_text: Started, as_json: Started) -> None:
        assert len(SECRETS) >= 7
        for done in (as_text, as_json):
            assert "[redacted]" in done.stdout
            assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]

    def test_as_json(self, as_json: Started) -> None:
        done = as_json
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        orders = {each["order_id"]: each for each in found["orders"]}
        assert {name: each["run"]["status"] for name, each in orders.items()} == {
            "A-1001": "completed",
            "A-1002": "completed",
            "A-1003": "completed",
            "A-1004": "failed",
            "A-1005": "failed",
            "A-1006": "failed",
            "A-1007": "halted",
            "1008": "failed",
            "A-1009": "failed",
            "A-1010": "completed",
            "A-1011": "completed",
            "A-1012": "failed",
        }
        assert found["not_run"] is None
        assert found["balanced"] is True
        self._books_balance(found)
        assert orders["A-1004"]["left_in_systems"] == []
        assert set(orders["1008"]["run"]["field_errors"]) == {
            "order_id", "email", "country", "lines", "card_token", "membr",
        }  # fmt: skip

    def _books_balance(self, found: dict[str, Any]) -> None:
        for goods in found["ledgers"]["stock"].values():
            assert goods["on_hand"] + goods["reserved"] + goods["shipped"] == goods["at_start"]
        for account in found["ledgers"]["payments"].values():
            assert account["charged"] - account["refunded"] == account["kept"]
        kept = sum(account["kept"] for account in found["ledgers"]["payments"].values())
        paid = sum(each["value"]["total"] for each in found["orders"] if each["value"])
        held = found["ledgers"]["payments"]["A-1007"]["kept"]
        assert kept == paid + held
        assert found["ledgers"]["payments"]["A-1004"]["refunded"] > 0

    def test_where_the_encoding_is_poor(self, start: Start) -> None:
        done = start("demo", PYTHONIOENCODING="ascii", AIOREACTOR_SERVER_BINARY="/nowhere")
        assert done.returncode == 0
        assert done.stdout.isascii()
        assert "< undone" in done.stdout
        assert "?" not in done.stdout.replace("'member'?", "")

    @pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo terminals")
    def test_on_a_terminal_it_has_colours(self) -> None:
        written = in_terminal([sys.executable, "-m", "aioreactor", "demo"])
        assert "\x1b[" in written
        plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
        assert "The books balance." in plain
        assert not [secret for secret in SECRETS if secret in plain]

    def test_a_reader_that_goes_away_is_no_traceback(self) -> None:
        command_line = [sys.executable, "-m", "aioreactor", "demo"]
        with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.readline()
            running.stdout.close()
            assert b"Traceback" not in running.stderr.read()

    def test_an_order_file_of_ones_own(self, start: Start, tmp_path: Path) -> None:
        own = json.loads(start("demo", "--sample").stdout)
        own["orders"] = own["orders"][3:4]
        (tmp_path / "own.json").write_text(json.dumps(own), encoding="utf-8")
        done = start("demo", "--orders", "own.json", "--json")
        assert done.returncode == 0
        assert [each["order_id"] for each in json.loads(done.stdout)["orders"]] == ["A-1004"]

    @pytest.mark.skipif(sys.platform == "win32", reason="has no such signal for one process")
    def test_interrupted_it_ends_without_a_traceback(self) -> None:
        command_line = [sys.executable, "-m", "aioreactor", "demo"]
        with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            running.stdout.readline()  # from here on it runs
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=60)
        assert (running.returncode, errors.decode().strip()) == (1, "Aborted!")

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (None, "No such file"),
            (b"", "is not JSON"),
            (b"\xff\xfe", "is not JSON"),
            (b"[]", "Expected `object`, got `array`"),
            (b'{"orders": [{"checkout": {}}]}', "required field `shop`"),
            (b'{"shop": {"stock": {"mug": {"price": 0, "pieces": 1}}, "ships_to": []}, "orders": []}', "price"),
            (b'{"shop": {"stock": {}, "ships_to": []}, "orders": []}', "length >= 1"),
            (b'{"shop": {"stock": {}, "ships_to": []}, "orders": [{"checkout": 1}]}', "$.orders[0].checkout"),
            (b'{"shop": {"stock": {}, "ships_to": []}, "orders": [{"checkout": {}, "abuot": ""}]}', "abuot"),
            (
                b'{"shop": {"stock": {}, "ships_to": []}, "orders": [{"checkout": {}, "kill_after": "capture"}]}',
                'kill_after without "worker": true',
            ),
            (
                b'{"shop": {"stock": {}, "ships_to": []}, "orders": [{"checkout": {}, "kill_after": "lunch"}]}',
                "$.orders[0].kill_after",
            ),
            (
                b'{"shop": {"stock": {}, "ships_to": []}, "orders": [{"checkout": {"order_id": "A-1"}},'
                b'{"checkout": {"order_id": "A-1"}}]}',
                "used more than once",
            ),
        ],
    )
    def test_a_bad_order_file(self, start: Start, tmp_path: Path, content: bytes | None, why: str) -> None:
        if content is not None:
            (tmp_path / "bad.json").write_bytes(content)
        done = start("demo", "--orders", "bad.json")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: bad.json")
        assert why in done.stderr

    @pytest.mark.usefixtures("at_once")
    def test_orders_without_sense_are_refused_and_that_is_all(self, invoke: Invoke, tmp_path: Path) -> None:
        content: dict[str, Any] = {
            "shop": {"stock": {}, "ships_to": []},
            "orders": [{"checkout": {}}, {"checkout": {"order_id": 7}}],
        }
        path = tmp_path / "odd.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        done = invoke("demo", "--orders", str(path))
        assert done.exit_code == 0
        assert "(no order_id)  refused" in done.output
        assert "card_token  is required" in done.output

    def test_a_secret_in_a_misspelt_field_is_not_printed(self, invoke: Invoke, tmp_path: Path) -> None:
        content: dict[str, Any] = {
            "shop": {"stock": {}, "ships_to": []},
            "orders": [{"checkout": {"card_tokn": "tok_visa_secret"}}],
        }
        path = tmp_path / "odd.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        for flags in ([], ["--json"]):
            assert "tok_visa_secret" not in invoke("demo", "--orders", str(path), *flags).output

    @pytest.mark.usefixtures("at_once")
    def test_books_that_do_not_balance_are_an_exit_code(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        async def forget(self: Gateway, receipt_id: str) -> None:
            """A refund that loses the money."""

        monkeypatch.setattr(Gateway, "refund", forget)
        done = invoke("demo")
        assert done.exit_code == 1
        assert "The books do NOT balance." in done.output


def in_terminal(command: list[str]) -> str:
    """What a command writes when its output is a terminal."""
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        written = b"".join(_chunks(ours))
        assert running.wait(timeout=60) == 0
    os.close(ours)
    return written.decode("utf-8")


def _chunks(descriptor: int) -> list[bytes]:
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # how a closed pseudo terminal ends on Linux
            return chunks
        if not chunk:
            return chunks
        chunks.append(chunk)


@pytest.mark.asyncio
class TestOrders:
    async def test_the_flaky_gateway_is_tried_three_times(self) -> None:
        _, played = await played_sample()
        charge = steps_of(played["A-1002"])["payment.charge"]
        assert [each.status for each in charge.attempts] == ["failed", "failed", "completed"]
        assert isinstance(played["A-1002"].outcome, Success)

    async def test_a_guest_gets_no_points(self) -> None:
        shop, played = await played_sample()
        assert steps_of(played["A-1003"])["points"].status == "skipped"
        assert "A-1003" not in shop.loyalty.points

    async def test_a_late_failure_leaves_nothing(self) -> None:
        shop, played = await played_sample()
        late = played["A-1004"]
        assert isinstance(late.outcome, Failure)
        assert late.outcome.step == "ship"
        assert sorted(each.path for each in late.tree.rollback[:2]) == ["points", "ship"]
        assert [each.path for each in late.tree.rollback[2:]] == [
            "payment.charge",
            "payment.authorize",
            "reserve[1]",
            "reserve[0]",
        ]
        account = shop.gateway.accounts["A-1004"]
        assert account.charged == account.refunded > 0
        assert effects(shop, late) == []

    async def test_a_halt_keeps_everything(self) -> None:
        shop, played = await played_sample()
        held = played["A-1007"]
        assert isinstance(held.outcome, Halt)
        assert held.tree.rollback == ()
        assert shop.stock.reserved_for("A-1007") == 12
        assert shop.gateway.accounts["A-1007"].kept == held.outcome.results["total"]
        assert {each.path for each in held.tree.walk() if each.status == "not_started"} == {"ship", "points", "confirm"}

    async def test_rules_across_fields(self) -> None:
        _, played = await played_sample()
        outcome = played["A-1009"].outcome
        assert isinstance(outcome, Failure)
        assert list(outcome.field_errors) == ["lines"]

    async def test_the_books_balance(self) -> None:
        shop, played = await played_sample()
        assert [check for check in audit(shop, list(played.values())) if not check.ok] == []

    @pytest.mark.parametrize("broken", ["stock", "hold", "money", "parcel", "points", "halt"])
    async def test_the_audit_finds_what_is_wrong(self, broken: str) -> None:
        shop, played = await played_sample()
        if broken == "stock":
            shop.stock.goods["mug"].on_hand += 1
        elif broken == "hold":
            shop.gateway.accounts["A-1005"].held = 1
        elif broken == "money":
            shop.gateway.accounts["A-1001"].refunded = 5
        elif broken == "parcel":
            await shop.carrier.book("A-1006", "DE")
        elif broken == "points":
            await shop.loyalty.add("A-1004", 3)
        else:
            await shop.stock.hand_over("A-1007")
        assert [check for check in audit(shop, list(played.values())) if not check.ok]

    async def test_every_style_is_one_that_a_step_can_have(self) -> None:
        _, played = await played_sample()
        assert {each.status for one in played.values() for each in one.tree.walk()} <= set(STYLES)


@pytest.mark.asyncio
class TestSystems:
    async def test_taking_back_twice_is_taking_back_once(self) -> None:
        stock, gateway, carrier = Stock({"mug": (100, 5)}), Gateway(), Carrier(["DE"])
        reservation = await stock.reserve("A-1", "mug", 2)
        hold = await gateway.authorize("A-1", 200, "tok_visa")
        receipt = await gateway.capture(hold, "tok_visa")
        await carrier.book("A-1", "DE")
        for _ in range(2):
            await carrier.cancel("A-1")
            await gateway.refund(receipt.id)
            await gateway.void(hold)
            await stock.release(reservation)
        goods, account = stock.goods["mug"], gateway.accounts["A-1"]
        assert (goods.on_hand, goods.reserved) == (5, 0)
        assert (account.held, account.charged, account.refunded) == (0, 200, 200)

    async def test_doing_twice_is_doing_once(self) -> None:
        stock, carrier, loyalty = Stock({"mug": (100, 5)}), Carrier(["DE"]), Loyalty()
        for _ in range(2):
            await stock.reserve("A-1", "mug", 2)
        assert (stock.goods["mug"].on_hand, stock.goods["mug"].reserved) == (3, 2)
        for _ in range(2):
            await stock.hand_over("A-1")
            await carrier.book("A-1", "DE")
            await loyalty.add("A-1", 3)
        assert (stock.goods["mug"].reserved, stock.goods["mug"].shipped) == (0, 2)
        assert (list(carrier.parcels), loyalty.points) == (["A-1"], {"A-1": 3})
        gateway = Gateway()
        hold = await gateway.authorize("A-1", 200, "tok_visa")
        assert await gateway.authorize("A-1", 200, "tok_visa") == hold
        await gateway.capture(hold, "tok_visa")
        await gateway.capture(hold, "tok_visa")
        assert gateway.accounts["A-1"].charged == 200


def test_the_sample_is_a_valid_order_file(tmp_path: Path) -> None:
    assert isinstance(read_orders(), OrderFile)
    path = tmp_path / "copy.json"
    path.write_text(sample_text(), encoding="utf-8")
    assert read_orders(path) == read_orders()
    with pytest.raises(BadOrderFile):
        read_orders(tmp_path)
