from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.kit import Script, script


@pytest.fixture(autouse=True)
def fresh_script() -> Iterator[Script]:
    script.reset()
    yield script
    script.reset()
