"""``aioreactor locks``: what it shows of a key and of all of them, and how it takes one by force."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aioreactor import Lock, OrderedLock, Period, RateLimit, Reactor, Runtime, Semaphore, Settings, step
from aioreactor.coordination.coordinator import Coordinator
from aioreactor.coordination.gates import Terms, Wanted
from aioreactor.coordination.scopes import Scope
from aioreactor.coordination.slots import Parking
from aioreactor.embedded import EmbeddedServer
from aioreactor.errors import ContentionError

if TYPE_CHECKING:
    from .cli_support import Invoke, Started, StartIn

_numbers = itertools.count()


class Order(Reactor[str], name="locks.Order"):
    @step
    async def pay(self) -> str:
        return "paid"

    returns = pay


class Place:
    """A key space, and the command in it."""

    def __init__(self, url: str, folder: Path, start_in: StartIn) -> None:
        self.settings = Settings(redis_url=url, key_prefix=f"locks{os.getpid()}-{next(_numbers)}")
        self.folder = folder
        self.start_in = start_in

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AIOREACTOR_REDIS_URL": self.settings.redis_url or "",
            "AIOREACTOR_KEY_PREFIX": self.settings.key_prefix,
            "COLUMNS": "200",
        }

    def command(self, *args: str) -> Started:
        return self.start_in(self.folder, "locks", *args, **self.environment)

    def locks_json(self, *args: str) -> dict[str, Any]:
        done = self.command(*args, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def run(self, *work: Callable[[Coordinator], Awaitable[Any]]) -> list[Any]:
        async def run() -> list[Any]:
            async with Runtime(self.settings) as runtime:
                return [await each(runtime.coordinator()) for each in work]

        return asyncio.run(run())

    def create(self, run_id: str) -> None:
        async def create() -> None:
            async with Runtime(self.settings) as runtime:
                assert runtime.durable is not None
                await runtime.durable.create(Order.plan, run_id, {}, {})

        asyncio.run(create())


def holds(label: str, *primitives: Any) -> Callable[[Coordinator], Awaitable[None]]:
    """Somebody has taken these, and keeps them for ten minutes without a process."""

    async def take(coordinator: Coordinator) -> None:
        wanted = [Wanted(each, each.key) for each in primitives]
        taken = await coordinator.acquire(wanted, Terms(Scope(None, label), label=label))
        await taken.park(600)

    return take


def waits(label: str, primitive: Any) -> Callable[[Coordinator], Awaitable[None]]:
    async def wait(coordinator: Coordinator) -> None:
        parking = Parking(lambda: None, alive=600)
        with suppress(ContentionError):
            await coordinator.acquire(
                [Wanted(primitive, primitive.key)], Terms(Scope(None, label), label=label, wait=0, parking=parking)
            )

    return wait


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
def place(server: EmbeddedServer, tmp_path: Path, start_in: StartIn) -> Place:
    return Place(server.url, tmp_path, start_in)


class TestLooking:
    def test_nothing(self, place: Place) -> None:
        done = place.command("order:7")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "Nobody holds or waits for 'order:7', and nothing was counted or marked.\n"
        assert place.command().stdout == "Nobody holds, waits for, or stands in line for anything.\n"
        assert place.locks_json() == {"keys": [], "more": False}

    def test_holders_with_run_and_step_and_who_waits(self, place: Place) -> None:
        place.create("order:7")
        place.run(holds("order:7:pay:2", Lock("k")), waits("host:1", Lock("k")))
        lines = [[part.strip() for part in line.split("│")[1:-1]] for line in place.command("k").stdout.splitlines()]
        rows = [row for row in lines if row]
        assert [row[0] for row in rows] == ["run order:7, step pay, attempt 2", "1"]
        assert (rows[0][1].endswith(" s"), rows[0][2], rows[1][1:]) == (True, "10 min", ["host:1", "10 min"])
        (lock,) = [place.locks_json("k")["lock"]]
        (holder,), (waiter,) = lock["holders"], lock["waiters"]
        assert (holder["run"], holder["step"], holder["attempt"]) == ("order:7", "pay", 2)
        assert (waiter["label"], waiter["run"], waiter["step"]) == ("host:1", None, None)
        assert 500 < holder["time_left"] <= 600
        assert 0 <= holder["age"] < 60

    def test_an_element_is_a_part_of_its_run(self, place: Place) -> None:
        place.create("r1")
        place.create("r1/own[0]")
        labels = ["r1/each[3]:pay:1", "r1/own[0]:pay:1", "r1", "r1:undo:pay", "r2:pay:1"]
        place.run(*(holds(label, Semaphore("k", 9)) for label in labels))
        found = {each["label"]: each for each in place.locks_json("k")["semaphore"]["holders"]}
        assert [(found[label]["run"], found[label]["step"], found[label]["attempt"]) for label in labels] == [
            ("r1", "each[3]:pay", 1), ("r1/own[0]", "pay", 1), ("r1", None, None), ("r1", "undo:pay", None),
            (None, None, None),
        ]  # fmt: skip

    def test_everything_else_of_a_key(self, place: Place) -> None:
        async def others(coordinator: Coordinator) -> None:
            positions = [await coordinator.assign(OrderedLock("k"), "k", f"r{n}", f"r{n}") for n in range(3)]
            terms = Terms(Scope(None, "r0"), label="r0")
            await coordinator.acquire([Wanted(OrderedLock("k"), "k", positions[0])], terms)
            await coordinator.finish(positions[0], failed=True)
            marked = await coordinator.acquire([Wanted(Period("k", every="day"), "k")], terms)
            await marked.release("success")

        place.run(holds("r9", Semaphore("k", 3), RateLimit("k", 5, "day")), others)
        text = place.command("k").stdout
        for part in ("semaphore, 1 of 3 taken", "rate limit", "period", "day:UTC", "positions were handed out"):
            assert part in text
        assert "the first that failed: 1" in text
        found = place.locks_json("k")
        assert found["lock"] is None
        assert (found["semaphore"]["limit"], len(found["semaphore"]["holders"])) == (3, 1)
        (counter,), (marker,) = found["counters"], found["markers"]
        assert (counter["used"], counter["limit"], 0 < counter["rolls_in"] <= 86_400) == (1, 5, True)
        assert marker["marked_by"] == "r0"
        order = found["order"]
        assert (order["first_failed"], order["in_flight"], order["handed_out"]) == (1, None, 3)
        assert [(each["number"], each["label"]) for each in order["places"]] == [(2, "r1"), (3, "r2")]

    def test_all_keys_in_use_whatever_they_are_called(self, place: Place) -> None:
        names = ["order:7", "a b}{:lock", "*[x]", "ä"]
        place.run(*(holds("r1", Lock(name)) for name in names), holds("r1", RateLimit("counted", 5, "day")))
        place.run(waits("r2", Lock("order:7")), lambda each: each.assign(OrderedLock("line"), "line", "r3", "r3"))
        found = place.locks_json()
        assert [each["key"] for each in found["keys"]] == sorted([*names, "line"])
        rows = [line.split("│")[1:-1] for line in place.command().stdout.splitlines() if line.startswith("│")]
        found = {row[0].strip(): [part.strip() for part in row[1:]] for row in rows}
        assert (found["order:7"], found["line"]) == (["lock", "r1", "1"], ["ordered lock", "nobody", "1"])

    def test_keys_of_another_prefix_are_not_shown(self, place: Place) -> None:
        other = Place(place.settings.redis_url or "", place.folder, place.start_in)
        other.run(holds("r1", Lock("k")))
        assert place.locks_json()["keys"] == []

    def test_no_text_of_a_key_steers_the_terminal(self, place: Place) -> None:
        place.run(holds("\x1b[31mred", Lock("k\x1b[2J")))
        for args in ((), ("k\x1b[2J",)):
            assert "\x1b" not in place.command(*args).stdout


class TestTaking:
    def test_it_asks_and_says_who_loses_it(self, place: Place) -> None:
        place.run(holds("r1", Lock("k")), waits("r2", Lock("k")))
        for answer, code in (("n\n", 1), ("y\n", 0)):
            done = self.answered(place, answer, "k", "--force-release")
            assert done.returncode == code
            assert "Take lock 'k' from r1 (1 in line)?" in done.stderr
        assert done.stdout == "Taken: lock 'k' from r1.\n"
        assert "force_released" in done.stderr  # it is logged
        (holder,) = place.locks_json("k")["lock"]["holders"]
        assert holder["label"] == "r2"

    def answered(self, place: Place, answer: str, *args: str) -> Started:
        return subprocess.run(
            [sys.executable, "-m", "aioreactor", "locks", *args],
            cwd=place.folder,
            env={**os.environ, **place.environment},
            input=answer,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    def test_without_being_asked(self, place: Place) -> None:
        place.run(holds("r1", Semaphore("k", 3)), holds("r2", Semaphore("k", 3)))
        done = place.command("k", "--force-release", "--yes", "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout) == {"key": "k", "kind": "semaphore", "freed": ["r1", "r2"]}
        assert "force_released" in done.stderr
        assert place.locks_json("k")["semaphore"] is None

    def test_nobody_to_ask(self, place: Place) -> None:
        place.run(holds("r1", Lock("k")))
        assert place.command("k", "--force-release").returncode == 1
        done = place.command("k", "--force-release", "--json")
        assert (done.returncode, "add --yes" in done.stderr) == (2, True)
        assert len(place.locks_json("k")["lock"]["holders"]) == 1

    def test_nothing_to_take(self, place: Place) -> None:
        done = place.command("k", "--force-release", "--yes")
        assert (done.returncode, done.stdout) == (1, "Nobody holds 'k': there is nothing to take.\n")

    def test_which_of_both(self, place: Place) -> None:
        place.run(holds("r1", Lock("k"), Semaphore("k", 2)))
        done = place.command("k", "--force-release", "--yes")
        assert (done.returncode, "say which with --kind" in done.stderr) == (2, True)
        assert place.command("k", "--force-release", "--yes", "--kind", "lock").returncode == 0
        found = place.locks_json("k")
        assert (found["lock"], len(found["semaphore"]["holders"])) == (None, 1)


class TestMistakes:
    def test_by_force_needs_a_key(self, invoke: Invoke) -> None:
        done = invoke("locks", "--force-release", "--yes")
        assert (done.exit_code, "name it" in done.output) == (2, True)

    def test_without_a_store(self, place: Place, start_in: StartIn) -> None:
        done = start_in(place.folder, "locks")
        assert (done.returncode, "no store is configured" in done.stderr) == (2, True), done.stderr

    def test_a_store_that_is_away(self, place: Place, start_in: StartIn) -> None:
        environment = {
            "AIOREACTOR_REDIS_URL": f"unix://{place.folder}/nowhere.sock",
            "AIOREACTOR_STORE_RETRY_FOR": "0.2",
        }
        done = start_in(place.folder, "locks", "k", **environment)
        assert (done.returncode, "cannot be used" in done.stderr) == (2, True)

    def test_a_key_that_cannot_be_one(self, place: Place) -> None:
        done = place.command("k" * 501)
        assert (done.returncode, "1 to 500 characters" in done.stderr) == (2, True)

    def test_a_module_configures_the_store(self, place: Place, start_in: StartIn) -> None:
        place.run(holds("r1", Lock("k")))
        (place.folder / "locks_conf.py").write_text(
            f"import aioreactor\naioreactor.configure(redis_url={place.settings.redis_url!r}, "
            f"key_prefix={place.settings.key_prefix!r})\n",
            encoding="utf-8",
        )
        done = start_in(place.folder, "locks", "k", "--module", "locks_conf", "--json")
        assert [each["label"] for each in json.loads(done.stdout)["lock"]["holders"]] == ["r1"]
