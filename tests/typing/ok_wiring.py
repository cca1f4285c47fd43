# pyright: strict
"""``result``, ``from_input`` and ``value`` as defaults; what each kind of body gives its readers."""

from typing import assert_type

from aioreactor import (
    Failure,
    Halt,
    Reactor,
    Retry,
    Skipped,
    from_input,
    result,
    step,
    value,
)
from msgspec import Struct


class User(Struct):
    id: int
    name: str


def shout(user: User) -> str:
    return user.name.upper()


class Wired(Reactor[str]):
    user: User
    name: str
    options: dict[str, int]
    start: int = 0
    cancel: bool = False

    @step
    async def load(self) -> User:
        return self.user

    @step
    def blocking(self, load: User) -> int:
        return load.id

    @step(timeout=3, retries=Retry(2))
    def blocking_with_options(self, load: User) -> int:
        return load.id

    @step
    async def maybe(self, start: int) -> User | Skipped[User] | Halt | Failure:
        return Halt("no") if start else Skipped(self.user)

    @step(after="load")
    async def maybe_with_options(self, start: int) -> User | Halt:
        return Halt("no") if start else self.user

    @step
    def maybe_blocking(self, start: int) -> int | Failure:
        return Failure("no", retry=False) if start else 1

    @step
    async def optional(self) -> User | None:
        return None

    @step
    async def nothing(self) -> None:
        return None

    @step(after=[nothing, "load"])
    async def reader(
        self,
        whole: User = result(load),
        number: int = result(blocking),
        other: int = result(blocking_with_options),
        part: str = result(load, "name"),
        deep: int = result("load", "id"),
        mapped: str = result(load, transform=shout),
        inline: int = result(load, transform=lambda user: user.id),
        of_part: int = result(load, "name", transform=len),
        signalled: User = result(maybe),
        signalled_too: User = result(maybe_with_options),
        blocking_signal: int = result(maybe_blocking),
        perhaps: User | None = result(optional),
        wider: object = result(load),
        of_input: str = from_input("user", "name"),
        fixed: int = value(3),
    ) -> str:
        return part

    returns = reader


assert_type(result(Wired.load), User)
assert_type(result(Wired.blocking), int)
assert_type(result(Wired.blocking_with_options), int)
assert_type(result(Wired.maybe), User)
assert_type(result(Wired.maybe_with_options), User)
assert_type(result(Wired.maybe_blocking), int)
assert_type(result(Wired.optional), User | None)
assert_type(result(Wired.load, transform=shout), str)
assert_type(value("x"), str)
