"""The supervisor process: how it is started, and how its end is awaited."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from functools import cache
from importlib import resources

from aioreactor.embedded.home import Home
from aioreactor.embedded.lifeline import LifeLine

SHELL = "/bin/sh"

# A server that has not ended so long after TERM is killed. What it acknowledged is with the kernel by then.
GRACE_SECONDS = 10

_RELIED_ON = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD})
_RESET_SIGNALS = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(sys.argv[1], sys.argv[1:])
"""

# Supervisors whose server outlived our use of it. Each is still our child, to be reaped when it has ended.
_outliving: list["Supervisor"] = []


class Supervisor(subprocess.Popen[bytes]):
    """The supervisor as the child of the process that started it."""

    def __del__(self) -> None:
        """Do not warn about a child that still runs: it ends by the life line, not by us."""

    def has_ended(self) -> bool:
        """Whether it has ended, and with it the server; reaps it."""
        return self.poll() is not None

    def kill_all(self) -> None:
        """End it, the server and all helpers at once: they are one process group."""
        # Not reaped yet, hence the group is still ours.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def leave(self) -> None:
        """Let it go on for those who still hold the line."""
        _outliving.append(self)


def start_supervisor(home: Home, command: list[str], lock: int | None) -> tuple[LifeLine, Supervisor]:
    """Start `command` under a supervisor that watches a new life line.

    `lock` is inherited by the server alone and stays open here.

    Raises:
        OSError: A process, a file or ``/bin/sh`` cannot be had.
    """
    reap_outliving()
    arguments = [str(home.directory), str(GRACE_SECONDS), *command]
    line, reader = LifeLine.create(home)
    try:
        with _open(reader), _open_log(home) as log, home.locked() as kept:
            supervisor = Supervisor(
                [*_with_default_signals(), SHELL, "-c", load_script(), "aioreactor", *arguments],
                stdin=reader,
                # A shell can only name descriptors up to 9, so the lock travels where it can be named.
                stdout=log if lock is None else lock,
                stderr=log,
                pass_fds=(kept,),
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        line.close()
        raise
    return line, supervisor


def reap_outliving() -> None:
    """Reap the supervisors that have ended since we left them."""
    _outliving[:] = [supervisor for supervisor in list(_outliving) if not supervisor.has_ended()]


def _with_default_signals() -> list[str]:
    """What to put before a command line, so that the signals it relies on reach it.

    A signal that is blocked or ignored here would be so in the supervisor and the server too, and a shell
    cannot undo it. That is rare (programs built on ``sigwait``), so only they pay for one more exec.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ignored = {number for number in _RELIED_ON if signal.getsignal(number) is signal.SIG_IGN}
    if not (ignored or blocked & _RELIED_ON) or not sys.executable:
        return []
    return [sys.executable, "-I", "-S", "-c", _RESET_SIGNALS]


@cache
def load_script() -> str:
    """The supervisor's program."""
    # Given as text, not by path: a shell reads a script while it runs it, and an upgrade of this
    # package may change the file under a server that runs for weeks.
    return resources.files("aioreactor.embedded").joinpath("supervisor.sh").read_text(encoding="utf-8")


def _open_log(home: Home) -> contextlib.AbstractContextManager[int]:
    return _open(os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))


@contextlib.contextmanager
def _open(descriptor: int) -> Generator[int, None, None]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
