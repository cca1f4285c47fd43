"""Helpers of the tests of the embedded server: processes to be killed, and what to look at afterwards."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aioreactor

PACKAGE_PARENT = Path(aioreactor.__file__).parent.parent
PATIENCE_SECONDS = 30

# Starts a server, tells about it in one line of JSON, then obeys one word per line.
PROGRAM = """
import json, os, sys
from aioreactor.embedded import EmbeddedServer

server = EmbeddedServer.start(**json.loads(sys.argv[1]))
try:
    print(json.dumps({
        "pid": server.pid, "directory": str(server.directory), "socket": str(server.socket_path),
        "url": server.url, "attached": server.attached,
    }), flush=True)
    for word in sys.stdin:
        if word == "_exit\\n":
            os._exit(3)
        if word == "raise\\n":
            raise RuntimeError("unhandled")
        if word == "stop\\n":
            server.stop()
            print("stopped", flush=True)
except KeyboardInterrupt:
    print("alive" if server.alive else "dead", flush=True)
    sys.stdin.readline()
    server.stop()
"""


def eventually(true: Callable[[], bool]) -> None:
    """Wait for something that another process does and that sends no event."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def ask(path: str | Path, *words: str) -> bytes:
    """The raw reply of the server on a unix socket to one command."""
    command = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(str(path))
        connection.sendall(command.encode())
        return connection.recv(65536)


def open_descriptors() -> int:
    """How many descriptors this process has open (one of them by looking)."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(told.stdout.strip()) and not told.stdout.strip().startswith("Z")


@dataclass
class Program:
    """A process that runs `PROGRAM`."""

    process: subprocess.Popen[str]
    told: dict[str, Any]

    def say(self, word: str) -> None:
        """Send one word."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Wait for one line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill it, with no chance to clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    @property
    def socket(self) -> str:
        """The server's socket."""
        return str(self.told["socket"])

    def server_is_gone(self) -> bool:
        """Whether neither the server nor its directory is left."""
        return not Path(self.told["directory"]).exists() and not is_running(self.told["pid"])


def greet(program: Program) -> Program:
    """Wait until its server answers."""
    line = program.hear()
    if not line:
        assert program.process.stderr is not None
        pytest.fail(program.process.stderr.read())
    program.told = json.loads(line)
    return program


@dataclass
class Gate:
    """A binary that becomes the real server only once the gate is open."""

    binary: Path
    descriptor: int

    def open(self) -> None:
        """Let the server start."""
        os.write(self.descriptor, b"\n")


def make_executable(path: Path, script: str) -> Path:
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
