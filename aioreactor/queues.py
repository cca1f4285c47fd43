"""What there is to see of a job queue: the workers that serve it, and what waits in it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker, as it last told of itself.

    Attributes:
        name: Host, process, and what tells it from others there.
        seen_at: Seconds since the epoch, by the server's clock.
        places: How many runs fit in; 0 if it is not known yet.
    """

    name: str
    seen_at: float
    alive: bool
    running: int
    places: int

    @property
    def process(self) -> str:
        """Its host and process."""
        return self.name.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue. ``due`` are jobs whose time has come, those under way included; ``later`` are those of a later time."""

    name: str
    due: int
    later: int
    workers: tuple[WorkerSeen, ...]

    @property
    def alive(self) -> tuple[WorkerSeen, ...]:
        """The workers that are there."""
        return tuple(worker for worker in self.workers if worker.alive)

    @property
    def last_seen(self) -> float | None:
        """When a worker was last there; None if none was for an hour."""
        return max((worker.seen_at for worker in self.workers), default=None)
