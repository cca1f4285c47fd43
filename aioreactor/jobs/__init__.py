"""Work that leaves the process: everything that touches arq.

arq is the doorbell, not the building. A **ring** (`queue`) is an arq job that names runs. Its **delivery** (`service`)
starts them on the worker's **host** (`host`), a bounded number of executions, and ends; arq's time-outs, in-progress
marks and try counters concern only that moment. Who executes a run is decided by its lease, so a ring may be lost,
doubled, late, or delivered to somebody who does not need it. The **sweeper** (`sweeper`) finds runs that nobody carries
on, and rings for each once per loss.

| what happens | what follows |
| --- | --- |
| a worker is told to end | it takes nothing more, gives what runs a grace, hands it back (saved, let go), rings |
| a worker dies | leases run out, the sweeper of any other rings |
| the host is full | deliveries stay in the queue; what does not fit of one is rung again |
| a ring for what lives here already | looked at once more after it has ended, lest a wake-up be lost |
| the queue's server is away | what runs goes on; the worker looks again; lost rings are swept |
| a schedule ticks | one of the workers that have it begins the run, see `ticker` |
| a job that this version does not know | logged and dropped; its runs are swept |

Any arq worker runs these jobs, at the pace of its polling (`settings`); `worker.Worker` is woken at once (`wake`).
"""

from aioreactor.jobs.host import Host
from aioreactor.jobs.ports import Backing, Carrier, Doorbell, OpensBacking, SweptStore
from aioreactor.jobs.queue import JobQueue
from aioreactor.jobs.schedules import Schedule, schedule
from aioreactor.jobs.service import WorkerService
from aioreactor.jobs.settings import WorkerSettings, redis_settings, worker_settings
from aioreactor.jobs.sweeper import Swept, sweep
from aioreactor.jobs.worker import Worker, create_worker

__all__ = [
    "Backing",
    "Carrier",
    "Doorbell",
    "Host",
    "JobQueue",
    "OpensBacking",
    "Schedule",
    "Swept",
    "SweptStore",
    "Worker",
    "WorkerService",
    "WorkerSettings",
    "create_worker",
    "redis_settings",
    "schedule",
    "sweep",
    "worker_settings",
]
