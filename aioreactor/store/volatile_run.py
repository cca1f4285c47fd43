"""One run of a `VolatileStore`."""

from __future__ import annotations

from collections.abc import Collection

from aioreactor.store.records import Changes, NewRun, Request, RunRecord, RunRow
from aioreactor.store.rows import BLOBS, CHANGEABLE, tags_of
from aioreactor.trace import Status


class VolatileRun:
    """The record of one run, mutable."""

    def __init__(self, run_id: str, new: NewRun, labels: str, now_ms: int, *, ver: int, fence: int) -> None:
        self.run_id = run_id
        self.new = new
        self.labels = labels
        self.status: Status = "pending"
        self.ver = ver
        self.fence = fence
        self.token = ""
        self.owner = ""
        self.lease_ms = 0
        self.created_ms = self.updated_ms = now_ms
        self.ended_ms = 0
        self.deadline_ms = now_ms + new.deadline_ms if new.deadline_ms is not None else None
        self.due_ms = now_ms + new.due_ms if new.due_ms else 0
        self.recoveries = 0
        self.woken = False
        self.expires_ms: int | None = None
        self.told_until_ms = 0
        self.version, self.fingerprint = new.version, new.fingerprint
        self.seq, self.served, self.asked = new.seq, 0, 0
        self.state, self.failure, self.outcome = new.state, b"", b""
        self.rest = ""
        self.gates, self.left = new.gates, new.left
        self.steps = dict(new.steps)
        self.trace = list(new.trace)
        self.requests: list[Request] = []

    def lease_left_ms(self, now_ms: int) -> int:
        """How long its lease lasts; 0 if nobody has a live one."""
        return max(self.lease_ms - now_ms, 0) if self.token else 0

    def hold(self, token: str, owner: str, lease_ms: int) -> None:
        """Somebody holds it."""
        self.token, self.owner, self.lease_ms = token, owner, lease_ms
        self.fence += 1
        self.due_ms = 0
        self.woken = False
        self.told_until_ms = 0

    def wake(self, now_ms: int) -> None:
        """Its last request is a reason to take it."""
        self.asked = len(self.requests)
        if not self.token:
            self.due_ms, self.updated_ms = 0, now_ms

    def let_go(self) -> None:
        """Nobody holds it."""
        self.token, self.owner, self.lease_ms = "", "", 0

    def revive(self) -> None:
        """It had ended and begins anew."""
        self.outcome, self.ended_ms, self.expires_ms = b"", 0, None
        self.recoveries = 0

    def write(self, changes: Changes, now_ms: int) -> None:
        """A checkpoint."""
        self.ver += 1
        self.updated_ms = now_ms
        for name in ("status", *CHANGEABLE):
            value = getattr(changes, name)
            if value is not None:
                setattr(self, name, value)
        if changes.steps or changes.dropped:
            self.recoveries = 0
        self.steps.update(changes.steps)
        for path in changes.dropped:
            self.steps.pop(path, None)
        self.trace += changes.trace

    def row(self, now_ms: int, blobs: Collection[str] = ()) -> RunRow:
        """Its scalars, and the blobs that are named."""
        return RunRow(
            run_id=self.run_id,
            reactor=self.new.reactor,
            status=self.status,
            ver=self.ver,
            fence=self.fence,
            now_ms=now_ms,
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            ended_ms=self.ended_ms,
            owner=self.owner,
            lease_ms=self.lease_ms,
            deadline_ms=self.deadline_ms,
            due_ms=self.due_ms,
            recoveries=self.recoveries,
            version=self.version,
            fingerprint=self.fingerprint,
            parent=self.new.parent,
            tags=tags_of(self.labels),
            labels=self.labels,
            seq=self.seq,
            served=self.served,
            asked=self.asked,
            queue=self.new.queue,
            rest=self.rest,
            durability=self.new.durability,
            gates=self.gates,
            left=self.left,
            inputs=self.new.inputs if "inputs" in blobs else b"",
            outcome=self.outcome if "outcome" in blobs else b"",
            failure=self.failure if "failure" in blobs else b"",
            state=self.state if "state" in blobs else b"",
        )

    def record(self, now_ms: int) -> RunRecord:
        """All of it."""
        row = self.row(now_ms, BLOBS)
        return RunRecord(row=row, steps=dict(self.steps), trace=list(self.trace), requests=list(self.requests))
