"""How runs are created: the arguments of ``run_create``, its answers, and many runs in a few round trips."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

from aioreactor.store.answers import Created, Exists
from aioreactor.store.calls import Value
from aioreactor.store.claim import Claim, new_write_id
from aioreactor.store.client import StoreClient
from aioreactor.store.index import Listed, RunIndex
from aioreactor.store.keys import KeySpace
from aioreactor.store.records import NewRun, not_negative, positive, statuses_text, terminal_status
from aioreactor.store.rows import flat, new_scalars
from aioreactor.store.scripts import Reply, Script
from aioreactor.trace import Status

SLICE = 500
"""Runs that are sent in one iteration of the event loop; others have a turn in between."""


class Holding(NamedTuple):
    """Who holds a run from its creation on; as it is, nobody."""

    token: str = ""
    ttl_ms: int = 0
    owner: str = ""


NOBODY = Holding()


class Creation(NamedTuple):
    """A run that is about to be created; the sweeper looks at it after ``live_in_ms``."""

    run_id: str
    keys: tuple[str, ...]
    labels: str
    live_in_ms: int
    args: tuple[Value, ...]


def replaced_text(replace: Collection[Status]) -> str:
    """Statuses whose runs make room, as the script takes them.

    Raises:
        ValueError: One does not end a run.
    """
    return statuses_text([terminal_status(status) for status in replace])


def creation_of(
    space: KeySpace, run_id: str, new: NewRun, replaced: str, idle_ms: int, holding: Holding = NOBODY
) -> Creation:
    """What there is to send for a new run; without a holder it may rest for ``idle_ms``.

    Raises:
        ValueError: An id, name or number cannot be used.
    """
    keys, labels = space.of_run(run_id), new.labels()
    scalars = new_scalars(new, labels)
    deadline_ms = 0 if new.deadline_ms is None else positive(new.deadline_ms)
    live_in_ms = holding.ttl_ms or idle_ms + not_negative(new.due_ms)
    args: list[Value] = [new_write_id(), *holding, new.inputs, replaced, deadline_ms, new.due_ms]
    args += [len(scalars), len(new.steps), *flat(scalars.items()), *flat(new.steps.items()), *new.trace]
    # A tuple of plain values is nothing that the garbage collector has to look at again and again.
    return Creation(run_id, keys, labels, live_in_ms, tuple(args))


def created_of(making: Creation, reply: Reply, holding: Holding = NOBODY, asked_at: float = 0.0) -> Created | Exists:
    """What has become of it."""
    if reply.word == "EXISTS":
        status, ver, same, ms_left, _ = reply.values
        return Exists(making.run_id, cast("Status", status.decode()), ver, bool(same), ms_left)
    ver, fence, created_ms = reply.values
    claim = None
    if holding.token:
        token, ttl_ms, _ = holding
        claim = Claim(making.run_id, token, ver=ver, fence=fence, ttl_ms=ttl_ms, asked_at=asked_at, keys=making.keys)
    return Created(making.run_id, created_ms, claim)


def listed_of(making: Creation, reply: Reply, status: Status) -> Listed:
    """How a run that was created is listed."""
    ver, _, created_ms = reply.values
    return Listed(making.run_id, created_ms, ver, making.labels, status, making.live_in_ms)


async def create_all(
    client: StoreClient, script: Script, index: RunIndex, makings: Sequence[Creation]
) -> list[Created | Exists]:
    """Create runs that nobody holds, in three round trips; the sweeper is told before.

    Raises:
        StoreError: The store is away; some were created.

    Cancellation: some were created; the sweeper finds them.
    """
    await index.expect_all([(making.run_id, making.live_in_ms) for making in makings])
    trips: deque[asyncio.Future[list[Any]]] = deque()
    slices = [makings[first : first + SLICE] for first in range(0, len(makings), SLICE)]
    for some in slices:
        trips.append(client.issue(script, [(making.keys, making.args) for making in some]))
        await asyncio.sleep(0)
    found: list[Created | Exists] = []
    listed: list[Listed] = []
    for some in slices:
        for making, answer in zip(some, await trips.popleft(), strict=True):
            if isinstance(answer, BaseException):
                raise answer
            reply = script.decode(answer)
            found.append(created_of(making, reply))
            if reply.word == "CREATED":
                listed.append(listed_of(making, reply, "pending"))
    await index.put_all(listed)
    return found
