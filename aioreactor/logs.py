"""One line per fact: a stable event name, then ``key=value``, then a text for people; all of it in ``extra``, too."""

from __future__ import annotations

import logging
from typing import Any


def note(logger: logging.Logger, level: int, event: str, text: str = "", **fields: Any) -> None:
    """Log one fact under its event name."""
    if logger.isEnabledFor(level):
        parts = " ".join(f"{name}={item}" for name, item in fields.items())
        line = f"{event} {parts}: {text}" if text else f"{event} {parts}"
        logger.log(level, "%s", line, extra={"event": event, **fields})
