"""Delivers the writes of a claim, in order, each until it is answered."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from aioreactor.store.claim import Claim, Write
from aioreactor.store.client import StoreClient
from aioreactor.store.errors import ReplyError

Moved = Callable[[Claim, Write, int, str], Awaitable[None]]
"""Called when a write changed the run's status, with its time of creation and labels."""


async def deliver(client: StoreClient, claim: Claim, write: Write, moved: Moved) -> None:
    """Send ``write`` after all earlier ones of its claim.

    Raises:
        OwnershipLost: The run is not the claim's any more.
        ReplyError: The store refused this write for what it is, and it is dropped; earlier ones are passed over.
        StoreUnavailable: The store was away; it is sent before the next one.

    Cancellation: as for `StoreUnavailable`.
    """
    claim.require_open()
    outbox = claim.outbox
    if not (outbox and outbox[-1].ends):
        outbox.append(write)
    elif write.script is outbox[-1].script:
        # The end of the claim was cut off and is asked for again: the first one counts.
        write = outbox[-1]
    async with claim.turn:
        while write.reply is None and write.error is None:
            claim.require_open()
            await _deliver_next(client, claim, moved)
    if write.error is not None:
        raise write.error


async def _deliver_next(client: StoreClient, claim: Claim, moved: Moved) -> None:
    write = claim.outbox[0]
    asked_at = time.monotonic()
    args = (claim.token, claim.ver, write.id, *write.args)
    try:
        reply = await client.run(write.script, write.keys, args, replicate=True)
    except ReplyError as error:
        claim.require_open()
        claim.outbox.popleft()
        write.error = error
        return
    claim.require_open()  # the keeper of the lease may have lost it meanwhile, and all writes with it
    if reply.word == "LOST":
        raise claim.lose(reply.values[0])
    claim.outbox.popleft()
    write.reply = reply
    claim.ver, claim.asked = reply.values[:2]
    if write.ends:
        claim.ended = True
    else:
        claim.trust(asked_at)
    if reply.word == "MOVED":
        created_ms, labels = reply.values[2:]
        await moved(claim, write, created_ms, _text(labels))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
