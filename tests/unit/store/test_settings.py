"""Settings of leases and replication: what fits, what does not, and where they come from."""

from __future__ import annotations

from typing import Any

import pytest

from aioreactor import Settings


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, None),
        ({"lease_thread_limit": 90.0}, None),
        ({"lease_thread": True}, 300.0),
        ({"lease_thread": True, "lease_ttl": 2.0}, 20.0),
        ({"lease_thread": True, "lease_thread_limit": 45.0}, 45.0),
    ],
)
def test_the_limit_of_the_lease_thread(given: dict[str, Any], limit: float | None) -> None:
    assert Settings(**given).thread_limit == limit


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"lease_thread_limit": 29.0}, "at least lease_ttl, 30 s"),
        ({"wait_replicas": -1}, "0 or more"),
        ({"wait_replicas_timeout": 3.5}, "from 0.001 to 3 s"),
        ({"wait_replicas_timeout": 0.0}, "from 0.001 to 3 s"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Settings(**given)


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("ON", True), ("0", False), ("no", False)])
def test_variables(monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.setenv("AIOREACTOR_LEASE_THREAD", text)
    monkeypatch.setenv("AIOREACTOR_LEASE_THREAD_LIMIT", "60")
    monkeypatch.setenv("AIOREACTOR_WAIT_REPLICAS", "2")
    monkeypatch.setenv("AIOREACTOR_WAIT_REPLICAS_TIMEOUT", "0.5")
    found = Settings.from_environment()
    assert (found.lease_thread, found.thread_limit) == (on, 60.0 if on else None)
    assert (found.wait_replicas, found.wait_replicas_timeout) == (2, 0.5)


def test_a_variable_that_is_no_flag_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOREACTOR_LEASE_THREAD", "maybe")
    with pytest.raises(ValueError, match="AIOREACTOR_LEASE_THREAD='maybe': use 1 or 0"):
        Settings.from_environment()
