"""Is the server ready? A PING over a bare socket.

The client library has its home in other packages; one command does not need it.
"""

import socket
from pathlib import Path

ATTEMPT_TIMEOUT = 1.0


def answers(path: Path) -> bool:
    """Whether the server on the unix socket `path` serves commands.

    An error reply is an answer too (``NOAUTH``, when a password was set), except ``LOADING``: the server is
    still reading its data.
    """
    try:
        reply = _ask(path, b"PING\r\n")
    except OSError:
        return False
    return reply.endswith(b"\n") and not reply.startswith(b"-LOADING")


def _ask(path: Path, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ATTEMPT_TIMEOUT)
        connection.connect(str(path))
        connection.sendall(command)
        reply = b""
        while not reply.endswith(b"\n") and (part := connection.recv(1024)):
            reply += part
        return reply
