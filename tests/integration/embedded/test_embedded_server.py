"""One server for one process: start, use, stop, and what can happen to it in between."""

import os
import pickle
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from aioreactor.embedded import EmbeddedServer, ServerStartError, launch, supervisor
from tests.integration.embedded.embedded_kit import ask, eventually, is_running, open_descriptors


def test_start_ping_stop() -> None:
    """It answers when `start` returns, and is gone when `stop` does."""
    server = EmbeddedServer.start()
    assert ask(server.socket_path, "PING") == b"+PONG\r\n"
    assert server.alive
    assert not server.attached
    assert server.port is None
    assert is_running(server.pid)
    assert server.directory.stat().st_mode & 0o777 == 0o700
    server.stop()
    assert not server.alive
    assert not server.directory.exists()
    assert not is_running(server.pid)
    server.stop()


def test_context_manager_stops_on_an_error() -> None:
    """Leaving the block by an exception is leaving it."""
    with pytest.raises(ZeroDivisionError), EmbeddedServer.start() as server:
        raise ZeroDivisionError
    assert not server.directory.exists()


@pytest.mark.parametrize("tcp", [False, True])
def test_url_is_good_for_a_client(tcp: bool) -> None:
    """Both kinds of address, as they are handed to a client."""
    with EmbeddedServer.start(tcp=tcp) as server, redis.Redis.from_url(server.url) as client:
        assert client.set("key", "value")
        assert client.get("key") == b"value"
        assert server.url.startswith("redis://127.0.0.1:" if tcp else "unix:///")


def test_tcp_listens_on_loopback_and_keeps_the_socket() -> None:
    """With a port, the unix socket works too."""
    with EmbeddedServer.start(tcp=True) as server:
        assert server.port
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(64) == b"+PONG\r\n"
        assert ask(server.socket_path, "PING") == b"+PONG\r\n"
        assert b"127.0.0.1" in ask(server.socket_path, "CONFIG", "GET", "bind")


def test_a_port_taken_in_between_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the search and the server's bind, somebody else may take the port."""
    find_port = launch._free_port
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        taken = rival.getsockname()[1]
        ports = iter([taken, taken])
        monkeypatch.setattr(launch, "_free_port", lambda: next(ports, None) or find_port())
        with EmbeddedServer.start(tcp=True) as server:
            assert server.port not in (None, taken)
            assert ask(server.socket_path, "PING") == b"+PONG\r\n"


def test_settings_and_extra_arguments() -> None:
    """Our settings hold unless the caller's words say otherwise."""
    with EmbeddedServer.start(extra_args=["--maxmemory", "64mb", "--hz", "100"]) as server:
        assert b"noeviction" in ask(server.socket_path, "CONFIG", "GET", "maxmemory-policy")
        assert b"67108864" in ask(server.socket_path, "CONFIG", "GET", "maxmemory")
        assert b"$3\r\n100" in ask(server.socket_path, "CONFIG", "GET", "hz")


def test_a_password_does_not_hide_the_server() -> None:
    """A server that asks for a password has started."""
    with EmbeddedServer.start(extra_args=["--requirepass", "secret"]) as server:
        assert ask(server.socket_path, "PING").startswith(b"-NOAUTH")


@pytest.mark.parametrize("words", [["--port", "1"], ["--DIR", "/"], ["maxmemory"], "hz"])
def test_arguments_that_would_break_it_are_refused(words: list[str]) -> None:
    """Nothing is started for them."""
    with pytest.raises(ValueError, match="extra_args"):
        EmbeddedServer.start(extra_args=words)


@pytest.mark.parametrize("tcp", [False, True])
def test_twelve_parallel_starts(tcp: bool) -> None:
    """They do not meet: own directories, own ports."""
    with ThreadPoolExecutor(12) as pool:
        servers = list(pool.map(lambda _: EmbeddedServer.start(tcp=tcp), range(12)))
        for number, server in enumerate(servers):
            assert ask(server.socket_path, "SET", "number", str(number)) == b"+OK\r\n"
        for number, server in enumerate(servers):
            assert ask(server.socket_path, "GET", "number").endswith(f"{number}\r\n".encode())
        assert len({server.url for server in servers}) == 12
        list(pool.map(EmbeddedServer.stop, servers))
    assert not any(is_running(server.pid) for server in servers)


def test_start_in_a_thread_that_has_ended() -> None:
    """It belongs to the process, not to the thread that started it."""
    started: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: started.append(EmbeddedServer.start()))
    thread.start()
    thread.join()
    with started[0] as server:
        assert ask(server.socket_path, "PING") == b"+PONG\r\n"


