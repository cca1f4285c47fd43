"""Step classes: fields are the input contract; wiring comes from inputs only; a use may override policy."""

# mypy: disable-error-code="empty-body"

from typing import Annotated, Any

import pytest
from msgspec import Meta

from aioreactor import (
    DefinitionError,
    InputValidationError,
    Lock,
    NoValue,
    Reactor,
    Redact,
    Resource,
    Retry,
    Skipped,
    Step,
    from_input,
    result,
    step,
    value,
)
from aioreactor import (
    halt as halt_now,
)


class Gateway:
    pass


class Charge(Step[int], retries=Retry(3), timeout=10, coordination=[Lock("acct")]):
    """Charges an account.

    More.
    """

    account: str
    amount: Annotated[int, Meta(ge=1)]
    token: Annotated[str, Redact]
    memo: str = ""
    gateway: Annotated[Gateway, Resource]

    async def run(self) -> int: ...


class Plain(Step[tuple[Any, ...]]):
    amount: Annotated[int, Meta(ge=1)]
    tags: list[str] = []

    async def run(self) -> tuple[Any, ...]:
        return self.amount, self.tags


def wiring(reactor: type[Reactor[Any]], name: str) -> dict[str, tuple[str, str]]:
    return {arg.parameter: (arg.source.value, arg.name) for arg in reactor.plan[name].args}


def test_fields_are_wired_by_name_from_inputs_and_explicitly_from_anything() -> None:
    class Billing(Reactor):
        account: str
        amount: int
        spare: str

        @step
        async def load(self) -> str: ...

        one = Charge.step(token=result(load))
        two = Charge.step(token=load, memo=from_input("spare"), name="second")
        three = Charge.step(token="fixed", memo=value("x"), after=[one])

    assert wiring(Billing, "one") == {
        "account": ("input", "account"),
        "amount": ("input", "amount"),
        "token": ("result", "load"),
    }
    assert wiring(Billing, "second")["token"] == ("result", "load")
    assert wiring(Billing, "second")["memo"] == ("input", "spare")
    assert wiring(Billing, "three")["token"] == ("value", "")
    assert Billing.plan["three"].deps == (1,)


def test_an_optional_field_takes_the_input_of_its_name() -> None:
    class Billing(Reactor):
        account: str
        amount: int
        memo: str
        charge = Charge.step(token="t")

    assert wiring(Billing, "charge")["memo"] == ("input", "memo")


def test_a_field_never_takes_the_result_of_a_step_by_name() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Billing(Reactor):
            account: str

            @step
            async def amount(self) -> int: ...

            @step
            async def memo(self) -> str: ...

            charge = Charge.step(token="t")

    (problem,) = caught.value.problems
    assert problem.startswith(
        "step 'charge' (Charge), field 'amount': nothing provides it; the step 'amount' is wired with "
        "amount=result(amount). Wire it (amount=result(…)"
    )


def test_a_required_field_that_nothing_provides() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Billing(Reactor):
            acount: str
            amount: int
            charge = Charge.step()

    first, second = caught.value.problems
    assert first.startswith(
        "step 'charge' (Charge), field 'account': nothing provides it; the closest is 'acount', 'amount'. "
        "Wire it (account=result(…)"
    )
    assert second.startswith("step 'charge' (Charge), field 'token': nothing provides it; there are: acount, amount.")


def test_wiring_what_is_no_field_or_is_a_resource() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Billing(Reactor):
            account: str
            amount: int
            charge = Charge.step(token="t", memos="m", gateway="g")

    assert caught.value.problems == (
        "step 'charge' (Charge): it has no field 'memos' to wire; the closest is 'memo'",
        "step 'charge' (Charge): it has no field 'gateway' to wire; there are: account, amount, token, memo",
    )


def test_types_of_fields_are_compared() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Billing(Reactor):
            account: int
            amount: int

            @step
            async def load(self) -> bytes: ...

            charge = Charge.step(token=result(load))

    mend = "change the annotation, or map it with transform="
    assert caught.value.problems == (
        f"step 'charge' (Charge), field 'account': expects str, but input 'account' is int; {mend}",
        f"step 'charge' (Charge), field 'token': expects Annotated[str, "
        f"<class 'aioreactor.redaction.Redact'>], but the result of 'load' is bytes; {mend}",
    )


