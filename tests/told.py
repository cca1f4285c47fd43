"""What the log and the event loop were told, without what is not about the test that asks."""

from __future__ import annotations

import asyncio

import pytest

LOAD = frozenset({"loop_blocked", "loop_resumed"})
"""Events that a loop which waits for its turn on a busy machine brings about, in any test that holds a short lease."""


def events_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events of all lines that have one, in order, but for `LOAD`."""
    events = [str(getattr(record, "event", "")) for record in caplog.records]
    return [event for event in events if event and event not in LOAD]


def broken_callbacks() -> list[object]:
    """What the running loop is told of from now on, but for clients of others that the garbage collector finds.

    It may find them in any later test: arq's worker leaves one when it is cancelled while a pipeline is given back.
    """
    broken: list[object] = []

    def hear(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if "client" not in context:
            broken.append(context)

    asyncio.get_running_loop().set_exception_handler(hear)
    return broken
