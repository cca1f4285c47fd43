"""What a worker stands on when it is started by the command line: the composition root says it, once.

A module of the user's may say more, such as hooks and functions of its own, before the command builds its worker.
"""

from __future__ import annotations

from typing import Any

from aioreactor.jobs.ports import OpensBacking
from aioreactor.jobs.settings import WorkerSettings, worker_settings

_opens: OpensBacking | None = None
_options: dict[str, Any] = {}


class NoBacking(LookupError):
    """Nobody has said what executes runs."""

    def __init__(self) -> None:
        super().__init__("nothing executes runs here: call aioreactor.jobs.defaults.use(), which the runtime does")


def use(opens: OpensBacking, **options: Any) -> None:
    """Stand on this from now on; ``options`` are those of `worker_settings`."""
    global _opens
    _opens = opens
    _options.clear()
    _options.update(options)


def is_said() -> bool:
    """Whether `use` was called."""
    return _opens is not None


def default_settings(**options: Any) -> type[WorkerSettings]:
    """Settings of a worker that stands on what `use` said; ``options`` come first.

    Raises:
        ImportError, TypeError, ValueError: As for `worker_settings`.
        NoBacking: `use` was not called.
    """
    if _opens is None:
        raise NoBacking
    return worker_settings(**{"carrier": _opens, **_options, **options})
