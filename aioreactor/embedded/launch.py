"""From options to a hold on a server that answers: start one, or attach to the one that has the data."""

import socket
from pathlib import Path

from aioreactor.embedded.binary import find_server_binary
from aioreactor.embedded.datadir import DataDir, Lock
from aioreactor.embedded.errors import ServerStartError
from aioreactor.embedded.hold import Hold
from aioreactor.embedded.home import Home
from aioreactor.embedded.lifeline import LifeLine
from aioreactor.embedded.options import Options
from aioreactor.embedded.patience import Patience, TimeIsUp
from aioreactor.embedded.ping import answers
from aioreactor.embedded.supervisor import load_script, start_supervisor

LOG_LINES = 20
PORT_TRIES = 8


class _PortTaken(Exception):
    """Somebody took the free port before the server could."""


def obtain(options: Options, patience: Patience) -> Hold:
    """A hold on a server that answers.

    Raises:
        ServerNotFound: There is no binary to start.
        ServerStartError: It ended or stayed silent, or a file or process could not be had.
        GaveUp: The caller no longer wants it; nothing is left behind.
    """
    try:
        if options.data_dir is None:
            return _start(options, patience, None)
        return _start_or_attach(options, patience, DataDir(options.data_dir))
    except OSError as error:
        raise ServerStartError(f"the embedded server could not be started: {error}") from error


def _start_or_attach(options: Options, patience: Patience, data: DataDir) -> Hold:
    while True:
        lock = data.try_lock()
        if lock is not None:
            try:
                return _start(options, patience, lock)
            finally:
                lock.close()
        if hold := _attach(options, patience, data):
            return hold
        # The owner is just starting or just ending: no address yet, or one that is no longer good.
        try:
            patience.nap()
        except TimeIsUp:
            raise ServerStartError(_unreachable(data)) from None


def _unreachable(data: DataDir) -> str:
    return (
        f"the data directory {data.path} is locked by a server that cannot be reached: it belongs to another "
        "user, runs in another container, or did not finish to start or to end in time"
    )


def _start(options: Options, patience: Patience, lock: Lock | None) -> Hold:
    # What takes time comes before the directory is made, which nobody looks after until the supervisor runs.
    binary = find_server_binary()
    load_script()
    for _ in range(PORT_TRIES - 1):
        try:
            return _start_once(options, patience, lock, binary)
        except _PortTaken:
            continue
    return _start_once(options, patience, lock, binary)


def _start_once(options: Options, patience: Patience, lock: Lock | None, binary: Path) -> Hold:
    home = Home.fresh()
    try:
        port = _free_port() if options.tcp else 0
        if port:
            home.set_port(port)
        if lock is not None:
            lock.announce(home)
        command = options.command(binary, home, port)
        line, supervisor = start_supervisor(home, command, lock.descriptor if lock else None)
    except BaseException:
        home.remove()
        raise
    hold = Hold(home, line, supervisor, shared=lock is not None)
    _await_answer_or_release(hold, patience)
    return hold


def _await_answer_or_release(hold: Hold, patience: Patience) -> None:
    try:
        _await_answer(hold, patience)
    except BaseException:
        hold.release()
        raise


def _await_answer(hold: Hold, patience: Patience) -> None:
    home = hold.home
    while not (home.pid is not None and answers(home.socket)):
        if home.exit_code is not None or home.is_gone() or hold.supervisor_ended():
            raise _ended(home)
        try:
            patience.nap()
        except TimeIsUp:
            reason = f"the embedded server did not answer within {patience.seconds:g} seconds"
            raise ServerStartError(reason, home.log_tail(LOG_LINES)) from None


def _ended(home: Home) -> Exception:
    log = home.log_tail(LOG_LINES)
    if home.port is not None and "Address already in use" in log:
        return _PortTaken()
    return ServerStartError("the embedded server ended while it was starting", log, home.exit_code)


def _attach(options: Options, patience: Patience, data: DataDir) -> Hold | None:
    home = data.owner()
    if home is None:
        return None
    try:
        line = LifeLine.join(home, patience)
    except TimeIsUp:
        raise ServerStartError(_unreachable(data)) from None
    if line is None:
        return None
    hold = Hold(home, line, None, shared=True)
    try:
        _await_answer_or_release(hold, patience)
    except (_PortTaken, ServerStartError):
        # It ended while we attached to it. Its own process reports why; we try to start one ourselves.
        if home.exit_code is None and not home.is_gone():
            raise
        return None
    _check_same_reach(options, hold)
    return hold


def _check_same_reach(options: Options, hold: Hold) -> None:
    if options.tcp and hold.home.port is None:
        hold.release()
        raise ServerStartError(
            f"the server of {options.data_dir} was started without tcp=True by another process; use its unix "
            "socket, or start it with tcp=True everywhere"
        )


def _free_port() -> int:
    # Free now; somebody may take it before the server does, which `_PortTaken` is for.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
