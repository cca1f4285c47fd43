"""The command line itself: its commands, its help, its version."""

from __future__ import annotations

import click

import aioreactor
from aioreactor.cli.check import check
from aioreactor.cli.demo.command import demo
from aioreactor.cli.graph import graph
from aioreactor.cli.locks import locks
from aioreactor.cli.output import EXIT_CODES
from aioreactor.cli.sweep import sweep
from aioreactor.cli.worker import worker

_EPILOG = f"""{EXIT_CODES}
\b
Completion, for bash (zsh and fish likewise), in ~/.bashrc:
  eval "$(_AIOREACTOR_COMPLETE=bash_source aioreactor)"
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(aioreactor.__version__, prog_name="aioreactor")
def cli() -> None:
    """Workflows on asyncio: try them, draw them, check them.

    Begin with: aioreactor demo
    """


for _command in (demo, graph, check, worker, sweep, locks):
    cli.add_command(_command)
