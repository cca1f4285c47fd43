"""Two profiles: ``ci`` is quick; ``AIOREACTOR_HYPOTHESIS=deep`` looks long. Failures print a blob to repeat them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_COMMON: dict[str, Any] = {
    "deadline": None,
    "derandomize": False,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}
settings.register_profile("ci", max_examples=120, **_COMMON)
settings.register_profile("deep", max_examples=3000, **_COMMON)
settings.load_profile(os.environ.get("AIOREACTOR_HYPOTHESIS", "ci"))


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Rollback failures are wanted here; their log lines are not."""
    names = ("aioreactor.rollback", "aioreactor.engine", "aioreactor.hooks")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
