"""One process's hold on a running server, and how it lets go."""

import contextlib
import os
import subprocess
from dataclasses import dataclass, field

from aioreactor.embedded.home import Home
from aioreactor.embedded.lifeline import LifeLine, Lookout
from aioreactor.embedded.patience import Patience, TimeIsUp
from aioreactor.embedded.ping import answers
from aioreactor.embedded.supervisor import GRACE_SECONDS, Supervisor, reap_outliving

# Beyond the supervisor's own escalation to KILL, which should make it needless to wait for this long.
_MARGIN_SECONDS = 5


@dataclass(slots=True)
class Hold:
    """The life line, and the supervisor if it is our child.

    Attributes:
        home: The server's directory.
        line: Our end of the life line.
        supervisor: The process that we started; ``None`` when we attached to another's server.
        shared: Whether other processes may hold the line too, which a data directory allows.
        process: The process that made this hold; a forked copy must not end what it did not start.
    """

    home: Home
    line: LifeLine
    supervisor: Supervisor | None
    shared: bool
    process: int = field(default_factory=os.getpid)

    def let_go(self) -> None:
        """Let go without waiting; the supervisor sees to the rest."""
        if self._is_ours_alone():
            self.line.say_stop()
        self.line.close()
        if (supervisor := self._child()) is not None:
            supervisor.leave()

    def release(self) -> None:
        """Let go; if that ends the server, wait until it and its directory are gone."""
        reap_outliving()
        lookout = None if self._is_ours_alone() else self.line.lookout()
        self.let_go()
        with contextlib.ExitStack() as stack:
            if lookout is not None:
                stack.callback(lookout.close)
            self._await_end(lookout)

    def supervisor_ended(self) -> bool:
        """Whether the supervisor, if it is our child, is no more."""
        supervisor = self._child()
        return supervisor is not None and supervisor.has_ended()

    def _await_end(self, lookout: Lookout | None) -> None:
        patience = Patience(GRACE_SECONDS + _MARGIN_SECONDS)
        try:
            while not self.home.is_gone():
                # Asked every time: a process that attaches right now revives the server.
                if lookout is not None and not lookout.sees_nobody():
                    return
                if self.supervisor_ended() and not answers(self.home.socket):
                    break  # somebody killed the supervisor, so nobody will remove the directory
                patience.nap()
        except TimeIsUp:
            pass
        self._clean_up()

    def _clean_up(self) -> None:
        supervisor = self._child()
        if supervisor is None:
            return
        try:
            supervisor.wait(1 if self.home.is_gone() else 0)
        except subprocess.TimeoutExpired:
            supervisor.kill_all()
        self.home.remove()
        reap_outliving()

    def _is_ours_alone(self) -> bool:
        return self._child() is not None and not self.shared

    def _child(self) -> Supervisor | None:
        return self.supervisor if self.process == os.getpid() else None
