"""Fixtures of the tests of the embedded server, and the invariants that hold after every one of them."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioreactor.embedded.binary import find_server_binary
from tests.integration.embedded.embedded_kit import (
    PACKAGE_PARENT,
    PATIENCE_SECONDS,
    PROGRAM,
    Gate,
    Program,
    eventually,
    greet,
    make_executable,
    open_descriptors,
)


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty temporary directory for servers, on a short path."""
    tmp_path_factory.getbasetemp()  # made lazily, and it must not be made in here
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(base: Path) -> Iterator[None]:
    """After every test: no directory, hence no supervisor, and no descriptor too many."""
    before = open_descriptors()
    yield
    eventually(lambda: not list(base.iterdir()))
    eventually(lambda: open_descriptors() <= before)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def spawn(base: Path) -> Iterator[Callable[..., Program]]:  # base: ended after it
    """Starts programs, to be killed after the test. ``wait=False`` does not await the server."""
    started: list[subprocess.Popen[str]] = []

    def start(*, script: str = PROGRAM, wait: bool = True, **options: Any) -> Program:
        process = subprocess.Popen(
            [sys.executable, "-c", script, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
            start_new_session=True,
        )
        started.append(process)
        program = Program(process, {})
        if wait:
            greet(program)
        return program

    yield start
    for process in started:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Makes starts wait for `Gate.open`."""
    fifo, binary = tmp_path / "gate", tmp_path / "gated-server"
    os.mkfifo(fifo)
    real = shlex.quote(str(find_server_binary()))
    make_executable(binary, f'read _ <{shlex.quote(str(fifo))}; exec {real} "$@"')
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", str(binary))
    descriptor = os.open(fifo, os.O_RDWR)
    yield Gate(binary, descriptor)
    os.close(descriptor)
