"""Starting a server from a coroutine: in a thread, and without a leak when the coroutine is cancelled."""

import threading

import anyio
import anyio.to_thread

from aioreactor.embedded.hold import Hold
from aioreactor.embedded.launch import obtain
from aioreactor.embedded.options import Options
from aioreactor.embedded.patience import GaveUp, Patience


class Launch:
    """One start, in a worker thread.

    A cancelled coroutine does not wait for the thread, so the thread may come back with a server that nobody
    takes. Which of the two was first is decided under a lock; the later one ends the server.
    """

    def __init__(self, options: Options) -> None:
        """Prepare; nothing starts before `hold`."""
        self._options = options
        self._patience = Patience(options.timeout)
        self._deciding = threading.Lock()
        self._abandoned = False
        self._hold: Hold | None = None

    async def hold(self) -> Hold:
        """Start the server; returns once it answers.

        Raises:
            ServerNotFound: There is no server binary.
            ServerStartError: The server ended or did not answer in time.

        Cancellation:
            Takes effect at once; the thread gives up at its next look and ends what it had started.
        """
        try:
            # A limiter of its own: the shared one may be used up by threads that wait for this very server.
            return await anyio.to_thread.run_sync(self._run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except BaseException:
            self._abandon()
            raise

    def _run(self) -> Hold:
        hold = obtain(self._options, self._patience)
        with self._deciding:
            if not self._abandoned:
                self._hold = hold
                return hold
        hold.release()
        raise GaveUp

    def _abandon(self) -> None:
        self._patience.give_up()
        with self._deciding:
            self._abandoned = True
            hold = self._hold
        if hold is not None:
            hold.let_go()
