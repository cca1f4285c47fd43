"""Static pictures of a plan: plain data, Mermaid, DOT. Golden texts of small ones."""

# mypy: disable-error-code="empty-body"

import json
from typing import Annotated

import pytest
from msgspec import Struct

from aioreactor import (
    Lock,
    Reactor,
    Redact,
    Resource,
    Retry,
    Step,
    async_reactor,
    async_step,
    compose,
    from_input,
    interrupt,
    map_each,
    result,
    step,
    timer,
)


class Order(Struct):
    id: int


class Trip(Reactor[str], name="trip"):
    user: int

    @step
    async def book(self, user: int) -> str:  # pyright: ignore[reportReturnType]
        """Books it.

        Really.
        """

    @step
    async def confirm(self, book: str) -> None: ...

    returns = book


class Small(Reactor[int], name="small", version=2, retries=Retry(2)):
    """Two steps."""

    amount: int
    token: Annotated[str, Redact] = ""
    db: Annotated[Order, Resource]

    @step(timeout=3, description="First.")
    async def first(self, amount: int) -> int: ...

    @first.undo
    async def unfirst(self) -> None: ...

    @first.compensate
    async def tidy(self) -> None: ...

    @step(after=[first], coordination=[Lock("a")])
    async def second(self) -> str: ...

    returns = first


class Every(Reactor, name="every"):
    orders: list[Order]

    @step
    async def load(self) -> int: ...

    @async_step
    async def mail(self, load: int) -> int: ...

    trip = compose(Trip, user=result(load))
    sent = async_reactor(Trip, user=1)
    approval = interrupt(Order, after=[trip])
    pause = timer(hours=1, after=[approval])

    @map_each(over=from_input("orders"), after=[pause])
    async def each(self, order: Order) -> int: ...

    trips = map_each(Trip, over=[1])


class Empty(Reactor, name="empty"): ...


def test_mermaid() -> None:
    assert Small.plan.to_mermaid() == 'flowchart TD\n    n0["first"]\n    n1["second"]\n    n0 -.-> n1\n'
    assert Empty.plan.to_mermaid() == "flowchart TD\n"


def test_mermaid_of_every_kind() -> None:
    assert Every.plan.to_mermaid() == (
        "flowchart TD\n"
        '    n0["load"]\n'
        '    n1>"mail"]\n'
        '    subgraph n2["trip"]\n'
        '        n2_n0["book"]\n'
        '        n2_n1["confirm"]\n'
        "        n2_n0 --> n2_n1\n"
        "    end\n"
        '    subgraph n3["sent"]\n'
        '        n3_n0["book"]\n'
        '        n3_n1["confirm"]\n'
        "        n3_n0 --> n3_n1\n"
        "    end\n"
        '    n4{{"approval"}}\n'
        '    n5(("pause"))\n'
        '    n6[/"each [each]"/]\n'
        '    subgraph n7["trips [each]"]\n'
        '        n7_n0["book"]\n'
        '        n7_n1["confirm"]\n'
        "        n7_n0 --> n7_n1\n"
        "    end\n"
        "    n0 --> n1\n"
        "    n0 --> n2\n"
        "    n2 -.-> n4\n"
        "    n4 -.-> n5\n"
        "    n5 -.-> n6\n"
    )


def test_dot() -> None:
    assert Small.plan.to_dot() == (
        'digraph "small" {\n'
        "    rankdir=TB;\n"
        '    n0 [label="first", shape=box];\n'
        '    n1 [label="second", shape=box];\n'
        "    n0 -> n1 [style=dashed];\n"
        "}\n"
    )


def test_dot_of_every_kind() -> None:
    text = Every.plan.to_dot()
    shapes = [line.strip() for line in text.splitlines() if "shape=" in line and "_n" not in line]
    assert shapes == [
        'n0 [label="load", shape=box];',
        'n1 [label="mail", shape=cds];',
        'n2 [label="trip", shape=box];',
        'n3 [label="sent", shape=component];',
        'n4 [label="approval", shape=hexagon];',
        'n5 [label="pause", shape=circle];',
        'n6 [label="each [each]", shape=parallelogram];',
        'n7 [label="trips [each]", shape=parallelogram];',
    ]
    assert (
        '    subgraph "cluster_n2" {\n'
        '        label="trip";\n'
        '        n2_n0 [label="book", shape=box];\n'
        '        n2_n1 [label="confirm", shape=box];\n'
        "        n2_n0 -> n2_n1;\n"
        "    }\n"
    ) in text
    assert text.count("{") == text.count("}")


