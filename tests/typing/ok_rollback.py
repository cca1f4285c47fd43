# pyright: strict
"""Registering undo and compensate keeps the functions' own types."""

from typing import assert_type

from aioreactor import Reactor, map_each, step


class Booking(Reactor[int]):
    hotel: str

    @step
    async def book(self, hotel: str) -> int:
        return len(hotel)

    @book.undo
    async def unbook(self, result: int, hotel: str) -> None:
        assert_type(result, int)

    @book.compensate
    def tidy(self, error: BaseException) -> str:
        return str(error)

    @map_each(over=[1, 2])
    async def each(self, number: int) -> int:
        return number

    @each.undo
    async def unbook_one(self, result: int, number: int) -> bool:
        return True

    @each.undo_all
    async def unbook_all(self, results: object) -> None:
        return None

    returns = book


async def use(booking: Booking) -> None:
    assert_type(booking.tidy(ValueError()), str)
    assert_type(await booking.unbook_one(1, 2), bool)
    assert_type(await booking.unbook(1, "x"), None)
