"""The directions of imports hold: what each package may know of is written in ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def test_a_package_imports_only_from_those_below_it() -> None:
    config = Path(__file__).parents[2] / "pyproject.toml"
    assert lint_imports(config_filename=str(config), no_cache=True) == EXIT_STATUS_SUCCESS
