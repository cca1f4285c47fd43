"""The directory of one running server: what is in it, and where it can be."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

# sockaddr_un has room for 104 bytes on macOS (108 on Linux), the closing zero included.
LONGEST_SOCKET_PATH: Final = 103
PREFIX: Final = "aior-"
# "/aior-", the eight letters that mkdtemp appends, "/s".
_ROOM_NEEDED: Final = 1 + len(PREFIX) + 8 + 2
_LOG_WINDOW: Final = 64 * 1024
# Far longer than a new directory needs until it is locked.
_LEFTOVER_AGE_SECONDS: Final = 60


class Home:
    """Names and reads the files of a server's directory.

    Every file is written by one side and read by others that may look at any moment, so each is taken
    as present only once its last byte, a newline, is there.
    """

    def __init__(self, directory: Path) -> None:
        """Name the files below `directory`, which need not exist."""
        self.directory = directory
        self.socket = directory / "s"
        self.life = directory / "life"
        self.log = directory / "log"
        self._pid = directory / "pid"
        self._port = directory / "port"
        self._exit = directory / "exit"

    @classmethod
    def fresh(cls) -> "Home":
        """A new empty directory that only this user can enter, on a path short enough for a socket.

        Raises:
            OSError: None of the temporary directories is short and writable.
        """
        last: OSError | None = None
        for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108
            if len(os.fsencode(base)) + _ROOM_NEEDED > LONGEST_SOCKET_PATH:
                continue
            try:
                home = cls(Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)))
            except OSError as error:
                last = error
                continue
            _remove_leftovers(Path(base))
            return home
        raise last or OSError("no temporary directory has a path short enough for a unix socket")

    @property
    def pid(self) -> int | None:
        """The server's process id, once the supervisor has started it."""
        return _number(self._pid)

    @property
    def exit_code(self) -> int | None:
        """The server's exit status as the shell saw it; ``None`` while it runs."""
        return _number(self._exit)

    @property
    def port(self) -> int | None:
        """The port on 127.0.0.1; ``None`` for a server without TCP."""
        return _number(self._port)

    def set_port(self, port: int) -> None:
        """Publish the port, for those who attach."""
        self._port.write_text(f"{port}\n")

    def is_ours(self) -> bool:
        """Whether the directory exists and belongs to this user.

        A path that comes from a file may be stale, and somebody else may have made a directory of that
        name since; theirs is never entered.
        """
        try:
            status = os.lstat(self.directory)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()

    def is_gone(self) -> bool:
        """Whether the supervisor has removed the directory, its last act."""
        return not self.directory.exists()

    def log_tail(self, lines: int) -> str:
        """The last `lines` lines of the log; empty if there is none."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_WINDOW))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""

    @contextlib.contextmanager
    def locked(self) -> Generator[int, None, None]:
        """A descriptor whose lock says that the directory is in use, for processes to inherit.

        It tells two who would remove the directory that it is in use: ``systemd-tmpfiles``, which removes
        what is old below ``/tmp``, and `_remove_leftovers`.
        """
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # without locks, nobody can look for one either
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield descriptor
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the directory, if the supervisor could not."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _remove_leftovers(base: Path) -> None:
    """Remove directories of servers that are no more.

    One stays behind when the machine loses power, or when a process is killed in the millisecond between
    making the directory and starting the supervisor that would remove it.
    """
    with contextlib.suppress(OSError):
        for entry in base.glob(f"{PREFIX}*"):
            home = Home(entry)
            if home.is_ours() and time.time() - entry.stat().st_mtime > _LEFTOVER_AGE_SECONDS:
                _remove_unless_locked(home)


def _remove_unless_locked(home: Home) -> None:
    descriptor = os.open(home.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        home.remove()
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return int(text) if text.endswith("\n") else None
