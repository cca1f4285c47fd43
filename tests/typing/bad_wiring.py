"""Wrong wirings: each marked line is an error in the editor."""

from aioreactor import Failure, Halt, Reactor, Skipped, Step, async_step, compose, interrupt, result, step, value
from msgspec import Struct


class Reservation(Struct):
    id: str


class Approval(Struct):
    granted: bool


class Count(Step[int]):
    async def run(self) -> int:
        return 1


class Child(Reactor[int]):
    count = Count.step()
    returns = count


class Wrong(Reactor[str]):
    counted = Count.step()
    dispatched = Count.async_step()
    nested = compose(Child)

    @step
    async def reserve(self) -> Reservation:
        return Reservation("r")

    @step
    def blocking(self) -> int:
        return 1

    @step
    async def maybe(self) -> Reservation | Skipped[Reservation] | Halt | Failure:
        return Halt("no")

    @async_step
    async def mail(self) -> int:
        return 1

    approval = interrupt(Approval)

    @step
    async def read(
        self,
        booked: int = result(reserve),  # E: assignment
        text: str = result(blocking),  # E: assignment
        signalled: str = result(maybe),  # E: assignment
        unit: int = result(mail),  # E: assignment
        answer: bool = result(approval),  # E: assignment
        mapped: str = result(reserve, transform=lambda found: len(found.id)),  # E: assignment
        from_class: str = result(counted),  # E: assignment
        from_unit: int = result(dispatched),  # E: assignment
        from_child: str = result(nested),  # E: assignment
        fixed: int = value("x"),  # E: assignment
        not_a_step: int = result(3),  # E: call-overload
    ) -> str:
        return text
