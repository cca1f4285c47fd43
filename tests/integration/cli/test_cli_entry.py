"""The command itself: help, version, completion, and what it says when its extra is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aioreactor

if TYPE_CHECKING:
    from .cli_support import Invoke, Start


def test_version(start: Start) -> None:
    done = start("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"aioreactor, version {aioreactor.__version__}")


def test_help_names_commands_exit_codes_and_completion(start: Start) -> None:
    done = start("--help")
    assert done.returncode == 0
    for word in (
        "demo",
        "graph",
        "check",
        "worker",
        "sweep",
        "locks",
        "Exit codes",
        "_AIOREACTOR_COMPLETE",
        "aioreactor demo",
    ):
        assert word in done.stdout


@pytest.mark.parametrize("command", ["demo", "graph", "check", "worker", "sweep", "locks"])
def test_every_command_has_help(invoke: Invoke, command: str) -> None:
    done = invoke(command, "-h")
    assert done.exit_code == 0
    assert f"Usage: aioreactor {command}" in done.output


def test_an_unknown_command_is_a_usage_error(start: Start) -> None:
    done = start("dmeo")
    assert (done.returncode, done.stdout) == (2, "")
    assert "dmeo" in done.stderr


def test_completion(start: Start) -> None:
    done = start(_AIOREACTOR_COMPLETE="bash_source")
    assert done.returncode == 0
    assert "complete" in done.stdout


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom aioreactor.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'aioreactor: {missing} is not installed; pip install "aioreactor[cli]"\n'


def test_another_missing_module_is_not_mistaken_for_the_extra() -> None:
    code = "import sys; sys.modules['msgspec.json'] = None; sys.modules['aioreactor.cli.app'] = None\n"
    code += "from aioreactor.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install" not in done.stderr


def test_the_library_does_not_import_its_command_line() -> None:
    code = "import sys, aioreactor; print([m for m in sys.modules if m.startswith(('aioreactor.cli', 'rich'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
