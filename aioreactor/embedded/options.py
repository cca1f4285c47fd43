"""What the caller asked for, checked before anything starts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aioreactor.embedded.home import Home

# What this package decides: another value would break the supervisor, the lock or the readiness check.
RESERVED = frozenset(
    {"port", "unixsocket", "unixsocketperm", "dir", "daemonize", "supervised", "logfile", "appendonly"}
)


@dataclass(frozen=True, slots=True)
class Options:
    """How a server is to be started."""

    data_dir: Path | None
    tcp: bool
    extra_args: tuple[str, ...]
    timeout: float

    @classmethod
    def checked(
        cls,
        *,
        data_dir: str | os.PathLike[str] | None,
        tcp: bool,
        extra_args: Sequence[str],
        timeout: float,
    ) -> "Options":
        """The options, with the data directory made absolute.

        Raises:
            ValueError: An extra argument sets what this package has to decide, or is none.
        """
        arguments = (extra_args,) if isinstance(extra_args, str) else tuple(extra_args)
        if arguments and not arguments[0].startswith("--"):
            raise ValueError(f"extra_args must begin with an option like '--maxmemory', not {arguments[0]!r}")
        for argument in arguments:
            if argument.startswith("--") and argument[2:].lower() in RESERVED:
                raise ValueError(f"extra_args cannot set {argument}: the embedded server decides it itself")
        directory = None if data_dir is None else Path(data_dir).expanduser().absolute()
        return cls(directory, tcp, arguments, timeout)

    def command(self, binary: Path, home: Home, port: int) -> list[str]:
        """The server's command line. Later options win, so the caller's come last."""
        data = ("yes", self.data_dir) if self.data_dir else ("no", home.directory)
        settings = {
            "port": port,
            "bind": "127.0.0.1",
            "unixsocket": home.socket,
            "unixsocketperm": "700",
            "dir": data[1],
            "save": "",
            "appendonly": data[0],
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "hz": 50,
            "daemonize": "no",
            "logfile": "",
        }
        pairs = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [str(binary), *pairs, *self.extra_args]
