# pyright: strict
"""The reactor of the API page, with bodies where the page has dots (checkers refuse an empty one)."""

from typing import Annotated, assert_type

from aioreactor import (
    Context,
    Failure,
    Lock,
    Outcome,
    Reactor,
    Redact,
    Retry,
    Success,
    result,
    step,
)
from msgspec import Meta, Struct


class Reservation(Struct):
    id: str
    total: int


class Checkout(Reactor[str], coordination=[Lock(lambda i: f"order:{i.order_id}", ttl=60)]):
    """Policy in the class header; inputs as annotated attributes; steps as methods."""

    order_id: int
    email: Annotated[str, Meta(pattern=r".+@.+")]
    card_token: Annotated[str, Redact]
    note: str = ""

    @step
    async def reserve(self, order_id: int) -> Reservation:
        assert_type(self.order_id, int)
        return Reservation(f"{order_id}-{self.note}", 1)

    @reserve.undo
    async def release(self, reserve: Reservation) -> None:
        raise NotImplementedError

    @step(retries=Retry(max_attempts=3, backoff="exponential", base_delay=0.5), timeout=10)
    async def charge(self, card_token: str, booked: Reservation = result(reserve)) -> str:
        raise NotImplementedError

    @charge.compensate
    async def alert(self, error: BaseException, card_token: str) -> None:
        raise NotImplementedError

    @charge.undo
    async def refund(self, charge: str) -> None:
        raise NotImplementedError

    @step(after=[charge])
    async def notify(self, email: str, ctx: Context) -> None:
        assert_type(ctx.attempt, int)
        assert_type(ctx.run_id, str)
        raise NotImplementedError

    returns = charge


async def main() -> str:
    outcome = await Checkout.run(order_id=7, email="a@b.c", card_token="tok")
    assert_type(outcome, Outcome[str])
    match outcome:
        case Success(value):
            assert_type(value, str)
            return value
        case Failure(error=error, step=step_name):
            assert_type(error, BaseException)
            assert_type(step_name, str | None)
            return str(step_name)
        case _:
            return ""


async def other_calls() -> None:
    assert_type(await Checkout.run_or_raise(order_id=7, email="a@b.c", card_token="tok"), str)
    invocation = Checkout(order_id=7, email="a@b.c", card_token="tok")
    assert_type(invocation.order_id, int)
    assert_type(await invocation.run(), Outcome[str])
    assert_type(await invocation.run_or_raise(), str)
    launch = Checkout.with_options(run_id="r1", idempotency_key="k", queue="q", delay=1.5, tags=["t"])
    assert_type(await launch.run(order_id=7), Outcome[str])
    assert_type(await launch.run_or_raise(order_id=7), str)
    assert_type(await invocation.with_options(run_id="r1").run(), Outcome[str])
    assert_type(Checkout.plan.to_mermaid(), str)
