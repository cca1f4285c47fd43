"""What has to hold before a run is started, apart from its runtime: its inputs, its time, and where its class is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aioreactor.definition.primitives import RateLimit
from aioreactor.engine.arguments import cross_checked, validated, view_of
from aioreactor.errors import DefinitionError, InputValidationError, UnknownRateLimit
from aioreactor.plan.model import Plan


def new_run_id() -> str:
    """32 hex digits: milliseconds since the epoch first, so that ids sort by time; the rest random."""
    return f"{int(time.time() * 1000):012x}{secrets.token_hex(10)}"


def due_ms_of(options: Mapping[str, Any]) -> int:
    """How long from now a run is to start.

    Raises:
        ValueError: both ``delay`` and ``at`` are given, ``at`` has no time zone, or ``delay`` is negative.
    """
    delay, at = options.get("delay"), options.get("at")
    if delay is not None and at is not None:
        raise ValueError("give delay= or at=, not both")
    if at is not None:
        if at.tzinfo is None:
            raise ValueError("at= has no time zone; use datetime(…, tzinfo=UTC)")
        delay = max(0.0, at.timestamp() - time.time())
    if delay is not None and delay < 0:
        raise ValueError(f"delay={delay}: seconds from 0")
    return int((delay or 0) * 1000)


def check_importable(plan: Plan) -> None:
    """A worker has to find the class.

    Raises:
        DefinitionError: it is defined in ``__main__``, which means something else in a worker.
    """
    if plan.reactor.__module__ == "__main__" and plan.options.name is None:
        raise DefinitionError(
            plan.reactor.__qualname__,
            ["it is defined in __main__, where no worker finds it; move it to a module that both import"],
        )


def check_rate_limits(plan: Plan, named: Mapping[str, Any]) -> None:
    """Names of limits have to be configured.

    Raises:
        UnknownRateLimit: one is not.
    """
    declared = [*plan.options.coordination, *(each for node in plan.nodes for each in node.coordination)]
    for each in declared:
        if isinstance(each, RateLimit) and each.limits is None and isinstance(each.key, str) and each.key not in named:
            raise UnknownRateLimit(each.key)
    for inner in (inner for node in plan.nodes for inner in (node.child, node.element) if inner is not None):
        check_rate_limits(inner, named)


def values_of(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs, converted and checked.

    Raises:
        InputValidationError: they are invalid.
    """
    owner = plan.reactor.__qualname__
    values = validated(plan.fields, inputs, owner)
    cross_checked(view_of(plan, values), owner)
    return values


def all_values_of(plan: Plan, many: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The inputs of many runs, converted and checked.

    Raises:
        InputValidationError: some are invalid; it names index and field of each mistake.
    """
    found: list[dict[str, Any]] = []
    mistakes: dict[str, list[str]] = {}
    for place, inputs in enumerate(many):
        try:
            found.append(values_of(plan, inputs))
        except InputValidationError as error:
            mistakes |= {f"[{place}].{name}": texts for name, texts in error.field_errors.items()}
    if mistakes:
        raise InputValidationError(plan.reactor.__qualname__, mistakes)
    return found
