"""``check`` and ``graph`` on modules that are right, wrong, and broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .cli_support import Invoke, Start, WriteModule

DEMO = "aioreactor.cli.demo.checkout"

GOOD = """
    from aioreactor import Reactor, compose, step
    print("noise at import")

    class Good(Reactor[int]):
        n: int
        @step
        async def double(self, n: int) -> int:
            return 2 * n
        returns = double

    class Outer(Reactor):
        n: int
        inner = compose(Good)
"""
LATE = """
    from __future__ import annotations
    from aioreactor import Reactor, step
    from {good} import Good

    class Late(Reactor):
        n: Missing
        m: AlsoMissing
        @step
        async def a(self, n: Missing) -> None: ...
"""
WRONG = """
    from aioreactor import Reactor, step

    class Wrong(Reactor):
        amount: int
        @step
        async def a(self, amonut: int, ship: int) -> None: ...
"""


class TestCheck:
    def test_all_is_well(self, start: Start) -> None:
        done = start("check", DEMO)
        assert (done.returncode, done.stderr) == (0, "")
        for word in ("Checkout", "TakePayment", "8 steps"):
            assert word in done.stdout

    def test_only_reactors_defined_there_count(self, invoke: Invoke, write_module: WriteModule) -> None:
        write_module("cg_good1", GOOD)
        write_module("cg_user1", "from cg_good1 import Good\n")
        done = invoke("check", "cg_user1", "cg_good1", "--json")
        assert done.exit_code == 0
        assert [[each["reactor"] for each in module["reactors"]] for module in json.loads(done.stdout)["modules"]] == [
            [],
            ["Good", "Outer"],
        ]

    def test_what_a_module_prints_does_not_get_into_the_json(self, start: Start, write_module: WriteModule) -> None:
        write_module("cg_good2", GOOD)
        done = start("check", "cg_good2", "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout)["ok"] is True
        assert "noise at import" in done.stderr

    def test_problems_found_when_the_class_is_created(self, start: Start, write_module: WriteModule) -> None:
        write_module("cg_wrong", WRONG)
        write_module("cg_good3", GOOD)
        done = start("check", "cg_wrong", "cg_good3")
        assert done.returncode == 1
        assert "cg_wrong:Wrong  1. " in done.stdout
        assert "cg_wrong:Wrong  2. " in done.stdout
        assert "amonut" in done.stdout
        assert "ship" in done.stdout
        assert "✓ 1 step" in done.stdout

    def test_problems_that_had_to_be_left_open(self, invoke: Invoke, write_module: WriteModule) -> None:
        write_module("cg_good4", GOOD)
        write_module("cg_late", LATE.format(good="cg_good4"))
        done = invoke("check", "cg_late", "--json")
        assert done.exit_code == 1
        (late,) = json.loads(done.stdout)["modules"][0]["reactors"]
        assert late["reactor"] == "Late"
        assert any("Missing" in text for text in late["problems"])
        assert any("AlsoMissing" in text for text in late["problems"])

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("import cg_nowhere", "No module named 'cg_nowhere'"),
            ("def f(:", "SyntaxError"),
            ("1 / 0", "ZeroDivisionError: division by zero"),
            ("raise SystemExit(3)", "exits when it is imported (code 3)"),
        ],
    )
    def test_import_errors_are_one_line(
        self, start: Start, write_module: WriteModule, source: str, expected: str
    ) -> None:
        write_module("cg_broken", source)
        done = start("check", "cg_broken", DEMO)
        assert done.returncode == 2
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1
        assert "8 steps" in done.stdout

    def test_an_import_error_names_the_place(self, start: Start, write_module: WriteModule) -> None:
        path = write_module("cg_broken2", "x = 1\nx.nope\n")
        assert f"({path}:2)" in start("check", "cg_broken2").stderr

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("cg_absent", "there is no module 'cg_absent'"),
            ("./shop/orders.py", "is it 'shop.orders'?"),
            ("a..b", "not a module's dotted name"),
        ],
    )
    def test_names_that_lead_nowhere(self, invoke: Invoke, name: str, hint: str) -> None:
        done = invoke("check", name)
        assert done.exit_code == 2
        assert hint in done.output

    def test_nothing_to_check_is_a_mistake(self, invoke: Invoke) -> None:
        done = invoke("check", "json")
        assert done.exit_code == 2
        assert "no reactor" in done.output

    def test_json_has_import_errors_too(self, start: Start) -> None:
        done = start("check", "cg_absent", "--json")
        assert done.returncode == 2
        found = json.loads(done.stdout)
        assert found["ok"] is False
        assert "cg_absent" in found["modules"][0]["error"]

    def test_what_needs_a_store_is_a_remark(self, invoke: Invoke, write_module: WriteModule) -> None:
        write_module(
            "cg_store",
            """
            from aioreactor import Reactor, timer, step
            class Slow(Reactor):
                nap = timer(hours=1)
                @step(after=[nap])
                async def go(self) -> None: ...
            """,
        )
        done = invoke("check", "cg_store", "--json")
        assert done.exit_code == 0
        assert json.loads(done.stdout)["modules"][0]["reactors"][0]["needs_store"]
        assert "needs a store" in " ".join(invoke("check", "cg_store").output.split())


class TestGraph:
    def test_mermaid(self, start: Start) -> None:
        done = start("graph", f"{DEMO}:Checkout")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("flowchart")
        assert "payment" in done.stdout

    def test_dot(self, invoke: Invoke) -> None:
        done = invoke("graph", f"{DEMO}:Checkout", "--format", "dot")
        assert done.exit_code == 0
        assert done.output.startswith("digraph")

    @pytest.mark.parametrize("flags", [["--format", "json"], ["--json"]])
    def test_json(self, invoke: Invoke, flags: list[str]) -> None:
        found = json.loads(invoke("graph", f"{DEMO}:Checkout", *flags).stdout)
        assert [each["name"] for each in found["steps"]][:2] == ["reserve", "screen"]
        assert {each["name"]: each["redacted"] for each in found["inputs"]}["card_token"] is True

    @pytest.mark.parametrize(
        ("target", "hint"),
        [
            (f"{DEMO}:Chekout", "did you mean Checkout?"),
            (f"{DEMO}:Line", "Line is not a reactor"),
            (DEMO, "defines TakePayment, Checkout"),
            (f"{DEMO}:", "name a reactor too"),
            ("cg_absent:X", "there is no module 'cg_absent'"),
            ("json:X", "json defines none"),
        ],
    )
    def test_targets_that_lead_nowhere(self, invoke: Invoke, target: str, hint: str) -> None:
        done = invoke("graph", target)
        assert done.exit_code == 2
        assert hint in done.output

    def test_a_reactor_written_wrongly(self, start: Start, write_module: WriteModule) -> None:
        write_module("cg_wrong2", WRONG)
        done = start("graph", "cg_wrong2:Wrong")
        assert (done.returncode, done.stdout) == (1, "")
        assert "amonut" in done.stderr
        assert "ship" in done.stderr

    def test_nested_names(self, invoke: Invoke, write_module: WriteModule) -> None:
        write_module(
            "cg_nested",
            """
            from aioreactor import Reactor, step
            class Space:
                class Inner(Reactor):
                    @step
                    async def only(self) -> None: ...
            """,
        )
        assert json.loads(invoke("graph", "cg_nested:Space.Inner", "--json").stdout)["steps"][0]["name"] == "only"
