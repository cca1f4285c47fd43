"""What the log was told, without what only says how busy the machine is."""

from __future__ import annotations

import pytest

LOAD = frozenset({"loop_blocked", "loop_resumed"})
"""Events that a loop which waits for its turn on a busy machine brings about, in any test that holds a short lease."""


def events_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events of all lines that have one, in order, but for `LOAD`."""
    events = [str(getattr(record, "event", "")) for record in caplog.records]
    return [event for event in events if event and event not in LOAD]
