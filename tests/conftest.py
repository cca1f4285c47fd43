"""Shared by all tests: invariants that hold around every one of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell: the processes that tests start and interrupt would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    """Whatever a test does, the engine leaves no task behind."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left behind: {left}"
