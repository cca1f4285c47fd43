# pyright: strict
"""The other nodes: what their readers get."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import assert_type

from aioreactor import (
    Context,
    Default,
    Failure,
    FanOut,
    MapResults,
    Outcome,
    Page,
    Reactor,
    Retry,
    Step,
    after,
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
from msgspec import Struct


class Order(Struct):
    id: int


class Approval(Struct):
    granted: bool


class BookTrip(Reactor[str]):
    user_id: int
    hotel: str

    @step
    async def book(self, user_id: int, hotel: str) -> str:
        return f"{user_id}{hotel}"

    returns = book


class Loose(Reactor):
    @step
    async def one(self) -> int:
        return 1


class Ship(Step[int]):
    order: Order
    speed: int = 1

    async def run(self) -> int:
        return self.order.id


def total(results: MapResults[int]) -> float:
    return float(sum(results.values()))


class Everything(Reactor[str], on_failure="cancel", on_cancel="abort", durability="step", retention=3600):
    user: int

    @step
    async def load_orders(self) -> list[Order]:
        return [Order(1)]

    @step
    async def choose(self) -> str:
        return "inn"

    booking = compose(BookTrip, user_id=from_input("user"), hotel=result(choose), on_halt="skip")
    loose = compose(Loose, after=[choose])
    provision = async_reactor(BookTrip, user_id=1, hotel="x")

    @async_step
    async def mail(self, choose: str) -> int:
        return 1

    @async_step(retries=Retry(3), after=[booking])
    def mail_blocking(self) -> int:
        return 1

    @map_each(over=result(load_orders), fan_out=FanOut(batch_size=50), atomic=True)
    async def charge_all(self, order: Order) -> int:
        return order.id

    @map_each(over=[Order(1)], concurrency=1)
    def blocking_all(self, order: Order) -> str:
        return str(order.id)

    async def pages(self, cursor: int | None, limit: int) -> Page[Order]:
        return Page([Order(limit)], cursor)

    @map_each(over=pages)
    async def paged(self, order: Order) -> int:
        return order.id

    async def stream(self) -> AsyncIterator[Order]:
        yield Order(1)

    shipped = map_each(Ship, over=stream, item="order", concurrency=16, retries=Retry(2), speed=3)
    weight = map_each(Ship, over=result(load_orders), collect=total)
    trips = map_each(BookTrip, over=["a", "b"], item="hotel", user_id=from_input("user"))
    approval = interrupt(
        Approval,
        after=[choose],
        correlation_id=lambda c: f"req-{c.results['choose']}",
        timeout=3600,
        on_timeout="fail",
        max_attempts=3,
        resume="inline",
    )
    default_answer = interrupt(Approval, on_timeout=Default(Approval(granted=False)), timeout=5)
    cooldown = timer(hours=24, after=[approval])
    moment = timer(until=datetime(2030, 1, 1, tzinfo=UTC))

    @step(after=[cooldown])
    async def read(
        self,
        ctx: Context,
        trip: str | None = result(booking),
        child: Outcome[str] = result(provision),
        sent: int | Failure = result(mail),
        numbers: MapResults[int] = result(charge_all),
        heavy: float = result(weight),
        answer: Approval = result(approval),
        many: MapResults[str] = result(trips),
        anything: int = result(loose),
    ) -> str:
        return trip or "none"

    returns = read
    background = after(choose)


assert_type(result(Everything.booking), str | None)
assert_type(result(Everything.provision), Outcome[str])
assert_type(result(Everything.mail), int | Failure)
assert_type(result(Everything.mail_blocking), int | Failure)
assert_type(result(Everything.charge_all), MapResults[int])
assert_type(result(Everything.blocking_all), MapResults[str])
assert_type(result(Everything.shipped), MapResults[int])
assert_type(result(Everything.weight), float)
assert_type(result(Everything.trips), MapResults[str])
assert_type(result(Everything.approval), Approval)
assert_type(result(Everything.cooldown), None)
