"""Every Python block of README and docs is run; what a page says about its output has to be true."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

import aioreactor
from tests.docs.blocks import Malformed, Page, blocks_of, documents, examples_of, name_of

_DOCUMENTS = documents()


@pytest.mark.parametrize("path", _DOCUMENTS, ids=name_of)
def test_every_block_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one module and one event loop; a failure names the file and the line."""
    for name in list(os.environ):
        if name.startswith("AIOREACTOR_"):
            monkeypatch.delenv(name)
    aioreactor.configure()
    try:
        with Page(path).open() as page:
            for example in examples_of(path):
                page.run(example)
    finally:
        aioreactor.configure()


def _page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    file = tmp_path / "page.md"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\n1 / 0\n```\n", "page.md:1: the block raised ZeroDivisionError"),
        ("\n```python raises=ValueError\npass\n```\n", "page.md:2: the block has to raise ValueError, and raised noth"),
        ("```python raises=ValueError\n1 / 0\n```\n", "page.md:1: the block has to raise ValueError, not Zero"),
        ("```python\nprint(1)\n```\n\nOutput:\n\n```text\n2\n```\n", "page.md:7: the block at line 1 printed"),
    ],
)
def test_a_wrong_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str) -> None:
    """The test can fail: each kind of mistake on a page is reported with its place."""
    file = _page(tmp_path, monkeypatch, text)
    with pytest.raises(AssertionError) as caught, Page(file).open() as page:
        for example in examples_of(file):
            page.run(example)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["```python skip\npass\n```\n", "```py\npass\n```\n", "```python\npass\n", "```text\n```\nOutput:\n```text\n```"],
)
def test_a_block_cannot_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Unknown options, other spellings of the language, and loose ends are refused."""
    with pytest.raises(Malformed):
        examples_of(_page(tmp_path, monkeypatch, text))


def _commands() -> list[Any]:
    """The word after ``aioreactor`` wherever a console block calls it, by whatever path."""
    found = []
    for path in _DOCUMENTS:
        for block in blocks_of(path):
            lines = enumerate(block.lines, block.line + 1) if block.language == "console" else ()
            for number, line in lines:
                for call in line.removeprefix("$ ").split("&&"):
                    words = call.split()
                    if len(words) > 1 and words[0].rpartition("/")[2] == "aioreactor":
                        found.append(pytest.param(words[1], id=f"{name_of(path)}:{number}"))
    return found


@pytest.mark.parametrize("command", _commands())
def test_every_command_exists(command: str) -> None:
    """What a page tells to type after ``aioreactor`` is a command of it."""
    try:
        cli = importlib.import_module("aioreactor.cli.app").cli
    except ModuleNotFoundError as error:
        pytest.skip(f"the command line is not there: {error}")
    assert command in cli.commands