def test_the_class_policy_is_overridden_by_the_use() -> None:
    lock = Lock("other")

    class Billing(Reactor, retries=Retry(9)):
        account: str
        amount: int
        own = Charge.step(token="t")
        other = Charge.step(token="t", retries=Retry(5), timeout=1, coordination=[lock], description="Again.")
        none = Charge.step(token="t", coordination=[])
        reactors = Plain.step()

    plan = Billing.plan
    assert (plan["own"].retry, plan["own"].timeout, plan["own"].description) == (Retry(3), 10, "Charges an account.")
    assert [entry.key for entry in plan["own"].coordination] == ["acct"]
    assert (plan["other"].retry, plan["other"].timeout, plan["other"].description) == (Retry(5), 1, "Again.")
    assert plan["other"].coordination == (lock,)
    assert plan["none"].coordination == ()
    assert plan["reactors"].retry == Retry(9)


def test_a_class_without_run() -> None:
    class Abstract(Step[int]):
        amount: int

    with pytest.raises(DefinitionError) as caught:

        class Uses(Reactor):
            amount: int
            abstract = Abstract.step()

    (problem,) = caught.value.problems
    assert problem.startswith("step 'abstract' (")
    assert problem.endswith("Abstract) has no run; define async def run(self)")


def test_a_generator_as_run() -> None:
    class Yields(Step[int]):
        def run(self) -> Any:
            yield 1

    with pytest.raises(DefinitionError) as caught:

        class Uses(Reactor):
            yields = Yields.step()

    (problem,) = caught.value.problems
    assert "Yields).run is a generator function; use return instead of yield" in problem


@pytest.mark.parametrize("name", ["run", "undo", "compensate", "validate", "step", "async_step", "once"])
def test_a_field_cannot_hide_what_a_step_has(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        type("Wrong", (Step,), {"__module__": __name__, "__annotations__": {name: int}})
    assert caught.value.problems == (f"field {name!r} hides Step.{name}; give it another name",)


async def test_instances_are_for_unit_tests() -> None:
    assert await Plain(amount=0).run() == (0, [])
    assert Plain(amount=1).tags is not Plain(amount=1).tags
    with pytest.raises(TypeError, match=r"^Plain has no field 'amont'; the closest is 'amount'$"):
        Plain(amont=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Charge needs 'account', 'amount', 'token'$"):
        Charge()  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"resource 'gateway' was not given: Charge\(…, gateway=…\)"):
        _ = Charge(account="a", amount=1, token="t").gateway  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="'Plain' object has no attribute 'nothing'"):
        _ = Plain(amount=1).nothing


def test_the_repr_of_an_instance_hides_secrets_and_leaves_resources_out() -> None:
    shown = repr(Charge(account="a", amount=1, token="tok", gateway=Gateway()))
    assert shown == "Charge(account='a', amount=1, token='[redacted]', memo='')"


async def test_once_enforces_the_contract() -> None:
    assert await Plain.once(amount=3, tags=["a"]) == (3, ["a"])
    with pytest.raises(InputValidationError) as caught:
        await Plain.once(amount=0, tags=[1], tagz=[])
    assert caught.value.field_errors == {
        "amount": ["Expected `int` >= 1"],
        "tags": ["Expected `str`, got `int` - at `$[0]`"],
        "tagz": ["is not an input; the closest is 'tags'"],
    }


async def test_once_gives_a_skipped_value_and_raises_for_a_halt() -> None:
    class Skips(Step[int]):
        async def run(self) -> Skipped[int]:
            return Skipped(4)

    class Halts(Step[int]):
        async def run(self) -> int:
            halt_now("enough")

    assert await Skips.once() == 4
    with pytest.raises(NoValue):
        await Halts.once()


def test_none_is_a_value_and_never_the_default() -> None:
    values, errors = Plain.__aioreactor_fields__.validate({"amount": 1, "tags": None})
    assert values == {"amount": 1}
    assert errors == {"tags": ["Expected `array`, got `null`"]}


def test_what_the_class_says_counts_when_run_says_nothing() -> None:
    class Untyped(Step[int]):
        async def run(self):  # type: ignore[no-untyped-def]
            return 1

    with pytest.raises(DefinitionError):

        class Uses(Reactor[str]):
            untyped = Untyped.step()
            returns = untyped


def test_a_field_may_be_named_cls() -> None:
    class Named(Step[int]):
        cls: int

        async def run(self) -> int: ...

    class Uses(Reactor):
        named = Named.step(**{"cls": 3})  # type: ignore[arg-type]

    assert wiring(Uses, "named") == {"cls": ("value", "")}
