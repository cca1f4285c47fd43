"""What the demo's workers are started with, as one would write it for one's own: ``aioreactor worker … this module``.

It configures the process: what steps ask for, and who is told what happens. Where the store is and how long leases
last is said by ``AIOREACTOR_*`` variables.
"""

from __future__ import annotations

import os
import socket

import aioreactor
from aioreactor.cli.demo.link import LINK, SYSTEMS, Did, FarSystem, Link
from aioreactor.engine.events import CompensateStarted, StepStarted, UndoStarted


class Reporter:
    """A middleware that tells the demo what this process is about to do."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def on_step_start(self, event: StepStarted) -> None:
        """A body is entered."""
        self._link.tell(Did(event.run_id, "run", event.path))

    def on_undo_start(self, event: UndoStarted) -> None:
        """An undo is called."""
        self._link.tell(Did(event.run_id, event.kind, event.path))

    def on_compensate_start(self, event: CompensateStarted) -> None:
        """A compensate is called."""
        self._link.tell(Did(event.run_id, "compensate", event.path))


def _connect() -> Link:
    number = os.environ.get(LINK)
    if number is None:
        raise RuntimeError("this module is for worker processes that `aioreactor demo` starts")
    return Link(socket.socket(fileno=int(number)))


_link = _connect()
aioreactor.configure(
    resources={name: FarSystem(_link, name) for name in SYSTEMS},
    middlewares=[Reporter(_link)],
)
