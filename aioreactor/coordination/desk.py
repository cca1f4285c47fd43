"""What one event loop has of coordination: its way to the server, its inbox, its renewals. And the calls themselves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from aioreactor.coordination.inbox import Inbox
from aioreactor.coordination.keys import CoordinationKeys
from aioreactor.coordination.renewer import Renewer
from aioreactor.store.calls import Value
from aioreactor.store.client import DEFAULT_LANE, StoreClient
from aioreactor.store.pushes import Pushes
from aioreactor.store.scripts import Reply, ScriptLibrary
from aioreactor.store.unique import UniqueTexts

T = TypeVar("T")
Fact: TypeAlias = Literal["acquired", "contended", "released", "lost"]

RECHECK = 5.0
"""Seconds after which a waiter asks although it was told nothing."""

GRACE = 3 * RECHECK
"""Seconds for which a waiter counts as alive after it asked, and for which it has what it is given."""

scripts = ScriptLibrary("aioreactor.coordination", shared=[ScriptLibrary("aioreactor.store")])
new_token = UniqueTexts()


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened to a key. ``waited`` is in seconds; ``scope`` is the name of who it happened to."""

    fact: Fact
    kind: str
    key: str
    scope: str
    waited: float = 0.0


Observer: TypeAlias = Callable[[Notice], None]


class Audience:
    """Who is told of everything that happens; nobody at first."""

    observer: Observer | None = None


class Desk:
    """Coordination in one event loop.

    Args:
        client: The way to the server.
        pushes: The subscriptions of the loop.
        keys: The names.
        audience: Has whoever is told of everything that happens.
    """

    def __init__(self, client: StoreClient, pushes: Pushes, keys: CoordinationKeys, audience: Audience) -> None:
        self.client = client
        self.keys = keys
        self._audience = audience
        self._cluster = client._settings.endpoint.kind == "cluster"
        self.inbox = Inbox(keys.inbox(os.urandom(8).hex()), pushes)
        self.loop = asyncio.get_running_loop()
        self.renewer = Renewer(self.loop)

    @property
    def is_heard(self) -> bool:
        """Whether the server would know that nobody listens here: it does unless it is one of a cluster."""
        return self.inbox.is_open and not self._cluster

    def call(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[Value] = (),
        *,
        lane: str = DEFAULT_LANE,
        retry_for: float | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """The reply of a script, to be awaited; see `StoreClient.run`."""
        return self.client.run(scripts[script], keys, args, lane=lane, retry_for=retry_for)

    async def call_all(self, script: str, calls: Sequence[tuple[Sequence[str], Sequence[Value]]]) -> list[Reply]:
        """The replies of one script for many keys, sent together.

        Raises:
            StoreError: The store is away; some may have been carried out.

        Cancellation: as for an error.
        """
        found = scripts[script]
        if len(calls) == 1:
            return [await self.call(script, *calls[0])]
        replies = await self.client.issue(found, calls)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return [found.decode(reply) for reply in replies]

    def tell(self, fact: Fact, kind: str, key: str, scope: str, waited: float = 0.0) -> None:
        """Tell the observer."""
        observer = self._audience.observer
        if observer is not None:
            observer(Notice(fact, kind, key, scope, waited))

    async def aclose(self) -> None:
        """Keep nothing, hear nothing.

        Cancellation: the same.
        """
        self.inbox.close()
        await self.renewer.aclose()


async def settled(work: Coroutine[Any, Any, T]) -> T:
    """Do all of ``work``, whatever happens to the caller.

    Cancellation: raised when ``work`` has ended.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()
