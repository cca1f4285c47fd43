"""One attempt of a step class outside any reactor."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import anyio

from aioreactor.engine.arguments import cross_checked
from aioreactor.engine.drive import in_thread, run_in
from aioreactor.engine.signals import signal_in
from aioreactor.errors import InputValidationError, StepTimeout, StoreRequired
from aioreactor.results import Failure, Halt, Skipped, Success

if TYPE_CHECKING:
    from aioreactor.definition.steps import Step
    from aioreactor.engine.ports import Environment


async def run_once(environment: Environment, cls: type[Step[Any]], given: Mapping[str, Any]) -> Any:
    """Validate the fields, run the body under its timeout, give its value; a `Skipped` gives its value too.

    Raises:
        InputValidationError: a field does not fit.
        StoreRequired: the class declares coordination.
        StepTimeout: the body took longer than the class's ``timeout``.
        NoValue: the body halted.
        BaseException: whatever the body raises, or the error of the `Failure` it returns.

    Cancellation: cancels the body; nothing is compensated.
    """
    policy = cls.__aioreactor_policy__
    if policy.get("coordination"):
        raise StoreRequired(f"{cls.__qualname__}.once()", ["it declares coordination"])
    instance = _instance(environment, cls, given)
    timeout = policy.get("timeout")
    try:
        with anyio.fail_after(timeout):
            value = await _enter(environment, cls, instance)
    except TimeoutError as error:
        if timeout is None or error.__cause__ is not None or not _is_ours(error):
            raise
        raise StepTimeout(cls.__qualname__, timeout) from None
    except BaseException as error:
        signal = signal_in(error)
        if signal is None:
            raise
        value = signal.outcome
    return _unpack(value)


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


async def _enter(environment: Environment, cls: type[Step[Any]], instance: Any) -> Any:
    run = cls.run
    context = copy_context()
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
