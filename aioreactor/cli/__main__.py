"""Entry point of the ``aioreactor`` command. Imports click and rich only inside, to say what to install."""

from __future__ import annotations

import sys
from typing import NoReturn, TextIO

_NEEDED = frozenset({"click", "rich"})


def main() -> NoReturn:
    """Run the command line and exit with its code; 2 when click or rich are not installed."""
    try:
        from aioreactor.cli.app import cli
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.exit(_explain(missing))
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_encoding(stream)
    cli(prog_name="aioreactor")
    sys.exit(0)  # unreachable: click exits itself; says so to a reader and a type checker


def _explain(missing: str) -> int:
    sys.stderr.write(f'aioreactor: {missing} is not installed; pip install "aioreactor[cli]"\n')
    return 2


def _never_fail_on_encoding(stream: TextIO) -> None:
    """A terminal that cannot show a character gets a question mark instead of a traceback."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


if __name__ == "__main__":
    main()