def test_plain_data() -> None:
    assert Small.plan.to_dict() == {
        "name": "small",
        "version": 2,
        "fingerprint": Small.plan.fingerprint,
        "inputs": [
            {"name": "amount", "type": "int", "required": True, "redacted": False},
            {
                "name": "token",
                "type": "Annotated[str, <class 'aioreactor.redaction.Redact'>]",
                "required": False,
                "redacted": True,
            },
        ],
        "resources": ["db"],
        "steps": [
            {
                "name": "first",
                "kind": "step",
                "after": [],
                "order_only": [],
                "type": "int",
                "undo": True,
                "compensate": True,
                "attempts": 2,
                "timeout": 3,
                "description": "First.",
                "inner": None,
            },
            {
                "name": "second",
                "kind": "step",
                "after": ["first"],
                "order_only": ["first"],
                "type": "str",
                "undo": False,
                "compensate": False,
                "attempts": 2,
                "timeout": None,
                "description": "",
                "inner": None,
            },
        ],
        "returns": "first",
        "needs_store": ["step 'second' declares coordination"],
    }


def test_plain_data_of_nested_reactors_and_its_json() -> None:
    found = Every.plan.to_dict()
    inner = {one["name"]: one["inner"] and one["inner"]["name"] for one in found["steps"]}
    assert inner == {
        "load": None,
        "mail": None,
        "trip": "trip",
        "sent": "trip",
        "approval": None,
        "pause": None,
        "each": None,
        "trips": "trip",
    }
    assert found["steps"][2]["inner"]["steps"][0]["description"] == "Books it."
    assert found["returns"] is None
    assert json.loads(json.dumps(found)) == found


def test_an_edge_that_passes_data_is_solid_although_after_names_it_too() -> None:
    class Both(Reactor):
        @step
        async def load(self) -> int: ...

        @step(after=[load])
        async def use(self, load: int) -> None: ...

    assert "n0 --> n1" in Both.plan.to_mermaid()
    assert Both.plan.to_dict()["steps"][1]["order_only"] == []


def test_a_step_without_a_value_gives_none() -> None:
    class Nothing(Reactor):
        @step
        async def one(self) -> None: ...

    assert Nothing.plan.to_dict()["steps"][0]["type"] == "None"


class Quoted(Reactor, name='a"b\\c'):
    @step(name='say "hi" \\ there')
    async def one(self) -> None: ...


def test_quotes_and_backslashes_are_escaped() -> None:
    assert Quoted.plan.to_mermaid() == 'flowchart TD\n    n0["say #quot;hi#quot; \\ there"]\n'
    assert Quoted.plan.to_dot() == (
        'digraph "a\\"b\\\\c" {\n    rankdir=TB;\n    n0 [label="say \\"hi\\" \\\\ there", shape=box];\n}\n'
    )


@pytest.mark.parametrize("name", ["<b>bold</b>", "a#quot;b", "two\nlines"], ids=["html", "entity", "newline"])
def test_what_means_something_to_mermaid_is_escaped(name: str) -> None:
    class Odd(Reactor):
        @step(name=name)
        async def one(self) -> None: ...

    line = Odd.plan.to_mermaid().removeprefix("flowchart TD\n").removesuffix("\n")
    assert line.count("\n") == 0
    assert name not in line


def test_a_step_class_is_shown_as_a_step_with_the_first_line_of_its_docstring() -> None:
    class Charge(Step[int]):
        """Charges.

        More.
        """

        async def run(self) -> int: ...

    class Uses(Reactor):
        charge = Charge.step()

    (found,) = Uses.plan.to_dict()["steps"]
    assert (found["kind"], found["type"], found["description"], found["inner"]) == ("step", "int", "Charges.", None)
