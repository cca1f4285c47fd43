"""What a user's editor says: ``ok_*`` has no errors, every error of ``bad_*`` is marked ``# E: mypy-code`` on its line.

Each checker runs once, over all files; what it finds is compared with the marks as sets of (file, line).
"""

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
MARK = re.compile(r"#\s*E: (\S+)")
MYPY_LINE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$")
Place = tuple[str, int]


def expected(*patterns: str) -> dict[Place, set[str]]:
    """Marked lines with the mypy codes that are right there (``a|b``: either)."""
    found: dict[Place, set[str]] = {}
    for pattern in patterns:
        for path in HERE.glob(pattern):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if mark := MARK.search(line):
                    found[path.name, number] = set(mark.group(1).split("|"))
    return found


def _in_a_copy(run: Callable[[Path], str]) -> str:
    """Run a checker on a copy of the snippets, so that no configuration of the project reaches it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path in HERE.glob("*_*.py"):
            if not path.name.startswith("test_"):
                shutil.copy(path, folder)
        return run(folder)


@functools.cache
def mypy_errors() -> dict[Place, set[str]]:
    def run(folder: Path) -> str:
        files = sorted(path.name for path in folder.glob("*.py"))
        options = ["--strict", "--config-file=", "--no-error-summary", "--hide-error-context", "--no-pretty"]
        command = [sys.executable, "-m", "mypy", *options, "--cache-dir", str(folder / "cache"), *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 1}, done.stdout + done.stderr
        return done.stdout

    found: dict[Place, set[str]] = {}
    for line in _in_a_copy(run).splitlines():
        if match := MYPY_LINE.match(line):
            found.setdefault((match["file"], int(match["line"])), set()).add(match["code"])
    return found


@functools.cache
def pyright_errors() -> dict[Place, str]:
    def run(folder: Path) -> str:
        (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
        command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 1}, done.stdout + done.stderr
        return done.stdout

    entries = json.loads(_in_a_copy(run))["generalDiagnostics"]
    return {
        (Path(entry["file"]).name, entry["range"]["start"]["line"] + 1): entry["message"]
        for entry in entries
        if entry["severity"] == "error"
    }


def places(found: Iterable[Place], *prefixes: str) -> set[Place]:
    return {place for place in found if place[0].startswith(prefixes)}


def test_mypy_finds_exactly_the_marked_errors() -> None:
    wanted, found = expected("ok_*.py", "bad_*.py"), mypy_errors()
    assert wanted, "no marks were read"
    assert places(found, "ok_", "bad_") == set(wanted)
    assert {place: found[place] for place in wanted if not found[place] & wanted[place]} == {}


def test_pyright_finds_exactly_the_marked_errors() -> None:
    wanted = expected("ok_*.py", "bad_*.py")
    assert wanted, "no marks were read"
    assert places(pyright_errors(), "ok_", "bad_") == set(wanted)


def test_mypy_finds_wirings_that_only_the_path_overload_accepts() -> None:
    assert places(mypy_errors(), "gap_") == set(expected("gap_*.py"))


def test_pyright_finds_wirings_that_only_the_path_overload_accepts() -> None:
    assert places(pyright_errors(), "gap_") == set(expected("gap_*.py"))
