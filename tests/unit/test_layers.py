"""The directions of imports hold: what each package may know of is written in ``pyproject.toml``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_package_imports_only_from_those_below_it() -> None:
    # In a process of its own: the checker configures logging for itself, and would silence ours.
    check = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    found = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    assert "0 broken" in found.stdout
