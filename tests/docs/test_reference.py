"""The reference is in step with the code: the API page, the errors, the hooks, the links."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import aioreactor
from aioreactor.embedded import errors as embedded_errors
from aioreactor.engine import events
from aioreactor.engine.hooks import HOOKS
from aioreactor.store import errors as store_errors
from tests.docs.blocks import ROOT, documents, name_of

DOCS = ROOT / "docs"


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_reference", DOCS / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_page_is_up_to_date() -> None:
    """Run ``python docs/build_reference.py`` after a change of the public names or their docstrings."""
    builder = _builder()
    assert (DOCS / "reference" / "api.md").read_text(encoding="utf-8") == builder.render()


def test_every_error_is_explained() -> None:
    """The page of errors names each class of the tree."""
    text = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    errors = [
        name
        for name in aioreactor.__all__
        if isinstance(item := getattr(aioreactor, name), type) and issubclass(item, aioreactor.AioreactorError)
    ]
    assert [name for name in errors if name not in text] == []


def test_every_error_of_the_store_is_explained() -> None:
    """They reach users too, though they are not at the top of the package."""
    text = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    names = [
        name
        for module in (embedded_errors, store_errors)
        for name, item in vars(module).items()
        if isinstance(item, type) and issubclass(item, aioreactor.AioreactorError)
    ]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_setting_is_explained() -> None:
    """The table of settings has each of them."""
    text = (DOCS / "guides" / "running.md").read_text(encoding="utf-8")
    assert [option.name for option in fields(aioreactor.Settings) if f"`{option.name}`" not in text] == []


def test_every_log_line_is_explained() -> None:
    """The page on observing names each line that the package logs by ``note``."""
    text = (DOCS / "guides" / "observing.md").read_text(encoding="utf-8")
    found = set()
    for source in (ROOT / "aioreactor").rglob("*.py"):
        found |= set(re.findall(r"note\(\s*logger,\s*logging\.[A-Z]+,\s*\"(\w+)\"", source.read_text(encoding="utf-8")))
    assert found
    assert sorted(name for name in found if f"`{name}`" not in text) == []


def test_every_hook_and_event_field_is_explained() -> None:
    """The page on observing names each hook, each event class and each field that it adds."""
    text = (DOCS / "guides" / "observing.md").read_text(encoding="utf-8")
    missing = [hook for hook in HOOKS if f"`{hook}`" not in text]
    rows = {cells[1].strip(" `"): cells[2] for line in text.splitlines() if len(cells := line.split("|")[1:-1]) == 3}
    common = set(events.Event.__struct_fields__)
    for name, kind in vars(events).items():
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event:
            own = set(kind.__struct_fields__) - common
            missing += [f"{name}.{field}" for field in own if f"`{field}`" not in rows.get(name, "")]
    assert missing == []


def test_every_setting_and_class_keyword_is_explained() -> None:
    """Each field of `Settings` is in the guide to running, each class keyword in the one to defining."""
    from dataclasses import fields

    from aioreactor.definition.policies import OPTION_NAMES

    running = (DOCS / "guides" / "running.md").read_text(encoding="utf-8")
    defining = (DOCS / "guides" / "defining.md").read_text(encoding="utf-8")
    missing = [option.name for option in fields(aioreactor.Settings) if f"`{option.name}`" not in running]
    missing += [name for name in sorted(OPTION_NAMES) if f"`{name}`" not in defining]
    assert missing == []


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


def _anchors(path: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {_anchor(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    """Links between the pages, to files and to headings."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []
