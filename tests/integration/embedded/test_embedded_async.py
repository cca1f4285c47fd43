"""From a coroutine: the loop goes on, and cancellation leaves nothing behind."""

import asyncio
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from aioreactor.embedded import EmbeddedServer, ServerStartError, launch_async
from aioreactor.embedded.hold import Hold
from aioreactor.embedded.launch import obtain
from aioreactor.embedded.options import Options
from aioreactor.embedded.patience import GaveUp, Patience
from tests.integration.embedded.embedded_kit import Gate, ask, eventually

pytestmark = pytest.mark.asyncio


async def until_started(base: Path) -> None:
    """Wait until a server process was started, though it may not answer."""
    await anyio.to_thread.run_sync(eventually, lambda: bool(list(base.glob("*/pid"))))


async def test_around_a_block() -> None:
    """Started before the block, gone after it."""
    async with EmbeddedServer.running() as server:
        assert ask(server.socket_path, "PING") == b"+PONG\r\n"
    assert not server.directory.exists()


async def test_the_loop_runs_while_it_starts(gate: Gate) -> None:
    """The server cannot start before another task of the same loop has opened the gate."""

    async def open_gate() -> None:
        gate.open()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_gate)
        async with EmbeddedServer.running(timeout=10) as server:
            assert ask(server.socket_path, "PING") == b"+PONG\r\n"


async def test_an_error_passes_through() -> None:
    """The exception is the one that `start` raises."""
    with pytest.raises(ServerStartError, match="no-such-option"):
        async with EmbeddedServer.running(extra_args=["--no-such-option", "1"]):
            pytest.fail("it cannot have started")


async def test_an_error_in_the_block_stops_it() -> None:
    """Leaving by an exception is leaving."""
    directories: list[Path] = []

    async def fail_inside() -> None:
        async with EmbeddedServer.running() as server:
            directories.append(server.directory)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_inside()
    assert [directory.exists() for directory in directories] == [False]


@pytest.mark.usefixtures("gate")
async def test_cancelled_by_a_scope_while_starting(base: Path) -> None:
    """It does not wait for a server that may never answer; the thread cleans up (seen by the fixture)."""

    async def start() -> None:
        async with EmbeddedServer.running():
            pytest.fail("the gate is closed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        await until_started(base)
        tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("gate")
async def test_cancelled_by_its_task_while_starting(base: Path) -> None:
    """The same for ``task.cancel()``, which knows no shields."""

    async def start() -> None:
        async with EmbeddedServer.running():
            pytest.fail("the gate is closed")

    task = asyncio.create_task(start())
    await until_started(base)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_inside_the_block() -> None:
    """The stop is awaited in spite of the cancelled scope."""
    directory: Path | None = None
    with anyio.CancelScope() as scope:
        async with EmbeddedServer.running() as server:
            directory = server.directory
            scope.cancel()
            await anyio.sleep_forever()
    assert directory is not None
    assert not directory.exists()


@pytest.mark.parametrize("first", ["thread", "canceller"])
async def test_thread_and_cancellation_meet(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes later ends the server, so it is ended whichever that is."""
    came, go = threading.Event(), threading.Event()

    def slow_obtain(options: Options, patience: Patience) -> Hold:
        hold = obtain(options, patience)
        came.set()
        go.wait()
        return hold

    def run_late() -> None:
        with pytest.raises(GaveUp):
            launch._run()

    monkeypatch.setattr(launch_async, "obtain", slow_obtain)
    launch = launch_async.Launch(Options.checked(data_dir=None, tcp=False, extra_args=(), timeout=9))
    thread = threading.Thread(target=run_late)
    if first == "thread":
        go.set()
        await anyio.to_thread.run_sync(launch._run)
        launch._abandon()
    else:
        thread.start()
        await anyio.to_thread.run_sync(came.wait)
        launch._abandon()
        go.set()
        await anyio.to_thread.run_sync(thread.join)


async def test_a_busy_thread_pool_does_not_keep_it_waiting() -> None:
    """Threads that wait for the server must not use up those that start it."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    occupied, release = threading.Event(), threading.Event()

    def wait_for_release() -> None:
        occupied.set()
        release.wait()

    async def occupy() -> None:
        await anyio.to_thread.run_sync(wait_for_release)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(occupy)
            await anyio.to_thread.run_sync(occupied.wait, limiter=anyio.CapacityLimiter(1))
            async with EmbeddedServer.running() as server:
                assert server.alive
            release.set()
    finally:
        limiter.total_tokens = before
