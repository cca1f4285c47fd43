"""The command as a person starts it (a process of its own), and in process for what needs no process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from aioreactor.cli.app import cli

if TYPE_CHECKING:
    from .cli_support import Invoke, Start, Started, StartIn, WriteModule


@pytest.fixture(scope="session")
def start_in() -> StartIn:
    """``start_in(folder, "demo", "--json")``: run it as a process there; no traceback may come out of it."""

    def run(folder: Path, *args: str, **environment: str) -> Started:
        drop = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
        clean = {name: text for name, text in os.environ.items() if name not in drop}
        done = subprocess.run(
            [sys.executable, "-m", "aioreactor", *args],
            cwd=folder,
            env={**clean, "PYTHONIOENCODING": "utf-8", **environment},
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    return run


NONSENSE = {"AIOREACTOR_REDIS_URL": "unix:///nowhere", "AIOREACTOR_LEASE_TTL": "9", "AIOREACTOR_QUEUE": "theirs"}


@pytest.fixture(scope="session")
def as_text(start_in: StartIn, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """What ``aioreactor demo`` printed."""
    return start_in(tmp_path_factory.mktemp("demo"), "demo")


@pytest.fixture(scope="session")
def as_json(start_in: StartIn, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """What ``aioreactor demo --json`` printed, for a person who has a store of their own configured."""
    return start_in(tmp_path_factory.mktemp("demo"), "demo", "--json", **NONSENSE)


@pytest.fixture
def start(start_in: StartIn, tmp_path: Path) -> Start:
    """``start("demo", "--json")``: run it as a process in an empty folder."""
    return partial(start_in, tmp_path)


@pytest.fixture
def invoke() -> Invoke:
    """``invoke("check", "shop")``: run it in this process."""

    def run(*args: str) -> Result:
        done = CliRunner().invoke(cli, args, prog_name="aioreactor")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """``write_module("shop", "…")``: a module in the current folder, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name: str, source: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    yield write
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
