"""Between the hash of a run's scalars and `RunRow`, and between `Changes` and the arguments of a script. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast
from urllib.parse import unquote

from aioreactor.store.calls import Value
from aioreactor.store.records import FORMAT, Changes, NewRun, Request, RunRecord, RunRow
from aioreactor.trace import Status

SCALARS = (
    "status ver fence created_ms updated_ms ended_ms owner lease_ms deadline_ms format reactor version fingerprint "
    "parent labels seq served asked due_ms queue rest durability recoveries gates element progress left"
).split()
CHANGEABLE = ("failure", "state", "seq", "served", "version", "fingerprint", "rest", "gates", "progress", "left")
_changeable = attrgetter(*CHANGEABLE)
_UNCHANGED = (None,) * len(CHANGEABLE)
BLOBS = "inputs outcome failure state".split()


def row_of(run_id: str, now_ms: int, scalars: Mapping[str, bytes]) -> RunRow:
    """A row from what the store has of it."""

    def text(name: str) -> str:
        return scalars.get(name, b"").decode()

    def number(name: str) -> int:
        return int(scalars.get(name) or 0)

    labels, deadline_ms = text("labels"), number("deadline_ms")
    return RunRow(
        run_id=run_id,
        reactor=text("reactor"),
        status=cast("Status", text("status")),
        ver=number("ver"),
        fence=number("fence"),
        now_ms=now_ms,
        created_ms=number("created_ms"),
        updated_ms=number("updated_ms"),
        ended_ms=number("ended_ms"),
        owner=text("owner"),
        lease_ms=number("lease_ms"),
        deadline_ms=deadline_ms or None,
        due_ms=number("due_ms"),
        recoveries=number("recoveries"),
        format=number("format"),
        version=text("version"),
        fingerprint=text("fingerprint"),
        parent=text("parent"),
        tags=tags_of(labels),
        labels=labels,
        seq=number("seq"),
        served=number("served"),
        asked=number("asked"),
        queue=text("queue"),
        rest=text("rest"),
        durability=text("durability"),
        gates=scalars.get("gates", b""),
        element=text("element"),
        progress=scalars.get("progress", b""),
        left=scalars.get("left", b""),
        **{blob: scalars.get(blob, b"") for blob in BLOBS},
    )


def tags_of(labels: str) -> tuple[str, ...]:
    """The tags among a run's labels."""
    return tuple(unquote(each[4:]) for each in labels.split("\n") if each.startswith("tag:"))


def peeked(run_id: str, fields: Sequence[str], values: Sequence[Any]) -> RunRow:
    """A row from the answer of ``run_peek``."""
    now_ms, found = values
    return row_of(run_id, now_ms, dict(zip(fields, found, strict=True)))


def record_of(run_id: str, values: Sequence[Any]) -> RunRecord:
    """A record from the answer of ``run_load``."""
    now_ms, scalars, steps, trace, requests = values
    return RunRecord(
        row=row_of(run_id, now_ms, _mapping(scalars)),
        steps=_mapping(steps),
        trace=trace,
        requests=_requests(_mapping(requests)),
    )


def _mapping(flat: Sequence[bytes]) -> dict[str, bytes]:
    each = iter(flat)
    return {name.decode(): value for name, value in zip(each, each, strict=True)}


def _requests(stored: Mapping[str, bytes]) -> list[Request]:
    found = []
    for name, value in stored.items():
        number, _, body = value.partition(b"\n")
        found.append(Request(int(number), name, body))
    return sorted(found, key=lambda request: request.number)


def new_scalars(new: NewRun, labels: str) -> dict[str, Value]:
    """The scalars that a run begins with, besides those that the script sets."""
    scalars: dict[str, Value] = {
        "format": FORMAT,
        "reactor": new.reactor,
        "version": new.version,
        "fingerprint": new.fingerprint,
        "parent": new.parent,
        "labels": labels,
        "queue": new.queue,
        "durability": new.durability,
        "state": new.state,
        "seq": new.seq,
        "gates": new.gates,
        "element": new.element,
        "failure": new.failure,
        "left": new.left,
    }
    return {name: value for name, value in scalars.items() if value not in {"", b"", 0}}


def packed_changes(changes: Changes) -> list[Value]:
    """The last arguments of a script that writes: counts, then pairs and entries."""
    steps = changes.steps
    packed: list[Value] = [0, len(steps), len(changes.dropped)]
    values = _changeable(changes)
    if values != _UNCHANGED:
        for name, value in zip(CHANGEABLE, values, strict=True):
            if value is not None:
                packed += (name, value)
        packed[0] = len(packed) // 2 - 1
    for pair in steps.items():
        packed += pair
    packed += changes.dropped
    packed += changes.trace
    return packed


def flat(pairs: Iterable[tuple[str, Value]]) -> list[Value]:
    """Pairs as a list of twice as many."""
    return [each for pair in pairs for each in pair]
