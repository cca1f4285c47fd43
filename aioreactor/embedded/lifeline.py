"""The life line: a FIFO whose end of file tells the supervisor that nobody needs the server any more."""

import contextlib
import os
import secrets
import select
import threading
from pathlib import Path

from aioreactor.embedded.home import Home
from aioreactor.embedded.patience import Patience


class LifeLine:
    """One holder's write end. The server lives while any holder, in any process, keeps one open.

    The descriptor is closed on exec, so programs that are started hold nothing. A child that is *forked*
    without exec inherits it and is a holder like any other: it uses the same server.
    """

    def __init__(self, home: Home, descriptor: int) -> None:
        """Take over `descriptor`, a write end of the home's FIFO."""
        self._home = home
        self._descriptor = descriptor
        self._closing = threading.Lock()

    @classmethod
    def create(cls, home: Home) -> tuple["LifeLine", int]:
        """Make the FIFO; gives the line and the read end, which is for the supervisor.

        Raises:
            OSError: The FIFO cannot be made or opened.
        """
        os.mkfifo(home.life, 0o600)
        # Without O_NONBLOCK each of the two opens would wait for the other.
        reader = os.open(home.life, os.O_RDONLY | os.O_NONBLOCK)
        try:
            line = cls(home, _open_to_write(home.life))
        except OSError:
            os.close(reader)
            raise
        os.set_blocking(reader, True)
        return line, reader

    @classmethod
    def join(cls, home: Home, patience: Patience) -> "LifeLine | None":
        """Become one more holder; ``None`` if that server is ending or has ended.

        That the FIFO can be opened proves nothing: the supervisor may have read the end of file just
        before. So a word is sent and its answer awaited. A supervisor that answers was still reading
        with our end open, and will not see the end of file until we close it.

        Raises:
            TimeIsUp: The supervisor neither answered nor went away.
            GaveUp: The caller no longer wants it.
        """
        try:
            line = cls(home, _open_to_write(home.life))
        except OSError:  # the name is gone, or nobody reads
            return None
        try:
            if line._is_acknowledged(patience):
                return line
        except BaseException:
            line.close()
            raise
        line.close()
        return None

    def say_stop(self) -> None:
        """Have the supervisor end the server, whoever else holds the line."""
        with self._closing, contextlib.suppress(OSError):
            if self._descriptor >= 0:
                os.write(self._descriptor, b"stop\n")

    def close(self) -> None:
        """Hold the line no longer."""
        with self._closing:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def lookout(self) -> "Lookout | None":
        """Something that sees whether others hold the line; ``None`` if the FIFO is gone."""
        try:
            return Lookout(os.open(self._home.life, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            return None

    def _is_acknowledged(self, patience: Patience) -> bool:
        name = secrets.token_hex(8)
        answer = self._home.directory / f"hello.{name}"
        try:
            os.write(self._descriptor, f"hello {name}\n".encode())
            while not answer.exists():
                if self._is_unread():
                    return False
                patience.nap()
            answer.unlink()
        except OSError:  # the supervisor ended and took the directory along
            return False
        return True

    def _is_unread(self) -> bool:
        if self._home.exit_code is not None or self._home.is_gone():
            return True
        # Systems differ in what they call a pipe without a reader.
        return bool(_events(self._descriptor, select.POLLOUT) & (select.POLLERR | select.POLLHUP))


class Lookout:
    """A read end that is only polled, never read: what is written belongs to the supervisor.

    It has to be opened while a write end is open. Then the kernel knows that there was a writer, and
    reports the hang-up exactly when there is none left.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over `descriptor`, a non-blocking read end."""
        self._descriptor = descriptor

    def sees_nobody(self) -> bool:
        """Whether no process holds the life line."""
        return bool(_events(self._descriptor, select.POLLIN) & select.POLLHUP)

    def close(self) -> None:
        """Look no longer."""
        os.close(self._descriptor)


def _open_to_write(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)


def _events(descriptor: int, wanted: int) -> int:
    poll = select.poll()
    poll.register(descriptor, wanted)
    found = poll.poll(0)
    return found[0][1] if found else 0
