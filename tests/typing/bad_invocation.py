"""Wrong calls and wrong declarations."""

from typing import Annotated

from aioreactor import (
    Reactor,
    Redact,
    Retry,
    Step,
    Success,
    compose,
    interrupt,
    map_each,
    step,
)


class Checkout(Reactor[str]):
    order_id: int
    token: Annotated[str, Redact]
    note: str = ""

    @step
    async def write(self, order_id: int) -> str:
        self.order_id = 3  # E: misc
        return str(order_id)

    @step(timeout="10")  # E: call-overload
    async def bad_timeout(self) -> None:
        return None

    @step(retries=3)  # E: call-overload
    async def bad_retries(self) -> None:
        return None

    returns = write


class Charge(Step[int]):
    amount: int

    async def run(self) -> int:
        return self.amount


class WrongRun(Step[int]):
    async def run(self) -> str:  # E: override
        return ""


Checkout(order_id="x", token="t")  # E: arg-type
Checkout(order_id=1)  # E: call-arg
Checkout(order_id=1, token="t", nope=1)  # E: call-arg
Checkout(1, "t")  # E: call-arg
Charge(amount="1")  # E: arg-type
Charge()  # E: call-arg
Retry(backoff="cubic")  # E: arg-type
compose(Charge)  # E: arg-type
compose(Checkout, on_halt="stop")  # E: call-overload
interrupt(Checkout, resume="later")  # E: arg-type
map_each(int, over=[1])  # E: arg-type
map_each(Charge)  # E: call-overload


async def calls() -> None:
    number: int = await Checkout.run_or_raise(order_id=1, token="t")  # E: assignment
    count: str = await Charge.once(amount=1)  # E: assignment
    outcome = await Checkout.run(order_id=1, token="t")
    outcome.value  # E: union-attr
    await Checkout(order_id=1, token="t").run(order_id=2)  # E: call-arg
    Checkout.with_options(run_id=3)  # E: arg-type
    match outcome:
        case Success(value):
            wrong: int = value  # E: assignment
            print(number, count, wrong)
        case _:
            pass
