"""Extends the leases of an event loop from a thread of its own, so that a loop which stands still keeps its runs.

Overview. The thread has an event loop, and so connections, of its own. It extends what is due like the keeper does,
over shadows of the claims: a claim itself belongs to the loop of its run. What an extension said is told to that loop,
which learns of it when it turns again; only the trust is noted at once.

Bounds. A loop that was not heard of for ``limit`` seconds is taken for hung: its leases are left to end, and others may
take the runs. When it is heard of again, so is the thread. A loop that was closed has no runs.

Failures. Extensions that fail are none of the thread's business: the keeper extends as well, somewhat later, and
distrusts a lease in time. So does it when the thread should end for whatever reason.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from aioreactor.errors import OwnershipLost
from aioreactor.logs import note
from aioreactor.store.claim import Claim, FanClaim
from aioreactor.store.errors import StoreError

if TYPE_CHECKING:
    from aioreactor.store.leases import ExtendsLeases, Hold

logger = logging.getLogger("aioreactor.engine")

LINGER = 2.0
"""Seconds for which the thread stays when there is nothing to extend."""

EACH = 3
LOOKS = 12
"""A lease is looked at so many times in its span."""


def _shadow(claim: Claim, asked_at: float) -> Claim:
    if isinstance(claim, FanClaim):
        return FanClaim(claim.run_id, claim.path, claim.token, ttl_ms=claim.ttl_ms, asked_at=asked_at)
    return Claim(
        claim.run_id,
        claim.token,
        ver=claim.ver,
        fence=claim.fence,
        ttl_ms=claim.ttl_ms,
        asked_at=asked_at,
        keys=claim.keys,
    )


class LeaseThread:
    """The thread of one keeper. It is there while there are holds, and a moment longer.

    Args:
        store: Extends; may be used from several event loops.
        loop: Whose runs they are.
        holds: Gives the holds of now; called in the thread.
        late: Gives seconds for which the loop was not heard of when it should have been; called in the thread.
        limit: Of these seconds.
        on_limit: Called in the thread when the limit has passed, once per standstill.
    """

    def __init__(
        self,
        store: ExtendsLeases,
        loop: asyncio.AbstractEventLoop,
        holds: Callable[[], Collection[Hold]],
        late: Callable[[], float],
        *,
        limit: float,
        on_limit: Callable[[float], None],
    ) -> None:
        self._store = store
        self._owner = loop
        self._holds = holds
        self._late = late
        self._limit = limit
        self._on_limit = on_limit
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._inside: asyncio.AbstractEventLoop | None = None
        self._look = asyncio.Event()
        self._closed = False
        self._hung = False

    def wake(self) -> None:
        """There is a hold that may be due earlier than all others. Called in the loop of the runs."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="aioreactor-leases", daemon=True)
                self._thread.start()
            self._nudge()

    async def aclose(self, patience: float = 1.0) -> None:
        """End the thread.

        Cancellation: it ends all the same.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
            self._nudge()
        if thread is not None:
            await asyncio.to_thread(thread.join, patience)

    def _nudge(self) -> None:
        if self._inside is not None:
            self._inside.call_soon_threadsafe(self._look.set)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception as error:
            # Nobody waits for this thread; the keeper goes on without, and starts it again.
            note(logger, logging.ERROR, "engine_error", f"the lease thread failed: {error!r}")
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = self._inside = None

    async def _keep(self) -> None:
        with self._lock:
            self._look = asyncio.Event()
            self._inside = asyncio.get_running_loop()
        idle_since: float | None = None
        while not self._is_over(idle_since):
            holds = self._holds()
            idle_since = None if holds else idle_since or time.monotonic()
            if not self._gave_up():
                await asyncio.gather(*map(self._extend, filter(_is_due, holds)))
            await self._rest(min((hold.claim.ttl_ms / 1000 / LOOKS for hold in holds), default=LINGER))

    def _is_over(self, idle_since: float | None) -> bool:
        idle = idle_since is not None and time.monotonic() - idle_since >= LINGER
        with self._lock:
            over = self._closed or self._owner.is_closed() or (idle and not self._holds())
            if over:
                self._inside = self._thread = None
            return over

    def _gave_up(self) -> bool:
        """Whether the loop counts as hung."""
        late = self._late()
        was_hung, self._hung = self._hung, late > self._limit
        if self._hung and not was_hung:
            self._on_limit(late)
        return self._hung

    async def _rest(self, span: float) -> None:
        try:
            async with asyncio.timeout(span):
                await self._look.wait()
        except TimeoutError:
            return
        self._look.clear()

    async def _extend(self, hold: Hold) -> None:
        claim, asked_at = hold.claim, time.monotonic()
        shadow, patience = _shadow(claim, asked_at), claim.ttl_ms / 1000 / EACH
        try:
            async with asyncio.timeout(patience):
                await self._store.extend(shadow, retry_for=patience)
        except OwnershipLost:
            self._tell(hold.lost_elsewhere, shadow.lost)
        except (StoreError, TimeoutError):
            return
        else:
            claim.trust(asked_at)
            self._tell(hold.extended_elsewhere, shadow.asked)

    def _tell(self, told: Callable[..., None], *said: object) -> None:
        try:
            self._owner.call_soon_threadsafe(told, *said)
        except RuntimeError:
            return  # it was closed in this very moment, and its runs with it


def _is_due(hold: Hold) -> bool:
    claim = hold.claim
    return claim.open and time.monotonic() >= claim.trusted_until - claim.ttl_ms / 1000 * (1 - 1 / EACH)
