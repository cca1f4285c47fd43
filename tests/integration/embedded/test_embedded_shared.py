"""One data directory, one server, however many processes ask for it."""

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioreactor.embedded import EmbeddedServer, ServerStartError
from aioreactor.embedded.datadir import LOCK_NAME
from aioreactor.embedded.home import Home
from aioreactor.embedded.lifeline import LifeLine
from aioreactor.embedded.patience import Patience
from tests.integration.embedded.embedded_kit import PATIENCE_SECONDS, Gate, Program, ask, eventually, greet

Spawn = Callable[..., Program]


def test_data_survives_a_restart(data_dir: Path) -> None:
    """What was written is there again, in the directory that was made for it."""
    with EmbeddedServer.start(data_dir=data_dir) as server:
        ask(server.socket_path, "SET", "key", "kept")
    assert data_dir.stat().st_mode & 0o777 == 0o700
    for _ in range(3):
        with EmbeddedServer.start(data_dir=data_dir) as server:
            assert not server.attached
            assert ask(server.socket_path, "GET", "key") == b"$4\r\nkept\r\n"


def test_data_survives_sigkill_of_everything(data_dir: Path, spawn: Spawn) -> None:
    """An acknowledged write is with the kernel, whatever happens to the processes."""
    program = spawn(data_dir=str(data_dir))
    ask(program.socket, "SET", "key", "kept")
    os.kill(program.told["pid"], signal.SIGKILL)
    program.kill()
    eventually(program.server_is_gone)
    with EmbeddedServer.start(data_dir=data_dir) as server:
        assert ask(server.socket_path, "GET", "key") == b"$4\r\nkept\r\n"


def test_eight_processes_one_server(data_dir: Path, spawn: Spawn) -> None:
    """Started at once: one owns it, seven attach, and it lives until the last has ended, however it does."""
    programs = [spawn(data_dir=str(data_dir), wait=False) for _ in range(8)]
    for program in programs:
        greet(program)
    assert len({program.told["pid"] for program in programs}) == 1
    assert sorted(program.told["attached"] for program in programs) == [False] + [True] * 7
    programs.sort(key=lambda program: program.told["attached"])
    last = programs.pop()
    for number, program in enumerate(programs):  # the owner first
        if number % 2:
            program.say("stop")
            assert program.hear() == "stopped"
        else:
            program.kill()
        assert ask(last.socket, "PING") == b"+PONG\r\n"
    last.kill()
    eventually(last.server_is_gone)


def test_the_last_to_stop_waits_for_the_end(data_dir: Path, spawn: Spawn) -> None:
    """`stop` returns at once for the owner while another holds it; for the last when all is on disk."""
    owner, other = spawn(data_dir=str(data_dir)), spawn(data_dir=str(data_dir))
    owner.say("stop")
    assert owner.hear() == "stopped"
    assert not other.server_is_gone()
    other.say("stop")
    assert other.hear() == "stopped"
    assert other.server_is_gone()


def test_the_owner_may_come_back_as_a_guest(data_dir: Path, spawn: Spawn) -> None:
    """Its former server still runs for somebody else; it is the one to use."""
    server = EmbeddedServer.start(data_dir=data_dir)
    guest = spawn(data_dir=str(data_dir))
    server.stop()
    with EmbeddedServer.start(data_dir=data_dir) as again:
        assert again.attached
        assert again.pid == server.pid == guest.told["pid"]
    guest.say("stop")
    assert guest.hear() == "stopped"
    assert guest.server_is_gone()


def test_two_in_one_process(data_dir: Path) -> None:
    """The second start attaches; each has its own hold."""
    first = EmbeddedServer.start(data_dir=data_dir)
    second = EmbeddedServer.start(data_dir=data_dir)
    assert (first.pid, second.attached) == (second.pid, True)
    first.stop()
    assert ask(second.socket_path, "PING") == b"+PONG\r\n"
    second.stop()
    assert not second.directory.exists()


def test_after_a_crash_of_the_server_the_next_start_owns(data_dir: Path, spawn: Spawn) -> None:
    """The lock died with the server, although its former owner still lives."""
    former = spawn(data_dir=str(data_dir))
    ask(former.socket, "SET", "key", "kept")
    os.kill(former.told["pid"], signal.SIGKILL)
    with EmbeddedServer.start(data_dir=data_dir) as server:
        assert not server.attached
        assert ask(server.socket_path, "GET", "key") == b"$4\r\nkept\r\n"


