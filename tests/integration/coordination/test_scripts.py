"""The Lua files of the package keep the rules."""

from __future__ import annotations

from aioreactor.coordination.desk import scripts


def test_the_packages_own_scripts_keep_the_rules() -> None:
    assert scripts.audit() == []
    assert len(scripts) >= 18
