"""``Step.once``: one attempt outside any reactor."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from msgspec import Meta

from aioreactor import (
    Failure,
    Halt,
    InputValidationError,
    Lock,
    NoValue,
    Resource,
    Runtime,
    Settings,
    Skipped,
    Step,
    StepTimeout,
    StoreRequired,
    fail,
    halt,
    skip,
    succeed,
)


class Gateway:
    def __init__(self, name: str) -> None:
        self.name = name


class Charge(Step[str], timeout=5):
    account: str
    amount: Annotated[int, Meta(ge=1)]
    how: str = "value"
    gateway: Annotated[Gateway, Resource]

    def validate(self) -> dict[str, str] | None:
        return {"account": "is closed"} if self.account == "closed" else None

    async def run(self) -> Any:
        actions: dict[str, Any] = {
            "value": lambda: f"{self.gateway.name}:{self.amount}",
            "skipped": lambda: Skipped("old"),
            "halted": lambda: Halt("why"),
            "failure": lambda: Failure("declined"),
            "skip": lambda: skip("skipped"),
            "succeed": lambda: succeed("done"),
            "fail": lambda: fail(KeyError("k")),
            "halt": lambda: halt("why"),
        }
        if self.how == "times out":
            raise TimeoutError("the body's own")
        return actions[self.how]()


@pytest.mark.parametrize(
    ("how", "expected"),
    [("value", "test:3"), ("skipped", "old"), ("skip", "skipped"), ("succeed", "done")],
)
async def test_it_gives_the_value(how: str, expected: str) -> None:
    assert await Charge.once(account="a", amount=3, how=how, gateway=Gateway("test")) == expected


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("failure", Exception, "declined"),
        ("fail", KeyError, "k"),
        ("halted", NoValue, "why"),
        ("halt", NoValue, "why"),
        ("times out", TimeoutError, "the body's own"),
    ],
)
async def test_it_raises_what_the_body_says(how: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        await Charge.once(account="a", amount=3, how=how, gateway=Gateway("test"))
    assert not isinstance(caught.value, StepTimeout)


async def test_the_contract_is_enforced_with_all_faulty_fields() -> None:
    with pytest.raises(InputValidationError) as caught:
        await Charge.once(amount=0, unknown=1, gateway=Gateway("test"))
    assert list(caught.value.field_errors) == ["account", "amount", "unknown"]


async def test_rules_across_fields_are_enforced() -> None:
    with pytest.raises(InputValidationError) as caught:
        await Charge.once(account="closed", amount=1, gateway=Gateway("test"))
    assert caught.value.field_errors == {"account": ["is closed"]}


async def test_resources_come_from_the_runtime() -> None:
    async with Runtime(Settings(resources={"gateway": Gateway("configured")})):
        assert await Charge.once(account="a", amount=2) == "configured:2"


class Slow(Step[None], timeout=0.01):
    async def run(self) -> None:
        await asyncio.Event().wait()


class Blocking(Step[str]):
    word: str

    def run(self) -> str:
        return self.word.upper()


class Locked(Step[None], coordination=[Lock("k")]):
    async def run(self) -> None: ...


async def test_its_timeout_applies() -> None:
    with pytest.raises(StepTimeout) as caught:
        await Slow.once()
    assert (caught.value.step, caught.value.timeout) == ("Slow", 0.01)


async def test_a_blocking_body_runs_in_a_thread() -> None:
    assert await Blocking.once(word="a") == "A"


async def test_coordination_needs_a_store() -> None:
    with pytest.raises(StoreRequired, match="declares coordination"):
        await Locked.once()
