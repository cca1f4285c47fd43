"""The seam for fault injection."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aioreactor.store.calls import Call
from aioreactor.store.client import StoreClient
from aioreactor.store.errors import OutcomeUnknown, ReplyError
from tests.integration.store_client.samples import ONCE, PUSH, Connect, entries
from tests.integration.store_client.servers import Server


class Crash(BaseException):
    """Stands for the death of the process."""


class Hook:
    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.before: Callable[[Call], None] = lambda call: None
        self.after: Callable[[Call, Any], None] = lambda call, reply: None

    def before_send(self, call: Call) -> None:
        self.log.append(("send", call.name))
        self.before(call)

    def after_reply(self, call: Call, reply: Any) -> None:
        self.log.append(("reply", call.name))
        self.after(call, reply)


def only(number: int, error: BaseException) -> Callable[..., None]:
    """Raises at the n-th call."""
    seen = 0

    def act(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise error

    return act


async def test_it_sees_every_call(connect: Connect, shared_server: Server, key: str) -> None:
    hook = Hook()
    client = connect(shared_server.url, hook=hook)
    await client.run(PUSH, [key], [1])
    await client.execute("PING")
    assert hook.log == [("send", "log_push_a"), ("reply", "log_push_a"), ("send", "PING"), ("reply", "PING")]


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_connection_lost_at_every_point(
    connect: Connect, shared_server: Server, key: str, side: str, number: int
) -> None:
    hook = Hook()
    setattr(hook, side, only(number, ConnectionResetError("lost")))
    client = connect(shared_server.url, hook=hook)
    replies = await asyncio.gather(*(client.run(ONCE, [key], [i]) for i in range(10)))
    assert len(replies) == 10
    assert await entries(client, key) == list(range(10))


async def test_lost_before_sending_is_safe_to_repeat_for_any_command(
    connect: Connect, shared_server: Server, key: str
) -> None:
    hook = Hook()
    client = connect(shared_server.url, hook=hook)
    await client.execute("PING")
    hook.before = only(2, ConnectionResetError("lost"))
    first, second, third = await asyncio.gather(
        *(client.execute("INCR", key) for _ in range(3)), return_exceptions=True
    )
    assert isinstance(first, OutcomeUnknown)
    assert {second, third} <= {1, 2, 3}


async def test_a_crash_before_sending_means_not_applied(connect: Connect, shared_server: Server, key: str) -> None:
    hook = Hook()
    client = connect(shared_server.url, hook=hook)
    hook.before = only(2, Crash())
    results = await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(3)), return_exceptions=True)
    assert isinstance(results[1], Crash)
    assert await entries(client, key) == [0, 2]


async def test_a_crash_after_the_reply_means_applied(connect: Connect, shared_server: Server, key: str) -> None:
    hook = Hook()
    client = connect(shared_server.url, hook=hook)
    hook.after = only(2, Crash())
    results = await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(3)), return_exceptions=True)
    assert isinstance(results[1], Crash)
    assert await entries(client, key) == [0, 1, 2]


async def test_it_sees_error_replies(connect: Connect, shared_server: Server) -> None:
    hook = Hook()
    replies: list[Any] = []
    hook.after = lambda call, reply: replies.append(reply)
    with pytest.raises(ReplyError):
        await connect(shared_server.url, hook=hook).execute("NONSENSE")
    assert isinstance(replies[0], ReplyError)


KILLED = """
import asyncio, os, signal, sys
sys.path[:0] = sys.argv[3:]
from tests.integration.store_client.samples import PUSH
from aioreactor.store.client import StoreClient

class Hook:
    def before_send(self, call): pass
    def after_reply(self, call, reply):
        if reply[1] == 3: os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with StoreClient(sys.argv[1], hook=Hook()) as client:
        for i in range(10):
            await client.run(PUSH, [sys.argv[2]], [i])

asyncio.run(main())
"""


async def test_a_process_can_be_killed_at_an_exact_point(client: StoreClient, shared_server: Server, key: str) -> None:
    here = os.path.dirname(__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, shared_server.url, key, here, os.path.dirname(here)
    )
    assert await process.wait() == -signal.SIGKILL
    assert await entries(client, key) == [0, 1, 2]
