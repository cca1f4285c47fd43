"""What the demo's workers are started with, as one would write it for one's own: ``aioreactor worker … this module``.

It configures the process: what steps ask for, and who is told what happens. Where the store is and how long leases
last is said by ``AIOREACTOR_*`` variables.
"""

from __future__ import annotations

import os
import socket

import aioreactor
from aioreactor.cli.demo.link import LINK, SYSTEMS, FarSystem, Link, Reporter


def _connect() -> Link:
    number = os.environ.get(LINK)
    if number is None:
        raise RuntimeError("this module is for worker processes that `aioreactor demo` starts")
    return Link(socket.socket(fileno=int(number)))


_link = _connect()
aioreactor.configure(
    resources={name: FarSystem(_link, name) for name in SYSTEMS},
    middlewares=[Reporter(_link.tell)],
)