def test_stop_from_many_threads_at_once() -> None:
    """One of them stops it; all return after it is gone."""
    server = EmbeddedServer.start()

    def stop() -> bool:
        server.stop()
        return server.directory.exists()

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(lambda _: stop(), range(8)))


def children_of(pid: int) -> set[str]:
    """Pids of a process's children, over all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


def test_nothing_leaks_over_many_rounds() -> None:
    """Neither descriptors nor children pile up."""
    before, children = open_descriptors(), children_of(os.getpid())
    for _ in range(5):
        with EmbeddedServer.start():
            assert open_descriptors() == before + 1  # the life line
    assert open_descriptors() == before
    assert children_of(os.getpid()) <= children


def test_a_server_that_dies_leaves_its_log_until_stop() -> None:
    """Its end is seen, its last words can be read, and `stop` has only the directory to remove."""
    server = EmbeddedServer.start()
    os.kill(server.pid, signal.SIGTERM)
    eventually(lambda: not server.alive)
    assert "ready to exit" in server.log_tail()
    assert "ended" in repr(server)
    server.stop()
    assert not server.directory.exists()
    assert "ready to exit" in server.log_tail()
    assert len(server.log_tail(2).splitlines()) == 2


def test_a_killed_supervisor_does_not_keep_stop_waiting() -> None:
    """Nobody is left to remove the directory, so `stop` does it."""
    server = EmbeddedServer.start()
    child = server._hold.supervisor
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    server.stop()
    assert not server.directory.exists()
    eventually(lambda: not is_running(server.pid))


def test_a_frozen_server_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """TERM does not reach a stopped process; KILL does, after the grace."""
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0)
    server = EmbeddedServer.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert not server.directory.exists()
    assert not is_running(server.pid)


def test_a_frozen_supervisor_is_killed_with_all_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort: it does nothing any more, so everything that it started is killed with it."""
    monkeypatch.setattr("aioreactor.embedded.hold.GRACE_SECONDS", 0)
    monkeypatch.setattr("aioreactor.embedded.hold._MARGIN_SECONDS", 0.1)
    server = EmbeddedServer.start()
    child = server._hold.supervisor
    assert child is not None
    os.killpg(child.pid, signal.SIGSTOP)
    server.stop()
    assert not server.directory.exists()
    eventually(lambda: not is_running(server.pid))


def test_without_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some container images have none; the error names it."""
    monkeypatch.setattr(supervisor, "SHELL", "/nowhere/sh")
    with pytest.raises(ServerStartError, match="/nowhere/sh"):
        EmbeddedServer.start()


def test_signals_that_are_blocked_here_reach_the_server() -> None:
    """A program that takes its signals by ``sigwait`` blocks them, and children inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        server = EmbeddedServer.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.kill(server.pid, signal.SIGTERM)
    eventually(lambda: not server.alive)
    server.stop()
    assert "ready to exit" in server.log_tail()


def test_leftovers_of_dead_servers_are_removed(base: Path) -> None:
    """Old directories that nobody has locked; never one of a server that lives, or that is just starting."""
    names = ("aior-leftover", "aior-young", "another")
    for name in names:
        (base / name).mkdir()
        (base / name / "log").write_text("")
    with EmbeddedServer.start() as old:
        for path in (base / "aior-leftover", base / "another", old.directory):
            os.utime(path, (0, 0))
        with EmbeddedServer.start():
            assert ask(old.socket_path, "PING") == b"+PONG\r\n"
            assert old.directory.exists()
    assert {path.name for path in base.iterdir()} == {"aior-young", "another"}
    for path in base.iterdir():
        shutil.rmtree(path)


def test_a_long_temporary_directory_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names of unix sockets are short; another temporary directory is taken."""
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with EmbeddedServer.start() as server:
        assert len(str(server.socket_path)) <= 103
        assert ask(server.socket_path, "PING") == b"+PONG\r\n"


def test_a_path_with_odd_characters(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    """Blanks and quotes survive the shell, the server's configuration and the URL."""
    odd = base / "a 'b\" $c%41"
    odd.mkdir()
    monkeypatch.setenv("TMPDIR", str(odd))
    with EmbeddedServer.start() as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
    odd.rmdir()


def test_errors_survive_pickling() -> None:
    """They cross process pools."""
    error = pickle.loads(pickle.dumps(ServerStartError("it ended", "a\nb", 7)))
    assert (error.reason, error.log_tail, error.exit_code) == ("it ended", "a\nb", 7)
    assert "a\nb" in str(error)
