"""However the parent ends, the server ends with it and its directory is removed."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.integration.embedded.embedded_kit import PATIENCE_SECONDS, Program, ask, eventually, is_running


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_killed_parent(spawn: Callable[..., Program], how: signal.Signals) -> None:
    """A signal, and one that cannot be handled, ends the parent; the kernel closes its life line."""
    program = spawn()
    assert ask(program.socket, "PING") == b"+PONG\r\n"
    program.process.send_signal(how)
    assert program.process.wait(PATIENCE_SECONDS) == -how
    eventually(program.server_is_gone)


@pytest.mark.parametrize(("word", "status"), [("_exit", 3), ("raise", 1)])
def test_parent_that_skips_its_cleanup(spawn: Callable[..., Program], word: str, status: int) -> None:
    """``os._exit`` and an exception that nobody handles: `stop` is never called."""
    program = spawn()
    program.say(word)
    assert program.process.wait(PATIENCE_SECONDS) == status
    eventually(program.server_is_gone)


def test_parent_that_returns_without_stop(spawn: Callable[..., Program]) -> None:
    """A program that just ends is enough; it warns about nothing."""
    program = spawn()
    assert program.process.stdin is not None
    program.process.stdin.close()
    assert program.process.wait(PATIENCE_SECONDS) == 0
    assert program.process.stderr is not None
    assert program.process.stderr.read() == ""
    eventually(program.server_is_gone)


def test_ctrl_c_leaves_the_server_for_a_graceful_end(spawn: Callable[..., Program]) -> None:
    """The terminal signals the whole group; the server is in another and still serves."""
    program = spawn()
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.hear() == "alive"
    assert ask(program.socket, "PING") == b"+PONG\r\n"
    program.say("now end")
    assert program.process.wait(PATIENCE_SECONDS) == 0
    assert program.server_is_gone()


def test_a_program_started_by_the_parent_does_not_keep_it(spawn: Callable[..., Program]) -> None:
    """The life line is closed on exec, even where descriptors are passed on."""
    script = """
import json, subprocess, sys
from aioreactor.embedded import EmbeddedServer
server = EmbeddedServer.start()
null = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "600"], close_fds=False, stdin=null, stdout=null, stderr=null)
print(json.dumps({"pid": server.pid, "directory": str(server.directory), "child": child.pid}), flush=True)
sys.stdin.read()
"""
    program = spawn(script=script)
    try:
        program.kill()
        eventually(program.server_is_gone)
        assert is_running(program.told["child"])
    finally:
        os.kill(program.told["child"], signal.SIGKILL)


FORKED = """
import json, os, sys
from aioreactor.embedded import EmbeddedServer
server = EmbeddedServer.start()
down, up = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(down[1])
    if "stop" in sys.argv[1]:
        server.stop()
    os.write(up[1], b"x")
    os.read(down[0], 1)
    os._exit(0)
os.read(up[0], 1)
print(json.dumps({"pid": server.pid, "directory": str(server.directory), "socket": str(server.socket_path),
                  "child": child}), flush=True)
sys.stdin.readline()
server.stop()
print("stopped", flush=True)
sys.stdin.readline()
"""


def test_stop_ends_it_although_a_forked_child_holds_the_line(spawn: Callable[..., Program]) -> None:
    """`stop` means stop: it does not wait for copies of this process."""
    program = spawn(script=FORKED)
    program.say("stop it")
    assert program.hear() == "stopped"
    assert program.server_is_gone()
    assert is_running(program.told["child"])


def test_a_forked_child_keeps_it_when_the_parent_is_killed(spawn: Callable[..., Program]) -> None:
    """The child uses the same server, so it is a holder like the parent."""
    program = spawn(script=FORKED)
    program.kill()
    # The child reads a pipe whose other end the parent held, so it ends by itself, and then the server.
    eventually(program.server_is_gone)


def test_stop_in_a_forked_child_spares_the_server_of_the_parent(spawn: Callable[..., Program]) -> None:
    """A child may run the parent's cleanup (``with``, ``atexit``) without harm."""
    program = spawn(script=FORKED, stop_in_child=True)
    assert ask(program.socket, "PING") == b"+PONG\r\n"
    program.say("stop it")
    assert program.hear() == "stopped"
    assert program.server_is_gone()
