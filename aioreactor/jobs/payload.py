"""The form of a job in Redis: arq's, so that any arq worker can run it. Pure.

arq's default form is a pickle. What is written here is plain data, and `loads_plain` reads plain data only: whatever
somebody else puts into the queue, it cannot make a worker call anything.
"""

from __future__ import annotations

import io
import pickle  # read by a reader that admits no callables, see `loads_plain`
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from arq.constants import job_key_prefix

from aioreactor.store.unique import UniqueTexts

CARRY = "aioreactor.carry"
"""Name of the function that carries runs on."""

SWEEP = "cron:aioreactor.sweep"
"""Name of the cron job that sweeps."""

UNREADABLE = "aioreactor.unreadable"
"""Name of the function that gets the jobs whose bodies nobody can read."""

RUNG = "aioreactor.run"
SWEPT = "aioreactor.swept"

_OURS = (f"{RUNG}:".encode(), f"{SWEPT}:".encode())

PROTOCOL = 4
"""Of pickle; every Python that can run this library reads it."""

FORM = 1
"""Of our arguments. A worker drops a newer form: the run is swept, until workers that know it are there."""

Dumps: TypeAlias = Callable[[dict[str, Any]], bytes]
Loads: TypeAlias = Callable[[bytes], dict[str, Any]]

_HARMLESS = frozenset(
    {
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("uuid", "SafeUUID"),
        ("uuid", "UUID"),
    }
)


class NotPlain(ValueError):
    """A job's arguments are more than plain data; the text says what to do."""


class Unreadable(ValueError):
    """The body of a user's own job cannot be read; arq's log and result of that job say why."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS:
            return super().find_class(module, name)
        raise NotPlain(
            f"a job in the queue wants {module}.{name}, which is not plain data; if only code that you trust can "
            "write to the queue, give worker_settings() job_deserializer=pickle.loads"
        )


def loads_plain(data: bytes) -> dict[str, Any]:
    """A job as arq pickles it, if it is made of plain data, times, decimals and UUIDs.

    Raises:
        NotPlain: It holds something else.
        Exception: It is no pickle; arq takes any error for that.
    """
    job: dict[str, Any] = _PlainUnpickler(io.BytesIO(data)).load()
    return job


def never_failing(loads: Loads) -> Loads:
    """``loads``, but what it cannot read becomes a job for the function `UNREADABLE`, which is told why.

    arq drops a job that its deserializer fails for, and tells nobody; so a run would wait for the sweeper, whose ring
    is read by the same deserializer.
    """

    def load(data: bytes) -> dict[str, Any]:
        try:
            job = loads(data)
            # What arq looks up.
            _ = job["t"], job["f"], job["a"], job["k"], job["et"]
        except Exception as error:
            return {"t": None, "f": UNREADABLE, "a": (f"{type(error).__name__}: {error}",), "k": {}, "et": 0}
        return job

    return load


def dumps_plain(job: dict[str, Any]) -> bytes:
    """A job as arq's workers expect it by default."""
    return pickle.dumps(job, PROTOCOL)


_numbers = UniqueTexts()


def new_job_id() -> str:
    """An id that no other job has or had."""
    return f"{RUNG}:{_numbers()}"


def swept_job_id(run_id: str, loss: str) -> str:
    """The id of the one job that rings for this loss of a run."""
    return f"{SWEPT}:{run_id}:{loss}"


def swept_run_id(job_id: str) -> str | None:
    """The run that a job of the sweeper's rings for, by its id alone; None for any other job."""
    if not job_id.startswith(f"{SWEPT}:"):
        return None
    return job_id.removeprefix(f"{SWEPT}:").rpartition(":")[0] or None


def is_ours(job_id: bytes) -> bool:
    """Whether a job delivers runs."""
    return job_id.startswith(_OURS)


def job_key(job_id: str) -> str:
    """Where arq keeps the body of a job."""
    return job_key_prefix + job_id


def carry_body(run_ids: Sequence[str], dumps: Dumps = dumps_plain) -> bytes:
    """The body of a job that delivers these runs."""
    # The time is for arq's log only; what counts is the score, which is the server's.
    return dumps({"t": None, "f": CARRY, "a": (FORM, list(run_ids)), "k": {}, "et": int(time.time() * 1000)})


def run_ids_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str] | None:
    """The runs that a delivery is for; None if its arguments are none that this code knows."""
    if kwargs or len(args) != 2 or args[0] != FORM or not isinstance(args[1], list | tuple):
        return None
    return list(args[1]) if all(isinstance(run_id, str) for run_id in args[1]) else None
