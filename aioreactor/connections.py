"""What a runtime opens on first use: its store, its queues, its coordinator, its threads."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter

from aioreactor.engine.ports import Environment
from aioreactor.errors import StoreRequired
from aioreactor.resources import Resources
from aioreactor.settings import Settings

if TYPE_CHECKING:
    from aioreactor.coordination.coordinator import Coordinator
    from aioreactor.durable import DurableRuns
    from aioreactor.durable.gatekeeper import Gatekeeper
    from aioreactor.jobs.queue import JobQueue
    from aioreactor.store.client import StoreClient


class Connections(Resources):
    """The part of a `Runtime` that reaches servers, and what executions need of it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()
        self._environment = self._make_environment()
        self._durable: DurableRuns | None = None
        self._queue_client: StoreClient | None = None
        self._coordinator: Coordinator | None = None
        self._keeper: Gatekeeper | None = None

    @property
    def durable(self) -> DurableRuns | None:
        """The stored runs of this runtime; None without a store."""
        if self._durable is None and self.settings.redis_url is not None:
            from aioreactor.durable import DurableRuns

            self._durable = DurableRuns(self.settings, self._environment, self.queue)
        return self._durable

    def _make_environment(self) -> Environment:
        given = {
            option.name: getattr(self.settings, option.name)
            for option in fields(Environment)
            if option.name not in {"resource", "limiter", "journal", "coordinator"}
        }
        return Environment(resource=self.resource, limiter=self._limiter, coordinator=self._gatekeeper, **given)

    def _limiter(self) -> CapacityLimiter | None:
        if self.settings.max_threads is None:
            return None
        loop = asyncio.get_running_loop()
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(self.settings.max_threads)
        return self._limiters[loop]

    def queue(self, name: str | None = None) -> JobQueue:
        """The job queue of this name, or the default one."""
        from aioreactor.jobs.queue import JobQueue

        name = name or self.settings.queue
        client = self._client_of_queues()
        return JobQueue(client) if name is None else JobQueue(client, name)

    def _client_of_queues(self) -> StoreClient:
        assert self.durable is not None
        url = self.settings.queue_url
        if url is None or url == self.settings.redis_url:
            return self.durable.client
        if self._queue_client is None:
            from aioreactor.store.client import StoreClient

            self._queue_client = StoreClient(url, retry_for=self.settings.store_retry_for)
        return self._queue_client

    def coordinator(self) -> Coordinator:
        """What takes and shows coordination primitives.

        Raises:
            StoreRequired: there is no store.
        """
        if self._coordinator is None:
            if self.durable is None:
                raise StoreRequired("coordination")
            from aioreactor.coordination.coordinator import Coordinator

            settings, durable = self.settings, self.durable
            self._coordinator = Coordinator(
                durable.client, durable.store.pushes, prefix=settings.key_prefix, rate_limits=settings.rate_limits
            )
        return self._coordinator

    def _gatekeeper(self) -> Gatekeeper | None:
        """The coordinator of runs; None without a store."""
        if self._keeper is None and self.settings.redis_url is not None:
            from aioreactor.durable.gatekeeper import Gatekeeper

            self._keeper = Gatekeeper(self.coordinator())
        return self._keeper

    async def _close_connections(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        self._keeper = None
        if coordinator is not None:
            await coordinator.aclose()
        durable, self._durable = self._durable, None
        queue_client, self._queue_client = self._queue_client, None
        if queue_client is not None:
            await queue_client.aclose()
        if durable is not None:
            await durable.aclose()
