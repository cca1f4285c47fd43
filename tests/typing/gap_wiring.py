"""Wrong wirings that an overload meant for paths lets through as ``Any``."""

from aioreactor import Reactor, map_each, result, step
from msgspec import Struct


class Reservation(Struct):
    id: str


def to_length(text: str) -> int:
    return len(text)


class Wrong(Reactor[str]):
    @step
    async def reserve(self) -> Reservation:
        return Reservation("r")

    @map_each(over=[1])
    async def each(self, number: int) -> int:
        return number

    @step
    async def read(
        self,
        numbers: list[int] = result(each),  # E: assignment|arg-type
        wrong_transform: int = result(reserve, transform=to_length),  # E: arg-type
        no_such_part: str = result(reserve, transform=lambda found: found.nothing),  # E: attr-defined
    ) -> str:
        return no_such_part
