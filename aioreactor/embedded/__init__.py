"""A Redis-compatible server that a process starts for itself, and that ends when the process does.

    with EmbeddedServer.start() as server:
        ...  # server.url

How it holds together, so that none of it has to be read from the code:

* The server runs below a small ``/bin/sh`` supervisor in a session of its own, so a Ctrl-C in the terminal
  reaches the program first and the server is still there while the program ends gracefully.
* The **life line** is a FIFO in the server's directory. Whoever uses the server holds the write end open; the
  supervisor reads. The kernel reports end of file exactly when the last holder is gone, however it ended
  (``SIGKILL`` included), and the supervisor then stops the server and removes the directory.
* With a **data directory** the server keeps its data. An exclusive lock on the directory, held by the server
  process itself, lets one server run for it; another process that asks for the same directory becomes one
  more holder of the running server's life line, and whoever leaves last ends it.

What can fail: no binary (`ServerNotFound`), or a server that ends or stays silent (`ServerStartError`, with
the end of its log). A server that dies later is seen by ``server.alive``; it is not restarted.
"""

import sys

if sys.platform == "win32":
    raise ImportError("aioreactor.embedded needs a POSIX system; on Windows point aioreactor at a server by its URL.")

from aioreactor.embedded.errors import ServerNotFound, ServerStartError
from aioreactor.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "ServerNotFound", "ServerStartError"]
