"""Reactors by their stored names: imported on demand, but only from modules that are open to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioreactor import registry
from aioreactor.errors import UnknownReactor
from aioreactor.registry import find_reactor, open_modules

SOURCE = """
from aioreactor import Reactor, step

class Late(Reactor[int]):
    @step
    async def a(self) -> int:
        return 1
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"ondemand_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "late.py").write_text(SOURCE)
    (tmp_path / name / "broken.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_open_to_import", set())
    yield name
    for module in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[module]


def test_a_stored_name_imports_below_what_is_open(package: str) -> None:
    open_modules([package])
    assert find_reactor(f"{package}.late:Late").plan.name == f"{package}.late:Late"


@pytest.mark.parametrize("opened", [[], ["json"], ["ondemand"]])
def test_no_other_module_is_ever_imported(package: str, opened: list[str]) -> None:
    open_modules(opened)
    with pytest.raises(UnknownReactor, match="import the module"):
        find_reactor(f"{package}.late:Late")
    assert f"{package}.late" not in sys.modules


def test_a_module_that_cannot_be_imported_says_why(package: str) -> None:
    open_modules([package])
    with pytest.raises(UnknownReactor, match="cannot be imported: RuntimeError: no licence"):
        find_reactor(f"{package}.broken:Late")
    with pytest.raises(UnknownReactor, match="ModuleNotFoundError"):
        find_reactor(f"{package}.nowhere:Late")
    with pytest.raises(UnknownReactor, match="import the module"):
        find_reactor(f"{package}.late:Other")
