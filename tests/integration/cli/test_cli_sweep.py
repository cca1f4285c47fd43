"""``aioreactor sweep``: which runs it finds, who goes on with them, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from aioreactor import Reactor, Resource, Runtime, Settings, runs, step
from aioreactor.durable import DurableRuns
from aioreactor.embedded import EmbeddedServer
from aioreactor.store.records import LIVE

if TYPE_CHECKING:
    from .cli_support import Started, StartIn

_numbers = itertools.count()

SHOP = """
import asyncio, os
from typing import Annotated
from aioreactor import Reactor, Resource, step

class Order(Reactor[str], name="sweep.Order"):
    number: int

    @step
    async def reserve(self, number: int) -> str:
        if number == 0:
            print("reserving", flush=True)
            await asyncio.sleep(60)
        if number < 0:
            raise ValueError("less than nothing")
        return f"r-{number}"

    @reserve.compensate
    async def release(self) -> None:
        print("released", flush=True)

    returns = reserve

class Needy(Reactor[str], name="sweep.Needy"):
    @step
    async def ask(self, bank: Annotated[object, Resource]) -> str:
        return "asked"

    returns = ask
"""


class Order(Reactor[str], name="sweep.Order"):
    number: int

    @step
    async def reserve(self, number: int) -> str:
        return f"r-{number}"

    returns = reserve


class Needy(Reactor[str], name="sweep.Needy"):
    @step
    async def ask(self, bank: Annotated[object, Resource]) -> str:
        return "asked"

    returns = ask


class Other(Reactor[str], name="sweep.Other"):
    """Not in the module that the command imports."""

    @step
    async def reserve(self) -> str:
        return "other"

    returns = reserve


class Place:
    """A key space and a queue with runs whose process died, and the command in it."""

    def __init__(self, url: str, folder: Path, start_in: StartIn) -> None:
        self.prefix = f"sweep{os.getpid()}-{next(_numbers)}"
        self.queue = f"{self.prefix}-queue"
        self.settings = Settings(redis_url=url, key_prefix=self.prefix, queue=self.queue)
        self.folder = folder
        self._start_in = start_in
        (folder / "sweep_shop.py").write_text(SHOP, encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        url, prefix, queue = self.settings.redis_url or "", self.prefix, self.queue
        return {"AIOREACTOR_REDIS_URL": url, "AIOREACTOR_KEY_PREFIX": prefix, "AIOREACTOR_QUEUE": queue}

    def command(self, *args: str) -> Started:
        return self._start_in(self.folder, *args, **self.environment)

    def sweep_json(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.command("sweep", *args, "--json").stdout)
        return found

    def lose(self, run_id: str, reactor: type[Reactor[str]] = Order, **inputs: int) -> None:
        """A run whose process is no more."""

        async def lose(durable: DurableRuns) -> None:
            await durable.create(reactor.plan, run_id, inputs, {})
            await durable.store.take(run_id, LIVE, ttl_ms=60_000, status="running")
            space, client = durable.store.space, durable.client
            await client.execute("HSET", space.run(run_id), "lease_ms", 1, "updated_ms", 1, repeatable=True)
            await client.execute("ZADD", space.live(), 1, run_id, repeatable=True)

        self._with_runs(lose)

    def due_again(self, run_id: str) -> None:
        """The half minute for which a run that was found is not told to others is over."""
        self._with_runs(lambda runs: runs.client.execute("ZADD", runs.store.space.live(), 1, run_id, repeatable=True))

    def _with_runs(self, work: Any) -> None:
        async def run() -> None:
            async with Runtime(self.settings) as runtime:
                await work(runtime.durable)

        asyncio.run(run())

    def status(self, run_id: str) -> str:
        async def look() -> str:
            async with Runtime(self.settings):
                return (await runs.find(run_id)).status

        return asyncio.run(look())


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
def place(server: EmbeddedServer, tmp_path: Path, start_in: StartIn) -> Place:
    return Place(server.url, tmp_path, start_in)


class TestRinging:
    def test_nothing_to_do(self, place: Place) -> None:
        done = place.command("sweep")
        assert (done.returncode, done.stdout) == (0, "Every run is being carried on, or has ended.\n")

    def test_workers_go_on_with_what_is_rung_for(self, place: Place) -> None:
        place.lose("one", number=1)
        place.lose("two", number=-1)
        done = place.command("sweep")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == (
            f"2 runs that nobody carried on.\nRung for 2: the workers of queue {place.queue} go on.\n"
        )
        assert (place.status("one"), place.status("two")) == ("running", "running")
        worker = place.command("worker", "sweep_shop", "--burst")
        assert worker.returncode == 0, worker.stderr
        assert f"queue {place.queue} at" in worker.stderr
        assert (place.status("one"), place.status("two")) == ("completed", "failed")
        assert worker.stdout == "released\n"

    def test_a_loss_is_rung_for_once(self, place: Place) -> None:
        place.lose("one", number=1)
        first = place.sweep_json()
        place.due_again("one")
        second = place.sweep_json()
        for found, rung in ((first, 1), (second, 0)):
            assert found.pop("index")["dropped"] == 0
            assert found == {"stalled": 1, "rung": rung, "outstanding": 1 - rung, "queue": place.queue}
        place.due_again("one")
        assert "1 of them had been rung for before, and no worker of" in place.command("sweep").stdout

    def test_another_queue(self, place: Place) -> None:
        place.lose("one", number=1)
        assert place.sweep_json("--queue", "slow")["queue"] == "slow"

    def test_it_needs_no_modules_but_takes_what_they_configure(self, place: Place) -> None:
        (place.folder / "sweep_conf.py").write_text(
            f"import aioreactor\naioreactor.configure(redis_url={place.settings.redis_url!r}, "
            f"key_prefix={place.prefix!r}, queue='configured')\n",
            encoding="utf-8",
        )
        place.lose("one", number=1)
        done = place._start_in(place.folder, "sweep", "sweep_conf", "--json")
        assert (json.loads(done.stdout)["rung"], json.loads(done.stdout)["queue"]) == (1, "configured")


class TestHere:
    def test_runs_are_executed_to_their_ends(self, place: Place) -> None:
        place.lose("one", number=1)
        place.lose("two", number=-1)
        done = place.command("sweep", "--here", "sweep_shop")
        assert done.returncode == 0
        assert "2 runs that nobody carried on: 2 ended here, 0 left." in done.stdout
        assert (place.status("one"), place.status("two")) == ("completed", "failed")
        assert "Every run is being carried on" in place.command("sweep", "--here", "sweep_shop").stdout

    def test_what_it_cannot_execute_is_left_alone_and_told(self, place: Place) -> None:
        place.lose("one", number=1)
        place.lose("needs", Needy)
        place.lose("others", Other)
        done = place.command("sweep", "--here", "sweep_shop", "--json")
        assert done.returncode == 1
        assert "'bank' (object) is not configured" in done.stderr
        found = json.loads(done.stdout)
        assert (found["stalled"], found["left"]) == (3, 2)
        assert {each["run_id"]: (each["status"], each["did"]) for each in found["runs"]} == {
            "one": ("completed", "ended"),
            "needs": ("running", "left"),
            "others": ("running", "left"),
        }
        assert (place.status("needs"), place.status("others")) == ("running", "running")
        place.due_again("others")
        text = place.command("sweep", "--here", "sweep_shop")
        assert "left alone: no module" in text.stdout
        assert "1 run that nobody carried on: 0 ended here, 1 left." in text.stdout

    @pytest.mark.skipif(sys.platform == "win32", reason="has no such signal for one process")
    def test_interrupted_it_lets_them_go_where_they_are(self, place: Place) -> None:
        place.lose("one", number=0)
        command = [sys.executable, "-m", "aioreactor", "sweep", "--here", "sweep_shop"]
        with subprocess.Popen(
            command,
            cwd=place.folder,
            env={**os.environ, **place.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "reserving\n"
            running.send_signal(signal.SIGINT)
            written, errors = running.communicate(timeout=60)
        assert (running.returncode, written) == (1, ""), errors
        assert errors.strip().endswith("Aborted!")
        assert "Traceback" not in errors
        assert place.status("one") == "running"  # not rolled back: the next one goes on


class TestMistakes:
    @pytest.mark.parametrize(
        ("args", "text"),
        [
            ([], "no store is configured: give --redis-url, set AIOREACTOR_REDIS_URL"),
            (["--here"], "name the modules that define their reactors"),
            (["--here", "json", "--queue", "q"], "--queue is for workers"),
            (["no_such_module"], "there is no module 'no_such_module'"),
            (["--redis-url", "http://x"], "unknown store URL scheme"),
            (["--redis-url", "unix:///nowhere"], "the store at unix:///nowhere cannot be used"),
            (["--here", "json", "--redis-url", "unix:///nowhere"], "the store at unix:///nowhere cannot be used"),
            (["--redis-url", "redis+cluster://localhost:1"], "use --here"),
        ],
    )
    def test_they_are_told_in_a_line(self, start_in: StartIn, tmp_path: Path, args: list[str], text: str) -> None:
        done = start_in(tmp_path, "sweep", *args, AIOREACTOR_STORE_RETRY_FOR="0.1")
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
        assert "Try 'aioreactor" not in done.stderr

    def test_a_setting_that_does_not_fit(self, start_in: StartIn, tmp_path: Path) -> None:
        done = start_in(tmp_path, "sweep", AIOREACTOR_LEASE_TTL="long")
        assert (done.returncode, done.stdout) == (2, "")
        assert "AIOREACTOR_LEASE_TTL='long'" in done.stderr

    def test_passwords_are_not_shown(self, start_in: StartIn, tmp_path: Path) -> None:
        url = "redis://user:hunter2@127.0.0.1:1"
        done = start_in(tmp_path, "sweep", "--redis-url", url, AIOREACTOR_STORE_RETRY_FOR="0.1")
        assert done.returncode == 2
        assert "the store at redis://127.0.0.1:1 cannot be used" in done.stderr
        assert "hunter2" not in done.stderr
