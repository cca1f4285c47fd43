"""One attempt of a step class outside any reactor."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextvars import Context, copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import anyio

from aioreactor.definition.policies import as_tuple
from aioreactor.engine.arguments import cross_checked
from aioreactor.engine.coordinating import Asking, Coordinator, Ending, PeriodTaken, Wish
from aioreactor.engine.drive import in_thread, run_in
from aioreactor.engine.signals import signal_in
from aioreactor.engine.wishes import wishes_of
from aioreactor.errors import InputValidationError, LeaseLost, StepTimeout, StoreRequired
from aioreactor.results import Failure, Halt, Skipped, Success

if TYPE_CHECKING:
    from aioreactor.definition.steps import Step
    from aioreactor.engine.ports import Environment


async def run_once(environment: Environment, cls: type[Step[Any]], given: Mapping[str, Any]) -> Any:
    """Validate the fields, run the body under its timeout, give its value; a `Skipped` gives its value too.

    Raises:
        InputValidationError: a field does not fit.
        StoreRequired: the class declares coordination, and there is no store.
        ArgumentError: a key cannot be computed.
        ContentionError: what it declares was not to be had within its ``wait``; the body was not entered.
        LeaseLost: it was lost on the way, and the body was cancelled.
        StepTimeout: the body took longer than the class's ``timeout``.
        NoValue: the body halted.
        BaseException: whatever the body raises, or the error of the `Failure` it returns.

    Cancellation: cancels the body; nothing is compensated.
    """
    policy = cls.__aioreactor_policy__
    coordinator = environment.coordinator()
    wanted = as_tuple(policy.get("coordination"))
    if wanted and coordinator is None:
        raise StoreRequired(f"{cls.__qualname__}.once()", ["it declares coordination"])
    instance = _instance(environment, cls, given)
    if coordinator is None or not wanted:
        return _unpack(await _attempt(environment, cls, instance, copy_context(), policy.get("timeout")))
    return await _coordinated(
        environment, cls, instance, coordinator, wishes_of(wanted, lambda: instance, cls.__name__)
    )


async def _coordinated(
    environment: Environment, cls: type[Step[Any]], instance: Any, coordinator: Coordinator, wishes: list[Wish]
) -> Any:
    """The attempt, under what the class declares, in a place of its own."""
    limit, lost = anyio.CancelScope(), list[LeaseLost]()

    def lose(error: LeaseLost) -> None:
        lost.append(error)
        limit.cancel()

    context, place = (
        copy_context(),
        coordinator.place(coordinator.here(), f"{cls.__qualname__}.once:{secrets.token_hex(8)}"),
    )
    coordinator.settle(context, place)
    ending: Ending = "failure"
    value: Any = None
    try:
        holding = await coordinator.acquire(wishes, Asking(place, place.name, lose, bound=False))
    except PeriodTaken:
        return None  # as in a run, where it would be skipped
    try:
        with limit:
            value = await _attempt(environment, cls, instance, context, cls.__aioreactor_policy__.get("timeout"))
        if lost:
            raise lost[0]
        plain = not isinstance(value, (Failure, Halt, Skipped))
        ending = "success" if plain else "failure" if isinstance(value, Failure) else "halt"
    except BaseException:
        if lost:
            raise lost[0] from None
        raise
    finally:
        await holding.release(ending)
    return _unpack(value)


async def _attempt(
    environment: Environment, cls: type[Step[Any]], instance: Any, context: Context, timeout: float | None
) -> Any:
    """What the body gives, or the outcome of a signal that it raised."""
    try:
        with anyio.fail_after(timeout):
            return await _enter(environment, cls, instance, context)
    except TimeoutError as error:
        if timeout is None or error.__cause__ is not None or not _is_ours(error):
            raise
        raise StepTimeout(cls.__qualname__, timeout) from None
    except BaseException as error:
        signal = signal_in(error)
        if signal is None:
            raise
        return signal.outcome


def _is_ours(error: TimeoutError) -> bool:
    """Whether it was raised by ``fail_after`` itself, not by the body."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and "anyio" in tb.tb_frame.f_code.co_filename


def _instance(environment: Environment, cls: type[Step[Any]], given: Mapping[str, Any]) -> Any:
    fields = cls.__aioreactor_fields__
    resources = {field.name for field in fields.resources}
    values, errors = fields.validate({name: item for name, item in given.items() if name not in resources})
    if errors:
        raise InputValidationError(cls.__qualname__, errors)
    instance = object.__new__(cls)
    instance.__dict__.update(values)
    for field in fields.resources:
        known = given[field.name] if field.name in given else environment.resource(field.name, field.annotation)
        instance.__dict__[field.name] = known
    cross_checked(instance, cls.__qualname__)
    return instance


async def _enter(environment: Environment, cls: type[Step[Any]], instance: Any, context: Context) -> Any:
    run = cls.run
    if iscoroutinefunction(run):
        return await run_in(context, run(instance))
    call = partial(run, instance)
    body = in_thread(call, limiter=environment.limiter(), grace=environment.settle_timeout, name=cls.__qualname__)
    return await run_in(context, body)


def _unpack(value: Any) -> Any:
    if isinstance(value, Failure):
        raise value.error
    if isinstance(value, Halt):
        value.unwrap()
    return value.value if isinstance(value, (Skipped, Success)) else value
