"""A directory whose data outlives the server, and the lock that lets one server at a time have it."""

import fcntl
import os
from pathlib import Path

from aioreactor.embedded.home import Home

LOCK_NAME = "aioreactor.lock"


class Lock:
    """The locked file, open. The server inherits it; here it is closed once the server answers."""

    def __init__(self, descriptor: int) -> None:
        """Take over `descriptor`, which holds the lock."""
        self.descriptor = descriptor
        _open_locks.add(self)

    def announce(self, home: Home) -> None:
        """Tell others, in the locked file, where the server lives."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, os.fsencode(home.directory) + b"\n", 0)

    def close(self) -> None:
        """Give up this process's part of the lock."""
        _open_locks.discard(self)
        os.close(self.descriptor)


_open_locks: set[Lock] = set()


def _close_in_child() -> None:
    # A child that another thread forks right now would keep the lock for as long as it lives, and with it
    # the data directory after the server's end.
    for lock in tuple(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


class DataDir:
    """The data directory; its lock file names the directory of the server that runs for it.

    The lock belongs to the open file, and the server process inherits that file: the lock is held from
    before the server starts until it is gone, and a stale one cannot exist.
    """

    def __init__(self, path: Path) -> None:
        """Make `path` if it does not exist.

        Raises:
            OSError: It cannot be made.
        """
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path.resolve()
        self._lock_file = self.path / LOCK_NAME

    def try_lock(self) -> Lock | None:
        """Take the lock; ``None`` if a server has it.

        Raises:
            OSError: The file cannot be opened, or the file system has no locks.
        """
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return Lock(descriptor)

    def owner(self) -> Home | None:
        """Where the server that holds the lock lives; ``None`` while that is not written.

        The name may still be that of the previous server. `LifeLine.join` finds out; the caller tries again.
        """
        written = self._lock_file.read_bytes()
        if not written.endswith(b"\n"):
            return None
        home = Home(Path(os.fsdecode(written[:-1])))
        return home if home.is_ours() else None
