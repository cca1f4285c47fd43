"""``aioreactor worker``: what it says, and how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from aioreactor import runtime, workers
from aioreactor.cli.app import cli
from aioreactor.cli.stores import use_store
from aioreactor.jobs import defaults
from tests.integration.jobs.conftest import Ring, StartWorker, ended
from tests.integration.jobs.stage import Stage


async def test_it_says_one_line_at_start_without_secrets(stage: Stage, start: StartWorker, ring: Ring) -> None:
    process = await start("ours", "--concurrency", "7", "--queue", f"{stage.prefix}-other")
    await stage.create("r1")
    from aioreactor.jobs.queue import JobQueue

    await JobQueue(stage.client, f"{stage.prefix}-other").ring(["r1"])
    await stage.until("done", "r1")
    process.send_signal(signal.SIGINT)
    log = await ended(process)
    assert process.returncode == 0, log
    [line] = [line for line in log.splitlines() if "carries on runs" in line]
    assert f"queue {stage.prefix}-other" in line
    assert "7 at a time" in line
    assert "tests.integration.jobs.app" in line


@pytest.fixture(autouse=True)
def nothing_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(defaults, "_opens", None)
    monkeypatch.setattr(defaults, "_options", {})
    monkeypatch.setattr(runtime, "_default", {})  # the command configures its process
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "Missing argument"),
        (["no_such_module"], "there is no module"),
        (["a/b.py"], "not a module's dotted name"),
        (["json", "--concurrency", "0"], "concurrency"),
    ],
)
def test_mistakes_are_told(args: list[str], text: str) -> None:
    done = CliRunner().invoke(cli, ["worker", *args])
    assert done.exit_code == 2
    assert text in done.output


def test_a_wrong_url_is_told() -> None:
    defaults.use(lambda ctx: pytest.fail("not opened"))
    done = CliRunner().invoke(cli, ["worker", "json", "--redis-url", "http://x"])
    assert done.exit_code == 2
    assert "unknown store URL scheme" in done.output


def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioreactor.jobs.settings.PATIENCE", (0.001, 1))
    defaults.use(lambda ctx: pytest.fail("not opened"))
    done = CliRunner().invoke(cli, ["worker", "json", "--redis-url", "unix:///nowhere"])
    assert done.exit_code == 2, done.output
    assert "the queue's server at unix:///nowhere cannot be used" in done.output


def test_the_url_of_the_command_line_leaves_what_a_module_configured() -> None:
    bank = object()
    runtime.configure(resources={"bank": bank}, queue="slow", redis_url="unix:///elsewhere")
    use_store("unix:///here")
    settings = runtime.current_runtime().settings
    assert (settings.redis_url, settings.queue, settings.resources) == ("unix:///here", "slow", {"bank": bank})
    workers.stand_by()
    assert defaults.default_settings().service.queue.queue_name == "slow"
    assert defaults.default_settings(queue="fast").service.queue.queue_name == "fast"


def test_sweeps_are_as_far_apart_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []

    def settings(**options: object) -> object:
        given.append(options)
        raise ValueError("enough")

    monkeypatch.setattr(defaults, "default_settings", settings)
    CliRunner().invoke(cli, ["worker", "json", "--sweep-interval", "2.5"])
    CliRunner().invoke(cli, ["worker", "json"])
    assert [options.get("sweep_interval", "default") for options in given] == [2.5, "default"]
    assert "sweep-interval" in CliRunner().invoke(cli, ["worker", "json", "--sweep-interval", "0.5"]).output


def test_defaults_are_options_of_settings() -> None:
    with pytest.raises(defaults.NoBacking, match="defaults.use"):
        defaults.default_settings()
    defaults.use(lambda ctx: pytest.fail("not opened"), queue="q", max_concurrency=3)
    settings = defaults.default_settings(max_concurrency=4)
    assert (settings.service.queue.queue_name, settings.service.max_concurrency) == ("q", 4)