def test_a_server_that_dies_while_another_process_attaches(
    data_dir: Path, base: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its starter is told why; the one that had attached starts one itself."""
    joined = threading.Event()
    join = LifeLine.join

    def tell(home: Home, patience: Patience) -> LifeLine | None:
        line = join(home, patience)
        joined.set()
        return line

    monkeypatch.setattr(LifeLine, "join", tell)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(EmbeddedServer.start, data_dir=data_dir)
        eventually(lambda: any(pid.read_text() for pid in base.glob("*/pid")))
        second = pool.submit(EmbeddedServer.start, data_dir=data_dir)
        assert joined.wait(PATIENCE_SECONDS)
        os.kill(int(next(base.glob("*/pid")).read_text()), signal.SIGKILL)
        with pytest.raises(ServerStartError) as caught:
            first.result(PATIENCE_SECONDS)
        assert caught.value.exit_code == 128 + signal.SIGKILL
        gate.open()
        with second.result(PATIENCE_SECONDS) as server:
            assert not server.attached
            assert ask(server.socket_path, "PING") == b"+PONG\r\n"


CHURN = """
import json, socket, sys
from aioreactor.embedded import EmbeddedServer
for _ in range(10):
    with EmbeddedServer.start(**json.loads(sys.argv[1])) as server:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server.socket_path))
            connection.sendall(b"INCR count\\r\\n")
            assert connection.recv(64).startswith(b":")
print("done", flush=True)
"""


def test_coming_and_going(data_dir: Path, spawn: Spawn) -> None:
    """Attaching to a server that is about to end is the hard part: nobody fails, no write is lost."""
    programs = [spawn(script=CHURN, data_dir=str(data_dir), wait=False) for _ in range(5)]
    for program in programs:
        _, complaint = program.process.communicate(timeout=PATIENCE_SECONDS * 2)
        assert program.process.returncode == 0, complaint
    with EmbeddedServer.start(data_dir=data_dir) as server:
        assert ask(server.socket_path, "GET", "count") == b"$2\r\n50\r\n"


@contextmanager
def foreign_lock(data_dir: Path, written: str) -> Iterator[None]:
    """The lock as held by somebody who cannot be reached."""
    data_dir.mkdir()
    with (data_dir / LOCK_NAME).open("w") as lock:
        lock.write(written)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("written", ["", "/nowhere/aior-x\n", "/\n", "/half"])
def test_a_lock_whose_owner_cannot_be_reached(data_dir: Path, written: str) -> None:
    """After the time-out the error says what it may be."""
    with foreign_lock(data_dir, written), pytest.raises(ServerStartError, match="another container"):
        EmbeddedServer.start(data_dir=data_dir, timeout=0.2)


def test_an_owner_that_does_not_acknowledge(data_dir: Path, tmp_path: Path) -> None:
    """A FIFO that somebody reads without a word proves nothing."""
    home = tmp_path / "home"
    home.mkdir()
    os.mkfifo(home / "life")
    reader = os.open(home / "life", os.O_RDONLY | os.O_NONBLOCK)
    with foreign_lock(data_dir, f"{home}\n"), pytest.raises(ServerStartError, match="cannot be reached"):
        EmbeddedServer.start(data_dir=data_dir, timeout=0.2)
    os.close(reader)


def test_tcp_and_socket_on_one_server(data_dir: Path) -> None:
    """An attaching process gets the kind of address that it asks for, or is told why not."""
    with (
        EmbeddedServer.start(data_dir=data_dir, tcp=True) as owner,
        EmbeddedServer.start(data_dir=data_dir) as by_socket,
        EmbeddedServer.start(data_dir=data_dir, tcp=True) as by_port,
    ):
        assert by_socket.url.startswith("unix://")
        assert by_port.url == owner.url
    with (
        EmbeddedServer.start(data_dir=data_dir),
        pytest.raises(ServerStartError, match="without tcp=True"),
    ):
        EmbeddedServer.start(data_dir=data_dir, tcp=True)


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """The reason is the system's."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerStartError, match="could not be started"):
        EmbeddedServer.start(data_dir=tmp_path / "file" / "data")


def test_a_forked_child_does_not_keep_the_lock(data_dir: Path, spawn: Spawn) -> None:
    """Another thread may fork while a start holds the lock."""
    script = """
import json, os, sys
from pathlib import Path
from aioreactor.embedded.datadir import DataDir
data = DataDir(Path(json.loads(sys.argv[1])["data_dir"]))
lock = data.try_lock()
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(down[1])
    os.write(up[1], b"x")
    os.read(down[0], 1)
    os._exit(0)
os.read(up[0], 1)
lock.close()
free = data.try_lock()
print(json.dumps({"free": free is not None}), flush=True)
"""
    assert spawn(script=script, data_dir=str(data_dir)).told == {"free": True}
