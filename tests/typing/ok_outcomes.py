# pyright: strict
"""What a caller gets, by how the reactor declares its value."""

from collections.abc import Mapping
from typing import Any, TypeVar, assert_never, assert_type

from aioreactor import (
    Dispatched,
    Failure,
    Halt,
    MapResults,
    OpenInterrupt,
    Outcome,
    Paused,
    Reactor,
    ReactorFailed,
    RollbackFailure,
    Skipped,
    Success,
    Trace,
    step,
)


class Count(Reactor[int]):
    @step
    async def one(self) -> int:
        return 1

    returns = one


class Bare(Reactor):
    @step
    async def one(self) -> int:
        return 1


class StillBare(Bare, deadline=60):
    extra: str = ""


T = TypeVar("T")


class Base(Reactor[T]):
    seed: int = 0


class Concrete(Base[str]):
    @step
    async def text(self, seed: int) -> str:
        return str(seed)

    returns = text


class Inherits(Count):
    @step
    async def two(self, one: int) -> int:
        return one + 1

    returns = two


def every_case(outcome: Outcome[int]) -> str:
    match outcome:
        case Success(value):
            assert_type(value, int)
            return str(value)
        case Halt(reason, step=where):
            assert_type(where, str | None)
            return str(reason)
        case Failure(error):
            assert_type(error, BaseException)
            return str(error)
        case Dispatched(job_id):
            assert_type(job_id, str)
            return job_id
        case Paused(interrupts):
            assert_type(interrupts, tuple[OpenInterrupt, ...])
            return str(interrupts)
        case _ as never:
            assert_never(never)


def common(outcome: Outcome[int]) -> None:
    assert_type(outcome.ok, bool)
    assert_type(outcome.run_id, str)
    assert_type(outcome.reactor, str)
    assert_type(outcome.results, Mapping[str, Any])
    assert_type(outcome.trace, Trace)
    assert_type(outcome.trace.only("run"), Trace)
    assert_type(outcome.unwrap(), int)


def failed(failure: Failure) -> None:
    assert_type(failure.rollback_failures, list[RollbackFailure])
    assert_type(failure.errors, tuple[BaseException, ...])
    assert_type(failure.error_type, str)
    assert_type(failure.traceback, str)
    assert_type(failure.to_dict(), dict[str, Any])


async def values() -> None:
    assert_type(await Count.run_or_raise(), int)
    assert_type(await Inherits.run_or_raise(), int)
    assert_type(await Concrete.run_or_raise(seed=1), str)
    anything: Mapping[str, int] = await Bare.run_or_raise()
    assert anything
    more: list[str] = await StillBare.run_or_raise()
    assert more
    try:
        await Count.run_or_raise()
    except ReactorFailed as error:
        assert_type(error.failure, Failure)


async def elements(found: MapResults[int]) -> None:
    assert_type(found[0], int | Failure)
    assert_type(found.values(), list[int])
    assert_type(found.failures(), list[tuple[int, Failure]])
    assert_type(found.succeeded, int)
    for one in found:
        assert_type(one, int | Failure)
    async for other in found:
        assert_type(other, int | Failure)
    for outcome in found.outcomes():
        match outcome:
            case Success(value):
                assert_type(value, int)
            case Skipped(skipped):
                assert_type(skipped, int)
            case Failure():
                pass
