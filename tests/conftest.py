"""Shared by all tests: invariants that hold around every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    """Whatever a test does, the engine leaves no task behind."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left behind: {left}"
