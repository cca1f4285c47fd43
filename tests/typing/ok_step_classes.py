# pyright: strict
"""Step classes: a typed contract, a typed result, a typed use."""

from typing import Annotated, assert_type

from aioreactor import (
    Failure,
    Halt,
    Lock,
    Reactor,
    Redact,
    Resource,
    Retry,
    Skipped,
    Step,
    result,
    step,
)
from msgspec import Meta, Struct


class Receipt(Struct):
    id: str


class Gateway:
    async def charge(self, amount: int) -> str:
        return str(amount)


class LoadToken(Step[str]):
    def run(self) -> str:
        return "tok"


class Charge(
    Step[Receipt],
    retries=Retry(max_attempts=3),
    coordination=[Lock(lambda a: f"acct:{a.account_id}", ttl=60, rollback_wait=30)],
):
    """Fields are the input contract; enforced before run(), on every path."""

    account_id: str
    amount: Annotated[int, Meta(ge=1)]
    token: Annotated[str, Redact]
    memo: str = ""
    gateway: Annotated[Gateway, Resource]

    def validate(self) -> None:
        assert_type(self.amount, int)

    async def run(self) -> Receipt:
        return Receipt(await self.gateway.charge(self.amount))

    async def undo(self, result: Receipt) -> None:
        assert_type(self.account_id, str)

    async def compensate(self, error: BaseException) -> None:
        assert_type(self.memo, str)


class Maybe(Step[int]):
    async def run(self) -> int | Skipped[int] | Halt | Failure:
        return Halt("no")


class Mail(Step[None]):
    receipt: Receipt

    async def run(self) -> None:
        return None


class Billing(Reactor[Receipt]):
    account_id: str
    amount: int
    load_token = LoadToken.step()
    charge = Charge.step(token=result(load_token))
    again = Charge.step(token=load_token, after=[charge], timeout=5, wire={"name": "x"})
    maybe = Maybe.step(after=charge)
    receipt_mail = Mail.async_step(receipt=result(charge))

    @step
    async def read(
        self, got: Receipt = result(charge), token: str = result(load_token), number: int = result(maybe)
    ) -> str:
        return got.id + token

    returns = charge


assert_type(result(Billing.charge), Receipt)
assert_type(result(Billing.load_token), str)
assert_type(result(Billing.maybe), int)
assert_type(result(Billing.receipt_mail), None | Failure)


async def alone(gateway: Gateway) -> None:
    assert_type(await Charge.once(account_id="a", amount=1, token="t"), Receipt)
    assert_type(await LoadToken.once(), str)
    instance = Charge(account_id="a", amount=1, token="t", gateway=gateway)
    assert_type(instance.memo, str)
    assert_type(await instance.run(), Receipt)
